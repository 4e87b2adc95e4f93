"""Training beside what else a GPU does, on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch

from fedast.core.protocol import RequestId


@final
class _Batch:
    """Updates that are trained together."""

    def __init__(self, done: torch.cuda.Event, models: Sequence[torch.Tensor]) -> None:
        self.done = done
        self.models: Sequence[torch.Tensor] = models
        """What they are trained from. Torch gives memory that is freed to whatever comes next on
        the stream that it was made on, and does not wait for other streams."""


@final
class Beside:
    """A stream for updates that nobody waits for yet.

    Nor does the usual stream wait for it, until it needs one of these updates (``wait_for``), or
    the trainer or what may be trained (``join``).
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._mark: torch.cuda.Event | None = None
        self._under_way: dict[RequestId, _Batch] = {}
        """By request: those that the usual stream has not waited for."""

    def mark(self) -> None:
        """What is trained beside from now on waits for all that has been asked of the usual stream
        so far, and for nothing that comes later."""
        self._mark = torch.cuda.current_stream().record_event()

    @contextmanager
    def training(
        self, requests: Iterable[RequestId], models: Sequence[torch.Tensor]
    ) -> Iterator[None]:
        """A block that trains these requests, from these models."""
        assert self._mark is not None
        self._forget_done()
        self._stream.wait_event(self._mark)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            batch = _Batch(self._stream.record_event(), models)
            self._under_way |= dict.fromkeys(requests, batch)

    def wait_for(self, request: RequestId) -> None:
        """On the usual stream: before an update is used."""
        batch = self._under_way.pop(request, None)
        if batch is not None:
            torch.cuda.current_stream().wait_event(batch.done)
            batch.models = ()

    def join(self) -> None:
        """On the usual stream: wait for everything."""
        if self._under_way:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._under_way.clear()

    def _forget_done(self) -> None:
        """What nobody has to wait for any more, such as requests that were dropped."""
        batches = set(self._under_way.values())
        done = {batch for batch in batches if batch.done.query()}  # type: ignore[no-untyped-call]
        self._under_way = {
            request: batch for request, batch in self._under_way.items() if batch not in done
        }
