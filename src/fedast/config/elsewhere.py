"""The text of a configuration for use in another folder, where what was relative to its own is
still found."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedast.config.identity import input_files
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError

_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_PATH = re.compile(r"^[ \t]*path[ \t]*=", re.MULTILINE)


def text_for_copy(config: Path, resolved: RunConfig) -> str:
    """The text of ``config``, which is ``resolved``, with the full paths of the folders that have
    modules. The folder of the copy comes after them: on another machine they may be there."""
    text = config.read_text()
    for section, field, _ in input_files(resolved):
        name = tomllib.loads(text)["simulation"][section][field]
        if not Path(name).is_absolute():
            raise ConfigError(
                f"simulation.{section}.{field}",
                f"{name!r} is relative to this file, which is copied; give its full path",
                str(config),
            )
    return _with_path(text, [*resolved.path, "."]) if resolved.path else text


def _with_path(text: str, path: Sequence[str]) -> str:
    """Only this key is replaced, so that comments stay."""
    line = tomli_w.dumps({"path": path}).rstrip()
    wanted = {**tomllib.loads(text), "path": list(path)}
    table = _TABLE.search(text)
    given = _PATH.search(text, 0, table.start() if table else len(text))
    if given is None:
        return f"{line}\n{text}"
    before, rest = text[: given.start()], text[given.start() :].splitlines(keepends=True)
    for length in range(1, len(rest) + 1):  # it may go on over several lines
        changed = f"{before}{line}\n{''.join(rest[length:])}"
        try:
            if tomllib.loads(changed) == wanted:
                return changed
        except tomllib.TOMLDecodeError:
            continue
    return tomli_w.dumps(wanted)
