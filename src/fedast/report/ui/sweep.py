"""A sweep as the page shows it: its parameters and trials, the best one, and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedast.records.run import UnusableFolder
from fedast.records.sweeps import SWEEP, TRIALS, read_sweep, read_trials
from fedast.report.ui.find import Found


def sweep_detail(found: Found, ids: Mapping[Path, str]) -> dict[str, Any]:
    """``ids``: numbers of records by their paths."""
    try:
        if SWEEP not in found.stamp:
            raise UnusableFolder(f"{found.path}: its {SWEEP} cannot be read")
        told = read_sweep(found.path)
        trials = read_trials(found.path) if TRIALS in found.stamp else {}
        objective, parameters = dict(told["objective"]), list(told["parameters"])
        names = [str(parameter["name"]) for parameter in parameters]
    except UnusableFolder as error:
        return {"name": found.name, "broken": str(error)}
    except (KeyError, TypeError, ValueError) as error:
        return {
            "name": found.name,
            "broken": f"{found.path / SWEEP}: is not as it should be ({error})",
        }
    values = [trial.value for trial in trials.values() if trial.value is not None]
    largest = objective.get("direction") == "maximize"
    return {
        "name": found.name,
        "title": told.get("title"),
        "objective": objective,
        "parameters": parameters,
        "most": told.get("trials"),
        "best": (max(values) if largest else min(values)) if values else None,
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state,
                "value": trial.value,
                "bound": trial.bound,
                "seconds": trial.wall_seconds,
                "reason": trial.reason,
                "parameters": {name: trial.parameters.get(name) for name in names},
                "runs": [ids[path] for run in trial.runs if (path := found.path / run) in ids],
            }
            for trial in trials.values()
        ],
    }
