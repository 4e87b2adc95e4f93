"""Attention of stacked copies by fused kernels, against torch's plain one mapped over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedast.tasks.dataset import Arrays
from fedast.tasks.task import Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels import stacked_attention
from fedast.training.kernels.stacked_attention import StackedAttention
from fedast.training.trainer import DeviceTask, Job, SerialTrainer
from tests.training.interpreter import far_off

COPIES, SAMPLES, HEADS, LENGTH = 3, 2, 4, 21
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def _lower(device: str) -> torch.Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).tril()


Mask = Callable[[str, torch.dtype], torch.Tensor]
MASKS: dict[str, tuple[Mask | None, int | None]] = {
    "none": (None, None),
    "for all": (lambda d, t: torch.zeros(1, 1, LENGTH, LENGTH, device=d, dtype=t).masked_fill(
        ~_lower(d), torch.finfo(t).min), None),
    "of two axes": (lambda d, t: torch.randn(LENGTH, LENGTH, device=d, dtype=t), None),
    "for each sample": (lambda d, t: torch.randn(SAMPLES, 1, 1, LENGTH, device=d, dtype=t), None),
    "for each head": (lambda d, t: torch.randn(1, HEADS, LENGTH, LENGTH, device=d, dtype=t), None),
    "for each copy": (
        lambda d, t: torch.randn(COPIES, SAMPLES, 1, 1, LENGTH, device=d, dtype=t), 0),
    "of booleans": (lambda d, t: _lower(d)[None, None, None].expand(COPIES, 1, 1, -1, -1), 0),
}  # fmt: skip


def _both(
    mask: Any, dim: int | None, size: int, device: str, dtype: torch.dtype, **how: Any
) -> tuple[list[float], bool]:
    """How far the gradients are off, and whether the fused kernels made them."""
    torch.manual_seed(0)
    inputs = [
        torch.randn(COPIES, SAMPLES, HEADS, LENGTH, size, device=device, dtype=dtype)
        for _ in range(3)
    ]

    def loss(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, **how).sin().sum()

    gradients: Any = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(0, 0, 0, dim))
    fused = MagicMock(wraps=stacked_attention._fused)
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        wanted = gradients(*inputs, mask)
        patch.setattr(stacked_attention, "_fused", fused)
        with StackedAttention():
            found = gradients(*inputs, mask)
    off = [far_off(a, b) for a, b in zip(found, wanted, strict=True)]
    return off, fused.called


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, device: str) -> None:
    make, dim = MASKS[name]
    dtype = torch.float64 if device == "cpu" else torch.float32
    mask = None if make is None else make(device, dtype)
    off, used = _both(mask, dim, 16, device, dtype)
    assert used
    assert max(off) < (1e-12 if device == "cpu" else 1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_causal_and_scaled(device: str) -> None:
    dtype = torch.float64 if device == "cpu" else torch.float32
    off, used = _both(None, None, 8, device, dtype, is_causal=True, scale=0.3)
    assert used
    assert max(off) < (1e-12 if device == "cpu" else 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_penalty_on_gradients(causal: bool) -> None:
    """Second derivatives, of which there is no fused kernel."""
    torch.manual_seed(0)
    inputs = [torch.randn(COPIES, SAMPLES, HEADS, 5, 8, dtype=torch.float64) for _ in range(3)]
    mask = None if causal else torch.randn(SAMPLES, 1, 5, 5, dtype=torch.float64)

    def loss(q: Any, k: Any, v: Any) -> torch.Tensor:
        out = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.7)
        return out.sin().sum()

    def penalty(q: Any, k: Any, v: Any) -> torch.Tensor:
        found: Any = grad(loss, argnums=(0, 1, 2))(q, k, v)
        return sum((part.square() * place).sum() for place, part in enumerate(found, 1))  # type: ignore[no-any-return]

    gradients: Any = vmap(grad(penalty, argnums=(0, 1, 2)))
    with sdpa_kernel(SDPBackend.MATH):
        wanted = gradients(*inputs)
        with StackedAttention():
            found = gradients(*inputs)
    assert max(far_off(a, b) for a, b in zip(found, wanted, strict=True)) < 1e-12


def test_what_the_fused_kernels_do_not_know_is_done_as_before() -> None:
    off, used = _both(None, None, 3, "cpu", torch.float64)  # three numbers for each position
    assert not used
    assert max(off) < 1e-12


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.attention(x, x, x, need_weights=False)
        out: torch.Tensor = self.out(self.norm(x + hidden).mean(dim=1))
        return out


@pytest.mark.parametrize("device", DEVICES)
def test_a_transformer_is_trained_as_one_client_after_the_other_is(device: str) -> None:
    dtype = torch.float64 if device == "cpu" else torch.float32
    inputs = torch.randn(40, 6, 32, generator=torch.Generator().manual_seed(1), dtype=dtype)
    task = Task(
        name="t",
        model=lambda: _Block().to(dtype),
        train=Arrays(inputs, torch.arange(40) % 3),
        test=Arrays(inputs[:3], torch.arange(3)),
        partition=[np.arange(10 * n, 10 * n + 10) for n in range(4)],
        training=Training(local_steps=3, batch_size=5, client_lr=0.1),
    )
    made = DeviceTask.build(task, 1, torch.device(device))
    jobs = [Job(n, n, made.model.read()) for n in range(4)]
    trainer = BatchedTrainer({"t": made}, 1)
    assert not trainer.alone
    alone = SerialTrainer({"t": made}, 1).train("t", jobs)
    for one, other in zip(trainer.train("t", jobs), alone, strict=True):
        assert far_off(one.delta, other.delta) < (1e-10 if device == "cpu" else 1e-4)
