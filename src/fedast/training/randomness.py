"""Random numbers of a local training: a stream per request, the same whoever trains it.

A client alone draws from torch's own generator, which is seeded from the request's stream. Stacked
clients draw as if each were alone: a random operation of all of them is taken apart, and each
client's part is drawn from a generator of its own, seeded from that client's request.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedast.core.streams import Stream


def draw_seed(stream: Stream) -> int:
    """A seed for a generator, the stream's next."""
    return stream.bits() >> 1


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def host_state() -> tuple[Any, ...]:
    """Where the host's global generators stand. A graph that is replayed would repeat what they
    gave when it was captured."""
    numpys: Any = np.random.get_state()
    torchs = torch.default_generator.get_state()
    return random.getstate(), numpys[1].tobytes(), numpys[2:], torchs.numpy().tobytes()


@final
class PlainDropout(TorchFunctionMode):
    """Dropout by a mask that is drawn for itself. Otherwise what is drawn depends on how the inputs
    lie in memory, and on a GPU on a fused kernel, and stacked copies could not draw the same."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.dropout:
            return self._dropout(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    @staticmethod
    def _dropout(
        input: torch.Tensor,  # noqa: A002 (its name in torch)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        if not training or not 0.0 < p < 1.0:
            return torch.nn.functional.dropout(input, p, training, inplace)
        blank = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mask = torch.bernoulli(blank, 1.0 - p).div_(1.0 - p)
        return input.mul_(mask) if inplace else input * mask


@contextmanager
def seeded(
    stream: Stream, device: torch.device, *, plain_dropout: bool = True
) -> Iterator[torch.Generator]:
    """Seed torch's own generator on a device from a stream for a block, then restore it."""
    generator = _default_generator(device)
    before = generator.get_state()
    generator.manual_seed(draw_seed(stream))
    try:
        with PlainDropout() if plain_dropout else nullcontext():
            yield generator
    finally:
        generator.set_state(before)


@final
class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, stacked copies in ``vmap(..., randomness="different")`` draw each from
    a generator of its own.

    It sees what vmap makes of a random operation: one of all copies, which come first. A CUDA graph
    that its generators are registered with draws anew in every replay.
    """

    def __init__(self, copies: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = [torch.Generator(device) for _ in range(copies)]
        self._default = _default_generator(device)
        self._turn = 0

    def begin(self, seeds: Sequence[int]) -> None:
        """Local trainings begin, one per copy."""
        for generator, seed in zip(self._generators, seeds, strict=True):
            generator.manual_seed(seed)
        self._turn = 0

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """To be called before a graph with random operations is captured."""
        for generator in self._generators:
            graph.register_generator_state(generator)

    @contextmanager
    def as_copy(self, copy: int) -> Iterator[None]:
        """Let torch's own generator draw what a copy would draw next."""
        if self._default.device.type == "cuda":  # share the copy's state, which a graph may do
            own = self._default.graphsafe_get_state()
            self._default.graphsafe_set_state(self._generators[copy])
            try:
                yield
            finally:
                self._default.graphsafe_set_state(own)
            return
        before = self._default.get_state()
        self._default.set_state(self._generators[copy].get_state())
        try:
            yield
        finally:
            self._generators[copy].set_state(self._default.get_state())
            self._default.set_state(before)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        copies = len(self._generators)
        if func.overloadpacket is torch.ops.aten.randperm:  # which vmap calls for each copy in turn
            turn, self._turn = self._turn, (self._turn + 1) % copies
            with self.as_copy(turn):
                return func(*args, **kwargs)
        found = []
        names = [argument.name for argument in func._schema.arguments]
        for copy in range(copies):
            mine = [self._part(value, name, copy) for value, name in zip(args, names, strict=False)]
            own = {name: self._part(value, name, copy) for name, value in kwargs.items()}
            with self.as_copy(copy):
                found.append(func(*mine, **own))
        if func._schema.is_mutable:
            return args[0]
        if isinstance(found[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.cat(found)

    def _part(self, value: Any, name: str, copy: int) -> Any:
        """A copy's part of an argument."""
        copies = len(self._generators)
        if isinstance(value, torch.Tensor) and value.dim() and len(value) % copies == 0:
            size = len(value) // copies
            return value[copy * size : (copy + 1) * size]
        if name == "size":
            return [value[0] // copies, *value[1:]]
        return value
