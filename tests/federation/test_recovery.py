"""A server that is stopped or killed continues from its folder, and from no other's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedast.config.schema import RunConfig
from fedast.federation.agent import Agent
from fedast.federation.log_codec import decode, encode, seal, unseal
from fedast.federation.log_events import (
    ClientJoined,
    Configured,
    Entry,
    UpdateReceived,
    UploadIgnored,
)
from fedast.federation.memory import Hub, MemoryServer
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.learner.checkpoints import newest, save
from fedast.records.run import UnusableFolder
from fedast.run.federate import Federation
from tests.federation.support import audit, events, federate, two_tasks


def test_a_server_that_is_stopped_goes_on(tmp_path: Path) -> None:
    """Stopped in the middle: nothing is lost, nothing counts twice."""
    config = two_tasks(tmp_path, target=0.85)
    hub = Hub(patience=1.0)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 20:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=stop_soon))
    first = audit(tmp_path / "run")
    before = events(tmp_path / "run")
    assert first["open"] > 0
    hub.changed, hub.told = asyncio.Event(), asyncio.Queue()
    asyncio.run(federate(config, tmp_path / "run", hub))
    after = events(tmp_path / "run")
    keys = ("event", "request", "task", "client", "round")
    said = [{k: e.get(k) for k in keys} for e in before if e["event"] != "finish"]
    again = [{k: e.get(k) for k in keys} for e in after]
    # What was committed is there again, word for word, but for the interruption itself.
    cut = next(i for i, e in enumerate(before) if e["event"] == "finish") if any(
        e["event"] == "finish" for e in before
    ) else len(before)  # fmt: skip
    assert again[:cut] == said[:cut]
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    first = Federation(config, MemoryServer(Hub()), tmp_path / "run")
    with pytest.raises(UnusableFolder, match="another server"):
        Federation(config, MemoryServer(Hub()), tmp_path / "run")
    first.close()
    Federation(config, MemoryServer(Hub()), tmp_path / "run").close()


def test_the_lock_of_a_killed_server_is_free(tmp_path: Path) -> None:
    """The lock file stays; an earlier version held it with flock, and so does this one."""
    folder = tmp_path / "run"
    folder.mkdir()
    hold = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(600)"
    )
    config = two_tasks(tmp_path)
    command = [sys.executable, "-c", hold, str(folder / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(UnusableFolder, match="another server"):
                Federation(config, MemoryServer(Hub()), folder)
        finally:
            holder.kill()
    assert (folder / "lock").exists()
    Federation(config, MemoryServer(Hub()), folder).close()


def test_another_configuration_does_not_touch_a_runs_records(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    folder = tmp_path / "run"
    asyncio.run(federate(config, folder, Hub()))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UnusableFolder, match="differs from the one"):
        Federation(two_tasks(tmp_path, target=0.9), MemoryServer(Hub()), folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_another_configuration_is_not_taken_up(tmp_path: Path) -> None:
    hub = Hub()
    config = two_tasks(tmp_path, target=0.9)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 5:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=stop_soon))
    other = two_tasks(tmp_path, target=0.7)
    with pytest.raises(
        UnusableFolder, match="differs from the one that this federation began with"
    ):
        asyncio.run(federate(other, tmp_path / "run", Hub()))


def test_a_state_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    wal = WriteAheadLog(tmp_path / "diary")
    assert wal.open(print) is None
    wal.append(Entry(0.0, ClientJoined(1)))
    wal.commit(1.0, {"a": torch.zeros(3)})
    wal.close()
    for file in (tmp_path / "diary" / "state").glob("*.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(UnusableFolder, match="no state in it can be read"):
        WriteAheadLog(tmp_path / "diary").open(print)
    assert (tmp_path / "diary" / "diary.jsonl").exists()


def test_entries_after_the_last_commit_are_cut_off(tmp_path: Path) -> None:
    wal = WriteAheadLog(tmp_path / "diary")
    wal.open(print)
    wal.append(Entry(0.0, UploadIgnored(7), (0.5,)))
    wal.commit(1.0, {"a": torch.ones(3)})
    assert not wal.dirty
    wal.close()
    with (tmp_path / "diary" / "diary.jsonl").open("a") as file:
        file.write('{"e":"half writt')
    again = WriteAheadLog(tmp_path / "diary")
    past = again.open(print)
    assert past is not None
    start = next(past.starts)
    assert start.entries == [Entry(0.0, UploadIgnored(7), (0.5,))]
    assert (past.steps, past.time, past.went_back) == (1, 1.0, False)
    again.continue_after(past, start, print)
    again.close()
    assert (tmp_path / "diary" / "diary.jsonl").read_text().count("\n") == 1


def begun(tmp_path: Path) -> tuple[RunConfig, Path]:
    """A federation that was stopped on its way."""
    config = two_tasks(tmp_path, target=0.99)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 20:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=stop_soon))
    return config, tmp_path / "run"


def refused(config: RunConfig, folder: Path) -> str:
    """What the server says; the records of the time before are not touched."""
    before = {name: (folder / name).read_bytes() for name in ("events.jsonl", "result.json")}
    with pytest.raises(UnusableFolder) as caught:
        asyncio.run(Federation(config, MemoryServer(Hub()), folder).run())
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not (folder / "events.jsonl.part").exists()
    return str(caught.value)


def change_state(folder: Path, **changes: Any) -> None:
    state = folder / "diary" / "state"
    found = newest(state, lambda text: None)
    assert found is not None
    save(state, replace(found, **changes))


def forget_snapshots(folder: Path) -> None:
    for file in (folder / "diary" / "state").glob("*.state"):
        file.unlink()


def rewrite(folder: Path, change: Callable[[list[Entry]], None]) -> None:
    """Another log, as if it had been written so."""
    path = folder / "diary" / "diary.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    entries = [decode(unseal(line, number)) for number, line in enumerate(lines, 1)]
    change(entries)
    path.write_bytes(
        b"".join(seal(encode(entry).encode(), n) for n, entry in enumerate(entries, 1))
    )


def test_a_log_that_asks_for_other_answers_is_refused(tmp_path: Path) -> None:
    config, folder = begun(tmp_path)
    forget_snapshots(folder)
    path = folder / "diary" / "diary.jsonl"
    before = path.read_bytes()
    found = newest(folder / "diary" / "state", lambda text: None)
    assert found is not None
    change_state(folder, answers=(0.5,), chain=None)  # every question gets the one before its own
    assert "something else than what was recorded" in refused(config, folder)
    change_state(folder, answers=(), chain=None)

    def one_more(entries: list[Entry]) -> None:
        entries[-1] = replace(entries[-1], answers=(*entries[-1].answers, 0.5))

    rewrite(folder, one_more)
    assert "data plane fewer questions" in refused(config, folder)
    path.write_bytes(before)

    def one_less(entries: list[Entry]) -> None:
        place = max(n for n, entry in enumerate(entries) if entry.answers)
        entries[place] = replace(entries[place], answers=entries[place].answers[:-1])

    rewrite(folder, one_less)
    assert "data plane more questions" in refused(config, folder)
    path.write_bytes(before)
    change_state(folder, chain="0" * 32, fedast="9.9")
    line = refused(config, folder)
    assert "other requests are sent" in line
    assert "fedast 9.9" in line
    change_state(folder, chain=found.chain, fedast=found.fedast)
    federation = Federation(config, MemoryServer(Hub()), folder)
    federation.server.stop()
    asyncio.run(federation.run())
    assert federation.run_metrics.replayed == federation.run_metrics.updates >= 20


def test_a_log_of_other_requests_is_refused(tmp_path: Path) -> None:
    """As one of version 0.1.0 is, where an algorithm sends its requests otherwise now."""
    config, folder = begun(tmp_path)
    forget_snapshots(folder)

    def never_sent(entries: list[Entry]) -> None:
        place = next(n for n, e in enumerate(entries) if isinstance(e.event, UpdateReceived))
        event = entries[place].event
        assert isinstance(event, UpdateReceived)
        entries[place] = replace(entries[place], event=replace(event, request=99999))

    rewrite(folder, never_sent)
    change_state(folder, chain=None, fedast=None)
    line = refused(config, folder)
    assert "99999 was never sent" in line
    assert "serve it with fedast 0.1.0" in line


def test_a_configuration_that_another_version_wrote_otherwise_is_taken_up(tmp_path: Path) -> None:
    """It had another hash for it, and did not know a key that has its default here."""
    config, folder = begun(tmp_path)

    def older(entries: list[Entry]) -> None:
        kept = entries[0].event
        assert isinstance(kept, Configured)
        assert kept.config is not None
        table = json.loads(json.dumps(kept.config))
        del table["simulation"]["loss_rate"]
        entries[0] = Entry(0.0, Configured("0" * 64, table))

    def of_0_1_0(entries: list[Entry]) -> None:
        entries[0] = Entry(0.0, Configured("0" * 64))

    change_state(folder, config=None)
    for change in (older, of_0_1_0):
        rewrite(folder, change)
        Federation(config, MemoryServer(Hub()), folder).close()
    other = config.model_copy(update={"seed": 5})
    with pytest.raises(UnusableFolder, match=r"differs from the one .* \(seed is 5, was 1\)"):
        Federation(other, MemoryServer(Hub()), folder)
