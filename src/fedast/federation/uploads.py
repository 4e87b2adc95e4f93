"""Uploads from clients: checked, and turned into events.

A client chooses the bytes and the name of what it uploads, so nothing is trusted before it is
checked, and nothing that it sends may stop the server, now or when it is read again after a crash.
A useless upload changes nothing but how far the stream has been read (``sequence``), which the next
event or acknowledgement records; ``conduct`` deals with clients that send many.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.federation import wire
from fedast.federation.conduct import Conduct
from fedast.federation.driver import Send
from fedast.federation.evaluator import Evaluator
from fedast.federation.leases import Leases
from fedast.federation.lengths import Lengths, lengths
from fedast.federation.log_events import RequestFailed, UpdateReceived
from fedast.federation.metrics import ServerMetrics
from fedast.federation.publishing import Publisher
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import Uploaded
from fedast.federation.untrusted import described, printable
from fedast.training.trainer import Update

log = logging.getLogger("fedast.server")
_LONGEST_NUMBER = 15
_LARGE = 4 * 2**20
"""Uploads of more bytes are decoded and checked in a thread, while the server goes on. (Others take
a few milliseconds at most, and handing them to a thread costs about as much.)"""
_MODELS_KNOWN = 256


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
        conduct: Conduct,
        recorder: Recorder,
        metrics: ServerMetrics,
    ) -> None:
        self._state = state
        self._learner = learner
        self._buffers = {name: learner.buffers(name) for name in publisher.sizes}
        self._publisher = publisher
        self._evaluator = evaluator
        self._leases = leases
        self._conduct = conduct
        self._recorder = recorder
        self._metrics = metrics
        self._doubted: dict[ClientId, str] = {}
        """Why the last update of a client was refused that may have been the model's fault."""
        self._sent_again: RequestId = -1
        """The last request that was sent again because its client answered an earlier decision."""
        self._trained: OrderedDict[tuple[TaskName, Version], RequestId] = OrderedDict()
        """Models that a client could fetch: the last good update of each."""

    async def handle(self, upload: Uploaded) -> None:
        if upload.sequence <= self._state.sequence:
            return  # it is in the log already
        if not self._conduct.listens_to(upload.client):
            self._state.sequence = upload.sequence
            return
        if upload.name.startswith("e"):
            await self._evaluation(upload)
        else:
            await self._update(upload)

    async def _ignore(self, upload: Uploaded, what: str) -> None:
        """It changes nothing. ``what`` it is: a word of ours, to be counted by."""
        self._state.sequence = upload.sequence
        self._metrics.ignored.inc()
        await self._conduct.useless(upload.client, what, upload.sequence)

    async def _evaluation(self, upload: Uploaded) -> None:
        if not self._evaluator.expects(upload):
            await self._ignore(upload, "evaluation that nobody asked for")
            return
        try:
            client_failed = await self._evaluator.answered(upload)
        except wire.WireError as error:
            await self._invalid(upload, None, str(error))
            return
        if client_failed:
            await self._conduct.failed(upload.client, printable(upload.failed))
        await self._evaluator.close()

    async def _update(self, upload: Uploaded) -> None:
        client, sequence = upload.client, upload.sequence
        number, _, token = upload.name.partition("-")
        known = number.isascii() and number.isdecimal() and len(number) <= _LONGEST_NUMBER
        request: RequestId = int(number) if known else -1
        send = self._state.driver.open.get(request)
        if send is None and self._publisher.was_sent(request, client, token):
            # Late, or a second time: the algorithm says which. Not more than once for each.
            self._publisher.forget(request)
            self._leases.answered(client, request, self._recorder.now)
            await self._recorder.record(UpdateReceived(request, 0.0, 0.0, sequence))
            self._metrics.ignored.inc()
            return
        if send is None:
            await self._ignore(upload, "request not open" if known else "no request")
            return
        if send.client != client or not self._publisher.accepts(send, token):
            # It answers a decision that a crash undid, another client's request, or one that was
            # made up. Only the token's holder can answer a request, so nobody is to blame.
            await self._ignore(upload, "not this client's request")
            if send.client == client and self._sent_again != request:
                self._sent_again = request
                await self._publisher.send(send)
            return
        if upload.failed is not None:
            why = printable(upload.failed)
            self._told(client, "client %d: request %d failed: %s", client, request, why)
            if not upload.blame:
                await self._conduct.excused(send, why, blame=False)
            await self._give_up(request, sequence)
            if upload.blame:
                await self._conduct.failed(client, why)
            return
        await self._answer(send, upload, token)

    async def _give_up(self, request: RequestId, sequence: int) -> None:
        if request in self._state.driver.open:
            await self._recorder.record(RequestFailed(request, False, sequence))
        else:  # its client was sent to rest, and lost it with the others
            self._state.sequence = sequence

    def _told(self, client: int, text: str, *values: object) -> None:
        """Log a warning that a client causes: one per client and half minute, the rest are
        counted."""
        if self._conduct.may_tell(client, "failures"):
            log.warning(text, *values)

    async def _answer(self, send: Send, upload: Uploaded, token: str) -> None:
        """A client's own answer to an open request."""
        client, request, sequence = upload.client, send.request, upload.sequence

        def check() -> tuple[wire.Update, str | None]:
            update = wire.decode_upload(upload.data, upload.oversized)
            if update.request != request or update.token != token:
                raise wire.WireError("it was uploaded under the name of another request")
            if update.vector is None and update.failed is not None:
                return update, None
            size, buffers = self._publisher.sizes[send.task], self._buffers[send.task]
            try:
                return update, wire.problem(update, size, None, buffers)
            except Exception as error:  # the last point where the client may be at fault
                return update, f"it cannot be checked ({type(error).__name__})"

        large = len(upload.data) > _LARGE
        try:
            update, problem = await asyncio.to_thread(check) if large else check()
        except wire.WireError as error:
            await self._invalid(upload, request, str(error))
            return
        self._leases.answered(client, request, self._recorder.now)
        if update.vector is None and update.failed is not None:
            why = printable(update.failed)
            self._told(client, "client %d could not train request %d: %s", client, request, why)
            gone = update.failed.startswith(wire.MODEL_GONE)  # that would be our fault
            if gone:
                # ... unless another client could fetch it after this one was asked to.
                lies = self._trained.get((send.task, send.version), -1) > request
                await self._conduct.excused(send, why, blame=lies)
                await self._publisher.missed(send.task, send.version, self._recorder.now)
            await self._give_up(request, sequence)
            if not gone:
                await self._conduct.failed(client, why)
            return
        if problem is not None:
            why = f"{problem} ({described(update.vector)})"
            failed = RequestFailed(request, True, sequence, doubted=True)
            doubted = failed if wire.may_be_the_models_fault(update) else None
            await self._invalid(upload, request, why, doubted)
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
            await self._invalid(upload, request, f"{why} ({described(update.vector)})", failed)
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
        self._conduct.did_well(client)
        self._note_trained(send)
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
        """Once a task has been rolled back, no update of it may be larger than usual: some client
        sends updates that are within the bound and harmful all the same."""
        usual = self._state.norms.updates.median(send.task)
        if self._state.driver.roll_backs.count(send.task) == 0 or usual is None or norm <= usual:
            return vector
        return vector * (usual / norm)

    def _note_trained(self, send: Send) -> None:
        model = send.task, send.version
        self._trained[model] = max(send.request, self._trained.pop(model, -1))
        while len(self._trained) > _MODELS_KNOWN:
            self._trained.popitem(last=False)

    def doubted(self, client: ClientId) -> str:
        """What a client did wrong, now that the model is known to be good. (After a restart, only
        the earlier log has it.)"""
        return self._doubted.pop(client, "its update could not be used")

    async def _invalid(
        self,
        upload: Uploaded,
        request: RequestId | None,
        why: str,
        failed: RequestFailed | None = None,
    ) -> None:
        """Give up the request, if it was the client's own, and give the client a strike; but not if
        ``failed`` says otherwise: then the client is not to blame, or that is not known yet."""
        client, sequence = upload.client, upload.sequence
        why = f"invalid update: {printable(why, 400)}; {len(upload.data):,} bytes"
        log.warning("client %d, request %s: %s", client, request, why)
        self._metrics.invalid.inc()
        if failed is not None:
            self._doubted[client] = why
            await self._recorder.record(failed)
            if self._state.driver.roll_backs.on or not failed.doubted:
                return
        elif request is not None:
            await self._recorder.record(RequestFailed(request, True, sequence))
        await self._conduct.strike(client, sequence, why)
