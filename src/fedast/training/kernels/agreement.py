"""Whether stacked copies train as one copy alone does; if not, why, and which layer is to blame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from fedast.core.streams import Stream
from fedast.tasks.dataset import leaves, mapped
from fedast.tasks.task import OutOfMemory
from fedast.training.kernels import stacked
from fedast.training.kernels.net import Net, Precision
from fedast.training.kernels.stacked import Randomness
from fedast.training.randomness import draw_seed, seeded
from fedast.training.trainer import DeviceTask

_log = logging.getLogger(__name__)

DIFFERENT = "stacked copies do not train as one copy alone does"


def _streams(copies: int) -> list[Stream]:
    """The randomness of each copy."""
    return [Stream(1 + number) for number in range(copies)]


def randomness_of(device_task: DeviceTask) -> Randomness:
    """What a training pass draws, and whether augmentation can be done for all copies at once, or
    again."""
    augment, device = device_task.task.augment, device_task.model.parameters[0].device
    if augment is None:
        return Randomness(device_task.draws)

    def inputs() -> list[Any]:  # anew, since augmentation may be in place
        return [_samples(device_task, number)[0] for number in (0, 1)]

    alone = []
    for one, stream in zip([*inputs(), inputs()[0]], [*_streams(2), *_streams(1)], strict=True):
        with seeded(stream, device):
            alone.append(leaves(augment(one)))
    again = alone.pop()
    repeatable = all(torch.equal(one, other) for one, other in zip(alone[0], again, strict=True))
    randomness = Randomness(device_task.draws, augment)
    generators = randomness.generators(2, device)
    if generators is not None:
        generators.begin([draw_seed(stream) for stream in _streams(2)])
    try:
        found = leaves(stacked.augmented(augment, _stack(inputs()), generators, maps=True))
        wanted = [torch.stack(parts) for parts in zip(*alone, strict=True)]
        maps = all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    except Exception as error:  # whatever a user's function that cannot be mapped raises
        _log.info("task %r: augmentation: %s", device_task.task.name, error)
        maps = False
    return Randomness(device_task.draws, augment, maps, repeatable)


def used_parameters(device_task: DeviceTask) -> tuple[bool, ...]:
    """Which parameters the loss depends on."""
    device = device_task.model.parameters[0].device
    with _kept(device_task), seeded(Stream(0), device):
        loss = _loss(device_task, *_samples(device_task, 0))
        found = torch.autograd.grad(loss, device_task.model.parameters, allow_unused=True)
    return tuple(gradient is not None for gradient in found)


def disagreement(
    build: Callable[[int], Net],
    device_task: DeviceTask,
    precision: Precision,
    randomness: Randomness,
    *,
    exact: bool = False,
) -> str | None:
    """Why two copies on different samples, or one alone, do not take autograd's step; None: they
    do. ``exact``: without TF32."""
    base = device_task.model.read()
    samples = [_samples(device_task, number) for number in (0, 1)]
    with _exact():
        expected = [
            _alone(device_task, *one, stream)
            for one, stream in zip(samples, _streams(2), strict=True)
        ]
    try:
        with _exact() if exact else nullcontext():
            together = _together(build, samples, base, randomness)
            alone = _together(build, samples[:1], base, randomness)  # which may use other code
    except torch.OutOfMemoryError as error:  # this says nothing about the net
        raise OutOfMemory(f"task {device_task.task.name!r}: out of memory ({error})") from None
    except Exception as error:  # whatever a module that cannot be mapped raises
        where = _culprit(
            device_task.model.module, lambda: _together(build, samples, base, randomness)
        )
        return f"{where}: {' '.join(str(error).split())[:300]}"
    moved = torch.cat([together, alone]) - base
    wanted = torch.stack([*expected, expected[0]]) - base
    off, end = 0.0, device_task.model.buffers_from
    for span in (slice(0, end), slice(end, None)):  # parameters, then buffers
        far = float(wanted[:, span].norm())
        off = max(off, float((moved[:, span] - wanted[:, span]).norm()) / (far + 1e-12))
    _log.info("task %r: stacked copies are off by %.1e", device_task.task.name, off)
    if base.dtype == torch.float64:
        allowed = 1e-6
    else:
        allowed = tolerance(precision if base.is_cuda else "fp32")
    return None if off <= allowed else DIFFERENT


def tolerance(precision: Precision) -> float:
    """The relative error that rounding alone may cause; a wrong net is off by about 1."""
    return {"fp32": 1e-2, "tf32": 0.1, "fp16": 0.1, "bf16": 0.3}[precision]


def _samples(device_task: DeviceTask, copy: int) -> tuple[Any, Any]:
    """Two samples for a copy."""
    device = device_task.model.parameters[0].device
    indices = torch.arange(2 * copy, 2 * copy + 2, device=device) % len(device_task.train)
    return device_task.train.batch(indices)


def _loss(device_task: DeviceTask, inputs: Any, labels: Any) -> torch.Tensor:
    device_task.model.module.train()
    if device_task.task.augment is not None:
        inputs = device_task.task.augment(inputs)
    return device_task.loss(device_task.model.module(inputs), labels)


def _alone(device_task: DeviceTask, inputs: Any, labels: Any, stream: Stream) -> torch.Tensor:
    """The module after a step of plain SGD, as a vector."""
    model, how = device_task.model, device_task.task.training
    with _kept(device_task), seeded(stream, model.parameters[0].device):
        loss = _loss(device_task, inputs, labels)
        found = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters, found, strict=True):
                if gradient is not None:
                    parameter.sub_(how.client_lr * (gradient + how.weight_decay * parameter))
        return model.read()


def _together(
    build: Callable[[int], Net],
    samples: Sequence[tuple[Any, Any]],
    base: torch.Tensor,
    randomness: Randomness,
) -> torch.Tensor:
    """The same of copies side by side, one per row."""
    copies = len(samples)
    net = build(copies)
    net.load(base.expand(copies, -1))
    generators = randomness.generators(copies, base.device)
    if generators is not None:
        generators.begin([draw_seed(stream) for stream in _streams(copies)])
    inputs, labels = (_stack([one[part] for one in samples]) for part in (0, 1))
    stacked.step(net, inputs, labels, randomness, generators)
    return net.read()


def _stack(parts: Sequence[Any]) -> Any:
    pieces = [torch.stack(same) for same in zip(*map(leaves, parts), strict=True)]
    return mapped(lambda _: pieces.pop(0), parts[0])


def _culprit(module: nn.Module, attempt: Callable[[], object]) -> str:
    """The innermost layer in which an attempt fails."""
    inside: list[str] = []
    handles = []
    for name, layer in module.named_modules():
        text = f"its layer {name!r} ({type(layer).__name__})" if name else "its model"
        handles += [
            layer.register_forward_pre_hook(lambda *_, text=text: inside.append(text)),
            layer.register_forward_hook(lambda *_: inside.pop() and None),
        ]
    try:
        attempt()
    except Exception:
        return inside[-1] if inside else "its loss or gradient"
    finally:
        for handle in handles:
            handle.remove()
    return "its model"


@contextmanager
def _kept(device_task: DeviceTask) -> Iterator[None]:
    """Restore the module's state; even a pass without a step moves running statistics."""
    before = device_task.model.read()
    try:
        yield
    finally:
        device_task.model.write(before)


@contextmanager
def _exact() -> Iterator[None]:
    """Without TF32: the reference must not round as the copies do. On two samples, one ReLU or
    maximum that flips is a tenth of the gradient, and a correct net would be refused."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
