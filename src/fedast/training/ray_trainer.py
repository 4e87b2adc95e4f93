"""Local training in actors of a Ray cluster.

An update depends on its job alone: the base model, the client's data, the request's random stream.
So it makes no difference which actor trains it, when, or how often one has died over it, and the
trainer starts jobs before they are wanted: ``plan`` is told all that are open, of all tasks, and
actors always have the next ones waiting. What an actor had when it died goes to another.

One after another (``together = False``), jobs are handed out in any portions. Together, clients of
one task are a batch, and rounding may depend on a batch's size; so batches are made of the jobs in
the order of their requests, and never depend on how fast actors are.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from fedast.core.protocol import RequestId, TaskName
from fedast.tasks.task import TrainingFailed
from fedast.training.nodes import Facts, my_facts, problems
from fedast.training.ray_connection import check_nodes, connect, last_line, require_ray
from fedast.training.ray_versions import Head, SentVersions, full, gone, reason, stored
from fedast.training.ray_worker import Piece, Post, Settings, Sheet, TrainingActor, unpacked
from fedast.training.trainer import DeviceTask, Job, Update

_log = logging.getLogger(__name__)

_AHEAD = 2
"""Messages that an actor has at a time: one in work, one waiting."""
_TRIES = 10
"""A unit whose actor is lost so many times has failed: perhaps it is what kills them."""
_FAILURES = 20
"""So many actors in a row may die while they start."""
_PATIENCE = 600.0
"""Seconds without any actor, after which the cluster is taken to have no room."""

_Key: TypeAlias = tuple[TaskName, RequestId, int, int, int]


@final
class _Unit:
    """Jobs that are trained together (one, mostly), or a piece of other work."""

    __slots__ = ("found", "jobs", "piece", "task", "tries", "waiting", "wanted")

    def __init__(self, task: TaskName, jobs: Sequence[tuple[_Key, Job]], piece: Any = None) -> None:
        self.task = task
        self.jobs = list(jobs)
        self.piece = piece
        """(base number, function, what)"""
        self.waiting = True
        self.wanted: set[_Key] = {key for key, _ in jobs}
        self.tries = 0
        self.found: Any = None
        """Updates by key, what the piece gave, or the error."""


@final
class _Hand:
    """The driver's side of an actor."""

    __slots__ = ("actor", "has", "messages")

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.has: set[int] = set()
        self.messages = 0


