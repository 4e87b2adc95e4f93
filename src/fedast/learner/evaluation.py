"""How well a model does on a dataset."""

from __future__ import annotations

import torch

from fedast.learner.inference import Inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
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
    metric = device_task.task.metric
    summed = metric.build()
    device = device_task.model.parameters[0].device
    if indices is None:
        indices = torch.arange(len(dataset), device=device)
    count = len(indices)
    sums = torch.zeros((), dtype=torch.float64, device=device)  # the metric's, then the loss
    for part in torch.split(indices, batch):
        inputs, labels = dataset.batch(part)
        outputs = model(inputs)
        loss = device_task.loss(outputs, labels).double() * len(labels)
        score = loss if summed is None else summed(outputs, labels)
        sums = sums + torch.cat([score.double().reshape(-1), loss.reshape(1)])
    # The only place where the host waits for the device.
    *scores, loss_mean = (total / count for total in sums.tolist())
    return Evaluation(metric.finish(scores), loss_mean, tuple(scores))
