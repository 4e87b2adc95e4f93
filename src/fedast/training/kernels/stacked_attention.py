"""Attention of stacked copies by torch's fused kernels, which ``vmap`` cannot map over.

While ``StackedAttention`` is entered, the copies' attention is that of a larger batch. The scores
of all pairs of positions, which ``vmap``'s own way of doing it keeps for the backward pass, are
then never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch
from torch.func import vjp
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Batched = tuple[tuple[torch.Tensor, ...], tuple[int, ...]]


@final
class StackedAttention(TorchFunctionMode):
    """Takes attention of a kind that the fused kernels know to them."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False
        """Whether there was any attention yet."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.used = True
            return self._attend(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    @staticmethod
    def _attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        known = (
            query.dim() == key.dim() == value.dim() == 4
            and query.shape[:2] == key.shape[:2] == value.shape[:2]
            and query.dtype == key.dtype == value.dtype
            and query.shape[3] == value.shape[3]
            and query.shape[3] % 8 == 0
            and dropout_p == 0.0
            and not (is_causal and query.shape[2] != key.shape[2])
            and not (attn_mask is not None and (attn_mask.requires_grad or attn_mask.dim() > 4))
        )
        if not known:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                hidden = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
                attn_mask = torch.zeros_like(hidden).where(attn_mask, hidden)
            attn_mask = attn_mask.to(query.dtype)
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        out: torch.Tensor
        out, _ = _Attention.apply(query, key, value, attn_mask, is_causal, scale)  # type: ignore[no-untyped-call]
        return out


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is attended to, and the logarithms of the sums of the softmax."""
    aten = torch.ops.aten
    if not query.is_cuda:
        found = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return found[0], found[1]
    bias = _bias(mask, query, key)
    found = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, causal, scale=scale
    )
    return found[0], found[1]


def _gradients(
    given: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    sums: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    aten = torch.ops.aten
    if not query.is_cuda:
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            given, query, key, value, out, sums, 0.0, causal, attn_mask=mask, scale=scale
        )
    else:
        bias = _bias(mask, query, key)
        unused = torch.zeros((), dtype=torch.int64, device=query.device)  # the state of a dropout
        found = aten._scaled_dot_product_efficient_attention_backward(
            given, query, key, value, bias, out, sums, unused, unused, 0.0,
            [True, True, True, False], causal, scale=scale,
        )  # fmt: skip
    return found[0], found[1], found[2]


def _plain_gradients(
    given: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same as ``_gradients``, in operations that can be differentiated."""
    size = query.shape[-1] ** -0.5 if scale is None else scale
    scores = size * query @ key.mT
    if mask is not None:
        scores = scores + mask
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    shares = scores.softmax(dim=-1)
    by_share = given @ value.mT
    by_score = shares * (by_share - (by_share * shares).sum(dim=-1, keepdim=True))
    return size * by_score @ key, size * by_score.mT @ query, shares.mT @ given


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A mask of every head's, with rows that begin at multiples of sixteen as the kernel needs."""
    if mask is None:
        return None
    pairs = (query.shape[2], key.shape[2])
    mask = mask.expand(*mask.shape[:2], *pairs)
    if pairs[1] % 16:
        mask = functional.pad(mask, (0, -pairs[1] % 16))[..., : pairs[1]]
    return mask.expand(*query.shape[:2], *pairs)


def _folded(
    copies: int, dims: Sequence[int | None], inputs: Sequence[Any], query: int
) -> list[Any]:
    """With the copies' samples as one batch, as many for each as the input number ``query`` has."""
    first, dim = inputs[query], dims[query]
    samples = first.shape[0] if dim is None else first.movedim(dim, 0).shape[1]
    found: list[Any] = []
    for given, dim in zip(inputs, dims, strict=True):
        if not isinstance(given, torch.Tensor) or (dim is None and given.shape[0] == 1):
            found.append(given)  # all of them share it
        else:
            moved = given.expand(copies, *given.shape) if dim is None else given.movedim(dim, 0)
            found.append(moved.expand(copies, samples, *moved.shape[2:]).flatten(0, 1))
    return found


def _apart(tensor: torch.Tensor, copies: int) -> torch.Tensor:
    return tensor.view(copies, -1, *tensor.shape[1:])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _fused(query, key, value, mask, causal, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        query, key, value, mask, *ctx.how = inputs
        out, sums = output
        ctx.mark_non_differentiable(sums)
        ctx.save_for_backward(query, key, value, mask, out, sums)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given, _ = gradients
        found = _AttentionGradient.apply(given, *ctx.saved_tensors, *ctx.how)  # type: ignore[no-untyped-call]
        return *found, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Batched:
        copies = info.batch_size
        found = _fused(*_folded(copies, in_dims, inputs, query=0))
        return tuple(_apart(part, copies) for part in found), (0, 0)


class _AttentionGradient(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return _gradients(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given, query, key, value, mask, _out, _sums, *ctx.how = inputs
        ctx.save_for_backward(given, query, key, value, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Second derivatives are those of the plain formula; there is no fused kernel for them."""
        *inputs, mask = ctx.saved_tensors
        plain = partial(_plain_gradients, mask=mask, causal=ctx.how[0], scale=ctx.how[1])
        pull_back: Any = vjp(plain, *inputs)[1]
        return *pull_back(gradients), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Batched:
        copies = info.batch_size
        found = _gradients(*_folded(copies, in_dims, inputs, query=1))
        return tuple(_apart(part, copies) for part in found), (0, 0, 0)
