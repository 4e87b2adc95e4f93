"""Writing files whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(
    path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o666
) -> None:
    """Write a file so that a reader sees the old content or all of the new.

    ``durable``: return only when it would survive a loss of power. ``mode``: permissions of the
    file, less the umask.
    """
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.unlink(missing_ok=True)  # of a process that was killed; it may have other permissions
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        if durable:
            replace_durably(draft, path)
        else:
            draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace_durably(draft: Path, path: Path) -> None:
    """Rename a file that is written; content and name survive a loss of power."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
