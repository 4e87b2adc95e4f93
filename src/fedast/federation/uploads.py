"""Uploads from clients: checked, and turned into events.

A client chooses the bytes and the name of what it uploads, so nothing is believed before it is
checked, and nothing that it sends may stop the server, now or when it is read again after a crash.
"""

from __future__ import annotations

import logging
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId
from fedast.federation import wire
from fedast.federation.driver import Send
from fedast.federation.evaluator import Evaluator
from fedast.federation.leases import Leases
from fedast.federation.lengths import Lengths, lengths
from fedast.federation.log_events import (
    ClientQuarantined,
    RequestFailed,
    StrikeRecorded,
    TrainingFailed,
    UpdateReceived,
    UploadIgnored,
)
from fedast.federation.metrics import ServerMetrics
from fedast.federation.publishing import Publisher
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import Uploaded
from fedast.training.trainer import Update

log = logging.getLogger("fedast.server")
_LONGEST_NUMBER = 15


@final
class Uploads:
    def __init__(
        self,
        *,
        state: ServerState,
        learner: ServerLearner,
        publisher: Publisher,
        evaluator: Evaluator,
        leases: Leases,
        recorder: Recorder,
        metrics: ServerMetrics,
    ) -> None:
        self._state = state
        self._learner = learner
        self._buffers = {name: learner.buffers(name) for name in publisher.sizes}
        self._publisher = publisher
        self._evaluator = evaluator
        self._leases = leases
        self._recorder = recorder
        self._metrics = metrics

    async def handle(self, upload: Uploaded) -> None:
        if upload.sequence <= self._state.sequence:
            return  # it is in the log already
        if upload.client in self._state.membership.quarantined:
            self._state.sequence = upload.sequence
            return
        if upload.name.startswith("e"):
            await self._evaluation(upload)
        else:
            await self._update(upload)

    async def _evaluation(self, upload: Uploaded) -> None:
        try:
            client_failed = await self._evaluator.answered(upload)
        except wire.WireError as error:
            await self._invalid(upload.client, None, upload.sequence, str(error))
            return
        if client_failed:
            await self.failed(upload.client)
        await self._evaluator.close()

    async def _update(self, upload: Uploaded) -> None:
        client, sequence = upload.client, upload.sequence
        number, _, token = upload.name.partition("-")
        known = number.isdecimal() and len(number) <= _LONGEST_NUMBER
        request: RequestId = int(number) if known else -1
        send = self._state.driver.open.get(request)
        if send is None and upload.failed is not None:
            self._recorder.note(UploadIgnored(sequence))  # the request is closed
            return
        if send is None and 0 <= request < self._state.driver.sent:
            # Late, or a second time: the algorithm says which.
            await self._recorder.record(UpdateReceived(request, 0.0, 0.0, sequence))
            self._metrics.ignored.inc()
            return
        if send is None or send.client != client or not self._publisher.accepts(send, token):
            # It answers a decision that a crash undid, another client's request, or one that was
            # made up. Only the token's holder can answer a request, so nobody is to blame.
            self._recorder.note(UploadIgnored(sequence))
            self._metrics.ignored.inc()
            log.info("client %d uploaded %r, which is not open", client, upload.name[:60])
            if send is not None and send.client == client:
                await self._publisher.send(send)
            return
        if upload.failed is not None:
            log.warning("client %d: request %d failed: %s", client, request, upload.failed)
            await self._recorder.record(RequestFailed(request, False, sequence))
            if upload.blame:
                await self.failed(client)
            return
        await self._answer(send, upload, token)

    async def _answer(self, send: Send, upload: Uploaded, token: str) -> None:
        """A client's own answer to an open request."""
        client, request, sequence = upload.client, send.request, upload.sequence
        try:
            update = wire.decode_upload(upload.data, upload.oversized)
            if update.request != request or update.token != token:
                raise wire.WireError("it was uploaded under the name of another request")
        except wire.WireError as error:
            await self._invalid(client, request, sequence, str(error))
            return
        self._leases.answered(client, self._recorder.now)
        if update.vector is None and update.failed is not None:
            log.warning("client %d could not train request %d: %s", client, request, update.failed)
            await self._recorder.record(RequestFailed(request, False, sequence))
            if not update.failed.startswith(wire.MODEL_GONE):  # that would be our fault
                await self.failed(client)
            return
        size, buffers = self._publisher.sizes[send.task], self._buffers[send.task]
        try:
            problem = wire.problem(update, size, None, buffers)
        except Exception as error:  # the last point where the client may be at fault
            problem = f"it cannot be checked ({type(error).__name__})"
        if problem is not None:
            failed = RequestFailed(request, True, sequence, doubted=True)
            doubted = failed if wire.may_be_the_models_fault(update) else None
            await self._invalid(client, request, sequence, problem, doubted)
            return
        assert update.vector is not None
        length = lengths(update.vector, update.buffers, self._learner.parameters(send.task),
                         self._buffers[send.task])  # fmt: skip
        exceeded = self._exceeded(send, length)
        if exceeded is not None:
            why, settled = exceeded
            failed = RequestFailed(
                request, True, sequence, length.norm, length.spread, settled or None
            )
            await self._invalid(client, request, sequence, why, failed)
            return
        value = Update(
            self._shortened(send, torch.from_numpy(update.vector), length.norm),
            torch.tensor(update.loss),
            None if update.buffers is None else torch.from_numpy(update.buffers),
        )
        event = UpdateReceived(
            request, update.work_seconds, update.loss, sequence, length.norm, length.spread
        )
        await self._recorder.record(event, value)
        self._metrics.updates.labels(send.task).inc()

    def _exceeded(self, send: Send, length: Lengths) -> tuple[str, bool] | None:
        """Which bound an update exceeds, if it does, and whether enough is known to blame it."""
        norms, here = self._state.norms, len(self._state.pool)
        bound = norms.updates.bound(send.task, self._learner.move(send.task), here)
        if bound is not None and length.norm > bound.limit:
            why = f"its norm is {length.norm:.3g}, more than {bound.limit:.3g} ({bound.why})"
            return why, bound.settled
        bound = norms.buffers.bound(send.task, length.own, here)
        if bound is not None and length.spread is not None and length.spread > bound.limit:
            why = (
                f"its buffers are {length.spread:.3g} away from the server's, more than "
                f"{bound.limit:.3g} ({bound.why})"
            )
            return why, bound.settled
        return None

    def _shortened(self, send: Send, vector: torch.Tensor, norm: float) -> torch.Tensor:
        """Once a task has been rolled back, no update of it counts for more than usual: somebody
        sends what is within the bound and harmful all the same."""
        usual = self._state.norms.updates.median(send.task)
        if self._state.driver.roll_backs.count(send.task) == 0 or usual is None or norm <= usual:
            return vector
        return vector * (usual / norm)

    async def _invalid(
        self,
        client: ClientId,
        request: RequestId | None,
        sequence: int,
        why: str,
        failed: RequestFailed | None = None,
    ) -> None:
        """Give up the request, if it was the client's own, and give the client a strike; but not
        if ``failed`` says otherwise: then it was not the client, or that is still to be seen."""
        log.warning("client %d sent an invalid update (request %s): %s", client, request, why)
        self._metrics.invalid.inc()
        if failed is not None:
            await self._recorder.record(failed)
            if self._state.driver.roll_backs.on or not failed.doubted:
                return
        elif request is not None:
            await self._recorder.record(RequestFailed(request, True, sequence))
        await self.strike(client, sequence)

    async def failed(self, client: ClientId) -> None:
        """It could not do what it was asked to."""
        self._recorder.note(TrainingFailed(client))
        await self._quarantine(client)

    async def strike(self, client: ClientId, sequence: int) -> None:
        self._recorder.note(StrikeRecorded(client, sequence))
        await self._quarantine(client)

    async def _quarantine(self, client: ClientId) -> None:
        membership = self._state.membership
        if membership.to_quarantine(client):
            log.error(
                "client %d is quarantined: %d invalid updates, %d failures in a row",
                client, membership.strikes[client], membership.failures[client],
            )  # fmt: skip
            await self._recorder.record(ClientQuarantined(client))
