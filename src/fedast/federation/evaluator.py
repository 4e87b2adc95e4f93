"""The server's side of federated evaluation: asking clients, and recording what they find.

An answer is checked against what the task's metric can be and weighs no more than the client's data
(``pooling``). A result that would end the task or undo training is asked for once more, from
clients that were not asked before; if these disagree, the median of all answers counts. So a few
clients can neither decide that by themselves nor prevent it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from fedast.core.protocol import ClientId, TaskName, Version
from fedast.federation import wire
from fedast.federation.evaluation import Answered, FederatedEvaluation, Key
from fedast.federation.leases import Leases
from fedast.federation.log_events import EvaluationReceived, ModelEvaluated
from fedast.federation.pooling import Answer, Pooled, Pooling, pool, problem
from fedast.federation.publishing import Publisher
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import Uploaded
from fedast.federation.untrusted import printable
from fedast.tasks.metrics import Accuracy, MetricOptions

log = logging.getLogger("fedast.server")
_MAJORITY = 3
"""How many answers it takes for one liar not to decide the median."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the server knows about the evaluation of a task."""

    metric: MetricOptions = field(default_factory=Accuracy)
    reached: Callable[[float], bool] = lambda metric: False
    """Whether a metric is at the task's target."""
    sizes: Sequence[int] = ()
    """Samples of each client; for other clients, what they say when they greet."""


@dataclass(frozen=True, slots=True)
class _First:
    """A result that waits for others to confirm it, and what it was made of."""

    pooled: Pooled
    would: str
    answers: Mapping[ClientId, Answer]


