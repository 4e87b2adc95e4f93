"""Versions of models that a federation may go back to.

Of each task: the last good one, and those whose evaluation has not come yet. What is kept follows
from the commands alone, so that after a replay ``restore`` can put the tensors in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias, final

import torch

from fedast.core.protocol import RequestId, TaskName, Version
from fedast.learner.models import Snapshot

KeptBooks: TypeAlias = tuple[
    Mapping[TaskName, tuple[Version, ...]], Mapping[TaskName, Version], Collection[RequestId]
]


@final
class KeptVersions:
    def __init__(self, tasks: Iterable[TaskName]) -> None:
        self._kept: dict[TaskName, dict[Version, Snapshot]] = {name: {} for name in tasks}
        self._good: dict[TaskName, Version] = {}
        self.void: set[RequestId] = set()
        """Updates that were accepted and must not be aggregated any more."""

    def keep(self, task: TaskName, version: Version, snapshot: Snapshot) -> None:
        if self._good.get(task) != version:
            self._kept[task][version] = snapshot

    def judged(self, task: TaskName, version: Version, *, good: bool) -> None:
        kept = self._kept[task]
        if version not in kept or version == self._good.get(task):
            return
        if not good:
            del kept[version]
        elif version > self._good.get(task, -1):
            kept.pop(self._good.get(task, -1), None)
            self._good[task] = version

    def good(self, task: TaskName) -> tuple[Version, Snapshot]:
        version = self._good[task]
        return version, self._kept[task][version]

    def went_back(self, task: TaskName, version: Version, void: Collection[RequestId]) -> None:
        """The good version is now also this one; those in between are gone."""
        _, snapshot = self.good(task)
        self._kept[task] = {version: snapshot}
        self._good[task] = version
        self.void.update(void)

    def books(self) -> KeptBooks:
        """What ``restore`` needs to find: which versions are kept, and what is known of them."""
        versions = {task: tuple(kept) for task, kept in self._kept.items()}
        return versions, dict(self._good), set(self.void)

    def take_up(self, books: KeptBooks, present: Mapping[TaskName, Snapshot]) -> None:
        """Continue from what ``books`` gave, instead of a replay; ``restore`` has to follow, until
        when ``present`` stands in for every version."""
        versions, good, void = books
        self._kept = {task: dict.fromkeys(kept, present[task]) for task, kept in versions.items()}
        self._good, self.void = dict(good), set(void)

    def state(self, present: Mapping[TaskName, Snapshot]) -> dict[str, torch.Tensor]:
        """``present``: the newest versions, which are not written down twice."""
        tensors: dict[str, torch.Tensor] = {}
        for number, (task, kept) in enumerate(self._kept.items()):
            for version, snapshot in kept.items():
                if snapshot.vector is present[task].vector:
                    continue
                # (safetensors refuses tensors that share memory.)
                tensors[f"{number}.kept.{version}"] = snapshot.vector.clone()
                for key, value in snapshot.memory.items():
                    tensors[f"{number}.kept.{version}.{key}"] = value.clone()
        return tensors

    def restore(
        self,
        tensors: Mapping[str, torch.Tensor],
        device: torch.device,
        present: Mapping[TaskName, Snapshot],
    ) -> set[str]:
        """Take back what ``state`` gave; the names it used. ``present``: the newest versions, which
        stand in for what was not written down. (A commit of an earlier version of fedast has
        nothing to go back to.)"""
        used: set[str] = set()
        for number, (task, kept) in enumerate(self._kept.items()):
            for version in kept:
                key = f"{number}.kept.{version}"
                if key not in tensors:
                    kept[version] = present[task]
                    continue
                names = {name: f"{key}.{name}" for name in present[task].memory}
                memory = {name: tensors[full].to(device) for name, full in names.items()}
                kept[version] = Snapshot(tensors[key].to(device), memory)
                used |= {key, *names.values()}
        return used
