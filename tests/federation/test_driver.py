"""The same events give the same commands in the simulator and in a federation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.rounds import Rounds
from fedast.algorithms.sync_st import RandomPartition
from fedast.core.protocol import (
    Algorithm,
    ClientId,
    Command,
    Dispatch,
    Evaluated,
    Event,
    RequestId,
    TaskSpec,
)
from fedast.core.streams import Stream
from fedast.federation.driver import Driver, LivePool, Send
from fedast.learner.protocol import Evaluation, NoLearning
from fedast.sim.availability import AlwaysPool
from fedast.sim.delays import ShiftedExponentialDelay, Speeds, Timing
from fedast.sim.simulator import Simulator

CLIENTS = 12
SPECS = [
    TaskSpec("a", active_requests=9, buffer_size=3, target=0.5, evaluate_every=2),
    TaskSpec("b", active_requests=6, buffer_size=2, max_rounds=15, evaluate_every=3),
]


class Scripted:
    """Answers that depend on nothing but the question's number; the rest is nothing."""

    def __init__(self) -> None:
        self._inner = NoLearning()
        self._asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def variance(self, task: str) -> float:
        self._asked += 1
        return 1.0 + (self._asked * 7) % 5

    def evaluate(self, task: str) -> Evaluation:
        self._asked += 1
        return Evaluation(min(0.9, 0.02 * self._asked), 1.0)


class Tape:
    """Notes every command."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def commanded(self, now: float, command: Command) -> None:
        self.commands.append(command)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass


class Recorded:
    """An algorithm that notes the events it gets from outside."""

    def __init__(self, inner: Algorithm) -> None:
        self._inner = inner
        self.events: list[Event] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def handle(self, event: Event) -> list[Command]:
        self.events.append(event)
        return self._inner.handle(event)


class Everyone:
    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        return stream.below(CLIENTS)

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return range(CLIENTS)

    def everyone(self) -> Sequence[ClientId]:
        return range(CLIENTS)


def algorithm(kind: str, pool: object) -> Algorithm:
    stream = Stream.of(3, "control")
    if kind == "sync":
        return Rounds(SPECS, pool, stream, RandomPartition(None), first_k=3)  # type: ignore[arg-type]
    return Asynchronous(
        SPECS,
        pool,  # type: ignore[arg-type]
        stream,
        dynamic=kind == "dynamic",
        variance_window=3,
        period=0.3,
    )


@pytest.mark.parametrize("kind", ["dynamic", "static", "sync"])
def test_the_simulators_trace_gives_a_federation_the_same_commands(kind: str) -> None:
    recorded = Recorded(algorithm(kind, AlwaysPool(CLIENTS)))
    tape = Tape()
    timings = {spec.name: Timing(spec.name, 3, 1.0) for spec in SPECS}
    simulator = Simulator(
        recorded,  # type: ignore[arg-type]
        Scripted(),  # type: ignore[arg-type]
        AlwaysPool(CLIENTS),
        ShiftedExponentialDelay(0.5),
        Speeds(CLIENTS, (1.0,), (1.0,), 1),
        timings,
        tape,
        seed=1,
        loss_rate=0.1,
    )
    simulator.run()
    from_outside = [
        event for event in recorded.events
        if type(event).__name__ not in ("Evaluated", "VariancesMeasured")
    ]  # fmt: skip
    assert len(from_outside) > 40

    pool = LivePool()
    for client in range(CLIENTS):
        pool.join(client)
    again = Tape()
    driver = Driver(algorithm(kind, pool), Scripted(), again)  # type: ignore[arg-type]
    sent = []
    for event in from_outside:
        sent += [e for e in driver.handle(event, 0.0) if isinstance(e, Send)]
    assert again.commands == tape.commands
    dispatched = [c for c in tape.commands if isinstance(c, Dispatch)]
    assert [(s.request, s.task, s.client, s.version) for s in sent] == [
        (d.request, d.task, d.client, d.version) for d in dispatched
    ]
    assert driver.unfinished == ()
    assert driver.open == {}


def test_a_pool_gives_out_who_is_there() -> None:
    pool, stream = LivePool(cap=2), Stream.of(1)
    assert pool.draw(stream, ()) is None
    for client in (5, 3, 9):
        pool.join(client)
    pool.join(3)
    assert tuple(pool.everyone()) == (3, 5, 9)
    assert {pool.draw(stream, ()) for _ in range(50)} == {3, 5, 9}
    assert {pool.draw(stream, (3, 5)) for _ in range(50)} == {3, 5, None}
    assert len(pool.available(stream)) == 2
    assert len(pool.available(stream, extra=1)) == 3
    pool.leave(5)
    assert 5 not in pool
    pool.paused = True
    assert pool.draw(stream, ()) is None
    assert pool.available(stream) == ()
