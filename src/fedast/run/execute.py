"""One configured run, from its configuration to its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedast.aggregation.calibration import size_text
from fedast.config.cautions import cautions_of_data
from fedast.config.identity import describe, differences, input_files, kept_name, listed
from fedast.config.load import load
from fedast.config.notes import Note
from fedast.config.resolve import options_of, resolve
from fedast.config.schema import RunConfig, TaskConfig
from fedast.learner.checkpoints import Checkpoint, newest
from fedast.learner.replay import ReplayFailed
from fedast.records import toml
from fedast.records.files import write_atomically
from fedast.records.lock import locked
from fedast.records.run import (
    CONFIG,
    CURVES,
    EVENTS,
    RESULT,
    UnusableFolder,
    claim_folder,
    read_run,
    write_result,
)
from fedast.run.build import build_tasks
from fedast.run.checkpointing import EVERY, FOLDER, Checkpointing, Every
from fedast.run.gpu_start import start_gpu, wait_for_gpu
from fedast.run.models import data_of, save_models
from fedast.run.plan import World, build_world, plan_run
from fedast.run.simulate import Outcome, Watch, run_world
from fedast.version import __version__


def execute(
    config: RunConfig,
    out: Path | None = None,
    *,
    events: bool = False,
    overwrite: bool = False,
    watch: Sequence[Watch] = (),
    stop: Callable[[], bool] | None = None,
    every: Every | None = None,
) -> Outcome:
    """Run a resolved configuration; with ``out``, leave its records (and checkpoints) there."""
    # All of this before the folder, so that what is wrong leaves nothing behind.
    world = _build(config)
    config = config.model_copy(update={"compute": world.plan.compute})
    checkpointing = None
    with nullcontext() if out is None else locked(out):
        if out is not None:
            claim_folder(out, overwrite=overwrite)
            shutil.rmtree(out / FOLDER, ignore_errors=True)
            write_atomically(out / CONFIG, toml.dumps(_self_contained(config, out)))
            if every is not None:
                checkpointing = Checkpointing(out / FOLDER, every, describe(config))
                checkpointing.folder.mkdir()
                write_atomically(checkpointing.folder / EVERY, every.text + "\n")
        return _go(
            config,
            world,
            out,
            events=events,
            watch=watch,
            stop=stop,
            checkpointing=checkpointing,
        )


def resume(
    out: Path,
    *,
    every: Every | None = None,
    watch: Sequence[Watch] = (),
    stop: Callable[[], bool] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Take up the run in ``out`` from its newest whole checkpoint, or from the start."""
    if not (out / CONFIG).is_file():
        raise UnusableFolder(f"{out}: holds no run ({CONFIG} is missing)")
    with locked(out):
        return _resume(out, every, watch, stop, say)


def _resume(
    out: Path,
    every: Every | None,
    watch: Sequence[Watch],
    stop: Callable[[], bool] | None,
    say: Callable[[str], None],
) -> Outcome:
    complete = (out / RESULT).exists() and (out / CURVES).exists()
    if complete and not read_run(out).interrupted:
        raise UnusableFolder(f"{out}: its run has finished; there is nothing to resume")
    config = resolve(load(out / CONFIG), out)
    found = newest(out / FOLDER, say)
    if every is None and (out / FOLDER / EVERY).exists():
        every = Every.parse((out / FOLDER / EVERY).read_text().strip())
    if found is None:
        say("there is no checkpoint to continue from; starting over")
    elif every is None:
        raise UnusableFolder(
            f"{out}: does not say how often checkpoints are taken; add --checkpoint-every"
        )
    else:
        _check_same(found, config, out, say)
        say(f"continuing from simulated time {found.time:.1f}")
    checkpointing = (
        None if every is None else Checkpointing(out / FOLDER, every, describe(config), found)
    )
    events = (out / EVENTS).exists()
    try:
        return _go(
            config,
            _build(config),
            out,
            events=events,
            watch=watch,
            stop=stop,
            checkpointing=checkpointing,
        )
    except ReplayFailed as error:
        assert found is not None
        writer = found.fedast or "0.1.0"
        other = f", or use fedast {writer}, which wrote it" if writer != __version__ else ""
        raise UnusableFolder(
            f"{out}: the run does not reach its checkpoint at time {found.time:.1f} again: "
            f"{error}; restore {CONFIG}{other}, or start over with --overwrite"
        ) from error


