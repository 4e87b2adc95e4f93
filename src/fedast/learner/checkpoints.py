"""Checkpoints on disk: tensors as safetensors, the rest as JSON, written atomically.

A checkpoint is ``NUMBER.safetensors`` and ``NUMBER.json``; the JSON is written
last and holds the checksums of the tensors and of itself, so a file without the
other, or one that does not match it, does not count. The newest checkpoint and
the intact one before it are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

SCHEMA = 1
_KEPT = 2
_NAME = re.compile(r"\d{12,}")
_ENDINGS = ("json", "safetensors", "json.part", "safetensors.part")


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``steps`` steps of its simulator."""

    steps: int
    time: float
    """Simulated."""
    wall_seconds: float
    tensors: Mapping[str, torch.Tensor]
    answers: tuple[float, ...]
    schedule: str | None = None
    """A hash of the schedule so far. (Version 0.1.0 wrote neither this nor what follows.)"""
    config: Mapping[str, Any] | None = None
    """Everything that determines the run."""
    fedast: str | None = None
    """The version that wrote it."""
    chain: str | None = None
    """A federation's hash of its schedule (``ScheduleChain``)."""


_ABOUT = [field.name for field in fields(Checkpoint) if field.name not in ("tensors", "answers")]


def save(folder: Path, checkpoint: Checkpoint, keep: Collection[int] = ()) -> None:
    """``keep``: the steps of older checkpoints that must stay."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{checkpoint.steps:012d}"
    answers = torch.tensor(checkpoint.answers, dtype=torch.float64)
    tensors = {key: value.contiguous().cpu() for key, value in checkpoint.tensors.items()}
    temporary = folder / f"{name}.safetensors.part"
    save_file({**tensors, "answers": answers}, temporary)
    checksum = _checksum(temporary)
    _move_into_place(temporary, folder / f"{name}.safetensors")
    about = {key: getattr(checkpoint, key) for key in _ABOUT}
    about |= {"schema": SCHEMA, "sha256": checksum}
    about["crc"] = _own_checksum(about)
    note = folder / f"{name}.json.part"
    note.write_text(json.dumps(about, indent=1) + "\n")
    _move_into_place(note, folder / f"{name}.json")
    _prune(folder, name, {f"{steps:012d}" for steps in keep})


def _own_checksum(about: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _prune(folder: Path, name: str, pinned: Collection[str]) -> None:
    """Remove checkpoints older than ``name`` and the newest intact one before it.

    Higher numbers stay until the run gets there: they were unreadable when it resumed.
    """
    whole = [note.stem for note in _notes(folder) if note.stem < name and _readable(note)]
    kept = {name, *whole[1 - _KEPT :], *pinned}
    for file in folder.iterdir():
        stem, _, ending = file.name.partition(".")
        ours = _NAME.fullmatch(stem) is not None and ending in _ENDINGS
        if ours and (ending.endswith("part") or (stem <= name and stem not in kept)):
            file.unlink()


def _notes(folder: Path) -> list[Path]:
    return sorted(note for note in folder.glob("*.json") if _NAME.fullmatch(note.stem))


def _readable(note: Path) -> bool:
    """Whether it looks like a checkpoint; its tensors are not read."""
    try:
        return (
            bool(json.loads(note.read_text())["schema"] == SCHEMA)
            and note.with_suffix(".safetensors").is_file()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def newest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; ``say`` is told about damaged ones."""
    return next(intact(folder, say), None)


def intact(folder: Path, say: Callable[[str], None]) -> Iterator[Checkpoint]:
    """The intact checkpoints, newest first; ``say`` is told about damaged ones."""
    for note in reversed(_notes(folder)):
        try:
            yield _load(note)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            SafetensorError,
        ) as problem:
            say(f"checkpoint {note.stem} is damaged ({problem}); trying the one before")


def numbers(folder: Path) -> list[int]:
    """The steps of all checkpoints, damaged or not, in order."""
    return [int(note.stem) for note in _notes(folder)]


def set_aside_after(folder: Path, steps: int) -> None:
    """Rename later checkpoints: the run goes on from here, on a course of its own."""
    for number in numbers(folder):
        if number > steps:
            note = folder / f"{number:012d}.json"
            note.replace(note.with_name(f"{note.name}.damaged"))


def read_note(folder: Path, steps: int) -> dict[str, Any]:
    """What a checkpoint says about itself; ``ValueError`` or ``OSError`` if it is damaged."""
    note = folder / f"{steps:012d}.json"
    about = json.loads(note.read_text())
    # (Older versions wrote no checksum.)
    if not isinstance(about, dict) or about.pop("crc", None) not in (None, _own_checksum(about)):
        raise ValueError("it does not match its checksum")
    if about.get("steps") != steps:
        raise ValueError("it is of another step")
    if about.pop("schema", None) != SCHEMA:
        raise ValueError("another version of fedast wrote it")
    return about


def _load(note: Path) -> Checkpoint:
    about = read_note(note.parent, int(note.stem))
    file = note.with_suffix(".safetensors")
    if _checksum(file) != about.pop("sha256"):
        raise ValueError("its tensors do not match their checksum")
    tensors = load_file(file)
    answers = tuple(tensors.pop("answers").tolist())
    # Later versions may write more.
    known = {key: value for key, value in about.items() if key in _ABOUT}
    return Checkpoint(tensors=tensors, answers=answers, **known)


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _move_into_place(temporary: Path, final: Path) -> None:
    """Rename a file once its content is safely on disk."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(temporary, final)
    folder = os.open(final.parent, os.O_RDONLY)  # the name, too, must survive a power failure
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
