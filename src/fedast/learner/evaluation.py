"""How well a model does on a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedast.learner.inference import Inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
from fedast.tasks.metrics import Whole
from fedast.training.trainer import DeviceTask


@torch.no_grad()
def measure(
    device_task: DeviceTask,
    model: Inference,
    dataset: Dataset,
    batch: int,
    indices: torch.Tensor | None = None,
) -> Evaluation:
    """The model as it is, on a dataset (or the samples at ``indices``), ``batch`` at a time."""
    metrics = (device_task.task.metric, *device_task.task.metrics)
    wholes = [metric.whole() for metric in metrics]
    summed = [metric.build() if whole is None else _nothing
              for metric, whole in zip(metrics, wholes, strict=True)]  # fmt: skip
    device = device_task.model.parameters[0].device
    if indices is None:
        indices = torch.arange(len(dataset), device=device)
    count = len(indices)
    sums = torch.zeros((), dtype=torch.float64, device=device)  # the metrics', then the loss
    sizes: list[int] = []
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part in torch.split(indices, batch):
        inputs, labels = dataset.batch(part)
        outputs = model(inputs)
        loss = device_task.loss(outputs, labels).double() * len(labels)
        scores = [
            (loss if sum_ is None else sum_(outputs, labels)).double().reshape(-1)
            for sum_ in summed
        ]
        sizes = [len(score) for score in scores]
        sums = sums + torch.cat([*scores, loss.reshape(1)])
        if any(whole is not None for whole in wholes):
            kept.append((outputs.cpu(), labels.cpu()))
    # The only place where the host waits for the device.
    *means, loss_mean = (total / count for total in sums.tolist())
    values, own = [], tuple(means[: sizes[0]])
    for metric, whole, size in zip(metrics, wholes, sizes, strict=True):
        mine, means = means[:size], means[size:]
        values.append(metric.finish(mine) if whole is None else _of_all(whole, kept))
    return Evaluation(values[0], loss_mean, own, more=tuple(values[1:]))


def _nothing(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.new_zeros(0)


def _of_all(whole: Whole, kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    outputs, labels = zip(*kept, strict=True)
    return float(whole(torch.cat(outputs), torch.cat(labels)))  # type: ignore[arg-type]
