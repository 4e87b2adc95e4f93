"""How well a model does on a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from fedast.learner.inference import Inference, inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
from fedast.tasks.metrics import MetricOptions
from fedast.training.trainer import DeviceTask

Part: TypeAlias = Literal["test", "final_test"]
"""The test set that decides, and the larger one of the end."""
Spread: TypeAlias = Callable[..., list[Any]]
"""``AheadTrainer.spread``."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What some samples add to an evaluation."""

    sums: torch.Tensor
    """Those of every metric, then the loss."""
    sizes: tuple[int, ...]
    """How many sums each metric has."""
    outputs: tuple[torch.Tensor, torch.Tensor] | None
    """With their labels, on the CPU; None unless a metric needs those of all samples at once."""


@torch.no_grad()
def measure(
    device_task: DeviceTask,
    model: Inference,
    dataset: Dataset,
    batch: int,
    indices: torch.Tensor | None = None,
) -> Evaluation:
    """The model as it is, on a dataset (or the samples at ``indices``), ``batch`` at a time."""
    if indices is None:
        device = device_task.model.parameters[0].device
        indices = torch.arange(len(dataset), device=device)
    parts = (_measured(device_task, model, dataset, part) for part in torch.split(indices, batch))
    return _finished(device_task, parts, len(indices))


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
    parts = spread(device_task.task.name, vector, measured_batch, pieces)
    return _finished(device_task, parts, count)


@torch.no_grad()
def measured_batch(
    device_task: DeviceTask,
    vector: torch.Tensor,
    piece: tuple[Part, int, int],
    kept: dict[Any, Any],
) -> _Batch:
    """On a worker: one batch of a test set."""
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
    found = _measured(device_task, model, kept[part, name], indices)
    return _Batch(found.sums.cpu(), found.sizes, found.outputs)


def _metrics(device_task: DeviceTask) -> tuple[MetricOptions, ...]:
    return device_task.task.metric, *device_task.task.metrics


def _measured(
    device_task: DeviceTask, model: Inference, dataset: Dataset, indices: torch.Tensor
) -> _Batch:
    inputs, labels = dataset.batch(indices)
    outputs = model(inputs)
    loss = device_task.loss(outputs, labels).double() * len(labels)
    metrics = _metrics(device_task)
    wholes = [metric.whole() is not None for metric in metrics]
    scores = []
    for metric, whole in zip(metrics, wholes, strict=True):
        if whole:
            scores.append(loss.new_zeros(0))
            continue
        summed = metric.build()
        score = loss if summed is None else summed(outputs, labels)
        scores.append(score.double().reshape(-1))
    return _Batch(
        torch.cat([*scores, loss.reshape(1)]),
        tuple(len(score) for score in scores),
        (outputs.cpu(), labels.cpu()) if any(wholes) else None,
    )


def _finished(device_task: DeviceTask, batches: Iterable[_Batch], count: int) -> Evaluation:
    sums: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for batch in batches:
        sums = batch.sums if sums is None else sums + batch.sums
        sizes = batch.sizes
        if batch.outputs is not None:
            kept.append(batch.outputs)
    assert sums is not None, "a test set has samples"
    # The only place where the host waits for the device.
    *means, loss = (total / count for total in sums.tolist())
    own = tuple(means[: sizes[0]])
    values = []
    for metric, size in zip(_metrics(device_task), sizes, strict=True):
        mine, means = means[:size], means[size:]
        whole = metric.whole()
        if whole is None:
            values.append(metric.finish(mine))
        else:
            outputs, labels = (torch.cat(column) for column in zip(*kept, strict=True))
            values.append(float(whole(outputs, labels)))  # type: ignore[arg-type]
    return Evaluation(values[0], loss, own, more=tuple(values[1:]))
