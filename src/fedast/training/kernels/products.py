"""Matrix products on a CPU, by the library that is faster at them.

Torch multiplies with Intel's MKL, which uses only half the width of the vector units of AMD's
processors from Zen 5 on. oneDNN, torch's library for convolutions, uses all of it: large products
take half the time there. Torch offers it for products only by an operator of its compiler, so that
is tried out first.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

_LARGE: Final = 3e6
"""Operations from which on a product gains more than oneDNN's longer call costs (about 8 us)."""
_ZEN_5: Final = 26
"""Its family in AMD's numbers. Zen 4 has the instructions too, but units of half the width."""


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b`` of two matrices, or of two stacks of as many."""
    stacked = a.dim() == 3
    if by_onednn_is_faster(a, b):
        found = by_onednn(a[0], b[0])[None] if stacked else by_onednn(a, b)
        return found if out is None else out.copy_(found)
    return torch.bmm(a, b, out=out) if stacked else torch.mm(a, b, out=out)


def affine(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b + bias`` of stacks of matrices, where each matrix has one row of ``bias``."""
    if by_onednn_is_faster(a, b):
        return by_onednn(a[0], b[0], bias[0, 0])[None]
    return torch.baddbmm(bias, a, b)


def by_onednn_is_faster(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        2 * a.numel() * b.shape[-1] >= _LARGE
        and (a.dim() == 2 or len(a) == 1)
        and a.dtype == b.dtype == torch.float32
        and a.is_cpu
        and 1 in b.stride()[-2:]  # any other order takes a thousand times as long
        and has_faster_onednn()
    )


def by_onednn(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b + bias`` in single precision."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, bias, "none", [], "")
    return found


@cache
def has_faster_onednn() -> bool:
    """Whether oneDNN is faster than MKL here; the same on every machine of a kind."""
    mkl: Any = torch.backends.mkl  # which has no types
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not mkl.is_available():
        return False
    maker, family = processor()
    return maker == "AuthenticAMD" and family >= _ZEN_5 and onednn_multiplies()


def processor(said_in: Path = Path("/proc/cpuinfo")) -> tuple[str, int]:
    """The maker of this machine's processor and its family; empty and 0 if it cannot be told."""
    try:
        lines = said_in.read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return "", 0
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    family = said.get("cpu family", "")
    return said.get("vendor_id", ""), int(family) if family.isdecimal() else 0


def onednn_multiplies() -> bool:
    """Whether this torch has the operator, and it gives what is expected of it."""
    numbers = torch.arange(12, dtype=torch.float32)
    a, b, bias = numbers[:6].view(2, 3), numbers.view(3, 4), numbers[:4]
    try:
        return torch.equal(by_onednn(a, b, bias), a @ b + bias)
    except (AttributeError, RuntimeError):
        return False
