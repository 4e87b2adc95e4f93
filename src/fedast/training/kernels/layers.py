"""Hand-written stacked feed-forward nets: forward, backward and SGD in one pass over the layers.

For sequences of linear and convolutional layers with ReLU, max pooling and
flattening, trained with cross-entropy. In the backward pass every layer steps its
own parameters right after it has passed the gradient on, so no gradient of a
weight matrix is ever stored: the matrix product that makes it also adds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias, TypeGuard, final

import torch
from torch import nn

from fedast.training.kernels import windows
from fedast.training.kernels.image_layers import Conv, MaxPool
from fedast.training.kernels.loss import cross_entropy
from fedast.training.kernels.net import Descent, Layout, Precision, Unstackable, has_triton
from fedast.training.kernels.products import affine, product

Tensors: TypeAlias = list[torch.Tensor]
_KNOWN = (nn.Linear, nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.Conv2d)


class Layer(Protocol):
    """One layer of all copies. Inputs and outputs have the axes (copy, sample, ...)."""

    @property
    def parameters(self) -> int:
        """How many of the model's parameter tensors belong to it."""
        ...

    def load(self, given: Tensors) -> None: ...

    def read(self) -> Tensors: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        """Step the parameters; give the gradient of the input, or anything unless ``wants_dx``."""
        ...

    def forget(self) -> None:
        """Release what ``forward`` kept for ``backward``."""
        ...


