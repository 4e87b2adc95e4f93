"""A disk that loses power: what was not synced is gone, as after a cut, which ``kill -9`` is not.

An ext4 file system in a file, mounted over a loop device. ``cut`` uses ext4's shutdown ioctl (as
the file systems' own crash tests do): nothing that is still in the page cache or in the uncommitted
journal reaches the disk any more. Then it is mounted again and the journal is replayed.

    with LossyDisk(tmp_path / "disk") as disk:
        ...  # nats-server and `fedast serve` with their folders below disk.path
        ...  # SIGKILL them: from now on nothing more is confirmed to anybody
        disk.cut()
        ...  # start them again
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_FLUSHING_THE_JOURNAL = 2


class NoSuchDisk(Exception):
    """This machine does not permit it; the text says why."""


class LossyDisk:
    def __init__(self, folder: Path, megabytes: int = 512) -> None:
        folder.mkdir(parents=True)
        self._image, self.path = folder / "image", folder / "mounted"
        self._megabytes = megabytes
        self.cuts = 0

    def __enter__(self) -> LossyDisk:
        with self._image.open("wb") as file:
            file.truncate(self._megabytes * 2**20)
        self.path.mkdir()
        command("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def __exit__(self, *exception: object) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        self._image.unlink(missing_ok=True)

    def _mount(self) -> None:
        # Nothing is written by itself for ten minutes: only what a program syncs is on the disk.
        command("mount", "-o", "loop,commit=600", str(self._image), str(self.path))

    def sync(self) -> None:
        """What is there now is safe: keys and configuration, say."""
        command("sync", "-f", str(self.path))

    def cut(self) -> None:
        """Lose everything that was not synced. Kill whoever has files open there before."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_JOURNAL))
        finally:
            os.close(folder)
        self.cuts += 1
        end = time.monotonic() + 30
        while True:
            try:
                command("umount", str(self.path))
                break
            except NoSuchDisk:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        self._mount()


def command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoSuchDisk(f"{words[0]}: {error}") from error
    if done.returncode:
        raise NoSuchDisk(f"{' '.join(words)}: {done.stderr.strip()}")
