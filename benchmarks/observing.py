"""What the time series of a run (series.jsonl) costs, as a part of the run's time.

    python benchmarks/observing.py [--pairs 9] [--trainer batched]

Two ways. The time that is spent inside what a folder adds to a run, the writer's methods and the
profiler around each piece of work: that is steady to a tenth of a percent. And the same small run
with and without a folder, in turns and in one process, by the processor's time; on a shared
machine single ratios vary by several percent.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.learner.profiling import Profiler
from fedast.records.run import SERIES
from fedast.records.series_writer import SeriesWriter
from fedast.run.build import build_tasks
from fedast.run.plan import build_world, plan_run
from fedast.run.simulate import run_world

QUICK = Path(__file__).parents[1] / "examples" / "quickstart.toml"


def seconds(config: RunConfig, folder: Path | None) -> tuple[float, int]:
    """Of one run, and its updates; it is built before the clock starts."""
    plan = plan_run(
        build_tasks(config),
        config.algorithm,
        config.simulation,
        seed=config.seed,
        compute=config.compute,
    )
    world = build_world(plan)
    began = time.process_time()
    outcome = run_world(world, folder=folder)
    took = time.process_time() - began
    return took, sum(task.updates for task in outcome.result.tasks.values())


class Spent:
    """Calls and seconds of the functions that it wraps, without what the wrapping itself costs."""

    def __init__(self) -> None:
        self._calls = 0
        self._seconds = 0.0
        self._each = 0.0
        idle = self.wrapped(lambda: None)
        for _ in range(20_000):
            idle()
        self._each = self._seconds / self._calls
        self._calls, self._seconds = 0, 0.0

    @property
    def seconds(self) -> float:
        return self._seconds - self._calls * self._each

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = function(*arguments)
            self._seconds += time.perf_counter() - began
            self._calls += 1
            return found

        return timed


@contextmanager
def replaced(kind: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(kind, name)
    setattr(kind, name, function)
    try:
        yield
    finally:
        setattr(kind, name, before)


def inside(config: RunConfig, folder: Path) -> float:
    """The part of a run's time that is spent in what a folder adds to it."""
    spent, profiled = Spent(), 0
    profile = Profiler.time

    def counting(profiler: Profiler, name: str, work: Callable[[], Any]) -> Any:
        nonlocal profiled
        profiled += 1
        return profile(profiler, name, work)

    with ExitStack() as stack:
        for name in ("commanded", "evaluated", "begin", "end"):
            method = spent.wrapped(getattr(SeriesWriter, name))
            stack.enter_context(replaced(SeriesWriter, name, method))
        stack.enter_context(replaced(Profiler, "time", counting))
        took, _ = seconds(config, folder)
    profiler = Profiler(torch.device("cpu"))
    began = time.perf_counter()
    for _ in range(profiled):
        profiler.time("training", lambda: None)
    return (spent.seconds + time.perf_counter() - began) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--trainer", default="batched")
    options = parser.parse_args()
    settings = (
        "simulation.until=time", "simulation.max_time=240", "compute.device=cpu",
        f"compute.trainer={options.trainer}",
    )  # fmt: skip
    config = resolve(load(QUICK, settings), QUICK.parent)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds(config, folder)  # to warm up
        size = (folder / SERIES).stat().st_size
        parts = sorted(inside(config, folder) for _ in range(5))
        print(f"inside: {parts[2]:.2%} of a run (five runs: {parts[0]:.2%} to {parts[-1]:.2%})")
        ratios, alone, watched, updates = [], [], [], 0
        for number in range(options.pairs):
            order = (None, folder) if number % 2 else (folder, None)
            times = {place: seconds(config, place) for place in order}
            alone.append(times[None][0])
            watched.append(times[folder][0])
            updates = times[None][1]
            ratios.append(watched[-1] / alone[-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{options.pairs} pairs of runs with {updates:,} updates, {options.trainer}, on one core: "
        f"{statistics.median(alone):.2f} s without and {statistics.median(watched):.2f} s with "
        f"{SERIES} ({size / 1024:.0f} KiB)"
    )
    print(
        f"ratio: median {middle:.4f}, quartiles {low:.4f} to {high:.4f}, "
        f"of the best times {min(watched) / min(alone):.4f}"
    )


if __name__ == "__main__":
    main()
