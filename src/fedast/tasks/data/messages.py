"""BYU's Chit-Chat Challenge: what people wrote to each other, by sender.

A conversation is a list of turns, a turn a list of messages with text, time and sender. Every
sender's messages are kept in order of time; what the other person said belongs to the other person.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.tasks.data.cache import DataError
from fedast.tasks.data.packed import pack, tidy

MIN_MESSAGES = 20
"""A sender with fewer is no client, unless a task says otherwise."""
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""Printable ASCII, and the end of a message: 96 characters."""


def message_files(files: Mapping[str, bytes]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    if "dataset.json" not in files:
        raise DataError("chitchat: no file dataset.json")
    try:
        rows = list(_rows(json.loads(files["dataset.json"])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"dataset.json: is not a set of conversations ({error!r})") from error
    return _messages(rows)


def message_folder(folder: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    path = folder / "dataset.json"
    if not path.is_file():
        raise DataError(f"{folder}: has neither dataset.json nor a Hugging Face dataset")
    return message_files({"dataset.json": path.read_bytes()})


def message_hub(splits: Any) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Any table of messages with the columns sender, timestamp and text."""
    table = splits["train"]
    return _messages(zip(table["sender"], table["timestamp"], table["text"], strict=True))


def _rows(conversations: Any) -> Iterator[tuple[str, str, str]]:
    for conversation in conversations.values():
        for turn in conversation["messages"]:
            for message in turn:
                yield message["sender"], message["timestamp"], message["text"]


def _messages(
    rows: Iterable[tuple[Any, Any, Any]],
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    by_sender: dict[str, list[tuple[str, str]]] = {}
    blank = 0
    for sender, time, text in rows:
        if not all(isinstance(part, str) for part in (sender, time, text)):
            raise DataError(f"chitchat: a message of {sender!r} lacks a sender, a time or a text")
        said = tidy(text)
        blank += not said
        if said:
            by_sender.setdefault(sender, []).append((time, said))
    names = sorted(by_sender)
    sizes = np.array([len(by_sender[name]) for name in names], dtype=np.int64)
    if not (sizes >= MIN_MESSAGES).any():
        raise DataError(
            f"chitchat: too little text: no sender has {MIN_MESSAGES} messages "
            f"({len(names)} senders, {sizes.sum()} messages)"
        )
    for said_by in by_sender.values():
        said_by.sort(key=lambda message: message[0])
    content, starts = pack(text for name in names for _, text in by_sender[name])
    notes = {
        "messages": int(sizes.sum()),
        "senders": len(names),
        f"senders with {MIN_MESSAGES} messages or more": int((sizes >= MIN_MESSAGES).sum()),
        "characters": int(starts[-1]),
        "blank messages left out": blank,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "text": content,
        "starts": starts,
        "senders": np.repeat(np.arange(len(names)), sizes),
        "names": np.array(names, dtype=np.str_),
    }
    return arrays, notes
