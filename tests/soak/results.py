"""The results of a campaign: a line of JSON per run, and the table of all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.soak.campaign import Run

_COLUMNS = ("sent", "counted", "lost", "invalid", "late")


def append(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def read(*paths: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in paths
        if path.exists()
        for line in path.read_text().splitlines()
    ]


def harms(runs: Sequence[dict[str, Any]]) -> int:
    return sum(len(wave["harms"]) for run in runs for wave in run["waves"])


def table(runs: Sequence[dict[str, Any]]) -> str:
    """In Markdown, as the documents have it."""
    times: Counter[str] = Counter()
    requests: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for run in runs:
        times.update(name for wave in run["waves"] for name in wave["harms"])
        total.update(run["counts"])
        for name, counts in run["by_harm"].items():
            requests.setdefault(name, Counter()).update(counts)
    lines = [
        "| fault or attack | times | requests sent | updates counted | lost and sent elsewhere "
        "| invalid | late or twice |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]

    def row(name: str, count: int, found: Counter[str]) -> str:
        numbers = " | ".join(f"{found[column]:,}" for column in _COLUMNS)
        return f"| {name} | {count:,} | {numbers} |"

    lines += [row(name, times[name], requests.get(name, Counter())) for name in sorted(times)]
    lines.append(row("**all**", sum(times.values()), total))
    return "\n".join(lines)


def summary(runs: Sequence[dict[str, Any]]) -> str:
    """What to say below the table: seeds, time, memory, and what failed with which seed."""
    if not runs:
        return "no runs yet"
    seconds = sum(run["seconds"] for run in runs)
    count = harms(runs)
    failed = [run for run in runs if run["problems"]]
    lines = [
        f"{len(runs)} runs (seeds {_ranges(run['seed'] for run in runs)}), {count:,} faults and "
        f"attacks in {seconds / 60:.0f} minutes of runs; {len(runs) - len(failed)} runs without a "
        f"problem, {len(failed)} failed."
    ]
    for name in ("server", "nats-server"):
        most = max(run["peaks"].get(name, 0) for run in runs)
        lines.append(f"The most memory that {name} was seen to use: {most} MB.")
    locked = sum(run.get("lock_ups", 0) for run in runs)
    if locked:
        lines.append(f"nats-server locked up and was started again: {locked} times.")
    not_done: Counter[str] = Counter()
    for run in runs:
        not_done.update(run["not_done"])
    if not_done:
        names = ", ".join(f"{name} ({times})" for name, times in sorted(not_done.items()))
        lines.append(f"Not counted, since they could not connect while it lasted: {names}.")
    missing = sorted({text for run in runs for text in run["unavailable"]})
    lines += [f"Not done in some runs: {text}." for text in missing]
    lines += [f"FAILED, seed {run['seed']}: {text}" for run in failed for text in run["problems"]]
    return "\n".join(f"- {line}" for line in lines)


def _ranges(seeds: Iterable[int]) -> str:
    """``1, 2, 3, 7`` as ``1-3, 7``."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed - parts[-1][-1] <= 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}-{p[-1]}" if p[0] < p[-1] else str(p[0]) for p in parts)
