"""Integers in proportion to weights: largest remainder, with a least share for each."""

from __future__ import annotations

from collections.abc import Sequence


def largest_remainder(total: int, weights: Sequence[float]) -> list[int]:
    """Split ``total`` in proportion to ``weights``; ties go to the earlier entry."""
    whole = sum(weights)
    if whole <= 0.0:
        weights, whole = [1.0] * len(weights), float(len(weights))
    quotas = [total * weight / whole for weight in weights]
    parts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - quotas[i])
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def apportion(total: int, weights: Sequence[float], least: Sequence[int]) -> list[int]:
    """``largest_remainder`` in which entry i gets at least ``least[i]``.

    Entries that would fall below their minimum are set to it and the rest is
    split among the others, again in proportion. If the minima exceed the
    total, they are lowered to one each; ``total`` must cover that.
    """
    if sum(least) > total:
        least = [1] * len(least)
        if sum(least) > total:
            raise ValueError(f"cannot give {len(least)} entries one each out of {total}")
    held: dict[int, int] = {}
    while True:
        rest = [i for i in range(len(weights)) if i not in held]
        share = largest_remainder(total - sum(held.values()), [weights[i] for i in rest])
        short = [i for i, part in zip(rest, share, strict=True) if part < least[i]]
        if not short:
            parts = dict(zip(rest, share, strict=True)) | held
            return [parts[i] for i in range(len(weights))]
        held |= {i: least[i] for i in short}
