"""Options of algorithms under the names that they had in earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fedast.parts.errors import ConfigError

Tell: TypeAlias = Callable[[str, str], None]
"""Called with an old name and what it is now."""

RENAMED_OPTIONS: Mapping[str, str] = {
    "server_rate": "server_lr",
    "weighting": "allocation_rule",
    "assignment": "split",
}
_STALENESS: Mapping[str, str] = {"staleness_slope": "slope", "staleness_grace": "grace"}


def modernize(options: dict[str, Any], name: str, tell: Tell) -> None:
    """Change the options of the algorithm ``name`` to today's names, in place."""
    for old, new in RENAMED_OPTIONS.items():
        if old in options:
            if new in options:
                raise ConfigError(old, f"is now called {new}, which is set too; leave one out")
            options[new] = options.pop(old)
            tell(old, new)
    if options.get("allocation_rule") == "plain":
        options["allocation_rule"] = "sqrt-variance"
        tell("allocation_rule = 'plain'", "'sqrt-variance'")
    _fold_candidates(options, name, tell)
    _fold_staleness(options, tell)


def _fold_candidates(options: dict[str, Any], name: str, tell: Tell) -> None:
    """``candidates`` stood beside ``selection``; Sync-Bayes-ST has an option of that name."""
    if "candidates" not in options or name == "sync-bayes-st":
        return
    given = options.get("selection", "uniform")
    table = dict(given) if isinstance(given, Mapping) else {"name": given}
    candidates = options.pop("candidates")
    if table.get("name") != "uniform":
        table["candidates"] = candidates
    options["selection"] = table
    tell("candidates", "selection.candidates")


def _fold_staleness(options: dict[str, Any], tell: Tell) -> None:
    """``staleness_slope`` and ``staleness_grace`` stood beside ``staleness_weight``."""
    given = {new: options.pop(old) for old, new in _STALENESS.items() if old in options}
    if not given:
        return
    kind = options.get("staleness_weight", "constant")
    table = dict(kind) if isinstance(kind, Mapping) else {"name": kind}
    takes = {"constant": (), "polynomial": ("slope",)}.get(table["name"], ("slope", "grace"))
    table |= {key: value for key, value in given.items() if key in takes}
    options["staleness_weight"] = table
    for key in given:
        tell(f"staleness_{key}", f"staleness_weight.{key}")
