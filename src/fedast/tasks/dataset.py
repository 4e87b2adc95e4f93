"""Samples by index: what a task is trained and tested on.

A dataset is stored once, and its batches are gathered by index on whatever
device it is on; partitions are arrays of indices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import torch

Transform: TypeAlias = Callable[[Any], Any]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A tensor, or a tuple or dict of them, with every tensor changed."""
    if isinstance(value, dict):
        return {key: mapped(change, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(change, part) for part in value)
    return change(value)


def leaves(value: Any) -> list[Any]:
    """The tensors of a tensor, or of a tuple or dict of them."""
    found: list[Any] = []
    mapped(found.append, value)
    return found


@runtime_checkable
class Dataset(Protocol):
    """Inputs and labels that can be gathered a batch at a time.

    Inputs may be a tuple or a dict of tensors, and so may labels; the model and the loss are then
    given that. The first axis of each counts samples.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: torch.Tensor) -> tuple[Any, Any]:
        """The inputs and labels of some samples, ready for the model."""
        ...

    def to(self, device: torch.device) -> Dataset: ...


@runtime_checkable
class MapStyle(Protocol):
    """What PyTorch calls a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@final
@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and labels as tensors, or tuples and dicts of them; ``transform`` is applied to each
    batch of inputs."""

    inputs: Any
    labels: Any
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(leaves(self.inputs)[0])

    def batch(self, indices: torch.Tensor) -> tuple[Any, Any]:
        inputs = mapped(lambda part: _rows(part, indices), self.inputs)
        if self.transform is not None:
            inputs = self.transform(inputs)
        return inputs, mapped(lambda part: _rows(part, indices), self.labels)

    def to(self, device: torch.device) -> Arrays:
        inputs, labels = mapped(lambda part: part.to(device), (self.inputs, self.labels))
        return replace(self, inputs=inputs, labels=labels)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrays, (mapped(_thin, (self.inputs, self.labels)), self.transform)


def _rows(part: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    if part.is_cuda or indices.dim() != 1:
        return part[indices]
    return part.index_select(0, indices)  # the same, four times as fast on a CPU


@final
@dataclass(frozen=True, eq=False)
class Windows:
    """Windows into one long text: predict the code that follows ``length`` codes."""

    codes: torch.Tensor
    starts: torch.Tensor
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(self.length + 1, device=self.codes.device)
        window = self.codes[self.starts[indices][:, None] + steps].long()
        return window[:, :-1], window[:, -1]

    def to(self, device: torch.device) -> Windows:
        return replace(self, codes=self.codes.to(device), starts=self.starts.to(device))

    def __reduce__(self) -> tuple[Any, ...]:
        return _windows, (_thin(self.codes), _thin(self.starts), self.length)


def _thin(tensor: torch.Tensor) -> Any:
    """As an array, which all processes of a machine can share where tensors would be copied (in
    Ray's object store)."""
    if tensor.device.type != "cpu" or tensor.dtype is torch.bfloat16 or tensor.requires_grad:
        return tensor
    return tensor.numpy()


def _thick(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shared memory is read-only; batches are copies of it
        return torch.from_numpy(value)


def _arrays(data: tuple[Any, Any], transform: Transform | None) -> Arrays:
    inputs, labels = mapped(_thick, data)
    return Arrays(inputs, labels, transform)


def _windows(codes: Any, starts: Any, length: int) -> Windows:
    return Windows(_thick(codes), _thick(starts), length)


def as_dataset(data: Any) -> Dataset:
    """Take what users have: a ``Dataset``, a pair of tensors or arrays, a map-style dataset.

    A map-style dataset is read once, item by item, and kept as two tensors; its
    items must be (input, label) pairs of one shape. In place of a tensor or an array of inputs
    there may be a tuple or a dict of them.
    """
    if isinstance(data, Dataset):
        return data
    pair = isinstance(data, tuple) and len(data) == 2
    if pair and _are_arrays(leaves(data[0])) and _are_arrays([data[1]]):
        inputs, labels = mapped(_tensor, data)
        if len({len(part) for part in leaves(inputs)}) > 1:
            raise ValueError("has inputs of different lengths")
    elif isinstance(data, MapStyle):
        if len(data) == 0:
            raise ValueError("is empty")
        try:
            items: Sequence[tuple[Any, Any]] = [data[i] for i in range(len(data))]
            inputs = _stacked([_input(item[0]) for item in items])
            labels = torch.stack([_tensor(item[1]) for item in items])
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ValueError(
                f"its items are not (input, label) pairs of one shape: {error}"
            ) from None
    else:
        raise ValueError("is neither a pair of arrays nor a map-style dataset")
    counts = len(leaves(inputs)[0]), len(leaves(labels)[0])
    if counts[0] != counts[1]:
        raise ValueError(f"has {counts[0]} inputs but {counts[1]} labels")
    if counts[0] == 0:
        raise ValueError("is empty")
    for parts, name in ((inputs, "inputs"), (labels, "labels")):
        for part in leaves(parts):
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise ValueError(f"its {name} have NaN or infinite values")
    return Arrays(inputs, labels)


def _are_arrays(parts: Sequence[Any]) -> bool:
    return bool(parts) and all(isinstance(part, torch.Tensor | np.ndarray) for part in parts)


def _input(value: Any) -> Any:
    """An item's input; a tuple of numbers is one tensor."""
    several = isinstance(value, tuple) and all(isinstance(part, torch.Tensor) for part in value)
    return mapped(_tensor, value) if several or isinstance(value, dict) else _tensor(value)


def _stacked(items: Sequence[Any]) -> Any:
    first = items[0]
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in items]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*items, strict=True))
    return torch.stack(list(items))


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    if array.dtype.kind not in "fib":
        raise TypeError(f"an item is {type(value).__name__}, not numbers")
    return torch.from_numpy(array.copy())
