"""Trying again, with longer and longer pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import uniform
from typing import TypeVar

T = TypeVar("T")


async def retry(
    attempt: Callable[[], Awaitable[T]],
    failed: Callable[[Exception], None],
    *,
    on: tuple[type[Exception], ...],
    first: float = 0.2,
    longest: float = 3.0,
) -> T:
    """Repeat ``attempt`` until it succeeds. Errors of the types ``on`` are passed to ``failed``,
    which logs them, or raises to give up; others are raised. The pause begins with ``first``
    seconds and doubles up to ``longest``; it differs at random by up to a half, so that many who
    fail at once do not all come back at once."""
    pause = first
    while True:
        try:
            return await attempt()
        except on as error:
            failed(error)
        await asyncio.sleep(pause * uniform(0.5, 1.5))
        pause = min(longest, 2 * pause)
