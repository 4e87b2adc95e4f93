"""FedAST-plus: who is asked, how much updates count, and how clients take part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedast
from fedast import FedASTPlus, Goal, Simulation, Task, Training
from fedast.aggregation.averaging import Averaging
from fedast.aggregation.rate_control import RateControl
from fedast.algorithms.async_progress import AsyncProgress
from fedast.algorithms.fedast_plus import FairIdle, Participation, StepSizes
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import SpeedGroups
from fedast.core.progress import Progress
from fedast.core.protocol import Dispatch, Started, TaskSpec, UpdateArrived
from fedast.core.streams import Stream
from fedast.records.observers import ObserverOptions
from fedast.run.build import build_speeds
from fedast.run.simulate import simulate
from fedast.sim.availability import ActiveCap, AlwaysPool
from fedast.testing.driver import ScriptedPool


def state(requests: int = 50, buffer: int = 2, server_lr: float = 0.1) -> AsyncProgress:
    spec = TaskSpec("t", active_requests=requests, buffer_size=buffer, server_lr=server_lr)
    return AsyncProgress(Progress(spec), True)


# --- the size of steps ----------------------------------------------------------------------------


def settled(sizes: StepSizes, task: AsyncProgress, staleness: int, updates: int = 2000) -> float:
    """The server rate after many updates of one staleness."""
    task.progress.round = 10_000
    weight = 0.0
    for number in range(updates):
        weight = sizes(task, number % 400, staleness)
    return weight * task.progress.spec.server_lr


@pytest.mark.parametrize("staleness", [20, 25, 40, 100])
@pytest.mark.parametrize("server_lr", [0.1, 0.4, 0.05])
def test_rate_times_staleness_is_the_same_whatever_the_load(
    staleness: int, server_lr: float
) -> None:
    sizes = StepSizes(40.0, 1.0, 1.0, 3.0, None)
    rate = settled(sizes, state(server_lr=server_lr), staleness)
    assert rate * (staleness + 0.5) == pytest.approx(40.0 * min(server_lr, 0.1), rel=1e-3)


def test_one_update_moves_the_model_a_tenth_of_its_way_at_most() -> None:
    sizes = StepSizes(40.0, 0.1, 1.0, 3.0, None)
    assert settled(sizes, state(4, 2), 1) == pytest.approx(0.2, rel=1e-3)  # b = 2
    assert settled(StepSizes(40.0, 0.5, 1.0, 3.0, None), state(40, 20), 1) <= 1.0


def test_the_rate_rises_over_the_first_latencies() -> None:
    sizes, task = StepSizes(40.0, 1.0, 0.0, 3.0, None), state(50, 2)
    rates = []
    for number in range(200):
        task.progress.round = number
        rates.append(sizes(task, number, 25))
    assert rates[0] < 0.03 * rates[-1]
    assert rates == sorted(rates)
    assert rates[74] < rates[-1] == pytest.approx(rates[80], rel=0.01)


def test_old_updates_count_less_and_all_together_as_much() -> None:
    sizes, task = StepSizes(40.0, 1.0, 1.0, 0.0, None), state()
    task.progress.round = 1000
    for number in range(3000):
        sizes(task, number, (10, 40)[number % 2])
    young, old = sizes(task, 1, 10), sizes(task, 2, 40)
    assert young > 2 * old
    assert (young + old) / 2 == pytest.approx(40.0 / 25.5, rel=0.05)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 300)), min_size=1, max_size=200),
    st.floats(0.001, 10.0),
)
def test_weights_are_positive_and_bounded(updates: list[tuple[int, int]], lr: float) -> None:
    task = state(30, 3, lr)
    sizes = StepSizes(40.0, 0.1, 1.0, 3.0, Participation())
    for number, (client, staleness) in enumerate(updates):
        task.progress.round = number
        assert 0.0 < sizes(task, client, staleness) * lr <= 0.3 * 2 * 2 * 1.5


# --- who is asked ---------------------------------------------------------------------------------


def test_only_idle_clients_are_asked_and_those_who_are_owed_first() -> None:
    pool = FairIdle(AlwaysPool(4))
    stream = Stream.of(1)
    drawn = [pool.draw(stream, {0, 1, 2}) for _ in range(6)]
    assert set(drawn) == {3}
    pool.learn(1, "t", 1.0, None)  # client 1 is idle now; it was drawn before with near certainty
    assert pool.draw(stream, {0, 2}) == 1
    assert pool.draw(stream, {0, 1, 2, 3}) is None, "nobody is idle"


def test_a_client_that_left_is_owed_nothing() -> None:
    scripted = ScriptedPool(3)
    pool = FairIdle(scripted)
    stream = Stream.of(1)
    for _ in range(6):
        pool.draw(stream, {0, 1})
    pool.learn(0, "t", 1.0, None)
    scripted.empty = True
    assert pool.draw(stream, {1}) is None


def fast_and_slow(clients: int, seed: int) -> Task:
    """Two classes; who has which is up to the test."""
    draws = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 400)
    inputs = (draws.normal(size=(800, 4)) + 1.5 * labels[:, None]).astype(np.float32)
    parts = [np.arange(c * 800 // clients, (c + 1) * 800 // clients) for c in range(clients)]
    return Task(
        name="t",
        model=lambda: torch.nn.Linear(4, 2),
        train=(inputs, labels),
        test=(inputs, labels),
        partition=parts,
        training=Training(local_steps=4, batch_size=8, client_lr=0.05),
        goal=Goal(target=0.999, max_time=300.0),
    )


class CountOptions(ObserverOptions):
    """Counts how often each client was asked."""

    def build(self, run: object) -> Counted:
        return COUNTED


class Counted:
    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def commanded(self, now: float, command: object) -> None:
        if isinstance(command, Dispatch):
            self.asked[command.client] += 1

    def started(self, now: float, request: int, client: int) -> None: ...

    def evaluated(self, now: float, event: object) -> None: ...


COUNTED = Counted()


def participation(options: FedASTPlus, cap: int, seed: int = 1) -> tuple[float, float]:
    """How often a slow client was asked beside a fast one, and the accuracy at the end."""
    COUNTED.asked.clear()
    clients = 40
    speeds = SpeedGroups(factors=(3.0, 0.5), shares=(0.5, 0.5))
    world = Simulation(
        clients=clients, speeds=speeds, availability=ActiveCap(cap=cap), until="time"
    )
    speed = build_speeds(world, seed)
    task = fast_and_slow(clients, seed)
    slow = [c for c in range(clients) if speed.of(c) > 1.0]
    fast = [c for c in range(clients) if speed.of(c) < 1.0]
    # All of one class is with the slow clients, all of the other with the fast ones.
    parts: list[np.ndarray] = [np.empty(0)] * clients
    for group, begin in ((slow, 0), (fast, 400)):
        for place, client in enumerate(group):
            parts[client] = begin + np.arange(
                400 * place // len(group), 400 * (place + 1) // len(group)
            )
    task = replace(task, partition=parts)
    outcome = simulate([task], options, world, seed=seed, observers=[CountOptions()], noted=True)
    asked = COUNTED.asked
    often = [sum(asked[c] for c in group) / len(group) for group in (slow, fast)]
    final = outcome.result.tasks["t"].final
    assert final is not None
    return often[0] / often[1], final


def test_slow_clients_take_part_as_often_as_fast_ones() -> None:
    """Where speed goes with labels. (Slow clients are still at work on their last requests.)"""
    unfair, poor = participation(FedASTPlus(fair=False, requests=12), cap=12)
    fair, good = participation(FedASTPlus(requests=12), cap=12)
    assert unfair < 0.75
    assert 0.88 < fair < 1.1
    assert good > poor + 0.03


def test_weights_make_up_for_it_where_hardly_anybody_is_idle() -> None:
    """Three in four clients are busy at any time, so fast ones must be asked again and again."""
    table = Participation()
    counted = dict.fromkeys(range(5), 0.0)
    for number in range(4000):  # client 0 comes twice as often as each of the other four
        client = max(0, number % 6 - 1)
        counted[client] += table.weight("t", client, 1.0)
    slow = sum(counted[client] for client in range(1, 5)) / 4
    assert counted[0] / slow == pytest.approx(1.0, abs=0.05)


# --- the method as a whole ------------------------------------------------------------------------


def test_its_tasks_are_averaged_and_controlled_unless_they_say_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'algorithm = "fedast-plus"\n[simulation]\nclients = 20\n[[tasks]]\nuse = "digits-mlp"\n'
        '[[tasks]]\nuse = "digits-mlp"\nname = "own"\naveraging = "never"\n'
    )
    config = resolve(load(path), tmp_path)
    assert resolve(config, tmp_path) == config
    first, own = config.tasks
    assert (first.averaging, first.rate_control) == (
        Averaging(use="always"),
        RateControl(use="always"),
    )
    assert own.averaging == Averaging(use="never")
    assert isinstance(config.algorithm, FedASTPlus)
    assert config.algorithm.requests == 6, "as many as clients may be active"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**16))
def test_no_client_ever_has_two_requests(seed: int) -> None:
    specs = [TaskSpec(name, active_requests=4, buffer_size=2) for name in "ab"]
    algorithm = FedASTPlus().build(specs, ScriptedPool(12, cap=8), Stream.of(seed))
    busy: dict[int, int] = {}
    commands = algorithm.handle(Started())
    for number in range(200):
        for command in commands:
            if isinstance(command, Dispatch):
                assert command.client not in busy.values()
                busy[command.request] = command.client
        request = sorted(busy)[(seed + 7 * number) % len(busy)]
        del busy[request]
        commands = algorithm.handle(UpdateArrived(request, 1.0))


def test_it_is_in_the_public_api() -> None:
    assert fedast.FedASTPlus().name == "fedast-plus"
