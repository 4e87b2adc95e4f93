"""A server that goes on from its folder, whatever of it can still be read, leaves the records of
one that never stopped."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedast.federation import commits, segments, snapshots, write_ahead_log
from fedast.federation.faults import ServerFault
from fedast.federation.log_events import TrainingBegan
from fedast.federation.write_ahead_log import Past, WriteAheadLog
from fedast.records.run import UnusableFolder
from tests.federation.scripted import ALGORITHMS, CLIENTS, Scripted, play, scripted_config

SLOW = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
steps = st.lists(st.integers(0, CLIENTS - 1), min_size=8, max_size=16)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short segments, and a snapshot whenever one is asked for. (What a loss of power does is
    tested elsewhere: nothing has to wait for the disk here.)"""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(segments, "_ENTRIES", 15)
    monkeypatch.setattr(write_ahead_log, "_SNAPSHOT_SHARE", 1e9)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def begun(algorithm: str, folder: Path, every: float) -> Scripted:
    scripted = Scripted(scripted_config(algorithm, federation={"snapshot_every": every}), folder)
    await scripted.start()
    for client in range(CLIENTS):
        await scripted.join(client)
    await scripted.begin()
    await scripted.commit()
    return scripted


def state(folder: Path, ending: str) -> list[Path]:
    return sorted((folder / "diary" / "state").glob(f"*.{ending}"))


def damage(path: Path, seed: int, count: int = 5) -> None:
    """Change a few bytes in a row, somewhere."""
    data = bytearray(path.read_bytes())
    choose = random.Random(seed)
    start = choose.randrange(max(1, len(data) - count))
    for place in range(start, min(start + count, len(data))):
        data[place] ^= choose.randrange(1, 256)
    path.write_bytes(data)


def spoil(how: str, folder: Path, seed: int) -> None:
    """Make a restart go another way to the same commit."""
    match how:
        case "no snapshot":
            for path in state(folder, "state"):
                path.unlink()
        case "damaged snapshot":
            damage(state(folder, "state")[-1], seed)
        case "damaged snapshots":
            for path in state(folder, "state"):
                damage(path, seed)
        case "damaged records":
            damage(folder / "events.jsonl", seed)
        case "half written":
            newest = max((folder / "diary").glob("diary*.jsonl"))
            with newest.open("ab") as file:
                file.write(b'{"e":"arrive","r":')
        case _:
            assert how == "as it is"


WAYS = ("as it is", "no snapshot", "damaged snapshot", "damaged snapshots", "damaged records",
        "half written")  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@SLOW
