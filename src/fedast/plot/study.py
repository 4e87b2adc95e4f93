"""Runs as a study: what ``fedast.load`` gives, arranged as the figures take it.

Runs of one configuration that differ in their seed are a *variant*; figures show variants as series
of one colour, or by any key of the configuration.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from fedast.analysis.runs import Run, load
from fedast.parts.errors import nearest
from fedast.records.compact import CompactRun
from fedast.records.run import RunResult
from fedast.report.looks import display_name
from fedast.reproduce.figures.drawing import Columns
from fedast.reproduce.results import Axis, Key, Role, StudyResults

Given: TypeAlias = Run | Sequence[Run] | str | Path
"""What a figure is drawn from: a run, several, or the folder of ``run`` or ``compare``."""
By: TypeAlias = str | Callable[[Run], object] | None
"""What tells runs apart: a key of the configuration ("algorithm.first_k"), "algorithm", "seed" or
"run" (its name), or a function of the run."""
_SEED = re.compile(r"seed-\d+")
_APART = ("seed", "compute", "observers", "federation")
"""Tables and keys in which the runs of a variant may differ."""


def given(runs: Given) -> list[Run]:
    """The runs that have a result."""
    if isinstance(runs, str | Path):
        runs = load(runs)
    all_runs = [runs] if isinstance(runs, Run) else list(runs)
    found = [run for run in all_runs if run.tasks]
    if not found:
        few = "there are no runs" if not all_runs else f"none of {len(all_runs)} runs has a result"
        raise ValueError(f"{few}: nothing to draw")
    return found


def study_of(
    runs: Given,
    *,
    series: By = None,
    panel: By = None,
    x: By = None,
    baseline: str | None = None,
    held: bool = False,
    columns: Columns = 2,
) -> StudyResults:
    """A study with an axis for each of ``panel``, ``x`` and ``series`` (default: variants)."""
    found = given(runs)
    if columns not in (1, 2):
        raise ValueError(f"columns must be 1 or 2, the columns of a paper; got {columns!r}")
    roles: list[tuple[Role, By]] = [("panel", panel), ("x", x), ("series", series)]
    labels: dict[Role, list[str]] = {
        role: variants(found) if by is None else labelled(found, by)
        for role, by in roles
        if by is not None or role == "series"
    }
    axes = tuple(
        Axis(by if isinstance(by, str) else "", role, ordered(labels[role]))
        for role, by in roles
        if role in labels
    )
    keys: list[Key] = list(zip(*(labels[axis.role] for axis in axes), strict=True))
    if baseline is not None:
        check_label(baseline, axes[-1].labels)
    by_key = _by_seed(found, keys)
    first = {key: next(iter(kept.values())) for key, kept in by_key.items()}
    tasks = {tuple(run.tasks) for run in found}
    if len(tasks) > 1 and x is None:
        some = " and ".join(f"{', '.join(names)}" for names in sorted(tasks)[:2])
        raise ValueError(
            f"the runs have different tasks ({some}); draw those of one experiment, for instance "
            "[run for run in runs if run.name.startswith('NAME/')]"
        )
    return StudyResults(
        name="", title="", where="", says="",
        axes=axes,
        runs={key: {seed: record_of(run) for seed, run in kept.items()}
              for key, kept in by_key.items()},
        folders={key: run.name for key, run in first.items()},
        targets=_all_targets(axes, first),
        claims=(),
        per_run="last" if len(tasks) == 1 else "mean",
        baseline=baseline if baseline is not None else axes[-1].labels[-1],
        seeds=0,
        figures=(),
        criterion="held" if held else "first",
        columns=columns,
    )  # fmt: skip


def variants(runs: Sequence[Run]) -> list[str]:
    """A label for each run: that of its algorithm where that tells the variants apart, otherwise
    the name of the folder of the variant's runs."""
    kinds = [_kind(run) for run in runs]
    first = dict(reversed(list(zip(kinds, runs, strict=True))))
    for name in (
        algorithm_title,
        lambda run: _folder(run).rpartition("/")[2],
        _folder,
        lambda run: run.name,
    ):
        named = {kind: name(run) for kind, run in first.items()}
        if len(set(named.values())) == len(named):
            break
    else:  # two loads of different folders may have runs of one name
        named = {kind: str(run.path) for kind, run in first.items()}
    known = {run.algorithm for run in runs}
    return [display_name(named[kind]) if named[kind] in known else named[kind] for kind in kinds]


