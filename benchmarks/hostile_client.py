"""What one hostile client of eight does to a model, by how updates are aggregated.

Trains digits-mlp with eight clients over the in-memory transport and with the adaptive norm bound.
Client 7 trains as the others do, and sends its update with the opposite sign, as many times as long
as the median of the norms so far as the table says: within the bound. Prints the last metric after
so many rounds.

    python benchmarks/hostile_client.py --rounds 40
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import numpy as np

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining

CLIENTS = 8
HOSTILE = 7
AGGREGATORS: dict[str, dict[str, object]] = {
    "mean": {"name": "mean"},
    "mean, clip = median": {"name": "mean", "clip": "median"},
    "trimmed-mean, trim = 0.2": {"name": "trimmed-mean", "trim": 0.2},
    "median": {"name": "median"},
}


def configured(aggregator: dict[str, object], rounds: int, seed: int) -> RunConfig:
    return resolve(
        parse(
            {
                "seed": seed,
                "algorithm": {"name": "fedast-s", "requests": 16, "ratio": 2},
                "simulation": {"clients": CLIENTS},
                "federation": {"min_clients": CLIENTS, "strikes": 1000},
                "tasks": [
                    {
                        "use": "digits-mlp",
                        "target": 1.0,
                        "max_rounds": rounds,
                        "aggregator": aggregator,
                        "buffer": 8,
                        "options": {"alpha": 1.0, "samples": 100},
                    }
                ],
            }
        )
    )


async def attack(
    hub: Hub, federation: Federation, config: RunConfig, times: float, over: asyncio.Event
) -> None:
    transport, training = MemoryClient(hub, HOSTILE), LocalTraining(config, HOSTILE)
    while not over.is_set():
        hello = wire.Hello(HOSTILE, "hostile", ("digits-mlp",))
        await transport.hello(wire.encode(hello))
        delivery = await transport.next(0.05)
        if delivery is None:
            continue
        request = wire.decode(delivery.data, wire.Request)
        model = await transport.fetch(request.model)
        if model is None:
            continue
        base = wire.decode(model, wire.Model).vector
        honest, _, _ = await asyncio.to_thread(training.train, request.task, request.id, base)
        usual = federation.server.state.norms.updates.median("digits-mlp") or 1.0
        vector = (honest * (-times * usual / np.linalg.norm(honest))).astype(np.float32)
        update = wire.Update(request.id, request.token, request.task, 0.5, 0.01, 100, vector)
        await transport.upload(f"{request.id}-{request.token}", wire.encode(update))
        await delivery.done()


async def final_metric(config: RunConfig, times: float | None) -> tuple[float, int]:
    """The last metric, and how often the model was rolled back."""
    hub, over = Hub(), asyncio.Event()
    honest = [c for c in range(CLIENTS) if times is None or c != HOSTILE]
    agents = [
        Agent(c, MemoryClient(hub, c), LocalTraining(config, c), software="bench", hello_every=0.5)
        for c in honest
    ]
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(config, MemoryServer(hub), Path(folder))
        running = [asyncio.create_task(agent.run()) for agent in agents]
        if times is not None:
            running.append(asyncio.create_task(attack(hub, federation, config, times, over)))
        await federation.run()
        over.set()
        for agent in agents:
            agent.stop()
        await asyncio.gather(*running)
        back = federation.server.state.driver.roll_backs.count("digits-mlp")
        return federation.run_metrics.tasks["digits-mlp"].curve[-1].value, back


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    cases: list[float | None] = [None, 1.0, 5.0, 15.0]
    names = ["nobody hostile" if case is None else f"{case:g} medians" for case in cases]
    print("| aggregator | " + " | ".join(names) + " |")
    print("|---|" + "---:|" * len(cases))
    for name, aggregator in AGGREGATORS.items():
        cells = []
        for case in cases:
            found = [
                asyncio.run(final_metric(configured(aggregator, given.rounds, seed), case))
                for seed in range(1, given.seeds + 1)
            ]
            mean = sum(metric for metric, _ in found) / len(found)
            back = sum(count for _, count in found)
            cells.append(f"{mean:.3f}" + (f" ({back} roll-backs)" if back else ""))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
