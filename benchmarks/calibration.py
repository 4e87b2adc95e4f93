"""FedAST(D) with cached calibration never, always and by its own choice, on the same seeds.

    python benchmarks/calibration.py benchmarks/calibration/embedded.toml --seeds 5 --out DIR

Prints a Markdown table: simulated time to each task's target, mean ± standard
deviation over the seeds. A task that does not reach its target counts with the
run's time limit and is marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.run import RunResult
from fedast.run.batch import BatchRun, run_batch
from fedast.run.execute import data_notes

USES = ("never", "always", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    names = [task.name or task.use for task in load(args.config).tasks]
    runs, limit = [], 0.0
    for use in USES:
        settings = [f"tasks.{name}.calibration.use={use}" for name in names]
        config = resolve(load(args.config, settings), args.config.parent)
        limit = config.simulation.max_time or 0.0
        for note in data_notes(config) if use == "always" else ():
            print(f"- {note}")
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            out = None if args.out is None else args.out / use / f"seed-{seed}"
            runs.append(BatchRun(use, config.model_copy(update={"seed": seed}), out))
    results = run_batch(runs, jobs=args.jobs, overwrite=True)
    by_use: dict[str, list[RunResult]] = {use: [] for use in USES}
    for run, result in zip(runs, results, strict=True):
        by_use[run.label].append(result)
    print("\n| calibration | " + " | ".join([*names, "all tasks"]) + " |")
    print("|---" * (len(names) + 2) + "|")
    times: dict[str, dict[str, list[float | None]]] = {}
    for use, found in by_use.items():
        rows: dict[str, list[float | None]] = {
            name: [result.tasks[name].time_to_target for result in found] for name in names
        }
        rows["all tasks"] = [
            None if None in reached else max(time for time in reached if time is not None)
            for reached in ([result.tasks[n].time_to_target for n in names] for result in found)
        ]
        times[use] = rows
        print(f"| {use} | " + " | ".join(_cell(row, limit) for row in rows.values()) + " |")
    if args.out is not None:
        (args.out / "times.json").write_text(json.dumps(times, indent=1) + "\n")


def _cell(times: list[float | None], limit: float) -> str:
    values = [limit if time is None else time for time in times]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    missed = times.count(None)
    note = f" ({missed} of {len(times)} not reached)" if missed else ""
    return f"{statistics.mean(values):.1f} ± {spread:.1f}{note}"


if __name__ == "__main__":
    main()
