"""One configured run, from its configuration to its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedast.experiments.build import build_tasks, check_inputs, pick_device
from fedast.experiments.config import RunConfig
from fedast.experiments.simulate import Outcome, Watch, simulate
from fedast.learn.server.calibration import size_text
from fedast.records import toml
from fedast.records.run import CONFIG, EVENTS, claim_folder, write_atomically, write_result


def execute(
    config: RunConfig,
    out: Path | None = None,
    *,
    events: bool = False,
    overwrite: bool = False,
    watch: Sequence[Watch] = (),
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Run a resolved configuration; with ``out``, leave its records there."""
    # All of this before the folder, so that what is wrong leaves nothing behind.
    check_inputs(config)
    device = pick_device(config.compute.device)
    config = config.model_copy(
        update={"compute": config.compute.model_copy(update={"device": device})}
    )
    tasks = build_tasks(config)
    if out is not None:
        claim_folder(out, overwrite=overwrite)
        write_atomically(out / CONFIG, toml.dumps(_self_contained(config, out)))
    outcome = simulate(
        tasks,
        config.algorithm,
        config.simulation,
        seed=config.seed,
        device=device,
        threads=config.compute.threads,
        events=out / EVENTS if out is not None and events else None,
        watch=watch,
        stop=stop,
    )
    if out is not None:
        write_result(out, outcome.result)
    return outcome


def memory_notes(config: RunConfig) -> list[str]:
    """What cached calibration of a resolved configuration needs, a line per task that uses it."""
    sides = {task.name: task.calibration for task in config.tasks if task.calibration is not None}
    if all(side.use == "never" for side in sides.values()):
        return []
    notes = []
    for task in build_tasks(config):
        need = task.server.calibration.memory(
            len(task.partition), sum(p.numel() for p in task.model().parameters())
        )
        if need:
            notes.append(f"{task.name}: cached calibration keeps {size_text(need)}")
    return notes


def _self_contained(config: RunConfig, out: Path) -> dict[str, Any]:
    """The configuration as a table, with the files that it names copied beside it."""
    table = config.model_dump(mode="json", exclude={"algorithms"})
    for section in ("delay", "availability"):
        named = table["simulation"][section].get("file")
        if named is not None:
            copy = out / f"{section}.csv"
            if Path(named) != copy.resolve():
                shutil.copyfile(named, copy)
            table["simulation"][section]["file"] = copy.name
    return table
