"""CUDA graphs: a run captures dozens, whenever a batch has a new size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, final

import torch

Made = TypeVar("Made")


def with_room(make: Callable[[], Made]) -> Made:
    """Make something that captures a graph, with all memory that there is: during a capture, what
    is only cached is not given back."""
    try:
        return make()
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    return make()


@final
class Graphs:
    """Graphs that share their memory. They are replayed one after another, and what one leaves for
    later is in tensors that somebody holds."""

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On the stream of captures: what is done for the first time there need not be captured."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Capture a block. ``torch.cuda.graph`` would first give all memory that is cached back to
        the driver, of which the run would then have to ask for each piece again."""
        torch.cuda.synchronize()
        collects = gc.isenabled()
        gc.disable()  # to free another graph would spoil this one
        try:
            with self.beside():
                graph.capture_begin(pool=self._pool)
                try:
                    yield
                finally:
                    graph.capture_end()
        except BaseException:
            self._start_afresh()
            raise
        finally:
            if collects:
                gc.enable()

    def _start_afresh(self) -> None:
        """After a capture that failed, torch still takes it to be under way: its memory cannot be
        captured into again, and the generator that it registered draws no more."""
        self._pool = torch.cuda.graph_pool_handle()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