@final
class RayTrainer:
    def __init__(
        self,
        device_tasks: Mapping[TaskName, DeviceTask],
        seed: int,
        *,
        cluster: str | None = None,
        actors: int | None = None,
        shard: int = 4,
        gpus: float = 0.0,
        together: bool = False,
        allow_mixed: bool = False,
        precision: Any = "fp32",
    ) -> None:
        require_ray()
        connect(cluster)
        import ray

        check_nodes(allow_mixed, gpus=gpus > 0, where="compute.trainer")
        self._ray, self._errors = ray, ray.exceptions
        self._device_tasks = device_tasks
        self._shard = shard
        self._together = together
        self._gpus = gpus
        self._mixed = allow_mixed
        self._facts: dict[str, Facts | str] = {}
        if actors is None:
            offers = ray.cluster_resources()
            actors = int(offers.get("GPU", 0) / gpus) if gpus else int(offers.get("CPU", 1))
        settings = Settings(seed, "cuda" if gpus else "cpu", shard if together else None, precision)
        self._kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(TrainingActor)
        tasks = {name: device_task.task for name, device_task in device_tasks.items()}
        self._versions = SentVersions()
        self._given = stored(tasks), stored(settings)
        self._hands: list[_Hand] = []
        self._starting: dict[Any, Any] = {}
        """Actors that there was no room for yet, by what is there when they have started."""
        self._running: dict[Any, tuple[_Hand, list[_Unit]]] = {}
        self._queue: deque[_Unit] = deque()
        self._front: deque[_Unit] = deque()
        """Units that somebody is waiting for."""
        self._units: dict[_Key, _Unit] = {}
        self._open: dict[TaskName, list[tuple[_Key, Job]]] = {name: [] for name in device_tasks}
        """Batches that are not full yet."""
        self._alone = time.monotonic()
        self._head = Head()
        self._failures = 0
        self.sent = {"versions": 0, "messages": 0}
        """How many went to actors so far."""
        for _ in range(max(1, actors)):
            self._start()

    # What a learner asks.

    def limit(self, task: TaskName) -> int:
        return self._shard * 16

    def ahead(self, task: TaskName) -> bool:
        return True

    def plan(self, jobs: Sequence[tuple[TaskName, Job]]) -> None:
        keyed = [(self._key(task, job), task, job) for task, job in jobs]
        still = {key for key, _, _ in keyed}
        for key in self._units.keys() - still:
            self._forget(key)
        for name, group in self._open.items():
            self._open[name] = [(key, job) for key, job in group if key in still]
        grouped = {key for group in self._open.values() for key, _ in group}
        for key, task, job in sorted(keyed, key=lambda entry: entry[2].request):
            if key in self._units or key in grouped:
                continue
            if self._together:
                self._open[task].append((key, job))
                if len(self._open[task]) == self._shard:
                    self._close_batch(task)
            else:
                self._add(_Unit(task, [(key, job)]))
        self._prune()
        self._step(timeout=0)

    def bound(self, task: TaskName) -> list[RequestId]:
        """Requests whose batches are made, so that a later batch must not have them."""
        if not self._together:
            return []
        return [key[1] for key in self._units if key[0] == task]

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        keys = [self._key(task, job) for job in jobs]
        if any(key in keys for key, _ in self._open[task]):
            self._close_batch(task)
        new = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self._units}
        size = self._shard if self._together else 1
        entries = list(new.items())
        for start in range(0, len(entries), size):
            self._add(_Unit(task, entries[start : start + size]))
        self._wait([self._units[key] for key in dict.fromkeys(keys)])
        updates = {}
        for key in dict.fromkeys(keys):
            unit = self._units[key]
            if isinstance(unit.found, TrainingFailed):
                raise unit.found
            updates[key] = unit.found[key]
        for key in updates:
            self._forget(key)
        self._prune()
        return [updates[key] for key in keys]

    def spread(
        self, task: TaskName, model: torch.Tensor, function: Piece, pieces: Sequence[Any]
    ) -> list[Any]:
        base = self._versions.number(model)
        units = [_Unit(task, (), (base, function, what)) for what in pieces]
        self._queue.extend(units)
        self._wait(units)
        for unit in units:
            if isinstance(unit.found, TrainingFailed):
                raise unit.found
        return [unit.found for unit in units]

    def close(self) -> None:
        if self._ray.is_initialized():
            for actor in (*(hand.actor for hand in self._hands), *self._starting.values()):
                self._ray.kill(actor)
        self._hands, self._starting = [], {}
        self._versions.clear()

    # Units.

    def _key(self, task: TaskName, job: Job) -> _Key:
        return task, job.request, job.client, job.version, self._versions.number(job.base)

    def _add(self, unit: _Unit) -> None:
        for key, _ in unit.jobs:
            self._units[key] = unit
        self._queue.append(unit)

    def _close_batch(self, task: TaskName) -> None:
        self._add(_Unit(task, self._open[task]))
        self._open[task] = []

    def _forget(self, key: _Key) -> None:
        unit = self._units.pop(key)
        unit.wanted.discard(key)  # (what nobody wants is not sent)

    def _prune(self) -> None:
        """Forget the versions that no job needs."""
        needed = {key[4] for unit in self._units.values() for key, _ in unit.jobs}
        needed |= {key[4] for group in self._open.values() for key, _ in group}
        for _, units in self._running.values():
            needed |= {unit.piece[0] for unit in units if unit.piece}
        self._versions.prune(needed)

    def _wait(self, units: Iterable[_Unit]) -> None:
        left = [unit for unit in units if unit.found is None]
        self._front.extend(unit for unit in left if unit.waiting)
        while left:
            self._step(timeout=5.0)
            left = [unit for unit in left if unit.found is None]

    # Messages.

    def _step(self, *, timeout: float) -> None:
        """Keep every actor busy, and take what has come back."""
        try:
            self._fill()
            expected = [*self._running, *self._starting]
            if not expected:
                return
            self._ray.wait(expected, num_returns=1, timeout=timeout)
            ready, _ = self._ray.wait(expected, num_returns=len(expected), timeout=0)
            for reference in ready:
                if reference in self._starting:
                    self._has_started(reference)
                else:
                    self._came_back(reference)
            if ready:
                self._fill()
            elif timeout > 0:
                self._head.check()
        except (self._errors.RaySystemError, self._errors.RpcError, ConnectionError) as error:
            raise gone(reason(error)) from None
        if self._hands:
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > _PATIENCE:
            raise TrainingFailed(
                f"no actor could start for {_PATIENCE / 60:g} minutes: the cluster has no free "
                f"core{' and GPU' if self._gpus else ''}; fedast cluster check says what it has"
            )

    def _fill(self) -> None:
        for most in range(_AHEAD):
            for hand in self._hands:
                if hand.messages == most:
                    units = self._portion()
                    if not units:
                        return
                    self._send(hand, units)

    def _portion(self) -> list[_Unit]:
        """The next units for an actor: fewer at a time when few are left, so that all have some."""
        size = 1
        if not self._together:
            places = len(self._hands) * (1 if self._front else _AHEAD)
            size = max(1, min(self._shard, len(self._front or self._queue) // places))
        portion: list[_Unit] = []
        while len(portion) < size and (self._front or self._queue):
            unit = (self._front or self._queue).popleft()
            if not unit.waiting or not (unit.wanted or unit.piece):
                continue
            if (unit.piece or unit.tries) and portion:
                self._front.appendleft(unit)
                break
            unit.waiting = False
            portion.append(unit)
            if unit.piece or unit.tries:  # what may have killed an actor is alone with the next
                break
        return portion

    def _send(self, hand: _Hand, units: list[_Unit]) -> None:
        if units[0].piece:
            needed = {units[0].piece[0]}
        else:
            needed = {key[4] for unit in units for key, _ in unit.jobs}
        new = tuple(sorted(needed - hand.has))
        forget = tuple(hand.has - self._versions.kept())
        references = [self._versions.reference(number) for number in new]
        hand.has = hand.has - set(forget) | set(new)
        post = Post(new, forget)
        if units[0].piece:
            base, function, what = units[0].piece
            reference = hand.actor.call.remote(
                units[0].task, base, function, what, post, *references
            )
        else:
            sheets = [
                Sheet(unit.task, tuple(_row(*entry) for entry in unit.jobs)) for unit in units
            ]
            reference = hand.actor.train.remote(sheets, post, *references)
        hand.messages += 1
        self._running[reference] = hand, units
        self.sent["versions"] += len(new)
        self.sent["messages"] += 1

    def _came_back(self, reference: Any) -> None:
        hand, units = self._running.pop(reference)
        hand.messages -= 1
        errors = self._errors
        try:
            found = self._ray.get(reference)
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise full(error) from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.ObjectStoreFullError | errors.OutOfDiskError):
                raise full(error.cause) from None
            for unit in units:
                unit.found = TrainingFailed(f"task {unit.task}: {error.cause or last_line(error)}")
            return
        except errors.RayError as error:
            self._lost(hand, units, error)
            return
        if units[0].piece:
            units[0].found = found
            return
        for unit, vector in zip(units, found, strict=True):
            if isinstance(vector, str):
                unit.found = TrainingFailed(f"request {unit.jobs[0][1].request}: {vector}")
            elif unit.wanted:
                updates = unpacked(vector, self._device_tasks[unit.task], len(unit.jobs))
                keys = [key for key, _ in unit.jobs]
                unit.found = dict(zip(keys, updates, strict=True))

    def _lost(self, hand: _Hand, units: list[_Unit], error: Exception) -> None:
        """An actor is gone, or what it returned: its units are trained again by another."""
        for unit in reversed(units):
            unit.tries += 1
            if unit.tries >= _TRIES:
                what = f"request {unit.jobs[0][1].request}" if unit.jobs else "an evaluation"
                unit.found = TrainingFailed(
                    f"{what}: Ray lost its actor {_TRIES} times ({reason(error)})"
                )
            else:
                unit.waiting = True
                self._front.appendleft(unit)
        if hand in self._hands:  # its other message comes back in the same way
            _log.warning("an actor of Ray is lost (%s); another one trains", reason(error))
            self._hands.remove(hand)
            self._ray.kill(hand.actor)
            self._start()

    # Actors.

    def _start(self) -> None:
        actor = self._kind.remote(*self._given)
        self._starting[actor.ready.remote()] = actor

    def _has_started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            facts = self._ray.get(reference)
        except self._errors.RayTaskError as error:
            raise TrainingFailed(f"an actor cannot start: {last_line(error)}") from None
        except self._errors.RayError as error:
            self._failures += 1
            wrong = error.__cause__ is not None or "creation task" in str(error).lower()
            if wrong or self._failures > _FAILURES:
                raise TrainingFailed(f"an actor cannot start: {last_line(error)}") from None
            self._start()  # its process died
            return
        self._failures = 0
        # (The node may have joined the cluster after the others were asked.)
        name = f"of actor {len(self._facts) + 1}"
        nodes = {**self._facts, name: facts}
        found = problems(my_facts(), nodes, allow_mixed=self._mixed, gpus=self._gpus > 0)
        if found:
            self._ray.kill(actor)
            if not self._hands and not self._starting:
                raise TrainingFailed(found[0])
            _log.warning("an actor is not used: %s", found[0])
            return
        self._facts = nodes
        self._hands.append(_Hand(actor))


def _row(key: _Key, job: Job) -> tuple[RequestId, int, int, int]:
    return job.request, job.client, job.version, key[4]
