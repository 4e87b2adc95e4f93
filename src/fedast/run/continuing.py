"""Going on with many runs that were interrupted: what is there already, and what is left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedast.config.identity import describe, differences, listed
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.lock import locked
from fedast.records.run import (
    CONFIG,
    CURVES,
    EVENTS,
    RESULT,
    RunResult,
    UnusableFolder,
    check_unheld,
    claim_folder,
    read_run,
)
from fedast.run.batch import BatchRun
from fedast.version import __version__


def found_again(
    run: BatchRun,
    *,
    events: bool,
    any_version: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> RunResult | None:
    """The result of this run if its folder has it; ``UnusableFolder`` if there is another run.

    None, so that it is run again, if it was interrupted, lacks the log of ``events`` that is asked
    for, or was made by another version of fedast (unless ``any_version`` will do).
    """
    out = run.out
    if out is None:
        return None
    if not (out / CONFIG).is_file():
        check_unheld(out)
        return None
    theirs = resolve(load(out / CONFIG), out)
    # That run wrote out what it chose for "auto"; compare with the same choices.
    mine, chosen = run.config.compute, theirs.compute
    open_keys = [key for key in ("device", "precision") if getattr(mine, key) == "auto"]
    update = {key: getattr(chosen, key) for key in ("workers", *open_keys)}
    update["trainers"] = chosen.trainers | mine.trainers
    config = run.config.model_copy(update={"compute": mine.model_copy(update=update)})
    changed = differences(describe(theirs), config, out)
    if changed:
        raise UnusableFolder(
            f"{out}: holds a run of another configuration ({listed(changed)}); "
            "choose another folder or --overwrite"
        )
    needed = (RESULT, CURVES, EVENTS) if events else (RESULT, CURVES)
    if not all((out / name).is_file() for name in needed):
        return None
    result = read_run(out)
    if result.fedast != __version__ and not any_version:
        say(f"{out}: was made by fedast {result.fedast or '0.1.0'}; it is run again")
        return None
    return None if result.interrupted else result


def made_ready(run: BatchRun, *, events: bool, resume: bool) -> BatchRun:
    """With its folder ready for it. A run that was interrupted is gone on with, if ``resume`` and
    if it has a checkpoint (and the log of ``events`` that is asked for)."""
    if run.out is None:
        return run
    with locked(run.out):  # a `fedast run`, or a worker on another machine
        if resume and has_checkpoint(run.out) and (not events or (run.out / EVENTS).is_file()):
            return replace(run, resume=True)
        claim_folder(run.out, overwrite=True)
    return run


def has_checkpoint(out: Path) -> bool:
    """Whether a run's folder has something to go on from."""
    from fedast.run.checkpointing import FOLDER

    return (out / CONFIG).is_file() and any((out / FOLDER).glob("*.json"))
