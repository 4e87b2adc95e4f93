"""Triton kernels without a GPU: functions of a test file, run in a process with the interpreter.

The interpreter must be asked for before Triton is imported. A test file makes its
own ``interpreted`` of ``run_interpreted``, and ends with a call of ``answer``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which this system has not"
)


def run_interpreted(file: str, what: str, *given: object, interpreter: str = "1") -> Any:
    """The answer of one of the file's functions, in a process with the interpreter."""
    done = subprocess.run(
        [sys.executable, file, what, json.dumps(given)],
        env={**os.environ, "TRITON_INTERPRET": interpreter, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def answer(functions: Mapping[str, Any]) -> None:
    """In the other process: call the function that was asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(json.dumps(functions[sys.argv[1]](*json.loads(sys.argv[2]))))


def assembly(
    kernel: Any,
    pointers: Mapping[str, str],
    fixed: Mapping[str, Any],
    tile: Mapping[str, int],
    even: Iterable[str] = (),
) -> str:
    """A Hopper GPU's code for a kernel; no GPU is needed to compile for one. ``even``: numbers that
    are multiples of sixteen."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types = {**pointers, **dict.fromkeys(fixed, "constexpr")}
    numbers = {name: "fp32" if name in ("keep", "rate", "scale") else "i32" for name in names}
    source = ASTSource(
        kernel,
        {name: types.get(name, numbers[name]) for name in names},
        {(names.index(name),): value for name, value in fixed.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in [*pointers, *even]},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(tile))
    return str(made.asm["ptx"])


def sixteen_bytes(text: str) -> int:
    """How often sixteen bytes are read at a time."""
    return len(re.findall(r"cp\.async\.cg\.shared\.global .*0x10|ld\.global\.v4\.b32", text))


def far_off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())
