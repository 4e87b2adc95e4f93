"""Whether a task's model is good, and who is to blame for a bad answer.

An evaluation is bad, and the model is rolled back to its last good version, if

- its metric or loss is not finite, or its loss is more than 1,000 times that of the worst good
  evaluation, which includes the untrained model; or
- the model is dead: after the loss had fallen below 0.7 of the untrained model's, metric and loss
  are no better than the untrained model's for three evaluations in a row.

Honest training is far from either: losses that rise a thousandfold are arithmetic that overflows,
and a dip, however deep, is over by the next evaluation or the one after. Versions to go back to are
those whose loss or metric is in the better half of what the task has been through, so that a model
that is already getting worse is not one of them. If the task has gone back three times without ever
getting better than before, the training itself diverges; then it is not rolled back any more, and a
loss that is not finite ends it.

An update that is not finite or far too large may be the fault of the model that the client was
given. It is the client's fault if that version, or a later one, was evaluated as good, or if two
other clients sent valid updates for it. If most clients (or ten of them) answer like that, and more
than send valid updates, it is the model's fault: it is rolled back, and nobody gets a strike. Until
one of the two is known, the strike is held back.

This is pure bookkeeping, driven by logged events alone, so a replay reaches the same verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from fedast.core.protocol import ClientId, TaskName, Version

_EXPLODED = 1000.0
_LEARNT = 0.7
_DEAD_FOR = 3
_ROLL_BACKS = 3
_WITNESSES = 2
_ACCUSERS = 10


class Verdict(StrEnum):
    GOOD = "good"
    """A version to go back to."""
    DOUBTFUL = "doubtful"
    """Neither good enough for that nor bad."""
    BAD = "bad"


class Remedy(StrEnum):
    """What to do about a model that clients cannot train."""

    NONE = "none"
    ROLL_BACK = "roll back"
    END = "end"
    """It has been rolled back before, and that did not help."""


@dataclass
class _Task:
    first: tuple[float, float] | None = None
    """Metric and loss of the first evaluation, usually the untrained model's."""
    latest: tuple[float, float] = (math.nan, math.nan)
    """Of the last good evaluation."""
    best_metric: float = math.nan
    best_loss: float = math.inf
    worst_loss: float = 0.0
    dead: int = 0
    """Evaluations in a row that look like an untrained model."""
    roll_backs: int = 0
    """Since the loss was last the best so far."""
    proven: Version = -1
    """The newest version that was evaluated as good."""
    answers: dict[ClientId, tuple[Version, bool]] = field(default_factory=dict)
    """The version of each client's latest answer, and whether it was valid."""
    wrong: dict[ClientId, Version] = field(default_factory=dict)
    """Those of them that were not."""
    held: list[tuple[ClientId, Version]] = field(default_factory=list)
    """Clients whose strikes are held back, and for which version."""


@final
class Guard:
    def __init__(self, higher_is_better: Mapping[TaskName, bool]) -> None:
        self._higher = dict(higher_is_better)
        self._tasks = {name: _Task() for name in higher_is_better}
        self._due: list[ClientId] = []

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        return tuple(self._tasks)

    # --- evaluations ----------------------------------------------------------------------------

    def is_bad(self, task: TaskName, metric: float, loss: float) -> bool:
        """What ``judge`` would say of this evaluation."""
        about = self._tasks[task]
        if about.first is None or about.roll_backs >= _ROLL_BACKS:
            return False
        if not (math.isfinite(metric) and math.isfinite(loss)):
            return True
        if loss > _EXPLODED * max(about.worst_loss, 1e-12):
            return True
        return self._looks_dead(task, metric, loss) and about.dead + 1 >= _DEAD_FOR

    def judge(self, task: TaskName, version: Version, metric: float, loss: float) -> Verdict:
        """A version was evaluated."""
        about = self._tasks[task]
        if self.is_bad(task, metric, loss):
            return Verdict.BAD
        if not (math.isfinite(metric) and math.isfinite(loss)):
            return Verdict.DOUBTFUL
        if about.first is None:
            about.first, about.best_metric = (metric, loss), metric
        dead = self._looks_dead(task, metric, loss)
        about.dead = about.dead + 1 if dead else 0
        if dead or not self._in_better_half(task, metric, loss):
            return Verdict.DOUBTFUL
        if loss < about.best_loss:
            about.best_loss, about.roll_backs = loss, 0
        if self._better(task, metric, about.best_metric):
            about.best_metric = metric
        about.worst_loss = max(about.worst_loss, abs(loss))
        about.latest = metric, loss
        about.proven = max(about.proven, version)
        self._settle(about)
        return Verdict.GOOD

    def good(self, task: TaskName) -> tuple[float, float]:
        """Metric and loss of the last good evaluation."""
        return self._tasks[task].latest

    def rolled_back(self, task: TaskName, version: Version) -> None:
        """The model was rolled back, as this version: answers about the versions in between no
        longer count."""
        about = self._tasks[task]
        about.dead = 0
        about.proven = version
        about.roll_backs += 1
        about.answers.clear()
        about.wrong.clear()
        about.held.clear()

    def _looks_dead(self, task: TaskName, metric: float, loss: float) -> bool:
        about = self._tasks[task]
        if about.first is None or not about.best_loss < _LEARNT * about.first[1]:
            return False
        return loss >= about.first[1] and not self._better(task, metric, about.first[0])

    def _in_better_half(self, task: TaskName, metric: float, loss: float) -> bool:
        about = self._tasks[task]
        assert about.first is not None
        best_loss = min(about.best_loss, about.first[1])
        middle = (about.first[0] + about.best_metric) / 2
        return loss <= (about.first[1] + best_loss) / 2 or self._better(task, metric, middle)

    def _better(self, task: TaskName, one: float, other: float) -> bool:
        return one > other if self._higher[task] else one < other

    # --- answers of clients ---------------------------------------------------------------------

    def answered(
        self, task: TaskName, version: Version, client: ClientId, *, valid: bool, clients: int
    ) -> Remedy:
        """A client answered a request for this version. ``clients``: how many there are."""
        about = self._tasks[task]
        about.answers[client] = version, valid
        if valid:
            about.wrong.pop(client, None)
        else:
            about.wrong[client] = version
            about.held.append((client, version))
        if about.held:
            self._settle(about, clients)
        wrong = [v for v in about.wrong.values() if v > about.proven]
        if about.first is None or len(wrong) < min(_ACCUSERS, clients // 2 + 1):
            return Remedy.NONE
        if len(wrong) <= sum(ok for v, ok in about.answers.values() if v >= min(wrong)):
            return Remedy.NONE
        return Remedy.END if about.roll_backs >= _ROLL_BACKS else Remedy.ROLL_BACK

    def take_due(self) -> list[ClientId]:
        """Clients that are to blame after all, once for each answer; each is returned only once."""
        due, self._due = self._due, []
        return due

    def _settle(self, about: _Task, clients: int | None = None) -> None:
        """Blame those whose version has turned out to be good."""
        needed = _WITNESSES if clients is None else max(1, min(_WITNESSES, clients - 1))
        still = []
        for client, version in about.held:
            witnesses = sum(
                ok and v >= version for c, (v, ok) in about.answers.items() if c != client
            )
            if version <= about.proven or witnesses >= needed:
                self._due.append(client)
            else:
                still.append((client, version))
        about.held = still
