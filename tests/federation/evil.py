"""A client with a valid key that answers whatever it is asked, with what it has forged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedast.federation import wire
from fedast.federation.transport import ClientTransport
from tests.federation.support import request_in

EVIL = 3
"""Its number."""
TASKS = ("digits-mlp", "second")
Forge = Callable[[wire.Request], wire.Update | bytes]


def spoilt(kind: str, size: int) -> wire.Vector:
    """An update that no model can take, or that would spoil it; a number fills it."""
    vector = np.ones(size, np.float32)
    match kind:
        case "NaN":
            vector[size // 2] = np.nan
        case "infinite":
            vector[size // 2] = np.inf
        case "wrong shape":
            vector = vector[:-1]
        case "ten times the size":
            vector = np.ones(10 * size, np.float32)
        case number:
            vector *= np.float32(number)
    return vector


def answer(request: wire.Request, vector: wire.Vector | None, **more: Any) -> wire.Update:
    given = {"loss": 0.1, "work_seconds": 0.1, "samples": 50, **more}
    return wire.Update(request.id, request.token, request.task, vector=vector, **given)


async def evil(transport: ClientTransport, forge: Forge, over: Callable[[], bool]) -> None:
    hello = wire.encode(wire.Hello(EVIL, "evil", TASKS))
    while not over():
        await transport.hello(hello)
        delivery = await transport.next(0.2)
        if delivery is None:
            continue
        request = request_in(delivery.data)
        if request is not None:
            forged = forge(request)
            data = forged if isinstance(forged, bytes) else wire.encode(forged)
            kind = "e" if request.kind == "evaluate" else ""
            await transport.upload(f"{kind}{request.id}-{request.token}", data)
        await delivery.done()
