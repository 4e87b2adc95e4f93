"""One task's server side: its updates in, its model's next step out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch

from fedast.aggregation.aggregators import clipped, combined
from fedast.aggregation.calibration import Calibrator
from fedast.aggregation.running_statistics import mixed, share_of
from fedast.aggregation.server_optimizers import start
from fedast.aggregation.settings import ServerSide
from fedast.core.protocol import ClientId


@final
class Server:
    """The server side of one task at work."""

    def __init__(
        self,
        settings: ServerSide,
        *,
        rate: float,
        scale: float,
        initial: torch.Tensor,
        trained: int,
        clients: int,
    ) -> None:
        """``initial`` are the model's parameters, of which SGD trains the first ``trained``;
        ``scale`` (eta_c tau) turns a mean gradient into what a client's model moved."""
        self._combining = settings.combining
        self._share = share_of(settings.step, rate)
        self._stepper = start(settings.step, initial, trained, rate=rate, scale=scale)
        self.calibrator: Calibrator | None = None
        if settings.calibration.use != "never":
            self.calibrator = Calibrator(settings.calibration, clients, initial)

    def step(
        self,
        clients: Sequence[ClientId],
        updates: torch.Tensor,
        weights: Sequence[float] | None,
        delay: int,
    ) -> torch.Tensor:
        """What to take off the parameters for these updates, one per row."""
        updates = clipped(self._combining, updates)
        factors = None if weights is None else updates.new_tensor(weights)
        if self.calibrator is not None:
            direction = self.calibrator.direction(clients, updates, factors, self._combining)
        else:
            parts = updates if factors is None else updates * factors[:, None]
            direction = combined(self._combining, parts)
        return self._stepper.step(direction, delay)

    def mix(
        self,
        present: torch.Tensor,
        sent: Sequence[torch.Tensor | None],
        weights: Sequence[float] | None,
    ) -> torch.Tensor:
        """The model's next statistics from those that clients sent, as far as they did."""
        places = [place for place, values in enumerate(sent) if values is not None]
        if not places:
            return present
        values = torch.stack([values.to(present) for values in sent if values is not None])
        factors = None if weights is None else present.new_tensor([weights[p] for p in places])
        return mixed(self._combining, self._share, present, values, factors)

    def state(self) -> dict[str, torch.Tensor]:
        state = {f"step.{name}": value for name, value in self._stepper.state().items()}
        if self.calibrator is not None:
            cached = self.calibrator.state()
            state |= {f"calibration.{name}": value for name, value in cached.items()}
        return state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._stepper.restore(_under("step.", state))
        if self.calibrator is not None:
            self.calibrator.restore(_under("calibration.", state))


def _under(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