@final
class Evaluator:
    def __init__(
        self,
        *,
        evaluation: FederatedEvaluation,
        state: ServerState,
        publisher: Publisher,
        leases: Leases,
        recorder: Recorder,
        measured: Mapping[TaskName, Measured],
        pooling: Pooling,
    ) -> None:
        self._evaluation = evaluation
        self._state = state
        self._publisher = publisher
        self._leases = leases
        self._recorder = recorder
        self._measured = measured
        self._pooling = pooling
        self._greeted: dict[tuple[ClientId, TaskName], int] = {}
        """How many samples clients said they have, when they first did."""
        self._first: dict[Key, _First] = {}
        self._averaging: set[TaskName] = set()
        """Tasks for which the log already says that their metric is averaged, not pooled."""

    def greeted(self, hello: wire.Hello) -> None:
        """Note what a client says about its data."""
        for task, samples in zip(hello.tasks, hello.samples_of_tasks or (), strict=False):
            if task in self._measured:
                self._greeted.setdefault((hello.client, task), samples)

    async def ask(self, task: TaskName, version: Version) -> None:
        """Have clients evaluate this model, unless nobody needs it or nobody is connected."""
        if (task, version) not in self._state.driver.asked:
            return
        await self._publisher.publish(task, version)  # while this version is the newest
        clients = self._state.pool.everyone()
        first = self._first.get((task, version))
        if first is not None:
            clients = [client for client in clients if client not in first.answers]
            if not clients:  # whoever could have confirmed it has left
                await self._record((task, version), first.pooled)
                return
        if clients:  # else it is asked for again later
            tokens = self._evaluation.ask((task, version), clients, self._recorder.now)
            await self._publisher.send_evaluation(task, version, tokens)

    async def ask_again(self) -> None:
        """Ask again for evaluations that nobody is working on."""
        for key in list(self._state.driver.asked):
            if self._evaluation.may_ask(key, self._recorder.now):
                await self.ask(*key)

    def expects(self, upload: Uploaded) -> bool:
        """Whether it answers a question that this client was asked."""
        return self._evaluation.about(upload.client, upload.name.rpartition("-")[2]) is not None

    async def answered(self, upload: Uploaded) -> bool:
        """A client's expected answer has arrived, or notice that none will come; returns whether
        the client failed. ``WireError`` if it is not a valid answer. ``close`` has to follow."""
        client, token = upload.client, upload.name.rpartition("-")[2]
        key = self._evaluation.about(client, token)
        assert key is not None
        why = upload.failed
        if why is None:
            why = self._take(key, client, token, upload)
        self._recorder.note(EvaluationReceived(upload.sequence))
        if why is not None:
            log.warning("client %d did not evaluate %s: %s", client, key[0], printable(why))
            self._evaluation.give_up(key, client)
        return upload.blame

    def _take(self, key: Key, client: ClientId, token: str, upload: Uploaded) -> str | None:
        """Count an answer; returns why the client could not give one, if so."""
        try:
            update = wire.decode_upload(upload.data, upload.oversized)
            if (update.task, update.request) != key or update.token != token:
                raise wire.WireError("it was uploaded under the name of another evaluation")
            if update.metric is None:
                self._leases.seen(client, self._recorder.now)
                return update.failed or "it sent no metric"
            samples = min(update.samples, self._size(key[0], client))
            answer = Answer(update.metric, update.loss, samples, update.means)
            wrong = problem(answer, self._measured[key[0]].metric)
            if wrong is not None:
                raise wire.WireError(f"its evaluation of {key[0]} is not valid: {wrong}")
        except wire.WireError:
            self._evaluation.give_up(key, client)
            raise
        self._leases.seen(client, self._recorder.now)
        self._evaluation.answer(key, client, answer)
        return None

    def _size(self, task: TaskName, client: ClientId) -> int:
        """The most samples that this client can have measured on."""
        sizes = self._measured[task].sizes
        if client < len(sizes):
            return sizes[client]
        return self._greeted.get((client, task), wire.MAX_SAMPLES)

    def pass_time(self) -> None:
        self._evaluation.pass_time(self._recorder.now, self._state.pool.here)

    async def close(self) -> None:
        """Record the results of evaluations that are complete."""
        for answered in self._evaluation.close(self._recorder.now):
            await self._conclude(answered)

    async def _conclude(self, answered: Answered) -> None:
        """Record a result, or have others confirm it first."""
        key = task, version = answered.key
        measured = self._measured[task]
        found = pool(answered.answers.values(), measured.metric, self._pooling)
        if found.averaged and task not in self._averaging:
            self._averaging.add(task)
            log.warning(
                "%s: its %s is the weighted mean over clients, which for a metric that is not a "
                "mean is only an estimate: some clients do not send what it is made of; upgrade "
                "them", task, measured.metric.name,
            )  # fmt: skip
        first = self._first.get(key)
        would = self._would(task, found)
        if first is not None:
            found = self._confirmed(measured, first, would, found, answered.answers)
        elif would is not None and any(
            client not in answered.answers for client in self._state.pool.everyone()
        ):
            log.info("%s: others are asked to confirm the evaluation of version %d", *key)
            self._first[key] = _First(found, would, answered.answers)
            await self.ask(task, version)
            return
        await self._record(key, found)

    def _confirmed(
        self,
        measured: Measured,
        first: _First,
        would: str | None,
        found: Pooled,
        answers: Mapping[ClientId, Answer],
    ) -> Pooled:
        """What two sets of clients say together. If they disagree, somebody may be lying, in
        either, so the median over all of them counts: a liar can neither decide nor prevent it."""
        both = {**first.answers, **answers}.values()
        if would == first.would:
            return pool(both, measured.metric, self._pooling)
        return pool(both, measured.metric, "median") if len(both) >= _MAJORITY else found

    async def _record(self, key: Key, found: Pooled) -> None:
        self._first.pop(key, None)
        await self._recorder.record(
            ModelEvaluated(*key, found.metric, found.loss, found.median_metric, found.median_loss)
        )

    def _would(self, task: TaskName, found: Pooled) -> str | None:
        """What it would do: end the task, or undo training."""
        if self._measured[task].reached(found.metric):
            return "end"
        bad = self._state.driver.roll_backs.is_bad(task, found.median_metric, found.median_loss)
        return "undo" if bad or not math.isfinite(found.metric) else None
