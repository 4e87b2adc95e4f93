"""Whether the rule for roll-backs would have undone honest training.

Shows every evaluation of the recorded runs of the paper's experiments (``results/``) to the
federation's guard, and counts those that it finds bad.

    python benchmarks/honest_evaluations.py results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedast.federation.guard import Guard, Verdict


def main() -> None:
    evaluations = tasks = 0
    bad: list[str] = []
    for path in sorted(Path(sys.argv[1]).glob("*/*/seed-*.json")):
        for name, task in json.loads(path.read_text())["tasks"].items():
            curve, guard = task["curve"], Guard({name: True})
            rows = [
                [float(value) for value in curve[key].split()]
                for key in ("round", "metric", "loss")
            ]
            tasks += 1
            for round_, metric, loss in zip(*rows, strict=True):
                evaluations += 1
                if guard.judge(name, int(round_), metric, loss) is Verdict.BAD:
                    bad.append(f"{path}: {name}, round {round_:g}, {metric}, {loss}")
                    guard.rolled_back(name, int(round_))
    print(f"{tasks} trainings, {evaluations} evaluations, {len(bad)} of them bad")
    print("\n".join(bad))


if __name__ == "__main__":
    main()
