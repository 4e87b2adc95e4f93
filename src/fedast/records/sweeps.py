"""What a sweep leaves beside its runs: ``sweep.json`` and ``trials.jsonl`` (docs/records.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from fedast.records.files import write_atomically
from fedast.records.run import UnusableFolder

SCHEMA = 1
SWEEP, TRIALS = "sweep.json", "trials.jsonl"

State: TypeAlias = Literal["running", "complete", "missed", "pruned", "failed", "invalid"]
"""``complete``: has a value. ``missed``: all its runs ended, one of them without a value (a target
was not reached). ``pruned``: stopped because it could not win. ``failed``: a run failed.
``invalid``: its configuration is not valid."""


@final
@dataclass(frozen=True)
class Trial:
    """One point of a sweep: a line of ``trials.jsonl``. The last line of a number holds."""

    number: int
    state: State
    parameters: Mapping[str, Any]
    value: float | None = None
    """The objective: the mean over seeds."""
    values: Mapping[str, float | None] = field(default_factory=dict)
    """The objective of each run that has ended, by seed."""
    bound: float | None = None
    """Of a pruned trial: its value would have been worse than this, or (median rule) was this."""
    runs: tuple[str, ...] = ()
    """The folders of its runs, relative to the sweep's."""
    same_as: int | None = None
    """The earlier trial with the same parameters, whose runs these are."""
    wall_seconds: float = 0.0
    """Of its runs together."""
    time: float = 0.0
    """When the line was written, in seconds since 1970."""
    reason: str | None = None
    """Why it failed or is invalid."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do; a failed trial is run again."""
        return self.state not in ("running", "failed")

    def to_json(self) -> dict[str, Any]:
        table = asdict(self)
        table["trial"] = table.pop("number")
        table["runs"] = list(self.runs)
        order = ("trial", "state", "value", "parameters", *table)
        return {key: table[key] for key in dict.fromkeys(order)}


def trial_of(table: Mapping[str, Any]) -> Trial:
    known = {key: value for key, value in table.items() if key in Trial.__dataclass_fields__}
    return Trial(number=table["trial"], **{**known, "runs": tuple(table.get("runs", ()))})


def append_trial(folder: Path, trial: Trial) -> None:
    """Add a line, which survives a loss of power."""
    with (folder / TRIALS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(trial.to_json(), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_trials(folder: Path) -> dict[int, Trial]:
    """The newest state of every trial, by number. A last line that was not written whole is left
    out."""
    path = folder / TRIALS
    if not path.exists():
        return {}
    found: dict[int, Trial] = {}
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            trial = trial_of(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableFolder(
                f"{path}, line {number}: is not a trial ({error}); take the line out"
            ) from error
        found[trial.number] = trial
    return dict(sorted(found.items()))


def drop_half_line(folder: Path) -> None:
    """Cut off what a process that was killed had not written to its end."""
    path = folder / TRIALS
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def write_sweep(folder: Path, table: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": SCHEMA, **table}, indent=2, allow_nan=False)
    write_atomically(folder / SWEEP, text + "\n", durable=True)


def read_sweep(folder: Path) -> dict[str, Any]:
    """``sweep.json``; ``UnusableFolder`` if it is not there or of a later version."""
    path = folder / SWEEP
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableFolder(f"{folder}: holds no sweep (no readable {SWEEP})") from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        schema = table.get("schema") if isinstance(table, dict) else None
        raise UnusableFolder(f"{path}: has schema {schema}; this version of fedast reads {SCHEMA}")
    return table
