"""How well a model does on a dataset."""

from __future__ import annotations

import torch

from fedast.learner.inference import Inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
from fedast.tasks.metrics import METRICS
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
    metric = METRICS[device_task.task.metric]
    device = device_task.model.parameters[0].device
    if indices is None:
        indices = torch.arange(len(dataset), device=device)
    count = len(indices)
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # metric, loss
    for part in torch.split(indices, batch):
        inputs, labels = dataset.batch(part)
        outputs = model(inputs)
        loss = device_task.loss(outputs, labels).double() * len(labels)
        score = loss if metric.per_batch is None else metric.per_batch(outputs, labels)
        sums += torch.stack([score.double(), loss])
    score_sum, loss_sum = sums.tolist()  # the only place where the host waits for the device
    return Evaluation(metric.finish(score_sum / count), loss_sum / count)
