"""How well a model does on a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch

from fedast.learner.inference import Inference, inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
from fedast.tasks.metrics import Sums
from fedast.training.trainer import DeviceTask

Part: TypeAlias = Literal["test", "final_test"]
"""The test set that decides, and the larger one of the end."""
Spread: TypeAlias = Callable[..., list[Any]]
"""``AheadTrainer.spread``."""


@torch.no_grad()
def measure(
    device_task: DeviceTask,
    model: Inference,
    dataset: Dataset,
    batch: int,
    indices: torch.Tensor | None = None,
) -> Evaluation:
    """The model as it is, on a dataset (or the samples at ``indices``), ``batch`` at a time."""
    device = device_task.model.parameters[0].device
    if indices is None:
        indices = torch.arange(len(dataset), device=device)
    summed = device_task.task.metric.build()
    sums = torch.zeros((), dtype=torch.float64, device=device)
    for part in torch.split(indices, batch):
        sums = sums + _sums(device_task, summed, model, dataset, part)
    # The only place where the host waits for the device.
    return _finished(device_task, sums, len(indices))


def measure_in_pieces(
    spread: Spread,
    device_task: DeviceTask,
    vector: torch.Tensor,
    part: Part,
    batch: int,
) -> Evaluation:
    """As ``measure``, and with the same rounding, in pieces of one batch for others to do."""
    count = len(getattr(device_task.task, part))
    pieces = [(part, start, min(start + batch, count)) for start in range(0, count, batch)]
    sums = torch.zeros((), dtype=torch.float64)
    for found in spread(device_task.task.name, vector, batch_sums, pieces):
        sums = sums + torch.tensor(found, dtype=torch.float64)
    return _finished(device_task, sums, count)


@torch.no_grad()
def batch_sums(
    device_task: DeviceTask,
    vector: torch.Tensor,
    piece: tuple[Part, int, int],
    kept: dict[Any, Any],
) -> list[float]:
    """On a worker: what one batch of a test set adds to the sums."""
    part, start, end = piece
    device = device_task.model.parameters[0].device
    name = device_task.task.name
    if ("model", name) not in kept:
        kept["model", name] = inference(device_task, kept["precision"])
    if (part, name) not in kept:
        kept[part, name] = getattr(device_task.task, part).to(device)
    model: Inference = kept["model", name]
    model.load(vector)
    indices = torch.arange(start, end, device=device)
    summed = device_task.task.metric.build()
    found: list[float] = _sums(device_task, summed, model, kept[part, name], indices).tolist()
    return found


def _sums(
    device_task: DeviceTask,
    summed: Sums | None,
    model: Inference,
    dataset: Dataset,
    indices: torch.Tensor,
) -> torch.Tensor:
    """The metric's sums, then the loss, over some samples."""
    inputs, labels = dataset.batch(indices)
    outputs = model(inputs)
    loss = device_task.loss(outputs, labels).double() * len(labels)
    score = loss if summed is None else summed(outputs, labels)
    return torch.cat([score.double().reshape(-1), loss.reshape(1)])


def _finished(device_task: DeviceTask, sums: torch.Tensor, count: int) -> Evaluation:
    *scores, loss = (total / count for total in sums.tolist())
    return Evaluation(device_task.task.metric.finish(scores), loss, tuple(scores))
