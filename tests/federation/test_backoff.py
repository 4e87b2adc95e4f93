"""Trying again: how long the pauses are, and what ends it."""

from __future__ import annotations

import asyncio

import pytest

from fedast.federation import backoff
from fedast.federation.backoff import retry


def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    errors: list[Exception] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    factors = iter([1.0, 1.0, 1.5, 0.5, 1.0, 1.0])
    monkeypatch.setattr(backoff, "uniform", lambda low, high: next(factors))

    async def attempt() -> str:
        if len(pauses) < 6:
            raise OSError(len(pauses))
        return "done"

    found = asyncio.run(retry(attempt, errors.append, on=(OSError,), first=0.5, longest=3.0))
    assert found == "done"
    assert pauses == [0.5, 1.0, 3.0, 1.5, 3.0, 3.0]
    assert [error.args[0] for error in errors] == [0, 1, 2, 3, 4, 5]


def test_other_errors_and_what_the_callback_raises_end_it() -> None:
    async def attempt() -> None:
        raise ValueError("no use")

    def give_up(error: Exception) -> None:
        raise RuntimeError("given up") from error

    with pytest.raises(ValueError, match="no use"):
        asyncio.run(retry(attempt, give_up, on=(OSError,)))
    with pytest.raises(RuntimeError, match="given up"):
        asyncio.run(retry(attempt, give_up, on=(ValueError,)))
