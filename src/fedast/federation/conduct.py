"""How clients behave, and what follows: strikes, rests and quarantine, always with a reason.

- What cannot be used through its own fault (``strike``), and trainings that fail (``failed``), lead
  to quarantine by the rules of ``membership``. The reasons are in the write-ahead log, in the
  status, and in ``quarantine.jsonl`` beside the records.
- An occasional failure that is nobody's fault (``excused``) has no consequence. A client that
  reports several in a row gets no requests for a while, twice as long each time; if others could do
  what it says cannot be done, it counts as failed.
- Useless messages (``useless``) have no consequence within an allowance. A client that exceeds it
  is ignored for a while: its requests go to others, what it sends is discarded unread, and it gets
  a strike.

What NATS can do about it: it cannot limit rates, and only its system account may close a
connection. But every client has a subject of its own for uploads, and purging that subject is one
call however many messages there are (``transport.Discards``). So a flood costs the server the few
hundred messages that it takes to notice it, and then a call now and then.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import final

from fedast.core.protocol import ClientId
from fedast.federation.driver import Send
from fedast.federation.ignored import Allowance, IgnoredMessages
from fedast.federation.leases import Leases, Overdue
from fedast.federation.log_events import (
    ClientPardoned,
    ClientQuarantined,
    ClientReady,
    ClientRested,
    LimitSet,
    StrikeRecorded,
    TrainingFailed,
)
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import Discards, ServerTransport

log = logging.getLogger("fedast.server")
_USELESS_AT_ONCE, _USELESS_PER_SECOND = 200.0, 2.0
_HELLOS_AT_ONCE, _HELLOS_PER_SECOND = 20.0, 4.0
_FIRST_MUTE = 5.0
_FREE_EXCUSES = 2
"""Failures in a row that are nobody's fault and have no consequence."""
_MOST_DOUBLINGS = 20
FOR_GOOD = float("inf")


