"""One command at a time writes to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedast.records.run import UnusableFolder

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` if needed and hold it; ``UnusableFolder`` if another process does.

    The operating system releases the lock when the process dies, however it dies.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UnusableFolder(
            f"{folder}: another fedast command is using this folder; wait until it ends, or "
            "choose another folder with --out"
        ) from None
    except OSError as error:
        raise UnusableFolder(
            f"{folder}: cannot be written ({error.strerror}); choose another folder with --out"
        ) from error
    try:
        yield
    finally:
        # Removed while it is held: filelock checks that the file it has locked still exists.
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
