"""How large an update's norm may be: a bound for each task, from what clients have sent lately.

The bound is a multiple of the median over clients, where each counts once, with the norm of its
latest update. Refused updates count too. So less than half of the clients can neither raise the
bound nor lower it for long, however often they answer, and if the honest norms change for good,
the bound follows. Two cases are not left to the median:

- An update that moves a client's model by less than a tenth of the model's own norm is never
  refused. When most clients have learned all they can, the median is nearly zero, and a client
  with new samples must not be refused for that.
- Before three different clients have answered there is no majority to trust. Until then an update
  may move a client's model by three times the model's own norm. Whoever is refused gets no strike:
  a model that begins at zero may honestly move further. (If there are only one or two clients, each
  can lift the bound by having been refused once; otherwise nothing would ever be learned.)

The windows are part of the server's state: ``state.apply`` fills them from the write-ahead log.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias, final

from fedast.core.protocol import ClientId, TaskName

NormBound: TypeAlias = float | Literal["adaptive"] | None
"""A number, a multiple of the median, or none."""
NORM_FACTOR = 50.0
"""The longest honest update in benchmarks/honest_norms.py was 27 medians long."""
_WINDOW = 100
"""Clients whose latest norms count."""
_QUORUM = 3
"""Among fewer clients, one could be the majority."""
_START = 3.0
"""How far, in its own norm, a model may be moved before there is a median."""
_HARMLESS = 0.1
"""The part of its own norm by which a model may always be moved."""


@dataclass(frozen=True, slots=True)
class Bound:
    limit: float
    settled: bool
    """Whether enough clients have answered to blame one that exceeds it."""
    why: str
    """Where the limit comes from, for a message."""


@final
class NormBounds:
    """The bounds of one kind of norm, for every task."""

    def __init__(self, setting: NormBound, factor: float) -> None:
        self._setting = setting
        self._factor = factor
        self._heard: dict[TaskName, OrderedDict[ClientId, float]] = {}

    def heard(self, task: TaskName, client: ClientId, norm: float) -> None:
        """A client has sent an update of this norm, whether or not it was accepted."""
        window = self._heard.setdefault(task, OrderedDict())
        window[client] = norm
        window.move_to_end(client)
        if len(window) > _WINDOW:
            window.popitem(last=False)

    def median(self, task: TaskName) -> float | None:
        """Over the clients that have answered; None if they are too few."""
        window = self._heard.get(task, OrderedDict())
        return median(window.values()) if len(window) >= _QUORUM else None

    def bound(self, task: TaskName, own: float, clients: int) -> Bound | None:
        """``own``: the norm of an update that moves a client's model by the model's own norm;
        ``clients``: how many there are now. None: there is no bound."""
        if self._setting is None:
            return None
        if isinstance(self._setting, float | int):
            return Bound(float(self._setting), True, "norm_bound")
        typical = self.median(task)
        if typical is not None:
            limit = max(self._factor * typical, _HARMLESS * own)
            return Bound(limit, True, f"{self._factor:g} times the median over clients")
        window = self._heard.get(task, OrderedDict())
        limit = _START * own
        if clients < _QUORUM:
            limit = max(limit, self._factor * max(window.values(), default=0.0))
        return Bound(
            limit, False, "three times the model's own norm, until three clients were heard"
        )


@final
class Norms:
    """What clients have sent: the norms of their updates, and how far from the server's the buffers
    (running statistics) were that they sent with them."""

    def __init__(self, setting: NormBound, factor: float) -> None:
        self.updates = NormBounds(setting, factor)
        self.buffers = NormBounds(None if setting is None else "adaptive", factor)

    def heard(
        self, task: TaskName, client: ClientId, norm: float | None, spread: float | None
    ) -> None:
        if norm is not None:
            self.updates.heard(task, client, norm)
        if spread is not None:
            self.buffers.heard(task, client, spread)
