"""The first moments of a command that takes its time: loading PyTorch takes seconds.

A word comes before its first output. The line goes to stderr. In a terminal it is wiped when the
command has something to show itself; with --quiet or --json there is none. Only the program itself
says it (``enable``), not a test or a program that calls a command; nor is the garbage collector of
these touched. Imports nothing but click, because it comes before all else.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

_enabled = False
_shown = False


def enable() -> None:
    global _enabled
    _enabled = True


def say(text: str) -> None:
    """Say what the current command is doing, in place of what it said before."""
    global _shown
    context = click.get_current_context(silent=True)
    if not _enabled or context is None:
        return
    if context.params.get("quiet") or context.params.get("as_json"):
        return
    over()
    _shown = sys.stderr.isatty()
    click.echo(f"{context.command_path}: {text} ...", err=True, nl=not _shown)


def over() -> None:
    """Wipe what was said: the command shows something itself, or ends."""
    global _shown
    if _shown:
        click.echo("\r\x1b[2K", err=True, nl=False)
        _shown = False


@contextmanager
def importing() -> Iterator[None]:
    """For large imports: the garbage collector leaves alone what they bring (a quarter of a million
    objects with PyTorch), while they go on, which is a tenth of their time, and until the end."""
    if not _enabled:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # libraries take what is left then for leaks, and say so


@contextmanager
def loading_pytorch() -> Iterator[None]:
    """For the imports of a command that needs it."""
    say("loading PyTorch")
    with importing():
        yield