@final
class Linear:
    parameters = 2

    def __init__(
        self, layer: nn.Linear, copies: int, descent: Descent, *, channels: int = 1
    ) -> None:
        """``channels``: so many are the last axis of the inputs, not their first."""
        self.keep = 1.0 - descent.rate * descent.decay
        self.rate = descent.rate
        self.weight = layer.weight.new_zeros((copies, *layer.weight.shape))
        self.bias = layer.weight.new_zeros((copies, 1, layer.out_features))
        self._turned = self.weight.mT
        self._given = self.weight
        """The weights in the model's own order, which has channels first."""
        if channels > 1:
            self._given = torch.unflatten(self.weight, 2, (-1, channels)).transpose(2, 3)
        self._ones = layer.weight.new_ones((copies, 1, 0))
        self.x = self.weight

    def load(self, given: Tensors) -> None:
        self._given.copy_(given[0].view_as(self._given))
        self.bias.copy_(given[1][:, None])

    def read(self) -> Tensors:
        return [self._given.reshape_as(self.weight), self.bias[:, 0]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        return affine(self.bias, x, self._turned)

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dx = product(dy, self.weight) if wants_dx else dy
        self.weight.baddbmm_(dy.mT, self.x, beta=self.keep, alpha=-self.rate)
        self.step_bias(dy)
        return dx

    def step_bias(self, dy: torch.Tensor) -> None:
        if self._ones.shape[2] != dy.shape[1]:
            self._ones = dy.new_ones((len(dy), 1, dy.shape[1]))
        self.bias.baddbmm_(self._ones, dy, beta=self.keep, alpha=-self.rate)

    def forget(self) -> None:
        self.x = self.weight


@final
class ReLU:
    parameters = 0

    def __init__(self) -> None:
        self._y = torch.empty(0)

    def load(self, given: Tensors) -> None:
        pass

    def read(self) -> Tensors:
        return []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._y = x.relu_()  # nobody else uses the input
        return self._y

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dx: torch.Tensor = torch.ops.aten.threshold_backward(dy, self._y, 0)
        return dx

    def forget(self) -> None:
        self._y = torch.empty(0)


@final
class Flatten:
    parameters = 0

    def __init__(self) -> None:
        self._shape = torch.Size()

    def load(self, given: Tensors) -> None:
        pass

    def read(self) -> Tensors:
        return []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._shape = x.shape
        return x.flatten(2)

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        return dy.view(self._shape)

    def forget(self) -> None:
        pass


@final
class LayeredNet:
    lr = None

    def __init__(
        self,
        layers: Sequence[Layer],
        layout: Layout,
        saturated: torch.Tensor | None = None,
        takes: torch.dtype | None = None,
    ) -> None:
        self.layers = layers
        self.layout = layout
        self.saturated = saturated
        """The marks of layers that compute in fp16."""
        self.takes = takes
        self._first = next(place for place, layer in enumerate(layers) if layer.parameters)

    def load(self, flat: torch.Tensor) -> None:
        parts = self.layout.split(flat)
        for layer in self.layers:
            layer.load(parts[: layer.parameters])
            parts = parts[layer.parameters :]

    def read(self) -> torch.Tensor:
        return self.layout.join(self.parts())

    def parts(self) -> Tensors:
        """The parameters of all copies, as they are now: the next step changes them."""
        return [part for layer in self.layers for part in layer.read()]

    @torch.no_grad()
    def step(
        self, inputs: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor | None = None
    ) -> torch.Tensor:
        losses, dy = cross_entropy(self._forward(inputs), labels, shares)
        for place in reversed(range(self._first, len(self.layers))):
            dy = self.layers[place].backward(dy, wants_dx=place > self._first)
        return losses

    @torch.no_grad()
    def scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """The copies' outputs for these samples."""
        try:
            return self._forward(inputs)
        finally:
            for layer in self.layers:
                layer.forget()

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x


def layered(
    module: nn.Module, copies: int, descent: Descent, precision: Precision = "fp32"
) -> LayeredNet:
    """A hand-written net from a sequence of known layers, or ``Unstackable``."""
    parts = flattened(module)
    layers: list[Layer] = []
    saturated: torch.Tensor | None = None
    convolutions = with_kernels(module)
    channels = 1
    takes: torch.dtype | None = None
    if convolutions:
        from fedast.training.kernels.convolution import ConvPools  # needs Triton

        parts = parts[3 * len(convolutions) :]
        if len(parts) > 1 and _is_flatten(parts[0]) and type(parts[1]) is nn.Linear:
            channels = convolutions[-1].out_channels  # which come last until then
        blocks = ConvPools(convolutions, copies, descent, precision, channels_last=channels > 1)
        layers.append(blocks)
        saturated, takes = blocks.saturated, blocks.takes
    parts = _pool_first(parts)
    while parts:
        if _is_dense(parts[0], precision):
            from fedast.training.kernels.dense import Dense  # needs Triton

            _all_trained(parts[0])
            relu = len(parts) > 1 and type(parts[1]) is nn.ReLU and not is_hooked(parts[1])
            dense = Dense(parts[0], copies, descent, relu=relu, channels=channels)
            if layers and isinstance(layers[-1], Dense):
                dense.follow(layers[-1])
            layers.append(dense)
            parts, channels = parts[2 if relu else 1 :], 1
        elif _is_block(parts) and isinstance(parts[0], nn.Conv2d) and windows.fits(parts[0]):
            _all_trained(parts[0])
            layers.append(windows.ConvPool(parts[0], copies, descent))
            parts = parts[3:]
        else:
            layers.append(_layer(parts[0], copies, descent, channels))
            if type(parts[0]) is nn.Linear:
                channels = 1
            parts = parts[1:]
    return LayeredNet(layers, Layout.of(module), saturated, takes)


def with_kernels(module: nn.Module) -> list[nn.Conv2d]:
    """The convolutions at the start of a net that there are kernels for."""
    parts = flattened(module)
    found: list[nn.Conv2d] = []
    while _is_block(parts):
        conv = parts[0]
        assert isinstance(conv, nn.Conv2d)
        fits = (
            conv.padding == (0, 0)
            and conv.kernel_size[0] == conv.kernel_size[1]
            and conv.weight.is_cuda
            and conv.weight.dtype == torch.float32
            and max(conv.out_channels, conv.in_channels) <= 128
        )
        if not fits:
            break
        found.append(conv)
        parts = parts[3:]
    return found


def _is_dense(part: nn.Module, precision: Precision) -> TypeGuard[nn.Linear]:
    """Whether it is a linear layer that there are kernels for; they multiply in TF32."""
    return (
        type(part) is nn.Linear
        and part.bias is not None
        and not is_hooked(part)
        and part.weight.is_cuda
        and part.weight.dtype == torch.float32
        and precision != "fp32"
        and has_triton()
    )


def _is_block(parts: Sequence[nn.Module]) -> bool:
    """Whether they begin with convolution, ReLU and pooling (or the last two the other way)."""
    if len(parts) < 3:
        return False
    conv, pool, relu = _pool_first(parts[:3])
    return (
        type(conv) is nn.Conv2d
        and type(relu) is nn.ReLU
        and type(pool) is nn.MaxPool2d
        and not any(is_hooked(part) for part in (conv, relu, pool))
        and plain_conv(conv)
        and _plain_pool(pool)
    )


def _pool_first(parts: Sequence[nn.Module]) -> list[nn.Module]:
    """Swap ReLU and max pooling: the result is the same, and ReLU has a quarter of the work."""
    parts = list(parts)
    for place, (one, other) in enumerate(pairwise(parts)):
        if type(one) is nn.ReLU and type(other) is nn.MaxPool2d:
            parts[place], parts[place + 1] = other, one
    return parts


def flattened(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential and not is_hooked(module):
        return [part for child in module for part in flattened(child)]
    return [module]


def is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _all_trained(part: nn.Module) -> None:
    if not all(parameter.requires_grad for parameter in part.parameters()):
        raise Unstackable("a parameter is frozen")


def _is_flatten(part: nn.Module) -> bool:
    """Whether it makes one axis of all but that of the samples."""
    whole = type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)
    return whole and not is_hooked(part)


def _layer(part: nn.Module, copies: int, descent: Descent, channels: int) -> Layer:
    _all_trained(part)
    if type(part) not in _KNOWN or is_hooked(part):  # a subclass may do something else
        raise Unstackable(f"{type(part).__name__} is not one of the known layers")
    match part:
        case nn.Linear() if part.bias is not None:
            return Linear(part, copies, descent, channels=channels)
        case nn.ReLU():
            return ReLU()
        case nn.Flatten() if _is_flatten(part):
            return Flatten()
        case nn.MaxPool2d() if _plain_pool(part):
            return MaxPool()
        case nn.Conv2d() if plain_conv(part):
            return Conv(part, copies, descent)
        case _:
            raise Unstackable(f"{type(part).__name__} is not one of the known layers")


def _plain_pool(part: nn.MaxPool2d) -> bool:
    return (part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode) == (
        *(2, 2, 0, 1),
        False,
    )


def plain_conv(part: nn.Conv2d) -> bool:
    return (
        part.bias is not None
        and part.stride == (1, 1)
        and part.dilation == (1, 1)
        and part.groups == 1
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
    )
