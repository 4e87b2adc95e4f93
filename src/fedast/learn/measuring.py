"""How well a model does on points."""

from __future__ import annotations

import torch

from fedast.learn.metrics import METRICS
from fedast.learn.points import Points
from fedast.learn.port import Evaluation
from fedast.learn.reading import Reader
from fedast.learn.trainer import Workbench


@torch.no_grad()
def measure(
    bench: Workbench,
    model: Reader,
    points: Points,
    batch: int,
    indices: torch.Tensor | None = None,
) -> Evaluation:
    """The model as it is, on these points (or those of them), so many at a time."""
    metric = METRICS[bench.task.metric]
    device = bench.model.parameters[0].device
    if indices is None:
        indices = torch.arange(len(points), device=device)
    count = len(indices)
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # metric, loss
    for part in torch.split(indices, batch):
        inputs, labels = points.batch(part)
        outputs = model(inputs)
        loss = bench.loss(outputs, labels).double() * len(labels)
        score = loss if metric.per_batch is None else metric.per_batch(outputs, labels)
        sums += torch.stack([score.double(), loss])
    score_sum, loss_sum = sums.tolist()  # the one point where the host waits for the device
    return Evaluation(metric.finish(score_sum / count), loss_sum / count)
