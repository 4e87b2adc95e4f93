"""The loss that hand-written nets are trained with."""

from __future__ import annotations

import torch

from fedast.training.kernels.net import has_triton

MOST = 2**14
"""The most scores of a copy, filled up to powers of two, that one program of the kernel takes."""


def cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each copy's mean loss over its samples, and its gradient by the scores."""
    samples, classes = (1 << (size - 1).bit_length() for size in scores.shape[1:])
    kernels = scores.is_cuda and scores.dtype == torch.float32 and has_triton()
    return (by_kernel if kernels and samples * classes <= MOST else _by_torch)(scores, labels)


def by_kernel(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in one kernel, which torch takes seven for."""
    import triton

    from fedast.training.kernels import dense_kernels

    copies, samples, classes = scores.shape
    losses, gradient = scores.new_empty(copies), torch.empty_like(scores)
    dense_kernels.cross_entropy[(copies,)](
        scores.contiguous(), labels.contiguous(), losses, gradient, samples, CLASSES=classes,
        BS=triton.next_power_of_2(samples), BC=triton.next_power_of_2(classes),
    )  # fmt: skip
    return losses, gradient


def _by_torch(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    copies, samples, classes = scores.shape
    wanted = labels if labels.is_floating_point() else spread(labels, classes, scores.dtype)
    logs = torch.log_softmax(scores, dim=2)
    losses = torch.bmm(logs.view(copies, 1, -1), wanted.view(copies, -1, 1))
    return losses.view(copies), logs.exp().div_(samples).add_(wanted)


def spread(labels: torch.Tensor, classes: int, dtype: torch.dtype) -> torch.Tensor:
    """Class numbers (..., sample) as the gradient of the mean loss by the logarithms of
    probabilities. For ``cross_entropy`` they are the same, only faster, where it does not have
    kernels."""
    shares = torch.zeros((*labels.shape, classes), dtype=dtype, device=labels.device)
    return shares.scatter_(-1, labels[..., None], -1.0 / labels.shape[-1])
