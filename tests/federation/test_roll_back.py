"""A model that goes bad goes back, whatever the algorithm, the server optimizer and the moment of a
crash of the server. Over the in-memory transport, without a norm bound."""

from __future__ import annotations

import asyncio
import json
import math
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.guard import Guard, Remedy, Verdict
from fedast.federation.lengths import lengths
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.federation.norms import NormBounds, Norms
from fedast.run.federate import Federation
from tests.federation.evil import EVIL, TASKS, Forge, answer, evil, spoilt
from tests.federation.support import agent, audit, two_tasks


def poisoned(folder: Path, algorithm: str, options: str, optimizer: str) -> RunConfig:
    two_tasks(folder, algorithm=algorithm, options=options, federation='norm_bound = "off"')
    path = folder / "federation.toml"
    extra = f"server_optimizer = {optimizer}\nmax_rounds = 400\n"
    path.write_text(path.read_text().replace("target = 0.8\n", f"target = 0.8\n{extra}"))
    return resolve(load(path), folder)


def poison(left: dict[str, int]) -> Forge:
    """Poisons each task as often as it has left; beyond that it sends nothing new."""
    sizes = ("3e38", "1e30", "1e12", "1e8")

    def forge(request: wire.Request) -> wire.Update:
        if request.version == 0 or left[request.task] == 0:
            return answer(request, spoilt("0", request.size))
        left[request.task] -= 1
        return answer(request, spoilt(sizes[left[request.task]], request.size))

    return forge


async def serve(config: RunConfig, folder: Path, hub: Hub, crash_after: int | None) -> Federation:
    """Until it ends or crashes: nothing is committed then that was not committed before."""
    federation = Federation(config, MemoryServer(hub), folder)
    running = asyncio.create_task(federation.run())
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(90):
            while not running.done():
                await asyncio.sleep(0.005)
                if crash_after is not None and federation.run_metrics.updates >= crash_after:
                    running.cancel()
                    break
            await running
    return federation


async def campaign(config: RunConfig, folder: Path, crashes: list[int]) -> None:
    hub, over, left = Hub(patience=1.0), asyncio.Event(), dict.fromkeys(TASKS, 2)
    agents = [agent(hub, config, client) for client in range(EVIL)]
    running = [asyncio.create_task(a.run()) for a in agents]
    running.append(asyncio.create_task(evil(MemoryClient(hub, EVIL), poison(left), over.is_set)))
    for crash in crashes:
        await serve(config, folder, hub, crash)
    federation = await serve(config, folder, hub, None)
    over.set()
    for a in agents:
        a.stop()
    await asyncio.gather(*running)
    models = {task: federation.model(task) for task in TASKS}
    assert all(bool(torch.isfinite(model).all()) for model in models.values())
    again = Federation(config, MemoryServer(Hub()), folder)
    again.server.recover()  # the log alone leads to the same models
    assert all(torch.equal(again.model(task), model) for task, model in models.items())
    again.close()


CASES = [
    ("fedast-d", "requests = 8\nratio = 2\nserver_rate = 0.5", '"sgd"'),
    ("fedbuff", "requests = 4\nratio = 2", '"momentum"'),
    ("sync-st", "first_k = 2", '"sgd"'),
    ("fedast-d", "requests = 8\nratio = 2", '{ name = "adam" }'),
]


@pytest.mark.parametrize(("algorithm", "options", "optimizer"), CASES)
def test_it_goes_back_through_crashes(
    tmp_path: Path, algorithm: str, options: str, optimizer: str
) -> None:
    config = poisoned(tmp_path, algorithm, options, optimizer)
    draws = random.Random(f"{algorithm} {optimizer}")
    asyncio.run(campaign(config, tmp_path / "run", sorted(draws.sample(range(4, 40), 3))))
    log = [
        json.loads(line)
        for line in (tmp_path / "run" / "diary" / "diary.jsonl").read_text().splitlines()
    ]
    assert any(entry["e"] == "rollback" for entry in log)
    assert not [e for e in log if e["e"] in ("strike", "quarantine") and e["c"] != EVIL]
    for task in TASKS:
        versions = [e["version"] for e in log if e["e"] == "model" and e["task"] == task]
        assert versions == sorted(set(versions))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} <= {"target", "rounds"}
    audit(tmp_path / "run")


# --- the rules ------------------------------------------------------------------------------------


def guard() -> Guard:
    found = Guard({"a": True})
    assert found.judge("a", 0, 0.1, 2.3) is Verdict.GOOD
    assert found.judge("a", 4, 0.6, 1.2) is Verdict.GOOD
    return found


@pytest.mark.parametrize(("metric", "loss"), [(math.nan, 1.0), (0.5, math.inf), (0.1, 2400.0)])
def test_what_is_bad_at_once(metric: float, loss: float) -> None:
    assert guard().judge("a", 8, metric, loss) is Verdict.BAD


