"""Many clients in one process that train nothing: they send back noise, at once."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

from fedast.federation import wire
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import inbox
from fedast.federation.nats.setup import client_name

TASKS = ("a", "b", "c", "d")
models: dict[str, int] = {}
noise = np.random.default_rng(0).standard_normal(10**6, np.float32) * np.float32(1e-3)
"""One for all of them: drawing it anew would be work that is not to be measured."""


async def live(number: int, url: str, keys: Path, spent: list[float]) -> None:
    connection = await connect(
        [url], Credentials(keys), name=client_name(number), inbox_prefix=inbox(number)
    )
    transport = NatsClient(connection, number, 60.0)
    hello = wire.encode(wire.Hello(number, "light", TASKS))
    greeted = 0.0
    while True:
        if time.monotonic() - greeted > 10:
            greeted = time.monotonic()
            await transport.hello(hello)
        delivery = await transport.next(20.0)
        if delivery is None:
            continue
        began = time.monotonic()
        request = wire.decode(delivery.data, wire.Request)
        if request.model not in models:
            data = await transport.fetch(request.model)
            if data is None:
                await delivery.done()
                continue
            models[request.model] = len(data)
            while len(models) > 8:
                models.pop(next(iter(models)))
        vector = noise[: request.size]
        update = wire.Update(request.id, request.token, request.task, 1.0, 0.0, 1, vector)
        await transport.upload(f"{request.id}-{request.token}", wire.encode(update))
        await delivery.done()
        spent.append(time.monotonic() - began)


async def main(url: str, folder: Path, first: int, last: int, report: Path) -> None:
    spent: list[float] = []
    tasks = []
    for number in range(first, last):
        keys = folder / "clients" / client_name(number)
        tasks.append(asyncio.create_task(live(number, url, keys, spent)))
        await asyncio.sleep(0.005)
    while True:
        await asyncio.sleep(5)
        for task in tasks:
            if task.done():
                task.result()
        draft = report.with_suffix(".part")
        draft.write_text(json.dumps({"answered": len(spent), "seconds": spent[-2000:]}))
        draft.replace(report)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    )
