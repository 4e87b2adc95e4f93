"""Matrix products on a CPU: the same whichever library makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedast.training.kernels import products
from fedast.training.lean import LeanTrainer
from fedast.training.trainer import SerialTrainer
from tests.training.test_lean import built, jobs_for, task_of
from tests.training.test_trainers import off_by

has_operator = pytest.mark.skipif(
    not products.onednn_multiplies(), reason="this torch has no products by oneDNN"
)


@pytest.fixture
def by_onednn_always() -> Iterator[None]:
    """As if it were faster here, and for products of any size."""
    with (
        patch.object(products, "_LARGE", 0),
        patch.object(products, "has_faster_onednn", return_value=True),
    ):
        yield


def laid_out(draws: torch.Generator, rows: int, columns: int, how: str) -> torch.Tensor:
    """A random matrix; ``how`` its numbers lie in memory."""
    if how == "rows":
        return torch.randn(rows, columns, generator=draws)
    if how == "columns":
        return torch.randn(columns, rows, generator=draws).T
    if how == "part of rows":
        return torch.randn(rows, columns + 3, generator=draws)[:, :columns]
    if how == "part of columns":
        return torch.randn(columns, rows + 3, generator=draws)[:, :rows].T
    return torch.randn(rows, 2 * columns, generator=draws)[:, ::2]


layouts = st.sampled_from(["rows", "columns", "part of rows", "part of columns", "every other"])


@has_operator
@pytest.mark.usefixtures("by_onednn_always")
@settings(max_examples=150)
@given(
    sides=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    a_is=layouts,
    b_is=layouts,
    stack=st.sampled_from([None, 1, 2]),
    given_out=st.booleans(),
)
def test_products_are_the_same_by_either_library(
    sides: tuple[int, int, int], a_is: str, b_is: str, stack: int | None, given_out: bool
) -> None:
    rows, inner, columns = sides
    draws = torch.Generator().manual_seed(rows * inner * columns)
    a, b = laid_out(draws, rows, inner, a_is), laid_out(draws, inner, columns, b_is)
    if stack is not None:
        a, b = a.expand(stack, -1, -1), b.expand(stack, -1, -1)
    wanted = a.double() @ b.double()
    out = torch.full(wanted.shape, float("nan")) if given_out else None
    found = products.product(a, b, out=out)
    assert out is None or found.data_ptr() == out.data_ptr()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    if stack is not None:
        bias = torch.randn(stack, 1, columns, generator=draws)
        found = products.affine(bias, a, b)
        torch.testing.assert_close(found.double(), wanted + bias, rtol=1e-5, atol=1e-5)


@has_operator
@pytest.mark.usefixtures("by_onednn_always")
def test_double_precision_and_stacks_are_left_to_torch() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    with patch.object(products, "by_onednn", side_effect=AssertionError):
        assert torch.equal(products.product(a, b), a @ b)
        assert torch.equal(
            products.product(a[0].double(), b[0].double()), a[0].double() @ b[0].double()
        )
        with pytest.raises(AssertionError):
            products.product(a[0], b[0])


@has_operator
@pytest.mark.usefixtures("by_onednn_always")
@pytest.mark.parametrize("steps", [27, 3])
def test_a_net_trains_the_same_with_onednns_products(steps: int) -> None:
    """In its dual form, and in the usual one for few steps."""
    tasks = built(task_of((300, 50, 10), 60, steps=steps, batch_size=20, dtype=torch.float32))
    jobs = jobs_for(tasks)
    wanted = SerialTrainer(tasks, 3).train("t", jobs)
    with patch.object(products, "by_onednn", side_effect=products.by_onednn) as used:
        found = LeanTrainer(tasks, 3).train("t", jobs)
    assert used.called
    for one, other in zip(found, wanted, strict=True):
        assert off_by(one.delta, other.delta) < 1e-5


def test_only_processors_that_were_measured_take_onednn(tmp_path: Path) -> None:
    said = tmp_path / "cpuinfo"
    said.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n\n"
        "processor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
    )
    assert products.processor(said) == ("AuthenticAMD", 26)
    said.write_text("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n")
    assert products.processor(said) == ("", 0)
    assert products.processor(tmp_path / "missing") == ("", 0)


@pytest.mark.parametrize(
    ("maker", "family", "capability", "works", "faster"),
    [
        ("AuthenticAMD", 26, "AVX512", True, True),
        ("AuthenticAMD", 25, "AVX512", True, False),
        ("AuthenticAMD", 26, "AVX2", True, False),
        ("GenuineIntel", 26, "AVX512", True, False),
        ("AuthenticAMD", 26, "AVX512", False, False),
    ],
)
def test_onednn_is_taken_where_it_is_faster(
    maker: str, family: int, capability: str, works: bool, faster: bool
) -> None:
    with (
        patch.object(products, "processor", return_value=(maker, family)),
        patch.object(products, "onednn_multiplies", return_value=works),
        patch("torch.backends.cpu.get_cpu_capability", return_value=capability),
        patch("torch.backends.mkl.is_available", return_value=True),
    ):
        assert products.has_faster_onednn.__wrapped__() is faster


def test_a_torch_without_the_operator_is_noticed() -> None:
    with patch.object(products, "by_onednn", side_effect=AttributeError):
        assert not products.onednn_multiplies()
    with patch.object(products, "by_onednn", return_value=torch.zeros(2, 4)):
        assert not products.onednn_multiplies()


@has_operator
def test_a_program_in_double_precision_finds_the_operator() -> None:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert products.onednn_multiplies()
    finally:
        torch.set_default_dtype(usual)
