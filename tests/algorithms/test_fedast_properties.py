"""SPEC's invariants for FedAST, over random sequences of everything that can happen."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fedast.algorithms.allocation import ALLOCATION_RULES
from fedast.algorithms.asynchronous import Asynchronous
from fedast.core.protocol import (
    Accept,
    Command,
    Dispatch,
    Drop,
    Evaluated,
    FinishReason,
    Ignore,
    IgnoreReason,
    IllegalEvent,
    MeasureVariances,
    PoolChanged,
    Reallocate,
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


class FedASTMachine(RuleBasedStateMachine):
    dynamic = True
    buffered = True

    @initialize(
        seed=st.integers(0, 2**32),
        sizes=st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3)),
            min_size=1,
            max_size=4,
        ),
        cap=st.one_of(st.none(), st.integers(1, 10)),
        max_staleness=st.one_of(st.none(), st.integers(0, 3)),
        max_rounds=st.one_of(st.none(), st.integers(1, 5)),
        rule=st.sampled_from([*ALLOCATION_RULES.builtin]),
    )
    def begin(
        self,
        seed: int,
        sizes: list[tuple[int, int, int]],
        cap: int | None,
        max_staleness: int | None,
        max_rounds: int | None,
        rule: str,
    ) -> None:
        specs = [
            TaskSpec(
                name=f"t{i}",
                active_requests=max(r, b),
                buffer_size=b,
                min_buffer_size=min(b, least),
                target=0.9,
                max_rounds=max_rounds,
                evaluate_every=2,
            )
            for i, (r, b, least) in enumerate(sizes)
        ]
        self.least = {spec.name: spec.min_buffer_size if self.buffered else 1 for spec in specs}
        self.pool = ScriptedPool(20, cap)
        self.algorithm = Asynchronous(
            specs,
            self.pool,
            Stream.of(seed, "control"),
            dynamic=self.dynamic,
            buffered=self.buffered,
            allocation_rule=ALLOCATION_RULES.builtin[rule]().build(),
            variance_window=2,
            period=0.3,
            max_staleness=max_staleness,
        )
        self.books = CheckingDriver(self.algorithm)
        self.total = sum(spec.active_requests for spec in specs)
        self.undisturbed = cap is None
        """Nothing has ended, joined, or been skipped yet."""
        self.added = 0
        self.feed(Started())

    def feed(self, event: object) -> list[Command]:
        commands = self.books.feed(event)  # type: ignore[arg-type]
        while any(isinstance(c, MeasureVariances) for c in commands):
            (asked,) = [c for c in commands if isinstance(c, MeasureVariances)]
            with pytest.raises(IllegalEvent):
                self.algorithm.handle(PoolChanged())
            values = {name: 0.1 + (sum(name.encode()) % 7) for name in asked.tasks}
            commands = commands[: commands.index(asked)] + self.books.feed(
                VariancesMeasured(values)
            )
        for command in commands:
            if isinstance(command, Reallocate):
                assert sum(command.targets.values()) == self.total
                assert all(r >= 1 for r in command.targets.values())
                for name, r in command.targets.items():
                    least = self.least.get(name, 1)
                    assert least <= command.buffers[name] <= max(least, r)
        return commands

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.books.arrive_order()))

    @precondition(lambda self: self.books.in_flight)
    @rule(data=st.data())
    def update_arrives(self, data: st.DataObject) -> None:
        request = self.pick(data)
        task = self.books.in_flight[request].task
        idle = {s.name for s in self.algorithm.status() if s.in_flight == 0 and not s.finished}
        commands = self.feed(UpdateArrived(request, work_time=1.0))
        assert isinstance(commands[0], Accept)
        sent = [c.task for c in commands if isinstance(c, Dispatch)]
        assert sent.count(task) <= 2, "K is 0, 1 or 2"
        assert all(name == task or (name in idle and sent.count(name) == 1) for name in sent)
        status = {s.name: s for s in self.algorithm.status()}[task]
        assert status.buffered < status.buffer_size

    @precondition(lambda self: self.books.in_flight)
    @rule(data=st.data(), invalid=st.booleans())
    def request_is_lost(self, data: st.DataObject, invalid: bool) -> None:
        request = self.pick(data)
        commands = self.feed(RequestLost(request, invalid=invalid))
        assert isinstance(commands[0], Drop)
        assert commands[0].reason == ("invalid" if invalid else "lost")

    @precondition(lambda self: self.books.gone)
    @rule(data=st.data())
    def update_arrives_again_or_late(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.books.gone)))
        before = self.algorithm.status()
        (command,) = self.feed(UpdateArrived(request, work_time=1.0))
        assert isinstance(command, Ignore)
        if self.books.gone[request] in ("aggregated", "stale"):
            assert command.reason is IgnoreReason.DUPLICATE
        assert self.algorithm.status() == before

    @precondition(lambda self: self.books.to_evaluate)
    @rule(data=st.data(), metric=st.sampled_from([0.1, 0.5, 0.95, float("nan")]))
    def evaluation_comes(self, data: st.DataObject, metric: float) -> None:
        question = data.draw(st.sampled_from(self.books.to_evaluate))
        self.books.to_evaluate.remove(question)
        already = question.task in self.books.finished
        self.feed(Evaluated(question.task, question.round, metric, metric))
        if not already and metric == 0.95:
            assert self.books.finished[question.task] is FinishReason.TARGET
        if not already and metric != metric:
            assert self.books.finished[question.task] is FinishReason.DIVERGED
        if question.task in self.books.finished:
            self.undisturbed = False

    @precondition(lambda self: self.algorithm.unfinished)
    @rule(data=st.data(), reason=st.sampled_from(StopReason))
    def tasks_are_stopped(self, data: st.DataObject, reason: StopReason) -> None:
        names = data.draw(
            st.lists(st.sampled_from(self.algorithm.unfinished), min_size=1, unique=True)
        )
        self.undisturbed = False
        self.feed(TasksStopped(tuple(names), reason))

    @rule(requests=st.integers(1, 6))
    def task_joins(self, requests: int) -> None:
        open_tasks = sum(s.active_requests > 0 for s in self.algorithm.status())
        spec = TaskSpec(name=f"new{self.added}", active_requests=requests, target=0.9)
        if open_tasks and requests > self.total - open_tasks:
            self.refused(TaskAdded(spec))
            return
        self.added += 1
        self.undisturbed = False
        commands = self.feed(TaskAdded(spec))
        assert isinstance(commands[0], Reallocate)
        assert commands[0].targets[spec.name] == (requests if open_tasks else self.total)

    @rule(empty=st.booleans())
    def pool_changes(self, empty: bool) -> None:
        self.pool.empty = empty
        if empty:
            self.undisturbed = False
        self.feed(PoolChanged())

    @rule()
    def illegal_events_change_nothing(self) -> None:
        known = {s.name for s in self.algorithm.status()}
        self.refused(Started())
        self.refused(UpdateArrived(10_000, work_time=1.0))
        self.refused(RequestLost(-1))
        self.refused(VariancesMeasured({}))
        self.refused(Evaluated("nobody", 0, 0.5, 0.5))
        self.refused(Evaluated(next(iter(known)), 10_000, 0.5, 0.5))
        self.refused(TaskAdded(TaskSpec(name=next(iter(known)))))
        self.refused(TasksStopped(("nobody",), StopReason.REMOVED))
        for name in self.books.finished:
            self.refused(TasksStopped((name,), StopReason.TIME))

    def refused(self, event: object) -> None:
        before = snapshot(self.algorithm)
        with pytest.raises(IllegalEvent):
            self.algorithm.handle(event)  # type: ignore[arg-type]
        assert snapshot(self.algorithm) == before

    @invariant()
    def targets_sum_to_the_total_and_are_not_exceeded(self) -> None:
        if not hasattr(self, "books"):
            return
        status = self.algorithm.status()
        targets = [s.active_requests for s in status]
        assert sum(targets) in ({self.total} if any(targets) else {0})
        assert len(self.books.in_flight) == sum(s.in_flight for s in status) <= self.total
        for s in status:
            mine = [d for d in self.books.in_flight.values() if d.task == s.name]
            assert len(mine) == s.in_flight
            assert s.buffered == sum(t == s.name for t in self.books.accepted.values())
            assert s.round == self.books.rounds.get(s.name, 0)
            if s.finished:
                assert s.in_flight == s.buffered == 0
        if not self.buffered:
            assert all(s.buffer_size == 1 for s in status)
        if self.undisturbed and not self.dynamic and all(s.active_requests for s in status):
            assert all(s.in_flight == s.active_requests for s in status), "static: n = R"


class StaticMachine(FedASTMachine):
    dynamic = False


class NoBufferMachine(FedASTMachine):
    dynamic = False
    buffered = False


MANY = settings(max_examples=60, stateful_step_count=60)

TestDynamic = FedASTMachine.TestCase
TestStatic = StaticMachine.TestCase
TestNoBuffer = NoBufferMachine.TestCase
TestDynamic.settings = TestStatic.settings = TestNoBuffer.settings = MANY
