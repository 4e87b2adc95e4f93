"""Parts of the server on their own: commits and control commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedast.core.protocol import StopReason
from fedast.federation import log_events as le
from fedast.federation import wire
from fedast.federation.commits import Committer
from fedast.federation.control import ControlCommands
from fedast.federation.driver import Send
from fedast.federation.memory import Hub, MemoryServer
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.run.federate import Federation
from tests.federation.support import two_tasks


class FakeRecorder:
    """Keeps what is recorded, and applies it without carrying anything out."""

    def __init__(self, federation: Federation) -> None:
        self._state = federation.server.state
        self._wal = federation.server._wal
        self.now = 0.0
        self.events: list[le.LogEvent] = []

    async def record(self, event: le.LogEvent, update: object = None) -> None:
        self.note(event)

    def note(self, event: le.LogEvent) -> None:
        entry = le.Entry(self.now, event)
        self._wal.append(entry)
        self._state.apply(entry)
        self.events.append(event)


class Watched:
    """A transport that tells what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []
        self.inner = MemoryServer(Hub())

    async def acknowledge(self, sequence: int) -> None:
        self.done.append(("acknowledge", sequence))

    async def retire(self, name: str) -> None:
        self.done.append(("retire", name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    config = two_tasks(tmp_path, commit=1.0)
    with closing(Federation(config, MemoryServer(Hub()), tmp_path / "run")) as found:
        yield found


def test_nothing_is_acknowledged_or_deleted_before_a_commit_succeeds(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, recorder, transport = federation.server, FakeRecorder(federation), Watched()
    server.recover()
    committer = Committer(
        wal=server._wal,
        state=server.state,
        learner=federation._learner,
        plane=server._recovery.plane,
        decisions=server._recovery.chain,
        events=federation._events,
        transport=transport,
        recorder=recorder,
        metrics=federation.metrics,
        every=1.0,
    )
    for version in (0, 1, 2):
        recorder.note(le.ModelPublished("second", version, f"model-{version}"))
    server.state.driver.open[7] = Send(7, "second", 0, 1)
    recorder.note(le.UploadIgnored(5))
    commit = WriteAheadLog.commit

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(WriteAheadLog, "commit", full)
    recorder.now = 10.0
    asyncio.run(committer.commit())
    assert transport.done == []
    monkeypatch.setattr(WriteAheadLog, "commit", commit)
    recorder.now = 11.0
    asyncio.run(committer.commit())
    assert transport.done == [], "it waits a while after a failure"
    recorder.now = 12.5
    asyncio.run(committer.commit())
    # Model 1 is needed by a request in flight, model 2 is the newest.
    assert transport.done == [("acknowledge", 5), ("retire", "model-0")]
    recorder.note(le.UploadIgnored(6))
    recorder.now = 13.0
    asyncio.run(committer.commit())
    assert len(transport.done) == 2, "the next regular commit is a second later"
    asyncio.run(committer.commit(force=True))
    assert transport.done[2:] == [("acknowledge", 6)]
    server.state.sequence = 9  # uploads that are in no entry
    asyncio.run(committer.commit())
    assert transport.done[3:] == [("acknowledge", 9)]


def test_control_commands_are_recorded_or_refused(federation: Federation) -> None:
    server, recorder = federation.server, FakeRecorder(federation)
    server.recover()
    stopped: list[bool] = []
    control = ControlCommands(
        state=server.state,
        metrics=federation.metrics,
        recorder=recorder,
        stop=lambda: stopped.append(True),
    )

    def say(verb: str, argument: str = "") -> str:
        data = wire.encode(wire.Control(verb, argument))
        return wire.decode(asyncio.run(control.handle(data)), wire.Control).answer

    assert say("pause").startswith("paused")
    assert json.loads(say("status"))["paused"] is True
    assert say("resume") == "resumed"
    # The algorithm accepts nothing before its start: these would have ended the server.
    assert say("stop", "second") == "refused: training has not begun yet"
    assert say("add", "second") == "refused: training has not begun yet"
    recorder.note(le.TrainingBegan())
    assert say("stop", "nothing") == "refused: no task 'nothing' is being trained"
    assert say("add", "second") == "refused: no task 'second' can be added; available: none"
    assert say("stop", "second") == "task second is stopped"
    assert say("dance") == "refused: unknown command 'dance'"
    garbage = wire.decode(asyncio.run(control.handle(b"garbage")), wire.Control).answer
    assert garbage.startswith("refused: ")
    assert recorder.events == [
        le.Paused(),
        le.Resumed(),
        le.TrainingBegan(),
        le.TasksEnded(("second",), StopReason.REMOVED),
    ]
    assert not stopped
    assert say("halt").startswith("the server commits and ends")
    assert stopped
