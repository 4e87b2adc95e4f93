"""A note about a configuration: a key that has no effect, or one that defeats its own purpose.

``no_effect`` and ``cautions`` find them; here is how they are put together for the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Note:
    key: str
    why: str
    task: str | None = None
    """The task whose key it is, if it is a task's; ``key`` is then relative to the task."""
    idle: bool = True
    """True: the key has no effect. False: it defeats its own purpose."""

    @property
    def place(self) -> str:
        return self.key if self.task is None else f"tasks.{self.task}.{self.key}"

    def __str__(self) -> str:
        return f"{self.place}: {'has no effect: ' if self.idle else ''}{self.why}"


def lines(found: Iterable[Note], tasks: int) -> list[str]:
    """One line per note; a note that every task has gets one line for all of them."""
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in found:
        groups.setdefault((note.key, note.why), []).append(note)
    told: list[str] = []
    for group in groups.values():
        if group[0].task is not None and len(group) == tasks > 1:
            told.append(str(replace(group[0], task="*")))
        else:
            told += map(str, group)
    return told


def for_all(found: Mapping[str, Sequence[Note]]) -> dict[str, list[Note]]:
    """The notes by label, for several algorithms that run from one file.

    A key that one of the algorithms uses is not noted. A note that all share stays with the first.
    Options of the algorithms themselves are not shared, so their notes all stay.
    """
    common = set.intersection(*({note.place for note in notes} for notes in found.values()))
    left = dict.fromkeys(found, common) | {next(iter(found)): set()}
    return {
        label: [
            note
            for note in notes
            if note.key.startswith("algorithm.")
            or (note.place in common and note.place not in left[label])
        ]
        for label, notes in found.items()
    }
