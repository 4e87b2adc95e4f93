"""Samples by index: what a task is trained and tested on.

A dataset is stored once, and its batches are gathered by index on whatever
device it is on; partitions are arrays of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import torch

Transform: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@runtime_checkable
class Dataset(Protocol):
    """Inputs and labels that can be gathered a batch at a time."""

    def __len__(self) -> int: ...

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    """Inputs and labels as two tensors; ``transform`` is applied to each batch of inputs."""

    inputs: torch.Tensor
    labels: torch.Tensor
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self.inputs[indices]
        if self.transform is not None:
            inputs = self.transform(inputs)
        return inputs, self.labels[indices]

    def to(self, device: torch.device) -> Arrays:
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


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


def as_dataset(data: Any) -> Dataset:
    """Take what users have: a ``Dataset``, a pair of tensors or arrays, a map-style dataset.

    A map-style dataset is read once, item by item, and kept as two tensors; its
    items must be (input, label) pairs of one shape.
    """
    if isinstance(data, Dataset):
        return data
    pair = isinstance(data, tuple) and len(data) == 2
    if pair and all(isinstance(part, torch.Tensor | np.ndarray) for part in data):
        inputs, labels = (_tensor(part) for part in data)
    elif isinstance(data, MapStyle):
        if len(data) == 0:
            raise ValueError("is empty")
        try:
            items: Sequence[tuple[Any, Any]] = [data[i] for i in range(len(data))]
            inputs = torch.stack([_tensor(item[0]) for item in items])
            labels = torch.stack([_tensor(item[1]) for item in items])
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ValueError(
                f"its items are not (input, label) pairs of one shape: {error}"
            ) from None
    else:
        raise ValueError("is neither a pair of arrays nor a map-style dataset")
    if len(inputs) != len(labels):
        raise ValueError(f"has {len(inputs)} inputs but {len(labels)} labels")
    if len(inputs) == 0:
        raise ValueError("is empty")
    for part, name in ((inputs, "inputs"), (labels, "labels")):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise ValueError(f"its {name} have NaN or infinite values")
    return Arrays(inputs, labels)


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