@given(
    steps=steps,
    every=st.sampled_from([0.0, 1e9]),
    crashes=st.dictionaries(st.integers(0, 15), st.sampled_from(WAYS), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_a_crash_at_any_commit_leaves_no_trace_in_the_records(
    algorithm: str, steps: list[int], every: float, crashes: dict[int, str], seed: int
) -> None:
    """``every``: a snapshot at each commit, or only one at the first after a start."""

    async def run(folder: Path, crashes: dict[int, str]) -> dict[str, bytes]:
        scripted = await begun(algorithm, folder, every)
        for place, client in enumerate(steps):
            if place == 4:
                await scripted.leave(1)
                await scripted.commit()
            if place == 6:
                await scripted.join(1)
                await scripted.commit()
            await play(scripted, [client])
            if place in crashes:
                scripted.crash()
                spoil(crashes[place], folder, seed)
                await scripted.start()
        return scripted.end()

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        undisturbed = asyncio.run(run(Path(one), {}))
        assert asyncio.run(run(Path(other), crashes)) == undisturbed
    assert undisturbed["events.jsonl"].count(b'"arrive"') > 1


@pytest.mark.parametrize("algorithm", ["fedast-d", "sync-st"])
@SLOW
@given(
    steps=steps,
    targets=st.sets(
        st.sampled_from(["log", "archive", "tensors", "note", "snapshot", "truncated", "missing"]),
        min_size=1,
        max_size=2,
    ),
    seed=st.integers(0, 2**32),
)
def test_a_damaged_folder_goes_on_from_its_last_whole_point(
    algorithm: str, steps: list[int], targets: set[str], seed: int
) -> None:
    said: list[str] = []

    async def body(folder: Path) -> None:
        scripted = await begun(algorithm, folder, 0.0)
        await play(scripted, steps)
        scripted.running._events.flush()
        before = (folder / "events.jsonl").read_bytes()
        scripted.crash()
        for target in sorted(targets):
            diary = folder / "diary"
            newest = max(diary.glob("diary*.jsonl"), default=diary / "diary.jsonl")
            newest.touch()
            match target:
                case "log":
                    damage(newest, seed)
                case "truncated":
                    newest.write_bytes(newest.read_bytes()[: seed % (newest.stat().st_size + 1)])
                case "missing":
                    newest.unlink()
                case "archive":
                    for path in diary.glob("*.gz"):
                        damage(path, seed)
                case "tensors":
                    damage(state(folder, "safetensors")[-1], seed)
                case "note":
                    damage(state(folder, "json")[-1], seed)
                case _:
                    assert target == "snapshot"
                    damage(state(folder, "state")[-1], seed)
        reached = await started(scripted, said)
        scripted.running._events.flush()
        assert before.startswith((folder / "events.jsonl").read_bytes())
        lines = [line for line in said if "going back to the last whole point" in line]
        assert len(lines) == int(reached.went_back)
        if targets & {"tensors", "note"}:
            assert reached.went_back
        elif "snapshot" not in targets or targets <= {"snapshot", "archive"}:
            assert not reached.went_back, "the snapshot of the last commit is enough"
        if not reached.went_back:
            assert (folder / "events.jsonl").read_bytes() == before
        await play(scripted, [0, 1, 2] * 4)
        records = scripted.end()
        await started(scripted, said)  # what goes on is sound itself
        scripted.running._events.flush()
        assert (folder / "events.jsonl").read_bytes() == records["events.jsonl"]
        scripted.crash()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(body(Path(name)))


async def started(scripted: Scripted, said: list[str]) -> Past:
    """Start a server; what it found."""
    found: list[Past] = []
    opened = WriteAheadLog.open

    def spying(self: WriteAheadLog, say: object) -> Past | None:
        past = opened(self, said.append)
        assert past is not None
        found.append(past)
        if past.went_back:  # the transport forgets what was done since
            scripted.hub.names.clear()
            scripted.hub.queues.clear()
            scripted.hub.taken.clear()
        return past

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteAheadLog, "open", spying)
        await scripted.start()
    return found[0]


@pytest.mark.parametrize("place", range(3))
def test_damage_between_two_snapshots_costs_what_came_after_the_first(
    folder: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that are needed cannot be read: the last commit that does not need them is taken."""
    monkeypatch.setattr(segments, "_ENTRIES", 1000)
    said: list[str] = []

    async def body() -> None:
        scripted = await begun("fedast-d", folder, 0.0)
        await play(scripted, [0, 1, 2])
        scripted.running.server._wal._rest_until = float("inf")
        (snapshot, whole) = (state(folder, "state")[-1], (folder / "events.jsonl").read_bytes())
        await play(scripted, [0, 1, 2] * 2)
        scripted.crash()
        newest = max((folder / "diary").glob("diary*.jsonl"))
        lines = newest.read_bytes().splitlines(keepends=True)
        lines[place - 8] = lines[place - 8].replace(b'"t":', b'"t":1')
        newest.write_bytes(b"".join(lines))
        past = await started(scripted, said)
        assert past.went_back
        assert past.steps == int(snapshot.stem)
        assert "its checksum is wrong" in said[-1]
        assert (folder / "events.jsonl").read_bytes().startswith(whole)
        await play(scripted, [0, 1, 2])
        scripted.end()
        assert not (await started(scripted, said)).went_back, "once is enough"
        scripted.crash()

    asyncio.run(body())


def test_a_folder_of_which_nothing_can_be_read_is_refused_in_one_line(folder: Path) -> None:
    async def body() -> None:
        scripted = await begun("fedast-d", folder, 0.0)
        await play(scripted, [0, 1, 2] * 3)
        scripted.end()
        kept = shutil.copytree(folder, folder.with_name(f"{folder.name}-kept"))
        try:
            for path in state(folder, "safetensors"):
                damage(path, 1)
            with pytest.raises(UnusableFolder, match="no state in it can be read") as caught:
                await scripted.start()
            assert "\n" not in str(caught.value)
            for name in ("events.jsonl", "result.json", "curves.csv"):
                assert (folder / name).read_bytes() == (kept / name).read_bytes()
        finally:
            shutil.rmtree(kept)

    asyncio.run(body())


def test_the_log_is_compacted_and_not_replayed_from_its_start(folder: Path) -> None:
    async def body() -> None:
        scripted = await begun("fedast-d", folder, 0.0)
        await play(scripted, [0, 1, 2] * 12)
        scripted.crash()
        diary = folder / "diary"
        assert list(diary.glob("*.gz"))
        assert len(list(diary.glob("diary*.jsonl"))) == 1
        assert len(state(folder, "state")) == 2
        assert len(state(folder, "safetensors")) <= 4
        for path in diary.glob("*.gz"):
            path.unlink()  # nobody needs them while there is a snapshot
        await scripted.start()
        assert scripted.running.server._wal.count > 30
        scripted.crash()

    asyncio.run(body())


OWN = '''
from fedast.algorithms.asynchronous import Asynchronous
from fedast.records.observers import ObserverOptions

def algorithm(tasks, pool, stream):
    made = Asynchronous(tasks, pool, stream)
    made.numbers = (number for number in range(10))
    return made

seen = []

class Seer(ObserverOptions):
    """It wants to see everything."""
    def build(self, run):
        seen.append([])
        return Seen()

class Seen:
    def commanded(self, now, command):
        seen[-1].append((now, command))
    def started(self, now, request, client):
        pass
    def evaluated(self, now, event):
        pass
'''


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (folder / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("own_parts")
    del sys.modules["own_parts"]


def test_an_algorithm_that_cannot_be_stored_is_replayed(own: Any, folder: Path) -> None:
    async def body() -> None:
        config = scripted_config("own_parts:algorithm", federation={"snapshot_every": 0.0})
        scripted = Scripted(config, folder / "run")
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        await play(scripted, [0, 1, 2] * 4)
        scripted.running._events.flush()
        before = (folder / "run" / "events.jsonl").read_bytes()
        assert before.count(b"arrive") > 5
        scripted.crash()
        assert state(folder / "run", "state") == []
        await scripted.start()
        assert scripted.end()["events.jsonl"] == before

    asyncio.run(body())


def test_an_observer_of_ones_own_sees_everything_again(own: Any, folder: Path) -> None:
    async def body() -> None:
        config = scripted_config("fedast-d", federation={"snapshot_every": 0.0})
        config = config.model_copy(update={"observers": (own.Seer(),)})
        scripted = Scripted(config, folder / "run")
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        await play(scripted, [0, 1, 2] * 4)
        scripted.crash()
        await scripted.start()
        scripted.crash()

    asyncio.run(body())
    first, second = own.seen
    assert len(first) > 20
    assert second == first


def test_a_full_disk_delays_what_must_be_durable_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of a decision that a crash would undo for good."""
    monkeypatch.setattr(commits, "_RETRY_AFTER", 0.01)
    failures = 3

    async def body() -> None:
        scripted = Scripted(scripted_config("fedast-d"), folder)
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        commit = WriteAheadLog.commit

        def full(self: WriteAheadLog, *args: Any) -> None:
            nonlocal failures
            failures -= 1
            assert not any(scripted.hub.queues.values()), "a request was sent too early"
            if failures >= 0:
                raise OSError("No space left on device")
            commit(self, *args)

        monkeypatch.setattr(WriteAheadLog, "commit", full)
        await scripted.running.server.record(TrainingBegan())
        monkeypatch.setattr(WriteAheadLog, "commit", commit)
        assert failures < 0
        assert any(scripted.hub.queues.values())
        scripted.end()

    asyncio.run(body())


def test_a_crash_while_a_segment_is_compressed_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        scripted = await begun("fedast-d", folder, 1e9)

        def killed(*_: object) -> None:
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(segments.Segments, "_open", killed)
            with pytest.raises(ServerFault, match="killed"):
                await play(scripted, [0, 1, 2] * 12)
        diary = folder / "diary"
        assert {path.name for path in diary.glob("diary*")} == {"diary.jsonl", "diary.jsonl.gz"}
        scripted.running._events.flush()
        before = (folder / "events.jsonl").read_bytes()
        scripted.crash()
        await scripted.start()
        await play(scripted, [0, 1, 2])
        assert scripted.end()["events.jsonl"].startswith(before)
        await scripted.start()
        scripted.crash()
        for path in state(folder, "state"):
            path.unlink()
        await scripted.start()
        assert scripted.end()["events.jsonl"].startswith(before)

    asyncio.run(body())


def test_a_snapshot_that_lacks_newer_numbers_is_not_needed(
    folder: Path,
) -> None:
    """One of before the numbers of each client were kept: the log has them all."""

    async def go(place: Path, *, older: bool) -> dict[str, bytes]:
        with pytest.MonkeyPatch.context() as patch:
            if older:
                patch.setattr(snapshots, "_SCHEMA", 1)
            scripted = await begun("fedast-d", place, 0.0)
            await play(scripted, [0, 1, 2, 0])
            if older:
                scripted.running.run_metrics.sent.clear()
                scripted.running.run_metrics.counted.clear()
            await play(scripted, [1])
            if older:
                scripted.crash()
        if older:
            await scripted.start()
        await play(scripted, [2, 0])
        return scripted.end()

    expected = asyncio.run(go(folder / "one", older=False))
    assert asyncio.run(go(folder / "other", older=True)) == expected
