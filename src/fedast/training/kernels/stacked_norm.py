"""Batch and group normalisation of stacked copies on a GPU, one kernel each way.

``vmap`` makes several of each: copies that batch normalisation wants in another order are moved
there and back, and weights that differ between copies are multiplied with by themselves. While
``StackedNorms`` is entered, the kernels of ``stacked_norm_kernels`` do all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch.func import vjp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedast.training.kernels.mapping import copies_first, has_kernels, inside_another

Three: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

FEWEST = 16
"""Values of a channel of a sample, below which torch's own operations are used."""


def stacked_norms(like: torch.Tensor) -> AbstractContextManager[object]:
    """To be entered while copies of a model are trained whose parameters are ``like`` this one."""
    return StackedNorms() if has_kernels(like) else nullcontext()


@final
class StackedNorms(TorchFunctionMode):
    """Takes normalisations of images to the kernels if they are of a kind that these know."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.batch_norm:
            return self._batch_norm(*args, **kwargs or {})
        if func is functional.group_norm:
            return self._group_norm(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    @staticmethod
    def _batch_norm(
        input: torch.Tensor,  # noqa: A002 (its name in torch)
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not training or weight is None or bias is None or not _known(input, weight, bias):
            return functional.batch_norm(
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        y, mean, variance = _Norm.apply(input, weight, bias, 0, eps)  # type: ignore[no-untyped-call]
        if running_mean is not None:
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        if running_var is not None:
            count = input.numel() // input.shape[1]
            running_var.mul_(1 - momentum).add_(variance, alpha=momentum * count / (count - 1))
        assert isinstance(y, torch.Tensor)
        return y

    @staticmethod
    def _group_norm(
        input: torch.Tensor,  # noqa: A002 (its name in torch)
        num_groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if (
            weight is None
            or bias is None
            or not _known(input, weight, bias)
            or input.shape[1] % num_groups
        ):
            return functional.group_norm(input, num_groups, weight, bias, eps)
        y, _, _ = _Norm.apply(input, weight, bias, num_groups, eps)  # type: ignore[no-untyped-call]
        assert isinstance(y, torch.Tensor)
        return y


def _known(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> bool:
    return (
        x.dim() > 2
        and x.dtype == weight.dtype == bias.dtype == torch.float32
        and x.device == weight.device
        and not torch.is_autocast_enabled(x.device.type)
        and x.numel() < 1 << 30
        and x.numel() >= FEWEST * x.shape[0] * x.shape[1] > 0
    )


def _spread(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value per channel, to be multiplied with images."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _in_sets(x: torch.Tensor, groups: int) -> tuple[torch.Tensor, list[int]]:
    """The values, and the axes that a set extends over."""
    if groups:
        return x.reshape(len(x), groups, -1), [2]
    return x, [0, *range(2, x.dim())]


def plain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> Three:
    """What the kernels compute, by torch's own operations: of one copy."""
    sets, axes = _in_sets(x, groups)
    mean = sets.mean(dim=axes, keepdim=True)
    variance = (sets - mean).square().mean(dim=axes, keepdim=True)
    hat = ((sets - mean) * (variance + eps).rsqrt()).view(x.shape)
    shape = (len(x), groups) if groups else (x.shape[1],)
    y = hat * _spread(weight, x) + _spread(bias, x)
    return y, mean.view(shape), variance.view(shape)


def plain_gradients(
    groups: int, eps: float, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> Three:
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return plain(x, weight, bias, groups, eps)[0]

    back = vjp(forward, x, weight, torch.zeros_like(weight))[1]
    found: Three = back(dy)
    return found


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
    ) -> Three:
        return plain(x, weight, bias, groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, _, *ctx.how = inputs
        _, mean, variance = output
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, mean, variance)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        found = _NormGradients.apply(given[0], *ctx.saved_tensors, *ctx.how)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        groups: int,
        eps: float,
    ) -> tuple[Three, tuple[int, int, int]]:
        x, weight, bias = (
            copies_first(tensor, dim, info.batch_size)
            for tensor, dim in zip((x, weight, bias), in_dims[:3], strict=True)
        )
        if inside_another(x, weight, bias):
            found = vmap(partial(plain, groups=groups, eps=eps))(x, weight, bias)
            return found, (0, 0, 0)
        from fedast.training.kernels.stacked_norm_kernels import run_forward

        return run_forward(x, weight, bias, groups, eps), (0, 0, 0)


class _NormGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        dy: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        groups: int,
        eps: float,
    ) -> Three:
        return plain_gradients(groups, eps, dy, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, x, weight, _, _, *ctx.how = inputs
        ctx.save_for_backward(dy, x, weight)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        """Second derivatives are those of the plain formula."""
        back = vjp(partial(plain_gradients, *ctx.how), *ctx.saved_tensors)[1]
        return *back(tuple(given)), None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        dy: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        groups: int,
        eps: float,
    ) -> tuple[Three, tuple[int, int, int]]:
        dy, x, weight, mean, variance = (
            copies_first(tensor, dim, info.batch_size)
            for tensor, dim in zip((dy, x, weight, mean, variance), in_dims[:5], strict=True)
        )
        if inside_another(dy, x, weight):
            return vmap(partial(plain_gradients, groups, eps))(dy, x, weight), (0, 0, 0)
        from fedast.training.kernels.stacked_norm_kernels import run_backward

        return run_backward(dy, x, weight, mean, variance, groups, eps), (0, 0, 0)
