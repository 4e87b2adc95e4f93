"""Small disks, and full ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.federation.power import NoSuchDisk, command


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """``folder`` is a disk of its own; ``NoSuchDisk`` where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    """The same for tests, which are skipped where it is not permitted."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(small_disk(folder, megabytes))
        except NoSuchDisk as error:
            pytest.skip(f"needs the right to mount a small disk ({error})")


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """While not a byte more fits on it."""
    stuffing = disk / "stuffing"
    try:
        with suppress(OSError), stuffing.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
            while True:
                file.write(b"x" * 4096)
        yield
    finally:
        stuffing.unlink(missing_ok=True)
