"""The server's side of federated evaluation: asking clients, and recording what they find."""

from __future__ import annotations

import logging
import math
from typing import final

from fedast.core.protocol import ClientId, TaskName, Version
from fedast.federation import wire
from fedast.federation.evaluation import FederatedEvaluation
from fedast.federation.leases import Leases
from fedast.federation.log_events import EvaluationReceived, ModelEvaluated
from fedast.federation.publishing import Publisher
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import Uploaded
from fedast.federation.untrusted import printable

log = logging.getLogger("fedast.server")


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
    ) -> None:
        self._evaluation = evaluation
        self._state = state
        self._publisher = publisher
        self._leases = leases
        self._recorder = recorder

    async def ask(self, task: TaskName, version: Version) -> None:
        """Have clients evaluate this model, unless nobody needs it or nobody is here."""
        if (task, version) not in self._state.driver.asked:
            return
        await self._publisher.publish(task, version)  # while this version is the newest
        clients = self._state.pool.everyone()
        if clients:  # else it is asked for again later
            token, chosen = self._evaluation.ask((task, version), clients, self._recorder.now)
            await self._publisher.send_evaluation(task, version, token, chosen)

    async def ask_again(self) -> None:
        """Ask anew for evaluations that nobody is working on."""
        for key in list(self._state.driver.asked):
            if self._evaluation.may_ask(key, self._recorder.now):
                await self.ask(*key)

    def expects(self, upload: Uploaded) -> bool:
        """Whether it answers a question that this client was asked."""
        key = self._evaluation.about(upload.name.rpartition("-")[2])
        return key is not None and self._evaluation.waits_for(key, upload.client)

    async def answered(self, upload: Uploaded) -> bool:
        """A client's answer that is expected has arrived, or word that none will come; whether that
        is a failure of the client. ``WireError`` if it is not a valid answer. ``close`` has to
        follow."""
        client, token = upload.client, upload.name.rpartition("-")[2]
        key = self._evaluation.about(token)
        assert key is not None
        problem = upload.failed
        if problem is None:
            problem = self._take(key, client, token, upload)
        self._recorder.note(EvaluationReceived(upload.sequence))
        if problem is not None:
            log.warning("client %d did not evaluate %s: %s", client, key[0], printable(problem))
            self._evaluation.give_up(key, client)
        return upload.blame

    def _take(
        self, key: tuple[TaskName, Version], client: ClientId, token: str, upload: Uploaded
    ) -> str | None:
        """Count an answer; why not, if it does not count."""
        try:
            update = wire.decode_upload(upload.data, upload.oversized)
            if (update.task, update.request) != key or update.token != token:
                raise wire.WireError("it was uploaded under the name of another evaluation")
        except wire.WireError:
            self._evaluation.give_up(key, client)
            raise
        self._leases.seen(client, self._recorder.now)
        metric, loss = update.metric, update.loss
        if metric is None or not math.isfinite(metric + loss) or update.samples <= 0:
            return update.failed or "its metric or loss is missing or not finite"
        self._evaluation.answer(key, client, metric, loss, update.samples)
        return None

    def pass_time(self) -> None:
        self._evaluation.pass_time(self._recorder.now, self._state.pool.here)

    async def close(self) -> None:
        """Record the results of evaluations that are complete."""
        for outcome in self._evaluation.close(self._recorder.now):
            task, version = outcome.key
            await self._recorder.record(ModelEvaluated(task, version, outcome.metric, outcome.loss))
