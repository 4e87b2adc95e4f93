"""Committing the write-ahead log, and what may be done only afterwards.

Uploads are acknowledged, and unused models deleted, only when a commit has made the events that
depend on them durable: a crash before it would need them again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import final

from safetensors import SafetensorError

from fedast.federation.event_file import EventFile
from fedast.federation.faults import ServerFault
from fedast.federation.log_events import ModelRetired
from fedast.federation.metrics import ServerMetrics
from fedast.federation.recorder import Recorder
from fedast.federation.snapshots import ControlPlane, Mark, Unusable
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import ServerTransport
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.records.schedule import ScheduleChain

log = logging.getLogger("fedast.server")
_RETRY_AFTER = 2.0


@final
class Committer:
    def __init__(
        self,
        *,
        wal: WriteAheadLog,
        state: ServerState,
        learner: ServerLearner,
        plane: ControlPlane,
        decisions: ScheduleChain,
        events: EventFile,
        transport: ServerTransport,
        recorder: Recorder,
        metrics: ServerMetrics,
        every: float,
    ) -> None:
        """``every``: seconds between commits, unless one is forced."""
        self._wal = wal
        self._state = state
        self._learner = learner
        self._plane: ControlPlane | None = plane
        self._decisions = decisions
        self._events = events
        self._transport = transport
        self._recorder = recorder
        self._metrics = metrics
        self._every = every
        self._committed = 0.0
        self._retry_at = 0.0
        self._acknowledged = 0
        self._retired: list[str] = []
        """Models to delete after the next commit."""

    async def commit(self, *, force: bool = False) -> None:
        """Commit if something is uncommitted and it is time to; ``force``: even if it is not."""
        if not self._wal.dirty:
            await self._acknowledge()  # uploads that change nothing are in no commit
            return
        now = self._recorder.now
        waits = now < self._retry_at or now - self._committed < self._every
        if waits and not force:
            return
        began = time.perf_counter()
        for (task, version), name in self._state.unused_models().items():
            self._recorder.note(ModelRetired(task, version))
            self._retired.append(name)
        try:
            await asyncio.to_thread(
                self._wal.commit,
                self._recorder.now,
                self._learner.state(),
                self._decisions.digest,
                self._freeze,
            )
        except (OSError, SafetensorError) as error:  # mostly a full disk
            log.error(
                "the write-ahead log cannot be committed (%s); trying again in %g s",
                error, _RETRY_AFTER,
            )  # fmt: skip
            self._metrics.commit_failures.inc()
            self._retry_at = self._recorder.now + _RETRY_AFTER
            return
        except Exception as error:
            raise ServerFault("committing the write-ahead log", error) from error
        self._events.committed()
        self._committed = self._recorder.now
        self._metrics.committed(time.perf_counter() - began)
        await self._acknowledge()
        while self._retired:
            await self._transport.retire(self._retired.pop())

    async def commit_at_last(self, stopping: Callable[[], bool]) -> None:
        """Commit, and retry until the disk accepts it, unless the server stops."""
        await self.commit(force=True)
        while self._wal.dirty and not stopping():
            await asyncio.sleep(_RETRY_AFTER)
            await self.commit(force=True)

    def _freeze(self) -> tuple[bytes, Mark] | None:
        """A snapshot and how far the records have been written; None if none can be made."""
        events = self._events.mark()
        if self._plane is None or events is None:
            return None
        try:
            return self._plane.freeze(), events
        except Unusable as problem:
            log.info("no snapshots (%s): a restart replays the whole log", problem)
            self._plane = None
            return None

    async def _acknowledge(self) -> None:
        if self._state.sequence > self._acknowledged:
            await self._transport.acknowledge(self._state.sequence)
            self._acknowledged = self._state.sequence
