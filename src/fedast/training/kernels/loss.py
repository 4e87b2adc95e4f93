"""The loss that hand-written nets are trained with."""

from __future__ import annotations

import torch

from fedast.training.kernels.net import has_triton

_nll_loss = torch.ops.aten.nll_loss_forward.default

MOST = 2**14
"""The most scores of a copy, filled up to powers of two, that one program of the kernel takes."""


def cross_entropy(
    scores: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each copy's mean loss over its samples, and its gradient by the scores.

    ``shares``: the same labels by ``spread``, if they have been made before.
    """
    if scores.is_cuda and scores.dtype == torch.float32 and has_triton():
        samples, classes = (1 << (size - 1).bit_length() for size in scores.shape[1:])
        if samples * classes <= MOST:
            return by_kernel(scores, labels)
    if shares is None:
        shares = spread(labels, scores.shape[2], scores.dtype)
    return _by_torch(scores, labels, shares)


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


def _by_torch(
    scores: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    copies, samples, classes = scores.shape
    logs = torch.log_softmax(scores, dim=2)
    mean = int(copies == 1)  # torch's own of all samples is one call
    losses, _ = _nll_loss(logs.view(-1, classes), labels.reshape(-1), None, mean, -100)
    losses = losses.view(1) if mean else losses.view(copies, samples).mean(dim=1)
    return losses, torch.add(shares, logs.exp_(), alpha=1.0 / samples)


def spread(labels: torch.Tensor, classes: int, dtype: torch.dtype) -> torch.Tensor:
    """Class numbers (..., sample) as the gradients of the mean loss by the logarithms of all
    probabilities (..., sample, class)."""
    shares = torch.zeros((*labels.shape, classes), dtype=dtype, device=labels.device)
    return shares.scatter_(-1, labels.long()[..., None], -1.0 / labels.shape[-1])
