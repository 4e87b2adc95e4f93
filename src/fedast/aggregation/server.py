"""One task's server side: its updates in, its model's next step out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch

from fedast.aggregation.aggregators import clipped
from fedast.aggregation.calibration import Calibrator
from fedast.aggregation.rate_control import RateController
from fedast.aggregation.running_statistics import mixed, share_of
from fedast.aggregation.settings import ServerSide
from fedast.core.protocol import ClientId


@final
class Server:
    """The server side of one task at work."""

    def __init__(
        self,
        settings: ServerSide,
        *,
        lr: float,
        scale: float,
        initial: torch.Tensor,
        trained: int,
        clients: int,
    ) -> None:
        """``initial`` are the model's parameters, of which SGD trains the first ``trained``;
        ``scale`` (eta_c tau) turns a mean gradient into what a client's model moved."""
        self._clip = settings.aggregator.clip
        self._aggregate = settings.aggregator.build()
        self._share = share_of(settings.optimizer, lr)
        self._optimizer = settings.optimizer.build(initial, trained, lr=lr, scale=scale)
        self.calibrator: Calibrator | None = None
        if settings.calibration.use != "never":
            self.calibrator = Calibrator(settings.calibration, clients, initial)
        self._control: RateController | None = None
        if settings.rate_control.use == "always":
            self._control = RateController(settings.rate_control, initial, trained)

    def step(
        self,
        clients: Sequence[ClientId],
        updates: torch.Tensor,
        weights: Sequence[float] | None,
        staleness: Sequence[int],
    ) -> torch.Tensor:
        """What to subtract from the parameters for these updates, one per row, given their
        staleness."""
        updates = clipped(self._clip, updates)
        factors = None if weights is None else updates.new_tensor(weights)
        if self.calibrator is not None:
            direction = self.calibrator.direction(clients, updates, factors, self._aggregate)
        else:
            parts = updates if factors is None else updates * factors[:, None]
            direction = self._aggregate(parts)
        step = self._optimizer.step(direction, max(staleness))
        if self._control is not None:
            step = self._control.scale(step, sum(staleness) / len(staleness))
        return step

    def mix(
        self,
        present: torch.Tensor,
        sent: Sequence[torch.Tensor | None],
        weights: Sequence[float] | None,
    ) -> torch.Tensor:
        """The model's next statistics from those that clients sent, if they did."""
        places = [place for place, values in enumerate(sent) if values is not None]
        if not places:
            return present
        values = torch.stack([values.to(present) for values in sent if values is not None])
        factors = None if weights is None else present.new_tensor([weights[p] for p in places])
        return mixed(self._aggregate, self._share, present, values, factors)

    def memory(self) -> dict[str, torch.Tensor]:
        """What the optimizer remembers, to go back to. (A step replaces these tensors; it does not
        change them.)"""
        return dict(self._optimizer.state())

    def go_back(self, memory: Mapping[str, torch.Tensor], suspects: Collection[ClientId]) -> None:
        """Remember what ``memory`` gave, and nothing of what these clients sent."""
        self._optimizer.restore(memory)
        if self.calibrator is not None:
            self.calibrator.forget(suspects)

    def state(self) -> dict[str, torch.Tensor]:
        state = {f"step.{name}": value for name, value in self._optimizer.state().items()}
        if self.calibrator is not None:
            cached = self.calibrator.state()
            state |= {f"calibration.{name}": value for name, value in cached.items()}
        if self._control is not None:
            control = self._control.state()
            state |= {f"rate_control.{name}": value for name, value in control.items()}
        return state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._optimizer.restore(_under("step.", state))
        if self.calibrator is not None:
            self.calibrator.restore(_under("calibration.", state))
        if self._control is not None:
            self._control.restore(_under("rate_control.", state))


def _under(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
