"""CUDA graphs: a run captures dozens, whenever a batch has a new size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, final
from weakref import WeakSet

import torch

Made = TypeVar("Made")


@final
class Graphs:
    """Graphs that share their memory. They are replayed one after another, and what one leaves for
    later is in tensors that somebody holds."""

    def __init__(self) -> None:
        self._alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        """Those in the present pool."""
        self._pool: Any = None
        self._tight = False

    def with_room(self, make: Callable[[], Made]) -> Made:
        """Make something that captures a graph. If there is not enough memory, from then on what
        is only cached is given back before a capture: during one it would not be."""
        if not self._tight:
            try:
                return make()
            except torch.OutOfMemoryError:
                self._tight = True
            torch.cuda.empty_cache()
        return make()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On the stream of captures: what is done for the first time there need not be captured."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Capture a block. ``torch.cuda.graph`` would first give all memory that is cached back to
        the driver, of which the run would then have to ask for each piece again."""
        torch.cuda.synchronize()
        if self._tight:
            torch.cuda.empty_cache()
        if not self._alive:  # torch takes no memory up again that no graph has any more
            self._pool = torch.cuda.graph_pool_handle()
        collects = gc.isenabled()
        gc.disable()  # to free another graph would spoil this one
        ended = False
        try:
            with self.beside():
                graph.capture_begin(pool=self._pool)
                try:
                    yield
                finally:
                    graph.capture_end()
                    ended = True
            self._alive.add(graph)
        finally:
            if not ended:
                self._start_afresh()
            if collects:
                gc.enable()

    def _start_afresh(self) -> None:
        """After a capture that could not be ended, torch still takes it to be under way: its memory
        cannot be captured into again, and the generator that it registered draws no more."""
        self._alive.clear()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
