"""Tasks in the background, and their end."""

from __future__ import annotations

import asyncio

_AGAIN = 0.5
"""Seconds until a task is cancelled again: some cancellations get lost in nats-py, and in Python
3.11's ``asyncio.wait_for``."""


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel these and wait until they have ended; what they raise now is of no interest."""
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=_AGAIN)
        for task in ended:
            if not task.cancelled():
                task.exception()  # nobody else is going to ask, and asyncio would print it
