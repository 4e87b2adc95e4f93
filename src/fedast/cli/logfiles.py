"""Logs of a federation: written with a limit on their size, read by ``fedast federation logs``."""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, final

import click

from fedast.federation.nats.setup import Layout
from fedast.federation.untrusted import OneLine
from fedast.parts.errors import ConfigError

_BYTES, _FILES = 10 * 2**20, 5
"""The size of a log file, and how many are kept beside it."""
_POLL = 0.3

for noisy in ("nats", "asyncio"):  # they warn about normal events of TLS
    logging.getLogger(noisy).setLevel(logging.ERROR)


def log_to(file: Path | None, *, terminal: bool) -> None:
    """Log to a file, one JSON object per line, and to the terminal, in plain lines."""
    handlers: list[logging.Handler] = [logging.NullHandler()]
    if terminal:
        handlers.append(logging.StreamHandler())
        handlers[-1].setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        )
    if file is not None:
        handlers.append(
            logging.handlers.RotatingFileHandler(
                file, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8"
            )
        )
        handlers[-1].setFormatter(_Lines())
    for handler in handlers:
        handler.addFilter(OneLine())
    logging.basicConfig(level=logging.INFO, handlers=handlers)


def log_everything_to(file: Path) -> None:
    """Log to a file only, including whatever else this process prints: it has no terminal."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log_to(file, terminal=False)
    sys.stdout = _Printed(logging.getLogger("stdout"), logging.INFO)
    sys.stderr = _Printed(logging.getLogger("stderr"), logging.ERROR)


@final
class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@final
class _Printed(io.TextIOBase):
    """Lines that are printed become lines of the log, where their number is limited."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log = log
        self._level = level
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self._log.log(self._level, "%s", line)
        return len(text)


# --- reading ------------------------------------------------------------------------------------


def log_files(layout: Layout) -> dict[str, list[Path]]:
    """Whose logs there are, and in which files. (``.out`` has what a process printed before it
    could log, if anything.)"""
    found: dict[str, list[Path]] = {}
    for path in [*sorted(layout.logs.glob("*.log")), *layout.logs.glob("*.out")]:
        found.setdefault(path.stem, []).append(path)
    for path in [layout.nats / "nats.log", *layout.nats.glob("*/nats.log")]:
        if path.is_file():
            name = "nats" if path.parent == layout.nats else f"nats-{path.parent.name}"
            found.setdefault(name, []).append(path)
    return {name: [p for p in paths if p.stat().st_size] for name, paths in found.items()}


def show(layout: Layout, name: str | None, lines: int, follow: bool) -> None:
    names = log_files(layout)
    if name is not None and name not in names and not follow:
        there = f"there are {', '.join(sorted(names))}" if names else "there are none yet"
        raise ConfigError("", f"{layout.logs}: there is no log of {name!r}; {there}. What was "
                          "started on another machine keeps its log there")  # fmt: skip
    if not names and not follow:
        click.echo(f"{layout.logs}: there are no logs yet; start it: fedast federation up")
    open_files: dict[Path, tuple[str, TextIO]] = {}
    try:
        for whose, paths in sorted(names.items()):
            for path in paths if name in (None, whose) else []:
                file = path.open(encoding="utf-8", errors="replace")
                open_files[path] = whose, file
                for line in deque(file, maxlen=lines):
                    click.echo(f"{whose}: {readable(line)}")
        while follow:
            for whose, line in _news(layout, name, open_files):
                click.echo(f"{whose}: {readable(line)}")
            time.sleep(_POLL)
    finally:
        for _, opened in open_files.values():
            opened.close()


def _news(
    layout: Layout, name: str | None, files: dict[Path, tuple[str, TextIO]]
) -> Iterator[tuple[str, str]]:
    """Lines that were written since; files may come, and be replaced when they have grown."""
    for whose, paths in log_files(layout).items():
        for path in paths if name in (None, whose) else []:
            if path not in files:
                files[path] = whose, path.open(encoding="utf-8", errors="replace")
    for path, (whose, file) in list(files.items()):
        yield from ((whose, line) for line in file)
        try:
            replaced = path.stat().st_ino != _inode(file)
        except FileNotFoundError:
            continue
        if replaced:
            yield from ((whose, line) for line in file)
            file.close()
            files[path] = whose, path.open(encoding="utf-8", errors="replace")


def _inode(file: TextIO) -> int:
    return os.fstat(file.fileno()).st_ino


def readable(line: str) -> str:
    """A line of a log for a person: JSON as text; nothing in it can act on a terminal."""
    line = line.rstrip("\n")
    try:
        entry = json.loads(line)
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
        line = f"{moment} {entry['level'].upper()} {entry['from']}: {entry['message']}"
        trace = entry.get("trace", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        trace = ""
    shown = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)
    return shown + "".join(f"\n    {readable(part)}" for part in trace.splitlines())
