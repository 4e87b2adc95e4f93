"""Carry out a sweep, or go on with one that was interrupted.

A trial is written to ``trials.jsonl`` before its runs begin and again when it ends. So whatever
ends the process, the same command finds which points were tried, which of their runs are whole, and
goes on with the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedast.records.lock import locked
from fedast.records.run import UnusableFolder, check_unheld
from fedast.records.sweeps import (
    SWEEP,
    TRIALS,
    Trial,
    drop_half_line,
    read_sweep,
    read_trials,
    write_sweep,
)
from fedast.run.batch import Interrupted, run_batch
from fedast.run.executors import EXECUTORS, Executor
from fedast.sweeps.conduct import Conduct, Unwatched, Watcher
from fedast.sweeps.objective import Objective
from fedast.sweeps.sweep import Checked, Sweep, check_points, load_sweep

_MAY_CHANGE = ("fedast", "name", "title", "trials", "prune")
"""What a sweep that goes on may say otherwise than before; and the sampler's ``trials``."""


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep has found."""

    folder: Path
    objective: Objective
    trials: tuple[Trial, ...]

    @property
    def ranked(self) -> list[Trial]:
        """Trials with a value, the best first."""
        found = [(t.value, t) for t in self.trials if t.state == "complete" and t.value is not None]
        sign = 1 if self.objective.direction == "minimize" else -1
        return [trial for _, trial in sorted(found, key=lambda f: (sign * f[0], f[1].number))]

    @property
    def best(self) -> Trial | None:
        return next(iter(self.ranked), None)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "objective": self.objective.to_json(),
            "best": None if best is None else best.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


def sweep(
    study: Path | str | Mapping[str, Any],
    out: Path | str,
    *,
    trials: int | None = None,
    seeds: int | None = None,
    settings: Sequence[str] = (),
    jobs: int | None = None,
    on: str | Mapping[str, Any] = "local",
    events: bool = False,
    checkpoint_every: str | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SweepOutcome:
    """Carry out a sweep (docs/sweeps.md), or go on with it if ``out`` has a part of it.

    ``study`` is a file, or a table like its content. ``settings`` are ``key=value`` pairs for every
    run. Runs are made in other processes, so a script calls this under ``if __name__ ==
    "__main__":``.
    """
    wanted = load_sweep(study, settings=settings, trials=trials, seeds=seeds)
    where = EXECUTORS.parse(on, "on")
    return run_sweep(
        wanted,
        check_points(wanted),
        Path(out),
        jobs=jobs or where.jobs(),
        executor=where.build(),
        events=events,
        every=checkpoint_every,
        overwrite=overwrite,
        watcher=watcher or Unwatched(),
        stop=stop,
    )


def run_sweep(
    wanted: Sweep,
    checked: Checked,
    folder: Path,
    *,
    jobs: int,
    executor: Executor = run_batch,
    events: bool = False,
    every: str | None = None,
    overwrite: bool = False,
    watcher: Watcher,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> SweepOutcome:
    """``Interrupted`` if ``stop`` says so; the same call goes on from there."""
    with locked(folder):
        found = prepare(wanted, checked, folder, overwrite=overwrite)
        conduct = Conduct(wanted, checked, folder, found, jobs, events, every, watcher, say, stop)
        executor(
            conduct.runs(),
            jobs=jobs,
            events=events,
            overwrite=True,
            progress=conduct.progress,
            done=conduct.done,
            failed=conduct.failed,
            say=say,
            stop=stop,
            prune=conduct.prune,
        )
        if stop():
            raise Interrupted
        return SweepOutcome(folder, checked.objective, tuple(conduct.trials()))


def prepare(wanted: Sweep, checked: Checked, folder: Path, *, overwrite: bool) -> dict[int, Trial]:
    """Make a folder ready, or check that it holds this sweep: the trials that are there."""
    definition = wanted.definition(checked.objective)
    if overwrite:
        for name in (SWEEP, TRIALS):
            (folder / name).unlink(missing_ok=True)
        for place in folder.glob("trial-*"):
            shutil.rmtree(place)
    if (folder / SWEEP).exists():
        check_same(read_sweep(folder), definition, folder)
        drop_half_line(folder)
    else:
        check_unheld(folder)
    write_sweep(folder, definition)
    return read_trials(folder)


def check_same(there: Mapping[str, Any], mine: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder with another sweep."""
    changed = [
        key
        for key in dict.fromkeys((*there, *mine))
        if key not in ("schema", *_MAY_CHANGE) and _fixed(there.get(key)) != _fixed(mine.get(key))
    ]
    if "study" in changed:
        one, other = there["study"], mine["study"]
        changed[changed.index("study")] = ", ".join(
            key for key in ("base", "axes", "search") if one.get(key) != other.get(key)
        )
    if changed:
        raise UnusableFolder(
            f"{folder}: holds another sweep ({', '.join(changed)} differs); "
            "choose another folder with --out, or --overwrite"
        )


def _fixed(value: Any) -> Any:
    if isinstance(value, Mapping) and "trials" in value:
        return {key: entry for key, entry in value.items() if key != "trials"}
    return value
