"""Convolutions of stacked copies on a GPU, where torch's own are slow.

``vmap`` makes one grouped convolution of many copies' convolutions, a group per copy. While
``StackedConvolutions`` is entered, they are computed by the kernels of ``stacked_conv_launch``
instead. A convolution of copies that share their weights is one of a larger batch, and torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch.func import vmap
from torch.nn import grad
from torch.overrides import TorchFunctionMode

from fedast.training.kernels.mapping import copies_first, has_kernels, inside_another

if TYPE_CHECKING:
    from fedast.training.kernels.stacked_conv_launch import Window

Pair = tuple[int, int]
Batched = tuple[torch.Tensor, int]


def stacked_convolutions(
    like: torch.Tensor, marks: torch.Tensor | None = None
) -> AbstractContextManager[object]:
    """To be entered while copies of a model are trained whose parameters are ``like`` this one.

    With ``marks``, products are in fp16, and the mark of a copy whose values did not fit is set."""
    return StackedConvolutions(marks) if has_kernels(like) else nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class How:
    """How a convolution slides, and computes."""

    stride: Pair
    padding: Pair
    marks: torch.Tensor | None
    """Where it multiplies in fp16: one of each copy, set when a value was too large."""

    @property
    def slides(self) -> tuple[Pair, Pair]:
        return self.stride, self.padding


@final
class StackedConvolutions(TorchFunctionMode):
    """Takes convolutions to the kernels if they are of a kind that these know."""

    def __init__(self, marks: torch.Tensor | None = None) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            return self._convolve(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    def _convolve(
        self,
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
            and 0 < _size(input, weight) < 1 << 30
        )
        if not known or isinstance(padding, str):
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        y: torch.Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
            input, weight, How(_pair(stride), _pair(padding), self._marks)
        )
        return y if bias is None else y + bias[:, None, None]


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    return value[0], value[-1]


def _size(x: torch.Tensor, weight: torch.Tensor) -> int:
    """About that of the largest tensor of a copy, whose samples are filled up to sixteens."""
    samples, _, height, width = x.shape
    return max(-(-samples // 16) * 16 * height * width * max(weight.shape[:2]), weight.numel())


def _window(size: Sequence[int], how: How) -> Window:
    from fedast.training.kernels.stacked_conv_launch import Window

    return Window((size[-2], size[-1]), *how.slides)


def _folded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Copies as parts of one batch."""
    return tensor.movedim(dim, 0).flatten(0, 1)


def _unfolded(tensor: torch.Tensor, copies: int) -> torch.Tensor:
    return tensor.view(copies, -1, *tensor.shape[1:])


def _input_gradient(
    shape: tuple[int, ...], weight: torch.Tensor, dy: torch.Tensor, how: How
) -> torch.Tensor:
    dx: torch.Tensor = grad.conv2d_input(shape, weight, dy, *how.slides)  # type: ignore[no-untyped-call]
    return dx


def _weight_gradient(
    x: torch.Tensor, shape: tuple[int, ...], dy: torch.Tensor, how: How
) -> torch.Tensor:
    dw: torch.Tensor = grad.conv2d_weight(x, shape, dy, *how.slides)  # type: ignore[no-untyped-call]
    return dw


def _each_alone(copies: int, *tensors: torch.Tensor) -> bool:
    """Whether the kernels are not for these: one copy, or copies inside another mapping."""
    return copies == 1 or inside_another(*tensors)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, how: How) -> torch.Tensor:
        return torch.conv2d(x, weight, None, *how.slides)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, ctx.how = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = _InputGradient.apply(dy, weight, tuple(x.shape), ctx.how)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            dw = _WeightGradient.apply(x, dy, tuple(weight.shape), ctx.how)  # type: ignore[no-untyped-call]
        return dx, dw, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        weight: torch.Tensor,
        how: How,
    ) -> Batched:
        copies, (dim, weight_dim, *_) = info.batch_size, in_dims
        if weight_dim is None and dim is not None:
            y = torch.conv2d(_folded(x, dim), weight, None, *how.slides)
            return _unfolded(y, copies), 0
        x, weight = copies_first(x, dim, copies), copies_first(weight, weight_dim, copies)
        if _each_alone(copies, x, weight):
            return vmap(lambda x, w: torch.conv2d(x, w, None, *how.slides))(x, weight), 0
        from fedast.training.kernels.stacked_conv_launch import convolve

        return convolve(x, weight, _window(weight.shape, how), how.marks), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        dy: torch.Tensor, weight: torch.Tensor, shape: tuple[int, ...], how: How
    ) -> torch.Tensor:
        return _input_gradient(shape, weight, dy, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        dy, weight, _, ctx.how = inputs
        ctx.save_for_backward(dy, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,) = gradients
        dy, weight = ctx.saved_tensors
        of_dy = of_weight = None
        if ctx.needs_input_grad[0]:
            of_dy = _Convolution.apply(g, weight, ctx.how)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            of_weight = _WeightGradient.apply(g, dy, tuple(weight.shape), ctx.how)  # type: ignore[no-untyped-call]
        return of_dy, of_weight, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        dy: torch.Tensor,
        weight: torch.Tensor,
        shape: tuple[int, ...],
        how: How,
    ) -> Batched:
        copies, (dim, weight_dim, *_) = info.batch_size, in_dims
        if weight_dim is None and dim is not None:
            whole = (copies * shape[0], *shape[1:])
            dx = _input_gradient(whole, weight, _folded(dy, dim), how)
            return _unfolded(dx, copies), 0
        dy, weight = copies_first(dy, dim, copies), copies_first(weight, weight_dim, copies)
        if _each_alone(copies, dy, weight):
            one = vmap(lambda dy, w: _input_gradient(shape, w, dy, how))
            return one(dy, weight), 0
        from fedast.training.kernels.stacked_conv_launch import input_gradient

        window = _window(weight.shape, how)
        return input_gradient(dy, weight, window, (shape[-2], shape[-1]), how.marks), 0


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, dy: torch.Tensor, shape: tuple[int, ...], how: How
    ) -> torch.Tensor:
        return _weight_gradient(x, shape, dy, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, dy, _, ctx.how = inputs
        ctx.save_for_backward(x, dy)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (g,) = gradients
        x, dy = ctx.saved_tensors
        of_x = of_dy = None
        if ctx.needs_input_grad[0]:
            of_x = _InputGradient.apply(dy, g, tuple(x.shape), ctx.how)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            of_dy = _Convolution.apply(x, g, ctx.how)  # type: ignore[no-untyped-call]
        return of_x, of_dy, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: torch.Tensor,
        dy: torch.Tensor,
        shape: tuple[int, ...],
        how: How,
    ) -> Batched:
        copies = info.batch_size
        x, dy = copies_first(x, in_dims[0], copies), copies_first(dy, in_dims[1], copies)
        if _each_alone(copies, x, dy):
            one = vmap(lambda x, dy: _weight_gradient(x, shape, dy, how))
            return one(x, dy), 0
        from fedast.training.kernels.stacked_conv_launch import weight_gradient

        return weight_gradient(x, dy, _window(shape, how), how.marks), 0
