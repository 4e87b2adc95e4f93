"""Adapters trained by a federation on a real NATS server: what is sent, and what comes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.federation.agent import Agent
from fedast.records.run import read_run
from fedast.run.build import build_tasks
from fedast.run.export import export
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("nats")

from fedast.tasks.adapters.base import base_of
from tests.federation.nats_support import NatsBed
from tests.llm.plain import plain_accuracy, plain_loss
from tests.llm.tiny import write_decoder, write_encoder, write_texts

CONFIG = """
seed = 4
[simulation]
clients = 2
[algorithm]
name = "fedast-d"
requests = 4
ratio = 2
[federation]
min_clients = 2
commit_every = 0.2
[[tasks]]
use = "lora-causal-lm"
name = "words"
max_rounds = 3
[tasks.options]
base = "{place}/decoder"
length = 16
lora = {{ r = 4 }}
texts = {{ name = "json-lines", path = "{place}/texts.jsonl" }}
[[tasks]]
use = "lora-classifier"
name = "mood"
max_rounds = 3
client_lr = 0.01
[tasks.options]
base = "{place}/encoder"
length = 16
lora = {{ r = 4, train = "B" }}
texts = {{ name = "json-lines", path = "{place}/texts.jsonl" }}
"""


def test_adapters_trained_over_nats_score_in_plain_peft_what_the_run_said(tmp_path: Path) -> None:
    write_decoder(tmp_path / "decoder", width=64)
    write_encoder(tmp_path / "encoder", width=64)
    write_texts(tmp_path / "texts.jsonl", clients=2)
    file = tmp_path / "federation.toml"
    file.write_text(CONFIG.format(place=tmp_path))
    config = resolve(load(file), tmp_path)
    folder = tmp_path / "run"
    sent: list[int] = []

    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed:
            agents = []
            for number in range(2):
                client = await bed.client(number)
                upload = client.upload

                async def counted(name: str, data: bytes, upload=upload) -> None:  # type: ignore[no-untyped-def]
                    sent.append(len(data))
                    await upload(name, data)

                client.upload = counted  # type: ignore[method-assign]
                training = LocalTraining(config, number)
                agents.append(Agent(number, client, training, software="test", hello_every=0.2))
            federation = Federation(config, await bed.server(), folder)
            running = [asyncio.create_task(agent.run()) for agent in agents]
            try:
                async with asyncio.timeout(240):
                    await federation.run()
            finally:
                for agent in agents:
                    agent.stop()
                await asyncio.gather(*running)

    asyncio.run(go())
    result = read_run(folder)
    words, mood = build_tasks(config)
    assert sum(found.updates for found in result.tasks.values()) <= len(sent)
    # r = 4 on query (64 x 64) and value (32 x 64) of two layers, in single precision.
    largest = 4 * 2 * 4 * ((64 + 64) + (64 + 32))
    assert largest < max(sent) < largest + 1000
    assert max(sent) * 20 < base_of(str(tmp_path / "decoder")).bytes

    adapter = export(folder, "words", "peft")
    loss = plain_loss(adapter, tmp_path / "decoder", words)
    assert loss == pytest.approx(result.tasks["words"].final_loss, rel=1e-5)
    adapter = export(folder, "mood", "peft")
    accuracy = plain_accuracy(adapter, tmp_path / "encoder", mood)
    assert accuracy == pytest.approx(result.tasks["mood"].final, abs=1e-6)
