"""Options of algorithms under the names that they had in earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedast.parts.errors import ConfigError

Tell: TypeAlias = Callable[[str, str], None]
"""Called with an old name and what it is now; with nothing if it had no effect."""

RENAMED_OPTIONS: Mapping[str, str] = {
    "server_rate": "server_lr",
    "weighting": "allocation_rule",
    "assignment": "split",
}


@dataclass(frozen=True, slots=True)
class Folded:
    """An option that moved into a part."""

    name: str
    default: Any
    owners: tuple[str, ...]
    """The parts that have it; with others it had no effect."""


def modernize(options: dict[str, Any], name: str, tell: Tell) -> None:
    """Change the options of the algorithm ``name`` to today's names, in place."""
    rename_options(options, tell)
    fold_options(options, name, tell)


def rename_options(options: dict[str, Any], tell: Tell) -> None:
    """Options that only have another name now."""
    for old, new in RENAMED_OPTIONS.items():
        if old in options:
            if new in options:
                raise ConfigError(old, f"is now called {new}, which is set too; leave one out")
            options[new] = options.pop(old)
            tell(old, new)


def fold_options(options: dict[str, Any], name: str, tell: Tell) -> None:
    """Options that stood beside a part and are now inside it, and values with another name."""
    if options.get("allocation_rule") == "plain":
        options["allocation_rule"] = "sqrt-variance"
        tell("allocation_rule = 'plain'", "'sqrt-variance'")
    if name != "sync-bayes-st":  # which has an option of its own called candidates
        _fold(options, "selection", "uniform", tell)
    _fold(options, "staleness_weight", "constant", tell)


FOLDED_OPTIONS: Mapping[str, Mapping[str, Folded]] = {
    "selection": {"candidates": Folded("candidates", 2, ("speed", "loss"))},
    "staleness_weight": {
        "staleness_slope": Folded("slope", 0.5, ("polynomial", "hinge")),
        "staleness_grace": Folded("grace", 10, ("hinge",)),
    },
}
"""By part: the options that stood beside it."""


def _fold(options: dict[str, Any], part: str, default: str, tell: Tell) -> None:
    keys = FOLDED_OPTIONS[part]
    loose = {key: options.pop(key) for key in keys if key in options}
    given = options.get(part, default)
    if not loose or not isinstance(given, str | Mapping):
        return  # (what is wrong with the part, its own check says)
    table: dict[str, Any] = {"name": default}
    table |= given if isinstance(given, Mapping) else {"name": given}
    for old, value in loose.items():
        folded = keys[old]
        if table["name"] in folded.owners:
            table[folded.name] = value
            tell(old, f"{part}.{folded.name}")
        elif value != folded.default:  # older versions wrote the default out
            tell(old, "")
    options[part] = table
