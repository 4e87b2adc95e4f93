"""What every algorithm must keep to, whatever happens.

- Every request ends exactly once: aggregated or dropped. An update of a request that has ended is
  ignored.
- A dispatch carries the newest model of a task that has not finished; a round takes at least one
  update; a task finishes once, and then nothing of it stays in flight.
- The same events give the same commands: no clock, no global randomness.
- An event that does not fit raises ``IllegalEvent`` and changes nothing.
- From any state, good evaluations bring every task to its end, and a task that joins is trained.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions, AsyncOptions
from fedast.core.protocol import (
    Algorithm,
    Command,
    Evaluated,
    Event,
    Ignore,
    IllegalEvent,
    MeasureVariances,
    PoolChanged,
    RequestLost,
    Started,
    StopReason,
    TaskAdded,
    TaskSpec,
    TasksStopped,
    UpdateArrived,
    VariancesMeasured,
)
from fedast.core.streams import Stream
from fedast.testing.driver import CheckingDriver, ScriptedPool, snapshot


def algorithm_contract(algorithm: Any) -> type[AlgorithmContract]:
    """The suite for an algorithm: its options, its name, or a callable that makes it."""
    options = ALGORITHMS.parse(algorithm, "algorithm")
    return type("TestAlgorithm", (AlgorithmContract,), {"options": options})


@final
class Play:
    """An algorithm, its driver, and everything that happened to it."""

    def __init__(self, options: AlgorithmOptions, seed: int) -> None:
        self.options = options
        self.alone = options.pools_data
        self.pool = ScriptedPool(1) if self.alone else ScriptedPool(12, cap=8)
        buffered = not isinstance(options, AsyncOptions) or options.buffered
        self.specs = [
            TaskSpec(
                name=f"t{i}",
                active_requests=4,
                buffer_size=2 if buffered else 1,
                share=1.0 + i,
                target=0.9,
                max_rounds=30 if i else None,
                evaluate_every=2,
            )
            for i in range(3)
        ]
        self.seed = seed
        self.algorithm = self.build(self.pool)
        self.driver = CheckingDriver(self.algorithm)
        self.told: list[tuple[bool, Event, list[Command]]] = []
        self.added = 0
        self.tell(Started())

    def build(self, pool: ScriptedPool) -> Algorithm:
        return self.options.build(self.specs, pool, Stream.of(self.seed, "control"))

    def tell(self, event: Event) -> list[Command]:
        commands = self.driver.feed(event)
        self.told.append((self.pool.empty, event, commands))
        asked = next((c for c in commands if isinstance(c, MeasureVariances)), None)
        if asked is not None:
            values = {name: 0.5 + len(self.told) % 3 + int(name[-1]) for name in asked.tasks}
            return commands + self.tell(VariancesMeasured(values))
        return commands

    def arrive(self, request: int) -> None:
        loss = 0.1 * (request % 7) if self.algorithm.wants_loss else None
        self.tell(UpdateArrived(request, work_time=1.0 + request % 3, loss=loss))

    def judge(self, place: int, metric: float) -> None:
        asked = self.driver.to_evaluate.pop(place)
        self.tell(Evaluated(asked.task, asked.round, metric, metric))

    def act(self, draw: int) -> None:
        """One of the things that can happen now, by a number."""
        kind, pick = draw % 16, draw // 16
        flying, gone = self.driver.arrive_order(), sorted(self.driver.gone)
        names = self.algorithm.unfinished
        if kind < 8 and flying:
            self.arrive(flying[pick % len(flying)])
        elif kind < 10 and flying and not self.alone:
            self.tell(RequestLost(flying[pick % len(flying)], invalid=kind == 8))
        elif kind == 10 and gone:
            commands = self.tell(UpdateArrived(gone[pick % len(gone)], 1.0))
            assert [type(c) for c in commands] == [Ignore], "an ended request is ignored"
        elif kind < 13 and self.driver.to_evaluate:
            values = (0.1, 0.5, 0.2, 0.95, float("nan"))
            self.judge(pick % len(self.driver.to_evaluate), values[pick % len(values)])
        elif kind == 13 and names and pick % 4 == 0:
            self.tell(TasksStopped((names[pick % len(names)],), list(StopReason)[pick % 3]))
        elif kind == 14 and self.added < 2 and not self.alone:
            self.added += 1
            self.tell(TaskAdded(TaskSpec(f"new{self.added}", active_requests=2, target=0.9)))
        elif kind == 15 and not self.alone:
            self.pool.empty = pick % 3 == 0
            self.tell(PoolChanged())

    def finish(self) -> None:
        """From anywhere, good evaluations bring every task to its end."""
        self.pool.empty = False
        self.tell(PoolChanged())
        for _ in range(500):
            if not self.algorithm.unfinished:
                return
            if self.driver.to_evaluate:
                self.judge(0, 0.95)
                continue
            flying = self.driver.arrive_order()
            assert flying, f"{self.algorithm.unfinished} wait for nothing"
            self.arrive(flying[0])
        raise AssertionError(f"{self.algorithm.unfinished} do not end")


_scripts = given(seed=st.integers(0, 2**32), script=st.lists(st.integers(0, 2**12), max_size=90))
_patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)


class AlgorithmContract:
    """The suite; ``algorithm_contract`` fills in the options."""

    options: ClassVar[AlgorithmOptions]

    @_scripts
    @settings(_patient, max_examples=25)
    def test_every_request_ends_once_and_every_task_ends(
        self, seed: int, script: list[int]
    ) -> None:
        play = Play(self.options, seed)
        for draw in script:
            play.act(draw)
            for status in play.algorithm.status():
                mine = [d for d in play.driver.in_flight.values() if d.task == status.name]
                assert len(mine) == status.in_flight
                held = sum(task == status.name for task in play.driver.accepted.values())
                assert held == status.buffered
        play.finish()
        assert not play.driver.in_flight, "nothing stays in flight"
        assert not play.driver.accepted, "no update is left over"
        assert set(play.driver.finished) >= {spec.name for spec in play.specs}

    @_scripts
    @settings(_patient, max_examples=10)
    def test_the_same_events_give_the_same_commands(self, seed: int, script: list[int]) -> None:
        first = Play(self.options, seed)
        for draw in script:
            first.act(draw)
        pool = ScriptedPool(1) if first.alone else ScriptedPool(12, cap=8)
        again = first.build(pool)
        for empty, event, commands in first.told:
            pool.empty = empty
            assert again.handle(event) == commands

    def test_events_that_do_not_fit_change_nothing(self) -> None:
        play = Play(self.options, 1)
        for draw in range(0, 400, 7):
            play.act(draw)
        for event in (
            Started(),
            UpdateArrived(10_000, 1.0),
            RequestLost(-1),
            VariancesMeasured({"t0": 1.0}),
            Evaluated("nobody", 0, 0.5, 0.5),
            Evaluated("t0", 10_000, 0.5, 0.5),
            TaskAdded(TaskSpec("t0")),
            TasksStopped(("nobody",), StopReason.TIME),
        ):
            before = snapshot(play.algorithm)
            with pytest.raises(IllegalEvent):
                play.algorithm.handle(event)
            assert snapshot(play.algorithm) == before, event

    def test_tasks_are_stopped_together_or_not_at_all(self) -> None:
        play = Play(self.options, 1)
        play.tell(TasksStopped(("t0",), StopReason.REMOVED))
        before = snapshot(play.algorithm)
        with pytest.raises(IllegalEvent):
            play.algorithm.handle(TasksStopped(("t1", "t0"), StopReason.REMOVED))
        assert snapshot(play.algorithm) == before
        assert play.algorithm.unfinished == ("t1", "t2")

    def test_a_task_that_joins_is_trained(self) -> None:
        """... at the latest when it is the only one left."""
        play = Play(self.options, 2)
        if play.alone:
            pytest.skip("one pseudo-client takes no task on")
        play.tell(TaskAdded(TaskSpec("new1", active_requests=2, target=0.9)))
        for _ in range(300):
            if play.driver.rounds.get("new1", 0) >= 2:
                return
            if play.driver.to_evaluate:
                play.judge(0, 0.1 if play.driver.to_evaluate[0].task == "new1" else 0.95)
            else:
                play.arrive(play.driver.arrive_order()[0])
        raise AssertionError("the new task never got through two rounds")