def _check_same(
    found: Checkpoint, config: RunConfig, out: Path, say: Callable[[str], None]
) -> None:
    """Check that it is the same run, as far as that is possible before replaying it."""
    if found.config is not None:
        changed = differences(found.config, config, out)
        computing = [text for text in changed if text.startswith("compute.")]
        others = [text for text in changed if text not in computing]
        if others:
            raise UnusableFolder(
                f"{out}: {CONFIG} was changed since the checkpoint: {listed(others)}; "
                "restore it, or start over with --overwrite"
            )
        if computing:
            say(f"{listed(computing)}: rounding may differ from here on")
    if found.fedast not in (None, __version__):
        say(f"the checkpoint is of fedast {found.fedast}, this is {__version__}")


def _build(config: RunConfig) -> World:
    for observer in config.observers:
        observer.check()
    start_gpu(config.compute.device)
    try:
        tasks = build_tasks(config)
    finally:
        wait_for_gpu()
    plan = plan_run(
        tasks,
        config.algorithm,
        config.simulation,
        seed=config.seed,
        compute=config.compute,
    )
    return build_world(plan)


def _go(
    config: RunConfig,
    world: World,
    out: Path | None,
    *,
    events: bool,
    watch: Sequence[Watch],
    stop: Callable[[], bool] | None,
    checkpointing: Checkpointing | None,
) -> Outcome:
    outcome = run_world(
        world,
        events=out / EVENTS if out is not None and events else None,
        watch=watch,
        observers=config.observers,
        folder=out,
        settings=config.model_dump(mode="json", exclude={"algorithms", "observers", "path"}),
        stop=stop,
        checkpointing=checkpointing,
    )
    if out is not None:
        save_models(out, outcome.models, outcome.result, data_of(config), outcome.raw_models)
        write_result(out, outcome.result)
    return outcome


def data_notes(config: RunConfig) -> list[str]:
    """What there is to say about a resolved configuration once its tasks have their data.

    Data is loaded only where something may have to be said: if a task uses cached calibration, is
    the user's own (then it is built already), or has larger batches than usual.
    """
    if not any(_worth_a_look(task, config) for task in config.tasks):
        return []
    notes = []
    for task in build_tasks(config):
        if not config.algorithm.pools_data:
            notes += [
                f"warning: {Note(key, why, task.name, idle=False)}"
                for key, why in cautions_of_data(task)
            ]
        how = task.server.calibration
        if how.use == "never":
            continue
        try:
            module = task.model()
        except Exception:  # the run itself will say what is wrong with it
            continue
        need = how.memory(len(task.partition), sum(p.numel() for p in module.parameters()))
        if need:
            notes.append(f"{task.name}: cached calibration keeps {size_text(need)}")
    return notes


def _worth_a_look(task: TaskConfig, config: RunConfig) -> bool:
    if task.calibration is None or task.calibration.use != "never":
        return True
    defaults = options_of(task, config).defaults
    usual = None if defaults is None else defaults.training.batch_size
    return usual is None or (task.batch_size or usual) > usual


def _self_contained(config: RunConfig, out: Path) -> dict[str, Any]:
    """The configuration as a table, with the files that it names copied beside it."""
    table = config.model_dump(mode="json", exclude={"algorithms"})
    for section, field, path in input_files(config):
        copy = out / kept_name(section, field, path)
        if path != copy.resolve():
            shutil.copyfile(path, copy)
        table["simulation"][section][field] = copy.name
    return table
