"""How well a model does on a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeGuard, final

import torch

from fedast.learner.inference import Inference, KernelInference, inference
from fedast.learner.protocol import Evaluation
from fedast.tasks.dataset import Dataset
from fedast.tasks.metrics import MetricOptions
from fedast.training.graphs import Graphs
from fedast.training.trainer import DeviceTask

Part: TypeAlias = Literal["test", "final_test"]
"""The test set that decides, and the larger one of the end."""
Spread: TypeAlias = Callable[..., list[Any]]
"""``AheadTrainer.spread``."""
Meanwhile: TypeAlias = Iterable[object]
"""Does something useful each time it is asked for another, while a GPU works. The first is asked
for in any case, the others until the GPU is done."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What some samples add to an evaluation."""

    sums: torch.Tensor
    """Those of every metric, then the loss."""
    sizes: tuple[int, ...]
    """How many sums each metric has."""
    outputs: tuple[torch.Tensor, torch.Tensor] | None
    """With their labels, on the CPU; None unless a metric needs those of all samples at once."""


@final
class CapturedEvaluation:
    """The evaluation of any parameters on one dataset as one graph, which the host starts and then
    has time."""

    def __init__(
        self,
        device_task: DeviceTask,
        model: Inference,
        dataset: Dataset,
        batch: int,
        graphs: Graphs,
    ) -> None:
        """Raises ``RuntimeError`` if the host is needed in between."""
        self._device_task = device_task
        self._model = model
        # What the graph reads must stay where it is.
        self._dataset = dataset
        self._vector = device_task.model.read()
        self._indices = torch.arange(len(dataset), device=self._vector.device)
        with graphs.beside():  # lazy initialisations must not be captured
            self._run(batch)
        self._graph = torch.cuda.CUDAGraph()
        with graphs.capture(self._graph):
            self._found = self._run(batch)
        self._sums = torch.empty_like(self._found.sums, device="cpu").pin_memory()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _run(self, batch: int) -> _Batch:
        self._model.load(self._vector)
        parts = torch.split(self._indices, batch)
        return _summed(
            _measured(self._device_task, self._model, self._dataset, part) for part in parts
        )

    def __call__(self, vector: torch.Tensor, meanwhile: Meanwhile) -> Evaluation:
        self._vector.copy_(vector)
        self._graph.replay()
        self._sums.copy_(self._found.sums, non_blocking=True)
        self._done.record()
        for _ in meanwhile:
            if self._done.query():  # type: ignore[no-untyped-call]
                break
        self._done.synchronize()
        return _finished(
            self._device_task, replace(self._found, sums=self._sums), len(self._dataset)
        )


def can_be_captured(model: Inference, device_task: DeviceTask) -> TypeGuard[KernelInference]:
    """Whether it is worth a try: on a GPU, with a net that does not need the host, and metrics that
    are sums."""
    return isinstance(model, KernelInference) and all(
        metric.whole() is None for metric in _metrics(device_task)
    )


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
    return _finished(device_task, _summed(parts), len(indices))


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
    return _finished(device_task, _summed(parts), count)


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


def _summed(batches: Iterable[_Batch]) -> _Batch:
    sums: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for batch in batches:
        sums = batch.sums if sums is None else sums + batch.sums
        sizes = batch.sizes
        if batch.outputs is not None:
            kept.append(batch.outputs)
    assert sums is not None, "a test set has samples"
    outputs = [torch.cat(column) for column in zip(*kept, strict=True)]
    return _Batch(sums, sizes, (outputs[0], outputs[1]) if outputs else None)


def _finished(device_task: DeviceTask, found: _Batch, count: int) -> Evaluation:
    # The only place where the host waits for the device.
    *means, loss = (total / count for total in found.sums.tolist())
    own = tuple(means[: found.sizes[0]])
    values = []
    for metric, size in zip(_metrics(device_task), found.sizes, strict=True):
        mine, means = means[:size], means[size:]
        whole = metric.whole()
        if whole is None:
            values.append(metric.finish(mine))
        else:
            assert found.outputs is not None
            values.append(float(whole(*found.outputs)))  # type: ignore[arg-type]
    return Evaluation(values[0], loss, own, more=tuple(values[1:]))
