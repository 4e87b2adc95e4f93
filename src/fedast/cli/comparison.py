"""What a comparison was asked for, kept in its folder so that it can go on without its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.records.files import write_atomically
from fedast.records.run import UnusableFolder

WANTED = "compare.json"
_SCHEMA = 1


@dataclass(frozen=True)
class Wanted:
    configs: Mapping[str, RunConfig]
    """Resolved, by label."""
    seeds: int
    baseline: str
    events: bool
    every: str | None
    """How often checkpoints are taken, if they are."""


def write_wanted(folder: Path, wanted: Wanted) -> None:
    table = {
        "schema": _SCHEMA,
        "configs": {
            label: config.model_dump(mode="json", exclude={"algorithms"})
            for label, config in wanted.configs.items()
        },
        "seeds": wanted.seeds,
        "baseline": wanted.baseline,
        "events": wanted.events,
        "checkpoint_every": wanted.every,
    }
    write_atomically(folder / WANTED, json.dumps(table, indent=1) + "\n")


def read_wanted(folder: Path) -> Wanted:
    path = folder / WANTED
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["schema"] != _SCHEMA:
            raise UnusableFolder(
                f"{path}: has schema {table['schema']}; this version of fedast reads {_SCHEMA}"
            )
        return Wanted(
            {label: resolve(parse(config)) for label, config in table["configs"].items()},
            table["seeds"],
            table["baseline"],
            table["events"],
            table["checkpoint_every"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFolder(
            f"{folder}: does not say what was compared (no readable {WANTED}); "
            "give the CONFIGs beside --resume"
        ) from error
