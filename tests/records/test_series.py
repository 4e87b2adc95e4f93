"""``series.jsonl`` says what ``events.jsonl`` says, however often the run was taken up again."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedast
from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.rounds import Rounds
from fedast.algorithms.sync_st import RandomPartition
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.core.protocol import Accept, Observers, StopReason, TaskSpec
from fedast.core.streams import Stream
from fedast.learner.protocol import NoLearning
from fedast.records.events import EventLog
from fedast.records.metrics import RunMetrics
from fedast.records.run import SERIES, UnusableFolder
from fedast.records.series import Follower, read
from fedast.records.series_writer import SeriesWriter, header
from fedast.run.checkpointing import Every
from fedast.run.execute import execute, resume
from fedast.sim.availability import ActiveCapPool
from fedast.sim.delays import ConstantDelay, ShiftedExponentialDelay, Speeds, Timing
from fedast.sim.simulator import Deadline, Join, Simulator

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"
CLIENTS = 12
SPECS = [
    TaskSpec("a", active_requests=9, buffer_size=3, evaluate_every=2, max_rounds=40),
    TaskSpec("b", active_requests=6, buffer_size=2, evaluate_every=3, max_rounds=60),
]
LATER = TaskSpec("c\n", active_requests=4, buffer_size=1, max_rounds=30)
METRICS = {"a": "accuracy", "b": "rmse", "c\n": "accuracy"}


class Killed(Exception):
    pass


@dataclass(frozen=True)
class World:
    """A run without training, which is the same each time."""

    dynamic: bool | None
    """None: a synchronous algorithm."""
    seed: int
    ties: bool
    """Whether many things happen at the same time."""
    loss_rate: float

    def run(
        self,
        folder: Path,
        *,
        live_at: int = 0,
        kill_at: int | None = None,
        slow: bool = False,
    ) -> tuple[list[dict[str, Any]], RunMetrics, int]:
        """Its events, numbers and steps. It goes on from what is in the folder at step ``live_at``,
        if that is not 0. ``slow``: every look at the clock takes a while."""
        pool, stream = ActiveCapPool(CLIENTS, cap=8), Stream.of(self.seed, "control")
        algorithm = (
            Rounds(SPECS, pool, stream, RandomPartition(), first_k=2)
            if self.dynamic is None
            else Asynchronous(SPECS, pool, stream, dynamic=self.dynamic)
        )
        metrics, log = RunMetrics([*SPECS, LATER], ["b"]), io.StringIO()
        speeds = Speeds(CLIENTS, (2.0, 1.0), (0.5, 0.5), self.seed)
        head = header(
            metrics, algorithm="x", synchronous=self.dynamic is None, seed=self.seed,
            clients=CLIENTS, metrics=METRICS, simulated=True,
            groups=(speeds.factors, speeds.groups),
        )  # fmt: skip
        looked = [0]

        def clock() -> float:
            looked[0] += 1
            return 0.01 * looked[0] if slow else 0.0

        writer = SeriesWriter(folder, head, algorithm, metrics, ["b"], clock=clock)
        simulator = Simulator(
            algorithm,
            NoLearning(),
            pool,
            ConstantDelay() if self.ties else ShiftedExponentialDelay(),
            speeds,
            {name: Timing(name, 5, 0.2) for name in METRICS},
            Observers((metrics, EventLog(log, METRICS, ["b"]), writer)),
            seed=self.seed,
            loss_rate=self.loss_rate,
            timers=[(6.0, Join(LATER)), (45.0, Deadline(None, StopReason.TIME))],
        )
        steps = 0

        def ask() -> bool:
            nonlocal steps
            if steps == live_at and live_at:
                writer.go_on()
            if steps == kill_at:
                writer.close()
                raise Killed
            steps += 1
            return False

        if not live_at:
            writer.begin()
        try:
            simulator.run(ask)
            writer.end("ended")
        except Killed:
            pass
        return [json.loads(line) for line in log.getvalue().splitlines()], metrics, steps


worlds = st.builds(
    World,
    dynamic=st.sampled_from([True, False, None]),
    seed=st.integers(0, 99),
    ties=st.booleans(),
    loss_rate=st.sampled_from([0.0, 0.2]),
)


def timeless(rows: list[Any], kinds: str) -> list[Any]:
    """Rows without their real time."""
    return [[row[0], *row[2:]] for row in rows if isinstance(row, list) and row[0] in kinds]


def as_row(event: dict[str, Any]) -> list[Any] | None:
    match event["event"]:
        case "evaluate":
            return ["e", *(event[k] for k in ("t", "task", "round", "model", "value", "loss"))]
        case "realloc":
            return ["r", *(event[k] for k in ("t", "cause", "targets", "buffers"))]
        case "finish":
            return ["f", *(event[k] for k in ("t", "task", "reason"))]
        case _:
            return None


@given(worlds, st.booleans())
def test_the_series_agrees_with_the_events(world: World, slow: bool) -> None:
    with TemporaryDirectory() as place:
        events, _, _ = world.run(Path(place), slow=slow)
        rows, end = read(Path(place) / SERIES)
        assert end == (Path(place) / SERIES).stat().st_size
    head = rows[0]
    assert set(head["tasks"]) == set(METRICS)
    assert (head["tasks"]["a"]["requests"] is None) is (world.dynamic is None)
    assert len(head["groups"]["of"]) == CLIENTS
    expected = [row for row in map(as_row, events) if row is not None]
    assert timeless(rows, "erf") == expected
    assert timeless(rows, "x") == [["x", rows[-1][2], "ended"]]
    staleness: dict[str, Counter[str]] = {name: Counter() for name in METRICS}
    sent: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    samples = {row[3]: row for row in rows if isinstance(row, list) and row[0] == "s"}
    dropped = {e["request"] for e in events if e["event"] == "drop" and e["reason"] == "stale"}
    for event in events:
        if event["event"] == "dispatch":
            sent[str(event["client"])] += 1
        elif event["event"] == "arrive" and event["request"] not in dropped:
            counted[str(event["client"])] += 1
            staleness[event["task"]][str(event["staleness"])] += 1
            sample = samples.get(counted.total())
            if sample is not None and sample[2] == event["t"]:
                sums = {
                    name: [found.total(), sum(int(k) * n for k, n in found.items())]
                    for name, found in staleness.items()
                }
                assert {k: v[5:] for k, v in sample[4].items()} == {k: sums[k] for k in sample[4]}
    last = [row for row in rows if isinstance(row, list) and row[0] == "h"][-1]
    assert last[3] == staleness
    assert last[4] == {"sent": sent, "counted": counted}
    final = [row for row in rows if isinstance(row, list) and row[0] == "s"][-1]
    assert final[3] == counted.total()
    assert [task[1] for task in final[4].values()] == [0] * len(final[4]), "all have ended"
    times = [row[1:3] for row in rows if isinstance(row, list)]
    assert times == sorted(times)


@settings(max_examples=40)
@given(worlds, st.data())
def test_taken_up_again_it_is_the_series_of_the_whole_run(world: World, data: Any) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        _, _, steps = world.run(Path(one))
        whole = read(Path(one) / SERIES)[0]
        file = Path(other) / SERIES
        reached, live_at = 0, 0
        for _ in range(data.draw(st.integers(1, 3), label="kills")):
            reached = data.draw(st.integers(max(live_at, 1), steps - 1), label="killed at")
            world.run(Path(other), live_at=live_at, kill_at=reached)
            with file.open("a") as half:
                half.write('["s",0.0,1.')
            live_at = data.draw(st.integers(1, reached), label="goes on from")
        world.run(Path(other), live_at=live_at)
        rows = read(file)[0]
    for kinds in ("erf", "s"):
        assert timeless(rows, kinds) == timeless(whole, kinds)
    assert timeless(rows, "h")[-1] == timeless(whole, "h")[-1]
    assert timeless(rows, "x")[-2][2] == "resumed"
    assert rows[0]["tasks"] == whole[0]["tasks"]


@settings(max_examples=40)
@given(worlds, st.floats(0, 1), st.floats(0, 1))
def test_what_the_disk_has_lost_is_written_again(world: World, lost: float, live: float) -> None:
    """As after a power cut, or in a run that an earlier version began, which wrote no series."""
    with TemporaryDirectory() as place:
        file = Path(place) / SERIES
        _, _, steps = world.run(Path(place))
        file.write_bytes(file.read_bytes()[: int(lost * file.stat().st_size)])
        events, _, _ = world.run(Path(place), live_at=1 + int(live * (steps - 2)))
        rows = read(file)[0]
    known = [row for row in map(as_row, events) if row is not None]

    def essence(rows: list[Any]) -> list[Any]:
        return sorted(json.dumps([*row[:2], row[3]] if row[0] == "r" else row) for row in rows)

    assert isinstance(rows[0], dict)
    assert essence(timeless(rows, "erf")) == essence(known)


def test_samples_thin_out_as_a_run_gets_longer(tmp_path: Path) -> None:
    metrics = RunMetrics(SPECS)
    clock = [0.0]
    pool = ActiveCapPool(CLIENTS, cap=8)
    algorithm = Asynchronous(SPECS, pool, Stream.of(1, "control"))
    head = {"series": 1, "began": 0.0}
    writer = SeriesWriter(tmp_path, head, algorithm, metrics, clock=lambda: clock[0])
    writer.begin()
    for second in range(200_000):
        clock[0] = float(second)
        writer.commanded(float(second), Accept(second, "a", 0, 0, 0, True))
    writer.close()
    rows = read(tmp_path / SERIES)[0]
    kinds = Counter(row[0] for row in rows[1:])
    assert 3000 < kinds["s"] < 4500  # every two seconds it would be 100,000
    assert 150 < kinds["h"] < 250


def test_a_reader_follows_a_file_that_grows_is_cut_and_grows_again(tmp_path: Path) -> None:
    file = tmp_path / SERIES
    lines = ['{"series":1}', '["f",0.1,1.0,"a","time"]', '["unknown",0.2,1.0,5]', "{}", '["f",0.']
    file.write_text("\n".join(lines))
    follower = Follower(file)
    rows, again = follower.new()
    assert (len(rows), again) == (2, False)
    assert follower.new() == ([], False)
    with file.open("a") as more:
        more.write('3,2.0,"b","time"]\n')
    assert follower.new() == ([["f", 0.3, 2.0, "b", "time"]], False)
    file.write_text(lines[0] + "\n" + '["x",9.1,1.0,"resumed"]\n' * 9)
    rows, again = follower.new()
    assert (len(rows), again) == (10, True)
    file.write_text('{"series":2}\n')
    with pytest.raises(UnusableFolder, match=r"is of version 2; this version of fedast reads 1"):
        follower.new()


def test_a_run_on_disk_and_its_frame(tmp_path: Path) -> None:
    config = resolve(load(QUICK, ("simulation.max_time=12", "simulation.clients=30")), QUICK.parent)
    folder = tmp_path / "run"
    execute(config, folder, events=True, every=Every.parse("1"), stop=_after(60))
    interrupted = read(folder / SERIES)[0]
    assert interrupted[-1][3] == "interrupted"
    resume(folder)
    rows = read(folder / SERIES)[0]
    assert [row[3] for row in rows[1:] if row[:1] == ["x"]] == ["resumed", "ended"]
    assert "interrupted" not in (folder / SERIES).read_text(), "it was undone"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert timeless(rows, "erf") == [row for row in map(as_row, events) if row is not None]
    assert rows[0]["began"] == interrupted[0]["began"]
    spent = [row for row in rows[1:] if row[:1] == ["p"]][-1][3]
    assert set(spent) == {"train", "evaluate", "aggregate", "other"}
    assert spent["train"] > 0
    frame = fedast.load(folder)[0].series
    samples = [row for row in rows[1:] if row[:1] == ["s"]]
    assert len(frame) == sum(len(row[4]) for row in samples)
    arrived = frame.groupby("task").updates.max()
    assert arrived.sum() == sum(event["event"] == "arrive" for event in events)
    stale = sum(event.get("staleness", 0) for event in events if event["event"] == "arrive")
    mean = frame.staleness_mean.fillna(0) * frame.groupby("task").updates.diff().fillna(
        frame.updates
    )
    assert mean.sum() == pytest.approx(stale)
    with pytest.raises(UnusableFolder, match="holds another run"):
        execute(config, folder)
    execute(config, folder, overwrite=True, stop=_after(3))
    assert len(read(folder / SERIES)[0]) < 12


def _after(steps: int) -> Callable[[], bool]:
    asked = iter(range(steps))
    return lambda: next(asked, None) is None
