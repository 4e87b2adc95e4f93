"""What the time series of a run (series.jsonl) costs, as a part of the run's time.

    python benchmarks/observing.py [--pairs 9] [--trainer batched]

The same small run on a CPU with and without a folder for its series, in turns and in one process,
so that both see the same machine. Times are of the processor, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.records.run import SERIES
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