def test_a_dip_is_not_bad_and_a_dead_model_is() -> None:
    watch = guard()
    for version, (metric, loss) in enumerate([(0.1, 3.0), (0.05, 9.0), (0.3, 2.0), (0.1, 5.0)]):
        assert watch.judge("a", 8 + version, metric, loss) is Verdict.DOUBTFUL
    assert watch.judge("a", 20, 0.1, 2.31) is Verdict.DOUBTFUL
    assert watch.judge("a", 24, 0.1, 2.31) is Verdict.BAD


def test_training_that_diverges_by_itself_is_left_to_end() -> None:
    watch = guard()
    for version in (8, 12, 16):
        assert watch.judge("a", version, math.nan, math.nan) is Verdict.BAD
        watch.rolled_back("a", version + 1)
    assert watch.judge("a", 20, math.nan, math.nan) is Verdict.DOUBTFUL


def test_one_that_sends_nan_is_to_blame_if_others_do_not() -> None:
    watch = guard()
    assert watch.answered("a", 6, 3, valid=False, clients=4) is Remedy.NONE
    assert watch.take_due() == []
    watch.answered("a", 5, 1, valid=True, clients=4)  # an earlier version says nothing of this one
    watch.answered("a", 6, 0, valid=True, clients=4)
    assert watch.take_due() == []
    watch.answered("a", 7, 1, valid=True, clients=4)
    assert watch.take_due() == [3]
    assert watch.answered("a", 4, 3, valid=False, clients=4) is Remedy.NONE
    assert watch.take_due() == [3]  # version 4 was evaluated as good


def test_if_most_send_nan_it_is_the_model() -> None:
    watch = guard()
    assert watch.answered("a", 6, 0, valid=False, clients=4) is Remedy.NONE
    assert watch.answered("a", 6, 1, valid=False, clients=4) is Remedy.NONE
    assert watch.answered("a", 6, 2, valid=False, clients=4) is Remedy.ROLL_BACK
    watch.rolled_back("a", 7)
    assert watch.judge("a", 8, 0.7, 1.0) is Verdict.GOOD
    assert watch.take_due() == []


def test_no_client_sets_the_bound_alone() -> None:
    bounds = NormBounds("adaptive", 10.0)
    first = bounds.bound("a", 5.0, clients=8)
    assert first is not None
    assert (first.limit, first.settled) == (15.0, False)
    for norm in (1e9, 1e12, 1e30):  # the attacker is first, and quick
        bounds.heard("a", EVIL, norm)
        again = bounds.bound("a", 5.0, clients=8)
        assert again is not None
        assert again.limit == 15.0
    for client, norm in ((0, 1.0), (1, 2.0)):
        bounds.heard("a", client, norm)
    settled = bounds.bound("a", 5.0, clients=8)
    assert settled is not None
    assert (settled.limit, settled.settled) == (20.0, True)
    for _ in range(1000):
        bounds.heard("a", EVIL, 0.0)  # nor can it be lowered
    lowered = bounds.bound("a", 5.0, clients=8)
    assert lowered is not None
    assert lowered.limit == 10.0


def test_the_bound_follows_honest_norms_and_knows_its_limits() -> None:
    bounds = NormBounds("adaptive", 10.0)
    for client in range(5):
        bounds.heard("a", client, 1e-9)
    floor = bounds.bound("a", 5.0, clients=5)
    assert floor is not None
    assert floor.limit == 0.5  # what moves a model by a tenth of its norm is harmless
    for client in range(3):
        bounds.heard("a", client, 100.0)
    followed = bounds.bound("a", 5.0, clients=5)
    assert followed is not None
    assert followed.limit == 1000.0
    assert NormBounds(None, 10.0).bound("a", 5.0, 5) is None
    fixed = NormBounds(7.0, 10.0).bound("a", 5.0, 5)
    assert fixed is not None
    assert (fixed.limit, fixed.settled) == (7.0, True)


def test_running_statistics_are_bounded_by_their_distance_from_the_servers() -> None:
    model = torch.tensor([3.0, 4.0, 1.0, 1.0])  # two parameters, two buffers
    update = np.array([0.6, 0.8], np.float32)
    found = lengths(update, np.array([1.0, 4.0], np.float32), model, 2)
    assert (found.norm, found.spread) == (1.0, 3.0)
    assert lengths(np.array([0.6, 0.8, 9.0, 9.0], np.float32), None, model, 2).norm == 1.0
    norms = Norms("adaptive", 10.0)
    for client in range(3):
        norms.heard("a", client, found.norm, found.spread)
    bound = norms.buffers.bound("a", found.own, clients=4)
    assert bound is not None
    assert bound.limit == 30.0
    huge = lengths(update, np.array([3e38, -3e38], np.float32), model, 2)
    assert huge.spread is not None
    assert bound.limit < huge.spread < math.inf