def algorithm_title(run: Run) -> str:
    """Its algorithm as text writes it."""
    table = run.settings.get("algorithm", {})
    address = table.get("name", "") if isinstance(table, Mapping) else ""
    title = display_name(run.algorithm)
    return display_name(address) if title == run.algorithm and address else title


def _kind(run: Run) -> str:
    """What runs of one variant have in common: a folder with ``seed-1``, ``seed-2`` ... in it, or
    the configuration but for the seed."""
    if _SEED.fullmatch(run.path.stem):
        return str(run.path.parent)
    table = {key: value for key, value in run.settings.items() if key not in _APART}
    return json.dumps(table, sort_keys=True, default=str) if table else _folder(run)


def _folder(run: Run) -> str:
    head, _, tail = run.name.rpartition("/")
    return head if head and _SEED.fullmatch(tail) else run.name


def labelled(runs: Sequence[Run], by: str | Callable[[Run], object]) -> list[str]:
    """What ``by`` says about each run."""
    if not isinstance(by, str):
        return [str(by(run)) for run in runs]
    if by == "algorithm":
        return [algorithm_title(run) for run in runs]
    if by == "run":
        return [run.name for run in runs]
    values = [run.keys.get(by) for run in runs]
    if all(value is None for value in values):
        known = sorted({key for run in runs for key in run.keys})
        raise ValueError(f"no run has the key {by!r}{nearest(by, known)}")
    return ["–" if value is None else _text(value) for value in values]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Each once: by size if they are numbers, otherwise as they come."""
    found = list(dict.fromkeys(labels))
    try:
        return tuple(sorted(found, key=float))
    except ValueError:
        return tuple(found)


def check_label(label: str, labels: Sequence[str]) -> None:
    if label not in labels:
        raise ValueError(f"no series is called {label!r}{nearest(label, labels)}")


def _by_seed(runs: Sequence[Run], keys: Sequence[Key]) -> dict[Key, dict[int, Run]]:
    found: dict[Key, dict[int, Run]] = {}
    for run, key in zip(runs, keys, strict=True):
        there = found.setdefault(key, {}).setdefault(run.seed, run)
        if there is not run:
            raise ValueError(
                f"{there.name} and {run.name} are both {', '.join(key)!r} with seed {run.seed}; "
                "say what tells them apart, for instance series='run'"
            )
    return found


def _all_targets(
    axes: Sequence[Axis], first: Mapping[Key, Run]
) -> dict[Key, dict[str, float | None]]:
    """Of every combination of labels; one that was not run has the targets of another."""
    usual = targets_of(next(iter(first.values())))
    return {
        key: targets_of(first[key]) if key in first else usual
        for key in itertools.product(*(axis.labels for axis in axes))
    }


def targets_of(run: Run) -> dict[str, float | None]:
    """By task; None if it has none, or nothing says it."""
    tables = run.settings.get("tasks", [])
    said = {table.get("name") or table.get("use"): table.get("target") for table in tables}
    return {name: said.get(name) for name in run.tasks}


def record_of(run: Run) -> CompactRun:
    """A run as the figures take it, its curves in full."""
    if run.record is not None:
        return run.record
    result = RunResult(
        algorithm=run.algorithm,
        seed=run.seed,
        tasks=run.tasks,
        finish_time=run.finish_time or 0.0,
        wall_seconds=0.0,
        updates_per_second=0.0,
    )
    made = CompactRun.of(result, scale="full", machine={}, requests={}, final_at={})
    return replace(
        made,
        tasks={
            name: replace(task, curve=result.curves[name], requests=())
            for name, task in made.tasks.items()
        },
    )


def requests_of(run: Run) -> dict[str, tuple[tuple[float, int], ...]]:
    """Active requests by task, as (time, number from then on): of a compact record, or from the
    events; empty where the algorithm has none or nothing tells."""
    if run.record is not None:
        return {name: task.requests for name, task in run.record.tasks.items()}
    tables = run.settings.get("tasks", [])
    found: dict[str, list[tuple[float, int]]] = {
        table.get("name") or table["use"]: [(0.0, table["requests"])]
        for table in tables
        if table.get("requests")
    }
    if run.has_events:
        for event in run.raw_events():
            if event["event"] == "realloc":
                for name, target in event["targets"].items():
                    found.setdefault(name, []).append((event["t"], target))
    return {name: tuple(steps) for name, steps in found.items()}
