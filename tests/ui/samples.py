"""Records as runs leave them, written quickly and without training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from fedast.records import toml
from fedast.records.metrics import Point
from fedast.records.run import CONFIG, SERIES, RunResult, TaskResult, write_result
from fedast.records.sweeps import State, Trial, append_trial, write_sweep

CLIENTS = 60
GROUPS = (1.3, 1.0, 0.7)


def metric(step: int, steps: int, speed: float, noise: float) -> float:
    return 0.95 * (1 - math.exp(-speed * step / steps)) + noise


def write_run(
    folder: Path,
    *,
    algorithm: str = "fedast-d",
    seed: int = 1,
    server_lr: float = 0.4,
    tasks: tuple[str, ...] = ("digits", "letters"),
    evaluations: int = 60,
    samples: int = 200,
    finished: bool = True,
) -> Path:
    """A run's folder; unfinished: without a result, as if its process had been killed."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {
        "seed": seed,
        "algorithm": {"name": algorithm, "server_lr": server_lr},
        "simulation": {"clients": CLIENTS, "max_time": math.inf},
        "tasks": [
            {"name": name, "use": "digits-mlp", "target": 0.9, "requests": 10, "buffer": 4}
            for name in tasks
        ],
    }
    (folder / CONFIG).write_text(toml.dumps(config))
    draw = random.Random(f"{algorithm} {seed} {server_lr}")
    header = {
        "series": 1, "fedast": "0.2.0", "algorithm": algorithm, "seed": seed, "clients": CLIENTS,
        "began": 1.7e9, "time": "simulated",
        "tasks": {
            name: {"metric": "accuracy", "target": 0.9, "higher": True, "requests": 10, "buffer": 4}
            for name in tasks
        },
        "groups": {"names": [f"×{g:g}" for g in GROUPS], "of": [n % 3 for n in range(CLIENTS)]},
    }  # fmt: skip
    rows: list[tuple[float, Any]] = []
    curves: dict[str, list[Point]] = {name: [] for name in tasks}
    for step in range(evaluations):
        for place, name in enumerate(tasks):
            t = 100.0 * (step + 1) / evaluations + 0.1 * place
            value = metric(step, evaluations, 4 + server_lr - place, draw.gauss(0, 0.01))
            curves[name].append(Point(t, 4 * step, value, 1 - value))
            rows.append((t, ["e", round(t / 10, 3), t, name, 4 * step, "raw", value, 1 - value]))
    for step in range(samples):
        t = 100.0 * step / samples
        state = {
            name: [step, 8 + step % 3, 10, step % 4, 4, 10 * step, 30 * step] for name in tasks
        }
        rows.append((t, ["s", round(t / 10, 3), t, 10 * step * len(tasks), state]))
    for t in (25.0, 50.0):
        targets = {name: 10 + place for place, name in enumerate(tasks)}
        rows.append((t, ["r", t / 10, t, "period", targets, dict.fromkeys(tasks, 4)]))
    if finished:
        staleness = {name: {"0": 100, "3": 1500, "9": 400} for name in tasks}
        counts = {str(n): 20 + 10 * (n % 3) for n in range(CLIENTS)}
        rows += [(101.0, ["f", 10.1, 101.0, name, "time"]) for name in tasks]
        rows.append((102.0, ["h", 10.1, 101.0, staleness, {"sent": counts, "counted": counts}]))
        spent = {"train": 8.0, "evaluate": 1.0, "aggregate": 0.5, "other": 0.6}
        rows.append((102.0, ["p", 10.1, 101.0, spent]))
        rows.append((103.0, ["x", 10.1, 101.0, "ended"]))
    rows.sort(key=lambda row: row[0])
    lines = [header, *(row for _, row in rows)]
    (folder / SERIES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        results = {
            name: TaskResult(
                metric="accuracy",
                time_to_target=next((p.time for p in curve if p.value >= 0.9), None),
                final=curve[-1].value,
                final_loss=curve[-1].loss,
                rounds=4 * evaluations,
                updates=2000,
                staleness_mean=4.05,
                staleness_max=9,
                finish_reason="time",
                curve=tuple(curve),
            )
            for name, curve in curves.items()
        }
        write_result(folder, RunResult(algorithm, seed, results, 101.0, 10.1, 396.0))
    return folder


def write_sample_sweep(folder: Path, trials: int = 14) -> Path:
    """A sweep under way, with one run to look at."""
    folder.mkdir(parents=True)
    parameters: list[dict[str, Any]] = [
        {"name": "algorithm.server_lr", "kind": "float", "low": 0.1, "high": 2.0, "log": True},
        {"name": "algorithm.ratio", "kind": "choice", "choices": [4, 8]},
        {"name": "tasks.*.client_lr", "kind": "float", "low": 0.02, "high": 0.3, "log": True},
    ]
    objective = {"value": "finish_time", "task": None, "over": None, "direction": "minimize"}
    table = {"title": "Learning rates", "objective": objective, "parameters": parameters}
    write_sweep(folder, {**table, "trials": trials + 2})
    draw = random.Random(3)
    for number in range(trials):
        rate, client = 0.1 * 20 ** draw.random(), 0.02 * 15 ** draw.random()
        ratio = draw.choice((4, 8))
        values = (round(rate, 4), ratio, round(client, 4))
        state: State = "pruned" if number % 5 == 4 else "complete"
        if number == trials - 1:
            state = "running"
        value = 30 + 40 * abs(math.log(rate / 0.6)) + 20 * abs(math.log(client / 0.1)) + ratio
        run = f"trial-{number:04}/seed-1"
        append_trial(
            folder,
            Trial(
                number, state, dict(zip((p["name"] for p in parameters), values, strict=True)),
                value=round(value, 2) if state == "complete" else None,
                bound=60.0 if state == "pruned" else None, runs=(run,), wall_seconds=4.2,
            ),
        )  # fmt: skip
    write_run(folder / "trial-0000" / "seed-1")
    return folder
