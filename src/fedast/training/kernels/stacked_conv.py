"""Convolutions of stacked copies on a GPU, where torch's own are slow.

``vmap`` makes one grouped convolution of many copies' convolutions, a group per copy. While
``StackedConvolutions`` is entered, they are computed by the kernels of ``stacked_conv_launch``
instead. A convolution of copies that share their weights is one of a larger batch, and torch's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch.nn import grad
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from fedast.training.kernels.stacked_conv_launch import Window

Pair = tuple[int, int]
Batched = tuple[torch.Tensor, int]


def stacked_convolutions(like: torch.Tensor) -> AbstractContextManager[object]:
    """To be entered while copies of a model are trained whose parameters are ``like`` this one."""
    usable = like.is_cuda and like.dtype == torch.float32
    if usable and importlib.util.find_spec("triton") is not None:
        return StackedConvolutions()
    return nullcontext()


@final
class StackedConvolutions(TorchFunctionMode):
    """Takes convolutions to the kernels if they are of a kind that these know."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            return self._convolve(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    @staticmethod
    def _convolve(
        input: torch.Tensor,  # noqa: A002 (its name in torch)
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        known = (
            groups == 1
            and _pair(dilation) == (1, 1)
            and not isinstance(padding, str)
            and input.dim() == 4
            and input.dtype == weight.dtype == torch.float32
            and input.device == weight.device
            and not torch.is_autocast_enabled(input.device.type)
            and max(input.numel(), weight.numel()) < 1 << 30
        )
        if not known or isinstance(padding, str):
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        y: torch.Tensor = _Convolution.apply(input, weight, _pair(stride), _pair(padding))  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias[:, None, None]


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    return value[0], value[-1]


def _window(size: Sequence[int], stride: Pair, padding: Pair) -> Window:
    from fedast.training.kernels.stacked_conv_launch import Window

    return Window((size[-2], size[-1]), stride, padding)


def _first(tensor: torch.Tensor, dim: int | None, copies: int) -> torch.Tensor:
    """With the copies first; what they share is repeated."""
    moved = tensor.expand(copies, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.contiguous()


def _folded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Copies as parts of one batch."""
    return tensor.movedim(dim, 0).flatten(0, 1)


def _unfolded(tensor: torch.Tensor, copies: int) -> torch.Tensor:
    return tensor.view(copies, -1, *tensor.shape[1:])


def _input_gradient(
    shape: tuple[int, ...], weight: torch.Tensor, dy: torch.Tensor, stride: Pair, padding: Pair
) -> torch.Tensor:
    dx: torch.Tensor = grad.conv2d_input(shape, weight, dy, stride, padding)  # type: ignore[no-untyped-call]
    return dx


def _weight_gradient(
    x: torch.Tensor, shape: tuple[int, ...], dy: torch.Tensor, stride: Pair, padding: Pair
) -> torch.Tensor:
    dw: torch.Tensor = grad.conv2d_weight(x, shape, dy, stride, padding)  # type: ignore[no-untyped-call]
    return dw


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair) -> torch.Tensor:
        return torch.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        dx = dw = None
        how = ctx.stride, ctx.padding
        if ctx.needs_input_grad[0]:
            dx = _InputGradient.apply(dy, weight, tuple(x.shape), *how)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            dw = _WeightGradient.apply(x, dy, tuple(weight.shape), *how)  # type: ignore[no-untyped-call]
        return dx, dw, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        weight: torch.Tensor,
        stride: Pair,
        padding: Pair,
    ) -> Batched:
        copies, (dim, weight_dim, *_) = info.batch_size, in_dims
        if weight_dim is None and dim is not None:
            y = torch.conv2d(_folded(x, dim), weight, None, stride, padding)
            return _unfolded(y, copies), 0
        x, weight = _first(x, dim, copies), _first(weight, weight_dim, copies)
        if copies == 1:
            return torch.conv2d(x[0], weight[0], None, stride, padding)[None], 0
        from fedast.training.kernels.stacked_conv_launch import convolve

        return convolve(x, weight, _window(weight.shape, stride, padding)), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        dy: torch.Tensor, weight: torch.Tensor, shape: tuple[int, ...], stride: Pair, padding: Pair
    ) -> torch.Tensor:
        return _input_gradient(shape, weight, dy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there are no second derivatives."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        dy: torch.Tensor,
        weight: torch.Tensor,
        shape: tuple[int, ...],
        stride: Pair,
        padding: Pair,
    ) -> Batched:
        copies, (dim, weight_dim, *_) = info.batch_size, in_dims
        if weight_dim is None and dim is not None:
            whole = (copies * shape[0], *shape[1:])
            dx = _input_gradient(whole, weight, _folded(dy, dim), stride, padding)
            return _unfolded(dx, copies), 0
        dy, weight = _first(dy, dim, copies), _first(weight, weight_dim, copies)
        if copies == 1:
            return _input_gradient(shape, weight[0], dy[0], stride, padding)[None], 0
        from fedast.training.kernels.stacked_conv_launch import input_gradient

        window = _window(weight.shape, stride, padding)
        return input_gradient(dy, weight, window, (shape[-2], shape[-1])), 0


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, dy: torch.Tensor, shape: tuple[int, ...], stride: Pair, padding: Pair
    ) -> torch.Tensor:
        return _weight_gradient(x, shape, dy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there are no second derivatives."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        dy: torch.Tensor,
        shape: tuple[int, ...],
        stride: Pair,
        padding: Pair,
    ) -> Batched:
        copies = info.batch_size
        x, dy = _first(x, in_dims[0], copies), _first(dy, in_dims[1], copies)
        if copies == 1:
            return _weight_gradient(x[0], shape, dy[0], stride, padding)[None], 0
        from fedast.training.kernels.stacked_conv_launch import weight_gradient

        return weight_gradient(x, dy, _window(shape, stride, padding)), 0
