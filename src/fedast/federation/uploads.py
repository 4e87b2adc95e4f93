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
        norm_bound: float | None,
    ) -> None:
        self._state = state
        self._buffers = {name: learner.buffers(name) for name in publisher.sizes}
        self._publisher = publisher
        self._evaluator = evaluator
        self._leases = leases
        self._recorder = recorder
        self._metrics = metrics
        self._norm_bound = norm_bound

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
            problem = wire.problem(update, size, self._norm_bound, buffers)
        except Exception as error:  # the last point where the client may be at fault
            problem = f"it cannot be checked ({type(error).__name__})"
        if problem is not None:
            await self._invalid(client, request, sequence, problem)
            return
        assert update.vector is not None
        value = Update(
            torch.from_numpy(update.vector),
            torch.tensor(update.loss),
            None if update.buffers is None else torch.from_numpy(update.buffers),
        )
        event = UpdateReceived(request, update.work_seconds, update.loss, sequence)
        await self._recorder.record(event, value)
        self._metrics.updates.labels(send.task).inc()

    async def _invalid(
        self, client: ClientId, request: RequestId | None, sequence: int, why: str
    ) -> None:
        """Give up the request, if it was the client's own, and give the client a strike."""
        log.warning("client %d sent an invalid update (request %s): %s", client, request, why)
        self._metrics.invalid.inc()
        if request is not None:
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
