"""Copies of a federation's folder, to restore it elsewhere or later.

A backup is a tar file with the keys, the register, the configuration and the server's write-ahead
log at a commit. It can be made while the server runs: checkpoints are never changed once they are
written, so they are held by hard links first; entries of the log that were written after the last
of them are cut off. What NATS stores is not in it: a server recreates queues and models from its
log.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BufferedIOBase, BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast, final

from fedast.federation.nats.setup import Layout, register_of
from fedast.federation.write_ahead_log import FOLDER, STATE, WriteAheadLog
from fedast.records.run import UnusableFolder
from fedast.version import __version__

_ABOUT = "backup.json"
_FORMAT = 1
_ATTEMPTS = 5
_LARGEST = 10 * 2**20
"""Largest file of the federation's own folder that is copied: modules with tasks, not data sets."""


@dataclass(frozen=True)
class About:
    """What is in a backup."""

    made: str
    fedast: str
    name: str
    entries: int
    """Of the write-ahead log; 0 if nothing was committed yet."""
    seconds: float
    """Since the federation began, at the last commit."""
    files: dict[str, str]
    """Checksums."""
    format: int = _FORMAT


def back_up(layout: Layout, file: Path, run: Path) -> About:
    """Write a backup, readable by its owner only; ``UnusableFolder`` if the file exists, or the log
    cannot be copied. ``run``: the folder of the records."""
    if file.exists():
        raise UnusableFolder(f"{file}: exists already, and is not overwritten; choose another name")
    draft = file.with_name(f".{file.name}.{os.getpid()}.part")
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=_near(run, layout)) as place:
        log, entries, seconds = _copy_log(run / FOLDER, Path(place))
        found = {f"run/{FOLDER}/{p.relative_to(log).as_posix()}": p for p in _files(log)}
        found |= dict(_records(run))  # after the log: at least as far as it
        try:
            with register_of(layout):  # nobody gets or loses a key meanwhile
                found |= dict(_outside_of_run(layout))
                about = About(
                    made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    fedast=__version__,
                    name=layout.root.name,
                    entries=entries,
                    seconds=round(seconds, 1),
                    files={},
                )
                _write(draft, about, found)
            os.link(draft, file)  # fails if it exists by now
        except FileExistsError:
            raise UnusableFolder(f"{file}: exists already, and is not overwritten") from None
        finally:
            draft.unlink(missing_ok=True)
    _sync(file.parent)
    return about


def _near(run: Path, layout: Layout) -> Path:
    """On the file system of the log, for hard links."""
    return run if run.is_dir() else layout.root


def _records(run: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(run.iterdir()) if run.is_dir() else ():
        if path.is_file() and path.name != "lock" and path.suffix != ".part":
            yield f"run/{path.name}", path


def _outside_of_run(layout: Layout) -> Iterator[tuple[str, Path]]:
    root = layout.root
    for path in sorted(root.iterdir()):
        if path.is_file() and path.name != "processes.json" and path.stat().st_size <= _LARGEST:
            yield path.name, path
    for folder in (layout.authority, root / "keys", root / "clients", layout.nats):
        for path in _files(folder) if folder.is_dir() else ():
            inside = path.relative_to(root)
            log = layout.nats in path.parents and ".log" in path.name
            if "data" not in inside.parts and path.name != "lock" and not log:
                yield inside.as_posix(), path


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _copy_log(log: Path, place: Path) -> tuple[Path, int, float]:
    """A copy of the log as of a commit: where it is, its entries, and the seconds it covers."""
    why = ""
    for attempt in range(_ATTEMPTS):
        copy = place / str(attempt)
        copy.mkdir()
        try:
            if log.is_dir():
                _copy_files(log, copy)
            entries, seconds, problems = _checked(copy)
        except (OSError, UnusableFolder) as error:  # a checkpoint was replaced meanwhile, mostly
            why = str(error)
            continue
        if not problems or attempt == _ATTEMPTS - 1:  # what is damaged for good is copied so
            return copy, entries, seconds
    raise UnusableFolder(f"{log}: cannot be copied ({why})")


def _copy_files(log: Path, copy: Path) -> None:
    """Checkpoints first: the entries that they need are there already."""
    for path in _files(log / STATE) if (log / STATE).is_dir() else ():
        if path.suffix == ".part":
            continue
        there = copy / STATE / path.relative_to(log / STATE)
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, there)
        except PermissionError:  # a file system without links
            shutil.copy2(path, there)
    for path in _files(log):
        if log / STATE not in path.parents and path.suffix != ".part":
            there = copy / path.relative_to(log)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, there)


def _checked(folder: Path) -> tuple[int, float, list[str]]:
    """Entries and seconds of a copied log, as a server would continue it, and its complaints."""
    problems: list[str] = []
    wal = WriteAheadLog(folder)
    try:
        past = wal.open(problems.append)
    finally:
        wal.close()
    return (0, 0.0, problems) if past is None else (past.steps, past.time, problems)


@final
class _Hashed(BufferedIOBase):
    """A file whose content is hashed as it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._file.read(-1 if size is None else size)
        self.digest.update(data)
        return data


def _write(draft: Path, about: About, found: dict[str, Path]) -> None:
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, path in found.items():
            # By the descriptor: a file that is replaced or grows meanwhile is copied as it was.
            with path.open("rb") as content:
                member = tar.gettarinfo(arcname=name, fileobj=content)
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                hashed = _Hashed(content)
                tar.addfile(member, cast("IO[bytes]", hashed))
            about.files[name] = hashed.digest.hexdigest()
        text = json.dumps(asdict(about), indent=1).encode()
        last = tarfile.TarInfo(_ABOUT)
        last.size, last.mode = len(text), 0o600
        tar.addfile(last, BytesIO(text))
    with draft.open("rb") as raw_again:
        os.fsync(raw_again.fileno())


def restore(file: Path, folder: Path) -> About:
    """Make a folder from a backup, whole or not at all; ``UnusableFolder`` says why not."""
    if folder.exists():
        raise UnusableFolder(f"{folder}: exists already, and is not overwritten; name another")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.absolute().parent
    ) as place:
        draft = Path(place) / "folder"
        draft.mkdir()
        try:
            with tarfile.open(file, "r:gz") as tar:
                tar.extractall(draft, filter="data")
            about = About(**json.loads((draft / _ABOUT).read_text()))
        except (tarfile.TarError, EOFError, OSError, ValueError, TypeError) as error:
            raise UnusableFolder(f"{file}: is not a whole backup ({error})") from None
        if about.format != _FORMAT:
            raise UnusableFolder(f"{file}: fedast {about.fedast} made it; restore it with that")
        (draft / _ABOUT).unlink()
        _verify(file, draft, about)
        (draft / "logs").mkdir(exist_ok=True)
        for path in _files(draft):
            with path.open("rb") as written:
                os.fsync(written.fileno())
        draft.rename(folder)
    _sync(folder.absolute().parent)
    return about


def _verify(file: Path, draft: Path, about: About) -> None:
    there = {path.relative_to(draft).as_posix() for path in _files(draft)}
    odd = sorted(there ^ set(about.files))
    odd += [
        name
        for name, checksum in about.files.items()
        if name in there and _checksum(draft / PurePosixPath(name)) != checksum
    ]
    if odd:
        raise UnusableFolder(f"{file}: is damaged ({', '.join(odd[:3])})")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
