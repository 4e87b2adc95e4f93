"""Where datasets live on this machine: complete and verified, or not there at all.

A dataset is a folder of ``.npy`` files and a ``manifest.json`` that says where
it came from and what each file's SHA-256 is; a base model is a folder of its own
files and such a manifest. It is written under another name
and renamed when it is complete, under a lock, so that two processes can fetch at
the same time and a failure leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

FORMAT = 1
MANIFEST = "manifest.json"


class DataError(Exception):
    """A dataset that cannot be fetched or used; the message says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A dataset in the cache."""

    name: str
    folder: Path
    source: str
    size: int
    notes: Mapping[str, Any]

    def array(self, name: str) -> npt.NDArray[Any]:
        """One of its arrays, in memory of its own."""
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", allow_pickle=False)
        return found


def cache_folder() -> Path:
    """``FEDAST_DATA``, else ``fedast`` in the XDG cache folder."""
    chosen = os.environ.get("FEDAST_DATA")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedast"


def find(name: str) -> Stored | None:
    """A dataset that is in the cache, by its manifest; its checksums are not computed."""
    folder = cache_folder() / name
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError as error:
        raise DataError(
            f"{folder}: damaged manifest; `fedast data fetch {name} --again`"
        ) from error
    try:
        if manifest["format"] != FORMAT:
            return None
        sizes = {file: facts["size"] for file, facts in manifest["files"].items()}
        found = Stored(name, folder, manifest["source"], sum(sizes.values()), manifest["notes"])
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder}: damaged manifest; `fedast data fetch {name} --again`"
        ) from error
    for file, size in sizes.items():
        path = folder / file
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(f"{path}: missing or truncated; `fedast data fetch {name} --again`")
    return found


def verify(stored: Stored) -> bool:
    """Whether every file still has the checksum it was stored with."""
    manifest = json.loads((stored.folder / MANIFEST).read_text(encoding="utf-8"))
    return all(
        sha256(stored.folder / file) == facts["sha256"] for file, facts in manifest["files"].items()
    )


def store(
    name: str, arrays: Mapping[str, npt.NDArray[Any]], source: str, notes: Mapping[str, Any]
) -> Stored:
    """Put a complete dataset into the cache, replacing what was there."""

    def write(folder: Path) -> None:
        for key, array in arrays.items():
            np.save(folder / f"{key}.npy", array, allow_pickle=False)

    return store_files(name, write, source, lambda folder: notes)


def store_files(
    name: str,
    write: Callable[[Path], None],
    source: str,
    describe: Callable[[Path], Mapping[str, Any]],
) -> Stored:
    """Put a folder of files into the cache, replacing what was there.

    ``write`` fills the folder, ``describe`` says what to remember about it.
    """
    with scratch() as draft:
        write(draft)
        notes = describe(draft)
        files = {
            path.name: {"sha256": sha256(path), "size": path.stat().st_size}
            for path in sorted(draft.iterdir())
        }
        manifest = {
            "format": FORMAT, "name": name, "source": source, "notes": notes, "files": files
        }  # fmt: skip
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        folder, old = cache_folder() / name, draft.with_name(draft.name + "-old")
        draft.chmod(0o777 & ~_umask())  # others may share the cache
        for file in files:
            (draft / file).chmod(0o666 & ~_umask())
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    found = find(name)
    assert found is not None
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder beside the datasets, removed afterwards whatever happens."""
    base = cache_folder()
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".making-", dir=base))
    except OSError as error:
        raise DataError(
            f"{base}: cannot be written ({error.strerror}); set FEDAST_DATA to another folder"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def sweep() -> None:
    """Remove what killed processes left unfinished a day ago or more."""
    for left in cache_folder().glob(".making-*"):
        if time.time() - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time may make this dataset; the others wait."""
    base = cache_folder()
    lock = FileLock(base / f".{name}.lock")
    try:
        base.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"{base}: cannot be written ({error.strerror}); set FEDAST_DATA to another folder"
        ) from error
    try:
        sweep()
        yield
    finally:
        lock.release()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
