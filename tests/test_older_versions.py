"""This version reads what older ones left on disk: ``fixtures/VERSION/README.md`` says what."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import shutil
import tomllib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import fedast
from fedast.algorithms.fedast import FedASTDynamic
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig, Simulation, TaskConfig
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.federation.transport import Uploaded
from fedast.parts.registry import load_object
from fedast.records.events import from_schema_1
from fedast.records.run import read_run
from fedast.reproduce.jobs import jobs_of
from fedast.reproduce.load import find_studies
from fedast.reproduce.store import stored_runs
from fedast.run.execute import resume
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
from tests.federation.support import audit, events

FIRST = Path(__file__).parent / "fixtures" / "v0.1.0"
FEDERATIONS = (FIRST / "federation", FIRST.with_name("v0.2.0.dev0") / "federation")
MEASURED = ("value", "loss")


def test_a_run_of_0_1_0_goes_on_to_the_end_it_would_have_had(tmp_path: Path) -> None:
    """The schedule is that of 0.1.0 exactly; what is measured may be rounded otherwise here."""
    folder = shutil.copytree(FIRST / "run", tmp_path / "run")
    said: list[str] = []
    resume(folder, say=said.append)
    assert said == ["continuing from simulated time 32.7"]
    with gzip.open(FIRST / "run-uninterrupted.jsonl.gz", "rt") as file:
        metrics = {name: task.metric for name, task in read_run(folder).tasks.items()}
        expected = [from_schema_1(json.loads(line), metrics) for line in file]
    found = events(folder)
    assert list(map(schedule, found)) == list(map(schedule, expected))
    for one, other in zip(found, expected, strict=True):
        for key in MEASURED:
            if one.get(key) is not None:
                assert one[key] == pytest.approx(other[key], rel=0.02)


def schedule(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in MEASURED}


@pytest.mark.parametrize("left", FEDERATIONS, ids=lambda left: str(left.parent.name))
def test_a_federation_of_an_older_version_goes_on(left: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(left / "run", tmp_path / "run")
    source = left / "federation.toml"
    config = resolve(load(source), source.parent)
    before = (folder / "diary" / "diary.jsonl").read_bytes()
    state = max((folder / "diary" / "state").glob("*.json"))
    committed = json.loads(state.read_text())["time"]
    metrics = {task.name or task.use: "accuracy" for task in config.tasks}
    logged = [from_schema_1(e, metrics) for e in events(folder) if e["t"] < committed]

    async def body() -> Federation:
        hub = hub_of(left / "transport.json.gz")
        agents = [
            Agent(
                client, MemoryClient(hub, client), LocalTraining(config, client), software="test",
                hello_every=0.2,
            )
            for client in range(config.simulation.clients)
        ]  # fmt: skip
        federation = Federation(config, MemoryServer(hub), folder)
        running = [asyncio.create_task(agent.run()) for agent in agents]
        try:
            async with asyncio.timeout(90):
                await federation.run()
        finally:
            for agent in agents:
                agent.stop()
            await asyncio.gather(*running)
        return federation

    federation = asyncio.run(body())
    assert federation.server.finished
    assert (folder / "diary" / "diary.jsonl").read_bytes().startswith(before)
    assert events(folder)[: len(logged)] == logged
    assert len(logged) > 50
    counts = audit(folder)
    assert counts["finish"] == 2
    assert counts["drop lost"] == 0, "models and requests of the time before are still there"
    result = json.loads((folder / "result.json").read_text())
    assert [task["rounds"] for task in result["tasks"].values()] == [30, 30]


@pytest.fixture
def new_key(request: pytest.FixtureRequest) -> Iterator[None]:
    """This version has a key, with a default, that no older one knows."""
    section: type[BaseModel] = request.param
    section.model_fields["novelty"] = FieldInfo(annotation=float, default=0.5)
    rebuilt = (section, RunConfig)
    for model in rebuilt:
        model.model_rebuild(force=True)
    yield
    del section.model_fields["novelty"]
    for model in rebuilt:
        model.model_rebuild(force=True)


@pytest.mark.parametrize("left", FEDERATIONS, ids=lambda left: str(left.parent.name))
@pytest.mark.parametrize("new_key", [FedASTDynamic, Simulation, TaskConfig], indirect=True)
def test_a_new_key_with_a_default_is_not_another_configuration(
    left: Path, new_key: None, tmp_path: Path
) -> None:
    folder = shutil.copytree(left / "run", tmp_path / "run")
    config = resolve(load(left / "federation.toml"), left)
    assert "novelty" in json.dumps(config.model_dump(mode="json"))
    federation = Federation(config, MemoryServer(Hub()), folder)
    federation.server.stop()
    asyncio.run(federation.run())
    assert federation.run_metrics.replayed >= 30


def hub_of(file: Path) -> Hub:
    with gzip.open(file, "rt") as text:
        table = json.load(text)
    bytes_of = base64.b64decode
    return Hub(
        models={name: bytes_of(data) for name, data in table["models"].items()},
        queues={
            int(client): OrderedDict((name, bytes_of(data)) for name, data in queue.items())
            for client, queue in table["queues"].items()
        },
        uploads={
            u["place"]: Uploaded(u["place"], u["client"], u["name"], bytes_of(u["data"]))
            for u in table["uploads"]
        },
        names={(client, name) for client, name in table["names"]},
        sequences=itertools.count(table["next_place"]),
    )


def test_results_of_0_1_0_are_found_again_and_reported(tmp_path: Path) -> None:
    folder = shutil.copytree(FIRST / "results", tmp_path / "results")
    study = FIRST / "tiny.toml"
    stored = stored_runs(folder)
    wanted = jobs_of(find_studies([str(study)]), "quick")
    assert {job.identity for job in wanted} <= set(stored)
    assert sorted({kept.path for kept in stored.values()}) == [
        "tiny/fedast-s/seed-1",
        "tiny/sync-st/seed-1",
    ]
    for job in wanted:
        assert stored[job.identity].run.algorithm == job.config.algorithm.name
    told = CliRunner().invoke(cli, ["report", str(folder), str(study), "--json"])
    assert told.exit_code == 0, told.output
    (row,) = json.loads(told.stdout)
    assert row["ours"] == "FedAST(S) 5, Sync-ST 7"
    again = CliRunner().invoke(
        cli, ["reproduce", str(study), "--scale", "quick", "--out", str(folder), "--dry-run"]
    )
    assert "0 to go" in again.output


def test_the_package_states_the_version_of_the_project() -> None:
    project = tomllib.loads((FIRST.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    source = project["tool"]["setuptools"]["dynamic"]["version"]["attr"]  # the one place
    assert load_object(source[::-1].replace(".", ":", 1)[::-1], "version") == fedast.__version__
