"""What the kernels behind ``vmap`` share: when they are used, and the order that they want."""

from __future__ import annotations

import torch

from fedast.training.kernels.net import has_triton


def has_kernels(like: torch.Tensor) -> bool:
    """Whether there are kernels for copies of a model whose parameters are ``like`` this one."""
    return like.is_cuda and like.dtype == torch.float32 and has_triton()


def copies_first(tensor: torch.Tensor, dim: int | None, copies: int) -> torch.Tensor:
    """With the copies, which are ``dim``, first; what they share is repeated."""
    moved = tensor.expand(copies, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.contiguous()


def inside_another(*tensors: torch.Tensor) -> bool:
    """Whether copies are mapped over inside another mapping, which kernels know nothing of."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)
