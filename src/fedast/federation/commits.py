"""Committing the write-ahead log, and what may be done only afterwards.

Uploads are acknowledged, and unused models deleted, only when a commit has made the events that
depend on them durable: a crash before it would need them again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import final

from fedast.federation.log_events import ModelRetired
from fedast.federation.metrics import ServerMetrics
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import ServerTransport
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.learner.replay import RecordingLearner
from fedast.records.schedule import Schedule

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
        recording: RecordingLearner,
        schedule: Schedule,
        transport: ServerTransport,
        recorder: Recorder,
        metrics: ServerMetrics,
        every: float,
    ) -> None:
        """``every``: seconds between commits, unless one is forced."""
        self._wal = wal
        self._state = state
        self._learner = learner
        self._recording = recording
        self._schedule = schedule
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
                self._recording.answers,
                self._schedule.digest(),
            )
        except Exception as error:  # mostly a full disk; safetensors has errors of its own
            log.error(
                "the write-ahead log cannot be committed (%s); trying again in %g s",
                error, _RETRY_AFTER,
            )  # fmt: skip
            self._metrics.commit_failures.inc()
            self._retry_at = self._recorder.now + _RETRY_AFTER
            return
        self._committed = self._recorder.now
        self._metrics.committed(time.perf_counter() - began)
        await self._acknowledge()
        while self._retired:
            await self._transport.retire(self._retired.pop())

    async def _acknowledge(self) -> None:
        if self._state.sequence > self._acknowledged:
            await self._transport.acknowledge(self._state.sequence)
            self._acknowledged = self._state.sequence
