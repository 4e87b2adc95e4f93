"""The results folder: runs found by what they are, whatever study they were made for.

A results folder has ``STUDY/VARIANT/seed-N.toml``, the resolved configuration of a run, and
``seed-N.json``, its result (``records.compact``). A run is identified by its resolved
configuration: studies share runs, and a study that was interrupted continues where it stopped.
Where and how a model is trained (``compute``) is stored with the run and does not count, unless
a study asks for a precision.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedast.config.identity import identity
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.records.compact import CompactRun, read
from fedast.records.files import write_atomically
from fedast.records.run import UnusableFolder
from fedast.reproduce.study import Scale
from fedast.run.compute import GPU_PRECISION

MANIFEST = "reproduction.json"


@dataclass(frozen=True)
class StoredRun:
    path: str
    """Relative to the results folder, without suffix."""
    run: CompactRun


def stored_runs(folder: Path) -> dict[str, StoredRun]:
    """Every run in a results folder, by identity: with its precision, and without.

    Of runs that differ only in precision, the one found without is that of a GPU's default.
    """
    found: dict[str, StoredRun] = {}
    for path in sorted(folder.glob("*/*/seed-*.json")):
        file = path.with_suffix(".toml")
        if not file.is_file():
            continue
        stored = StoredRun(path.relative_to(folder).with_suffix("").as_posix(), read(path))
        config = resolve(load(file), file.parent)
        precision = stored.run.machine.get("precision", "auto")
        found[identity(with_precision(config, precision))] = stored
        unspecified = identity(with_precision(config, "auto"))
        if unspecified not in found or precision == GPU_PRECISION:
            found[unspecified] = stored
    return found


def with_precision(config: RunConfig, precision: str) -> RunConfig:
    compute = config.compute.model_copy(update={"precision": precision})
    return config.model_copy(update={"compute": compute})


@dataclass(frozen=True)
class Manifest:
    """What all runs of a results folder have in common (``reproduction.json``)."""

    scale: Scale
    settings: tuple[str, ...]


def prepare_results(folder: Path, wanted: Manifest) -> None:
    """Create a results folder, or check that an existing one has the same scale and settings."""
    path = folder / MANIFEST
    try:
        if path.exists():
            there = read_manifest(folder)
            if there != wanted:
                settings = " ".join(there.settings)
                raise UnusableFolder(
                    f"{folder}: holds runs of scale {there.scale} "
                    f"{f'with --set {settings}' if settings else 'without --set'}; "
                    "choose another folder with --out"
                )
            return
        folder.mkdir(parents=True, exist_ok=True)
        table = {"scale": wanted.scale, "settings": list(wanted.settings)}
        write_atomically(path, json.dumps(table) + "\n")
    except OSError as error:
        raise UnusableFolder(f"{folder}: cannot be written ({error.strerror})") from error


def read_manifest(folder: Path) -> Manifest:
    try:
        table = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Manifest(table["scale"], tuple(table["settings"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableFolder(
            f"{folder}: holds no results of fedast reproduce (no readable {MANIFEST}), "
            "nor of run or compare"
        ) from error
