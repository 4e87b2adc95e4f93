"""Bringing a restarted server to its last commit: a snapshot, the entries after it, the tensors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import chain
from typing import final

from fedast.federation.event_file import EventFile
from fedast.federation.faults import ServerFault
from fedast.federation.snapshots import ControlPlane, Unusable
from fedast.federation.state import ServerState
from fedast.federation.write_ahead_log import Past, Start, WriteAheadLog, remedy
from fedast.learner.replay import RecordingLearner, ReplayFailed
from fedast.parts.blame import described, in_users_code
from fedast.records.run import UnusableFolder
from fedast.records.schedule import Schedule, ScheduleChain
from fedast.version import __version__

log = logging.getLogger("fedast.server")


@final
@dataclass(frozen=True, kw_only=True)
class Recovery:
    wal: WriteAheadLog
    state: ServerState
    plane: ControlPlane
    recording: RecordingLearner
    schedule: Schedule
    chain: ScheduleChain
    events: EventFile
    replay_all: bool
    """Somebody wants to see everything again: replay from the first entry on, if possible."""

    def run(self) -> Past | None:
        """Continue from the end of the log; None if there is none. ``UnusableFolder`` if it cannot
        be continued, ``ServerFault`` if the server's own code raises while it is replayed."""
        past = self.wal.open(log.warning)
        if past is None:
            return None
        writer = past.fedast or "0.1.0"  # which did not record its version
        if writer != __version__:
            log.warning("the write-ahead log is of fedast %s, this is %s", writer, __version__)
        start = self._replay_one(past, writer)
        self.recording.take()  # it is in the log already
        self.wal.continue_after(past, start, log.warning)
        log.info(
            "continuing at %.1f s: %d events, %d of them replayed, %d requests open",
            past.time, past.steps, len(start.entries), len(self.state.driver.open),
        )  # fmt: skip
        return past

    def _replay_one(self, past: Past, writer: str) -> Start:
        """Replay the first start that works."""
        try:
            fresh = self.plane.freeze()
        except Unusable:
            fresh = None  # an algorithm that cannot be stored: there are no snapshots of it
        problem: Exception | None = None
        without_events: Start | None = None
        for start in chain(past.whole() if self.replay_all else (), past.starts):
            if start.snapshot is not None and fresh is None:
                continue
            if problem is not None and fresh is not None:
                self.plane.thaw(fresh)
            if not self.events.restart(None if start.snapshot is None else start.snapshot.events):
                without_events = without_events or start
                continue
            try:
                self._replay(past, start)
            except Exception as error:  # whatever a log of another course makes an algorithm raise
                problem = problem or error
            else:
                return start
        if problem is None and without_events is not None:
            log.warning(
                "events.jsonl is damaged, and so is the log that it could be written from: it "
                "begins anew at entry %d",
                past.steps - len(without_events.entries),
            )
            self.events.restart()
            self._replay(past, without_events)
            return without_events
        assert problem is not None
        if in_users_code(problem):
            raise ServerFault("replaying the server's write-ahead log", problem) from problem
        what = str(problem) if isinstance(problem, ReplayFailed) else described(problem)
        raise UnusableFolder(
            f"replaying the server's write-ahead log gives something else than what was "
            f"recorded ({what}); {remedy(writer)}"
        ) from problem

    def _replay(self, past: Past, start: Start) -> None:
        answers = [answer for entry in start.entries for answer in entry.answers]
        if start.snapshot is not None:
            self.plane.thaw(start.snapshot.payload)
        else:
            answers = [*past.answers, *answers]
        self.recording.take()
        self.recording.repeat(answers)
        for entry in start.entries:
            self.state.apply(entry)
        whole = start.snapshot is None
        if whole and past.schedule not in (None, self.schedule.digest()):
            raise ReplayFailed("other requests are sent")
        if past.chain not in (None, self.chain.digest):
            raise ReplayFailed("other requests are sent")
        self.recording.go_live(past.tensors)
