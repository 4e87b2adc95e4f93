"""Options of fedast's own tasks under the names that they had in earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedast.algorithms.renamed import Tell
from fedast.parts.errors import ConfigError
from fedast.tasks.options import TASKS
from fedast.tasks.partitions import PARTITIONS, PartitionOptions

_RENAMED: Mapping[str, str] = {"points": "samples", "max_points": "max_samples"}
PARTITION_OPTIONS: Mapping[str, str] = {
    "alpha": "dirichlet",
    "classes_per_client": "shards",
    "exponent": "power-law",
}
"""Options that stood beside ``partition``, and the partition that each belongs to."""


def modernize_options(options: dict[str, Any], use: str, tell: Tell) -> None:
    """Change the options of the task ``use`` to today's names, in place."""
    rename_options(options, use, tell)
    kind = TASKS.builtin.get(use)
    if kind is not None and "partition" in kind.model_fields:
        fold_partition(options, kind.model_fields["partition"].default, tell)


def rename_options(options: dict[str, Any], use: str, tell: Tell) -> None:
    """Options that only have another name now; a user's task may call its options anything."""
    if use not in TASKS.builtin:
        return
    for old, new in _RENAMED.items():
        if old in options:
            if new in options:
                raise ConfigError(old, f"is now called {new}, which is set too; leave one out")
            options[new] = options.pop(old)
            tell(old, new)


def fold_partition(options: dict[str, Any], default: PartitionOptions, tell: Tell) -> None:
    """Put the options of a partition inside it: ``{name = "dirichlet", alpha = 0.1}``."""
    given = options.get("partition", default.name)
    if not isinstance(given, str | Mapping):
        return  # wrong: its check says so
    table = {"name": given} if isinstance(given, str) else {"name": default.name, **given}
    loose = {key: options.pop(key) for key in PARTITION_OPTIONS if key in options}
    for key, value in loose.items():
        owner = PARTITIONS.builtin[PARTITION_OPTIONS[key]]
        if owner.name == table["name"]:
            table[key] = value  # also where it is there already: a later setting by the old name
            tell(key, f"partition.{key}")
        elif value != owner.model_fields[key].default:  # older versions wrote out all of them
            tell(key, "")
    if table["name"] == default.name:
        table = {**default.model_dump(), **table}  # cifar100 has an alpha of its own
    elif not loose:
        return
    if loose or "partition" in options:
        options["partition"] = table
