"""Requests whose updates are still needed, and the window of the latest accepted ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.training.trainer import Drawn, Update

Books: TypeAlias = tuple[
    Mapping[RequestId, tuple[ClientId, Version, int]], Mapping[TaskName, tuple[RequestId, ...]]
]
"""Open requests with client, version and uses; and the variance window of each task."""
_PARTS = ("update", "loss", "buffers", "saturated")


@final
class OpenRequest:
    """A request between its dispatch and the last use of its update."""

    __slots__ = ("client", "drawn", "update", "uses", "version")

    def __init__(self, client: ClientId, version: Version) -> None:
        self.client = client
        self.version = version
        self.update: Update | None = None
        self.drawn: Drawn | None = None
        """Its mini-batches, if they have been drawn and it has not been trained."""
        self.uses = 1
        """One until it is aggregated or dropped, and one while it is in the variance window."""


@final
class OpenRequests:
    """Open requests by id.

    Methods that end a use return the requests that are no longer needed, so that a learner can
    release whatever it holds for them.
    """

    def __init__(self, tasks: Iterable[TaskName], variance_window: int) -> None:
        self._open: dict[RequestId, OpenRequest] = {}
        self._window = variance_window
        self._latest: dict[TaskName, deque[RequestId]] = {name: deque() for name in tasks}

    def __getitem__(self, request: RequestId) -> OpenRequest:
        return self._open[request]

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._open)

    def add(self, request: RequestId, client: ClientId, version: Version) -> None:
        self._open[request] = OpenRequest(client, version)

    def latest(self, task: TaskName) -> tuple[RequestId, ...]:
        """The accepted requests in the variance window."""
        return tuple(self._latest[task])

    def accept(self, request: RequestId, task: TaskName) -> dict[RequestId, OpenRequest]:
        if self._window == 0:
            return {}
        latest = self._latest[task]
        latest.append(request)
        self._open[request].uses += 1
        return self.release([latest.popleft()] if len(latest) > self._window else [])

    def drop(self, request: RequestId, task: TaskName) -> dict[RequestId, OpenRequest]:
        uses = [request]
        if request in self._latest[task]:  # accepted, then dropped: it must not count as variance
            self._latest[task].remove(request)
            uses.append(request)
        return self.release(uses)

    def release(self, requests: Iterable[RequestId]) -> dict[RequestId, OpenRequest]:
        """End one use of each; the requests that have none left."""
        closed = {}
        for request in requests:
            entry = self._open[request]
            entry.uses -= 1
            if entry.uses == 0:
                closed[request] = self._open.pop(request)
        return closed

    def books(self) -> Books:
        """Everything but the updates."""
        entries = {r: (entry.client, entry.version, entry.uses) for r, entry in self._open.items()}
        return entries, {name: tuple(requests) for name, requests in self._latest.items()}

    def take_up(self, books: Books) -> None:
        """Continue from what ``books`` gave."""
        entries, latest = books
        self._open = {}
        for request, (client, version, uses) in entries.items():
            self.add(request, client, version)
            self._open[request].uses = uses
        self._latest = {name: deque(requests) for name, requests in latest.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors of every update that has been computed."""
        tensors: dict[str, torch.Tensor] = {}
        for request, entry in self._open.items():
            update = entry.update
            if update is not None:
                values = (update.delta, update.loss, update.buffers, update.saturated)
                for part, value in zip(_PARTS, values, strict=True):
                    if value is not None:
                        tensors[f"{part}.{request}"] = value
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> set[str]:
        """Take back what ``state`` gave, for the requests open now; the names it used."""
        used: set[str] = set()
        for request, entry in self._open.items():
            if f"update.{request}" in tensors:
                found = {
                    part: tensors[f"{part}.{request}"].to(device)
                    for part in _PARTS
                    if f"{part}.{request}" in tensors
                }
                used |= {f"{part}.{request}" for part in found}
                entry.update = Update(delta=found.pop("update"), **found)
        return used