@final
class Conduct:
    def __init__(
        self,
        *,
        state: ServerState,
        leases: Leases,
        recorder: Recorder,
        transport: ServerTransport,
        longest_rest: float,
        file: Path | None,
    ) -> None:
        """``longest_rest``: seconds; ``file``: where quarantines are written down."""
        self._state = state
        self._leases = leases
        self._recorder = recorder
        self._discards = transport if isinstance(transport, Discards) else None
        self._longest_rest = longest_rest
        self._file = file
        self._ignored = IgnoredMessages(recorder.now)
        self._useless = Allowance(_USELESS_AT_ONCE, _USELESS_PER_SECOND)
        self._hellos = Allowance(_HELLOS_AT_ONCE, _HELLOS_PER_SECOND)
        self._muted: dict[ClientId, float] = {}
        """Until when clients that flooded are ignored."""
        self._floods: Counter[ClientId] = Counter()
        self._excuses: Counter[ClientId] = Counter()
        """Since the client's last good update."""

    async def start(self, requests_per_client: int | None) -> None:
        if self._state.pool.limit != requests_per_client:  # earlier versions had no limit
            self._recorder.note(LimitSet(requests_per_client))
        for client in self._state.membership.quarantined:
            await self._discard(client, FOR_GOOD)

    # --- useless messages -------------------------------------------------------------------------

    def listens_to(self, client: ClientId) -> bool:
        """Whether what it uploads is read; otherwise it is only counted."""
        if client in self._state.membership.quarantined:
            self._ignored.count(client, "quarantined")
            return False
        until = self._muted.get(client)
        if until is None:
            return True
        if self._recorder.now >= until:
            del self._muted[client]
            return True
        self._ignored.count(client, "flood")
        return False

    def hears_hello(self, client: ClientId) -> bool:
        """Whether a heartbeat is read; if there are very many, it is only a sign of life."""
        if client in self._state.membership.quarantined:
            return False
        if self._hellos.take(client, self._recorder.now):
            return True
        self._ignored.count(client, "heartbeat too many")
        return False

    def may_tell(self, client: ClientId, what: str) -> bool:
        return self._ignored.may_tell(client, what, self._recorder.now)

    async def useless(self, client: ClientId, what: str, sequence: int) -> None:
        """It sent something that changes nothing; ``what`` is a word of ours."""
        now = self._recorder.now
        self._ignored.count(client, what)
        if self._useless.take(client, now):
            return
        seconds = self._longer(_FIRST_MUTE, self._floods[client])
        self._floods[client] += 1
        self._useless.renew(client)
        self._muted[client] = now + seconds
        why = f"flood of useless uploads (mostly: {what}); ignored for {seconds:g} s"
        log.warning("client %d: %s", client, why)
        await self._rest(client, seconds, why)
        await self._discard(client, seconds)
        await self.strike(client, sequence, why)

    async def _discard(self, client: ClientId, seconds: float) -> None:
        if self._discards is not None:
            await self._discards.discard(client, seconds)

    # --- answers ----------------------------------------------------------------------------------

    def did_well(self, client: ClientId) -> None:
        """A good update."""
        del self._excuses[client]

    async def excused(self, send: Send, why: str, *, blame: bool) -> None:
        """It failed, and says that this is not its fault; ``blame``: it was."""
        client = send.client
        self._excuses[client] += 1
        more = self._excuses[client] - _FREE_EXCUSES
        if more > 0:
            await self._rest(client, self._longer(1.0, more - 1), f"{more} excuses in a row: {why}")
        if blame:
            await self.failed(client, f"{why}, but others could fetch it")

    async def failed(self, client: ClientId, why: str) -> None:
        """It could not do what it was asked to."""
        self._recorder.note(TrainingFailed(client, why))
        await self._quarantine(client)

    async def strike(self, client: ClientId, sequence: int, why: str) -> None:
        self._recorder.note(StrikeRecorded(client, sequence, why))
        await self._quarantine(client)

    async def _timed_out(self, late: Overdue) -> None:
        """It loses its requests. That alone is not held against it: it may be slow. But one that
        never answers, while others do, gets strikes in the end."""
        why = f"no answer to request {late.request} in {late.allowed:.0f} s"
        log.warning("client %d: %s; its requests go to others", late.client, why)
        await self._rest(late.client, late.allowed, why)
        if late.silent:
            await self.strike(late.client, self._state.sequence, why)

    # --- consequences -----------------------------------------------------------------------------

    def _longer(self, first: float, times: int) -> float:
        return float(min(self._longest_rest, first * 2.0 ** min(_MOST_DOUBLINGS, times)))

    async def _rest(self, client: ClientId, seconds: float, why: str) -> None:
        self._leases.rest(client, seconds, self._recorder.now)
        if client not in self._state.pool.resting or self._state.requests_of(client):
            await self._recorder.record(ClientRested(client, why))

    async def _quarantine(self, client: ClientId) -> None:
        membership = self._state.membership
        if not membership.to_quarantine(client):
            return
        reasons = [f"at {r.time:.0f} s {r.why}" for r in membership.reasons(client)]
        log.error(
            "client %d is quarantined after %d strikes and %d failures in a row: %s; let it in "
            "again with `fedast ctl FOLDER pardon %d`",
            client, membership.strikes[client], membership.failures[client],
            "; ".join(reasons) or "reasons unknown", client,
        )  # fmt: skip
        await self._recorder.record(ClientQuarantined(client))
        self._write_down(client)
        await self._discard(client, FOR_GOOD)

    def _write_down(self, client: ClientId) -> None:
        if self._file is None:
            return
        membership = self._state.membership
        entry = {
            "t": round(self._recorder.now, 1),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": client,
            "strikes": membership.strikes[client],
            "failures": membership.failures[client],
            "reasons": [{"t": round(r.time, 1), "why": r.why} for r in membership.reasons(client)],
        }
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:  # the log and the write-ahead log say the same
            log.error("%s cannot be written: %s", self._file, error)

    async def pardon(self, client: ClientId) -> None:
        """It may come back, with a clean record."""
        log.warning("client %d is pardoned by a control command", client)
        await self._recorder.record(ClientPardoned(client))
        for counts in (self._floods, self._excuses):
            del counts[client]
        self._muted.pop(client, None)
        self._useless.renew(client)
        await self._discard(client, 0.0)

    async def tick(self) -> None:
        """Call this regularly."""
        now = self._recorder.now
        for late in self._leases.overdue(self._state.oldest_requests(), now):
            await self._timed_out(late)
        for client in self._leases.rested(self._state.pool.resting, now):
            await self._recorder.record(ClientReady(client))
        for line in self._ignored.report(now):
            log.warning("%s", line)
