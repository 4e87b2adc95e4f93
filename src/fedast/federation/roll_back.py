"""Going back to a task's last good version.

The good version becomes a new one, so versions only ever grow. An algorithm counts rounds and
knows nothing of this: from a roll-back on, a task's version is its round plus the number of its
roll-backs so far. Updates that the algorithm still holds are void; the learner leaves them out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, final

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.federation.guard import Guard, Remedy, Verdict


class ReversibleLearner(Protocol):
    """A learner that can go back. None of this needs tensors to be in place: a replay does it too,
    before they are."""

    def version(self, task: TaskName) -> Version: ...

    def keep(self, task: TaskName) -> None:
        """Keep the newest version, with the server optimizer's memory, until it is judged."""
        ...

    def judged(self, task: TaskName, version: Version, *, good: bool) -> None:
        """A version was judged. If good, it is the one to go back to from now on."""
        ...

    def roll_back(
        self, task: TaskName, void: Collection[RequestId], suspects: Collection[ClientId]
    ) -> Version:
        """Make the good version the newest, and forget what suspects sent; the version that it
        had. ``void`` updates are left out when they are aggregated."""
        ...


@dataclass(frozen=True, slots=True)
class RollBack:
    task: TaskName
    version: Version
    """The new version."""
    back_to: Version
    why: str
    suspects: tuple[tuple[RequestId, ClientId], ...]
    """Updates in the versions that were undone, and who sent them."""


@final
class RollBacks:
    def __init__(
        self, guard: Guard | None = None, learner: ReversibleLearner | None = None
    ) -> None:
        """Without a guard and a learner that can go back, it only passes rounds through."""
        self._guard = guard
        self._learner = learner
        self.on = False
        """Whether models are guarded: not in logs of versions that could not do it."""
        self._done: dict[TaskName, int] = {}
        self._held: dict[TaskName, dict[RequestId, ClientId]] = {}
        """Updates that were accepted and not aggregated yet."""
        self._since: dict[TaskName, list[tuple[Version, RequestId, ClientId]]] = {}
        """Updates in versions after the good one."""
        self._notices: list[RollBack] = []

    def begin(self) -> None:
        """Guard models from now on; the present versions are the first to go back to."""
        if self._learner is None or self._guard is None or self.on:
            return
        self.on = True
        for task in self._guard.tasks:
            self._learner.keep(task)
            self._learner.judged(task, self._learner.version(task), good=True)

    def count(self, task: TaskName) -> int:
        return self._done.get(task, 0)

    def version(self, task: TaskName, round_: Version) -> Version:
        return round_ + self.count(task)

    def accepted(self, task: TaskName, request: RequestId, client: ClientId) -> None:
        if self.on:
            self._held.setdefault(task, {})[request] = client

    def dropped(self, task: TaskName, request: RequestId) -> None:
        self._held.get(task, {}).pop(request, None)

    def aggregated(self, task: TaskName, round_: Version, requests: Collection[RequestId]) -> None:
        if self.on:
            held = self._held.get(task, {})
            version = self.version(task, round_)
            self._since.setdefault(task, []).extend(
                (version, request, held.pop(request)) for request in requests if request in held
            )

    def keep(self, task: TaskName) -> None:
        if self.on and self._learner is not None:
            self._learner.keep(task)

    def is_bad(self, task: TaskName, metric: float, loss: float) -> bool:
        """Whether this evaluation would lead to a roll-back."""
        return self.on and self._guard is not None and self._guard.is_bad(task, metric, loss)

    def judge(self, task: TaskName, version: Version, metric: float, loss: float) -> bool:
        """Whether a version with this evaluation is bad."""
        if not self.on or self._guard is None or self._learner is None:
            return False
        verdict = self._guard.judge(task, version, metric, loss)
        good = verdict is Verdict.GOOD
        self._learner.judged(task, version, good=good)
        if good:
            since = self._since.get(task, [])
            self._since[task] = [entry for entry in since if entry[0] > version]
        return verdict is Verdict.BAD

    def good(self, task: TaskName) -> tuple[float, float]:
        """Metric and loss of the version to go back to."""
        assert self._guard is not None
        return self._guard.good(task)

    def answered(
        self, task: TaskName, version: Version, client: ClientId, *, valid: bool, clients: int
    ) -> Remedy:
        """A client answered a request for this version; what to do about the model."""
        if not self.on or self._guard is None:
            return Remedy.NONE
        return self._guard.answered(task, version, client, valid=valid, clients=clients)

    def roll_back(self, task: TaskName, why: str) -> None:
        assert self._guard is not None
        assert self._learner is not None
        held = self._held.pop(task, {})
        undone = [(request, client) for _, request, client in self._since.pop(task, [])]
        suspects = (*undone, *held.items())
        back_to = self._learner.roll_back(task, held, {client for _, client in suspects})
        version = self._learner.version(task)
        self._guard.rolled_back(task, version)
        self._done[task] = self.count(task) + 1
        self._notices.append(RollBack(task, version, back_to, why, suspects))

    def take_notices(self) -> list[RollBack]:
        """What was rolled back since this was last asked."""
        notices, self._notices = self._notices, []
        return notices

    def take_due(self) -> list[ClientId]:
        """Clients whose strikes were held back and are now due."""
        return [] if self._guard is None else self._guard.take_due()
