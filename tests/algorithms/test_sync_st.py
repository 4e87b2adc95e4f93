"""Sync-ST: invariants over random event sequences, and cases worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedast.algorithms.rounds import Assignment, Rounds
from fedast.algorithms.sequential_fedavg import OneAfterAnother
from fedast.algorithms.sync_bayes_st import BayesianOptimisation
from fedast.algorithms.sync_st import RandomPartition, RoundRobin
from fedast.algorithms.sync_ucb_st import UpperConfidenceBounds
from fedast.core.protocol import (
    Aggregate,
    Command,
    Dispatch,
    Drop,
    DropReason,
    Evaluate,
    Evaluated,
    Event,
    FinishReason,
    Ignore,
    IgnoreReason,
    IllegalEvent,
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

ASSIGNMENTS: dict[str, Callable[[], Assignment]] = {
    "random": RandomPartition,
    "round-robin": RoundRobin,
    "bayes": lambda: BayesianOptimisation(candidates=5, history=4, extra=1),
    "ucb": lambda: UpperConfidenceBounds(extra=1),
    "sequential": OneAfterAnother,
}


class SyncMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**32),
        tasks=st.integers(1, 4),
        first_k=st.one_of(st.none(), st.integers(1, 4)),
        assignment=st.sampled_from(sorted(ASSIGNMENTS)),
        max_rounds=st.one_of(st.none(), st.integers(1, 4)),
        evaluate_every=st.integers(1, 3),
        clients=st.integers(1, 15),
    )
    def begin(
        self,
        seed: int,
        tasks: int,
        first_k: int | None,
        assignment: str,
        max_rounds: int | None,
        evaluate_every: int,
        clients: int,
    ) -> None:
        specs = [
            TaskSpec(
                name=f"t{i}",
                share=1.0 + i,
                target=0.9,
                max_rounds=max_rounds,
                evaluate_every=evaluate_every,
            )
            for i in range(tasks)
        ]
        self.pool = ScriptedPool(clients)
        self.first_k = first_k
        self.algorithm = Rounds(
            specs,
            self.pool,
            Stream.of(seed, "control"),
            ASSIGNMENTS[assignment](),
            first_k=first_k,
        )
        self.first_round = assignment == "ucb"
        """UCB's first round: every client, every task, all updates."""
        self.books = CheckingDriver(self.algorithm)
        self.added = 0
        self.feed(Started())

    def feed(self, event: Event) -> list[Command]:
        commands = self.books.feed(event)
        for command in commands:
            if isinstance(command, Aggregate):
                assert (
                    self.first_round
                    or self.first_k is None
                    or (len(command.requests) <= self.first_k)
                )
        sent = [c for c in commands if isinstance(c, Dispatch)]
        if sent:
            if any(c.version > 0 for c in sent) or any(s.round for s in self.algorithm.status()):
                self.first_round = False
            seen = {(c.client, c.task if self.first_round else "") for c in sent}
            assert len(seen) == len(sent), "a client has one request a round"
            assert len(sent) == len(self.books.in_flight), "the last round is over"
        return commands

    @precondition(lambda self: self.books.in_flight)
    @rule(data=st.data())
    def update_arrives(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.books.arrive_order()))
        self.feed(UpdateArrived(request, 1.0, loss=0.1 * (request % 7)))

    @precondition(lambda self: self.books.in_flight)
    @rule(data=st.data())
    def request_is_lost(self, data: st.DataObject) -> None:
        self.feed(RequestLost(data.draw(st.sampled_from(self.books.arrive_order()))))

    @precondition(lambda self: self.books.gone)
    @rule(data=st.data())
    def update_arrives_again_or_late(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.books.gone)))
        assert isinstance(self.feed(UpdateArrived(request, 1.0))[0], Ignore)

    @precondition(lambda self: self.books.to_evaluate)
    @rule(data=st.data(), metric=st.sampled_from([0.1, 0.5, 0.95, float("nan")]))
    def evaluation_comes(self, data: st.DataObject, metric: float) -> None:
        question = data.draw(st.sampled_from(self.books.to_evaluate))
        self.books.to_evaluate.remove(question)
        already = question.task in self.books.finished
        self.feed(Evaluated(question.task, question.round, metric, metric))
        if not already and metric == 0.95:
            assert self.books.finished[question.task] is FinishReason.TARGET

    @precondition(lambda self: self.algorithm.unfinished)
    @rule(data=st.data(), reason=st.sampled_from(StopReason))
    def tasks_are_stopped(self, data: st.DataObject, reason: StopReason) -> None:
        names = data.draw(
            st.lists(st.sampled_from(self.algorithm.unfinished), min_size=1, unique=True)
        )
        self.feed(TasksStopped(tuple(names), reason))

    @precondition(lambda self: self.added < 3)
    @rule()
    def task_joins(self) -> None:
        self.added += 1
        self.feed(TaskAdded(TaskSpec(f"new{self.added}", target=0.9)))

    @rule(empty=st.booleans())
    def pool_changes(self, empty: bool) -> None:
        self.pool.empty = empty
        self.feed(PoolChanged())

    @rule()
    def illegal_events_change_nothing(self) -> None:
        for event in (
            Started(),
            UpdateArrived(10_000, 1.0),
            VariancesMeasured({}),
            Evaluated("nobody", 0, 0.5, 0.5),
            Evaluated("t0", 10_000, 0.5, 0.5),
            TaskAdded(TaskSpec("t0")),
            TasksStopped(("nobody",), StopReason.TIME),
        ):
            before = snapshot(self.algorithm)
            with pytest.raises(IllegalEvent):
                self.algorithm.handle(event)
            assert snapshot(self.algorithm) == before

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "books"):
            return
        for status in self.algorithm.status():
            flying = [d for d in self.books.in_flight.values() if d.task == status.name]
            assert len(flying) == status.in_flight
            assert status.buffered == sum(
                name == status.name for name in self.books.accepted.values()
            )
            if status.finished:
                assert status.in_flight == status.buffered == 0

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """While a task is open, something is in flight, under evaluation, or no client is there."""
        if not hasattr(self, "books") or not self.algorithm.unfinished:
            return
        assert self.books.in_flight or self.books.to_evaluate or self.pool.empty


TestSyncST = SyncMachine.TestCase
TestSyncST.settings = settings(max_examples=120, stateful_step_count=60)


def start(
    clients: int,
    *specs: TaskSpec,
    assignment: Assignment | None = None,
    first_k: int | None = 30,
    free_on_cancel: bool = True,
) -> tuple[Rounds, CheckingDriver]:
    algorithm = Rounds(
        specs,
        ScriptedPool(clients),
        Stream.of(1, "control"),
        assignment or RandomPartition(),
        first_k=first_k,
        free_on_cancel=free_on_cancel,
    )
    books = CheckingDriver(algorithm)
    books.feed(Started())
    return algorithm, books


def answer(books: CheckingDriver, metric: float = 0.1) -> list[Command]:
    commands: list[Command] = []
    while books.to_evaluate:
        question = books.to_evaluate.pop(0)
        commands += books.feed(Evaluated(question.task, question.round, metric, 1.0))
    return commands


def test_the_first_round_waits_for_the_initial_models_to_be_evaluated() -> None:
    _, books = start(9, TaskSpec("a", share=2.0), TaskSpec("b"))
    assert not books.in_flight
    answer(books)
    assert Counter(d.task for d in books.in_flight.values()) == {"a": 6, "b": 3}


def test_first_k_count_and_stragglers_stay_busy() -> None:
    _, books = start(8, TaskSpec("a"), TaskSpec("b"), first_k=2)
    answer(books)
    of = {t: [r for r, d in books.in_flight.items() if d.task == t] for t in "ab"}
    books.feed(UpdateArrived(of["a"][0], 1.0))
    commands = books.feed(UpdateArrived(of["a"][1], 1.0))
    assert [c for c in commands if isinstance(c, Drop)] == [
        Drop(request, "a", DropReason.STRAGGLER, free_client=False) for request in of["a"][2:]
    ]
    assert not any(isinstance(c, Aggregate) for c in commands), "the round waits for b"
    assert books.feed(UpdateArrived(of["a"][2], 1.0)) == [Ignore(of["a"][2], IgnoreReason.LATE)]
    books.feed(UpdateArrived(of["b"][0], 1.0))
    commands = books.feed(UpdateArrived(of["b"][1], 1.0))
    assert [c for c in commands if isinstance(c, Aggregate | Evaluate)] == [
        Aggregate("a", 1, tuple(of["a"][:2])),
        Evaluate("a", 1),
        Aggregate("b", 1, tuple(of["b"][:2])),
        Evaluate("b", 1),
    ]
    assert not books.in_flight
    answer(books)
    assert {d.version for d in books.in_flight.values()} == {1}


def test_without_mitigation_the_round_waits_for_all_but_the_lost() -> None:
    _, books = start(3, TaskSpec("a"), first_k=None)
    answer(books)
    first, second, third = books.arrive_order()
    books.feed(UpdateArrived(first, 1.0))
    books.feed(RequestLost(second))
    commands = books.feed(UpdateArrived(third, 1.0))
    assert Aggregate("a", 1, (first, third)) in commands


def test_a_task_at_its_target_leaves_its_clients_to_the_others() -> None:
    _, books = start(6, TaskSpec("a", target=0.9), TaskSpec("b"), first_k=1)
    books.to_evaluate.clear()
    books.feed(Evaluated("a", 0, 0.95, 0.1))
    books.feed(Evaluated("b", 0, 0.1, 1.0))
    assert Counter(d.task for d in books.in_flight.values()) == {"b": 6}


def test_round_robin_gives_every_client_every_task_once_a_cycle() -> None:
    _, books = start(30, TaskSpec("a"), TaskSpec("b"), TaskSpec("c"), assignment=RoundRobin())
    answer(books)
    for _ in range(2):
        seen: dict[int, set[str]] = {}
        for _ in range(3):
            for sent in books.in_flight.values():
                assert sent.task not in seen.setdefault(sent.client, set())
                seen[sent.client].add(sent.task)
            for request in books.arrive_order():
                books.feed(UpdateArrived(request, 1.0))
            answer(books)
        assert set(map(len, seen.values())) == {3}


def test_tasks_stopped_together_end_together() -> None:
    """One has its k and waits, the other collects: neither makes another round."""
    _, books = start(8, TaskSpec("a"), TaskSpec("b"), first_k=2)
    answer(books)
    for request in [r for r, d in books.in_flight.items() if d.task == "a"][:2]:
        books.feed(UpdateArrived(request, 1.0))
    commands = books.feed(TasksStopped(("a", "b"), StopReason.TIME))
    assert not any(isinstance(c, Aggregate | Dispatch) for c in commands)
    assert books.finished == {"a": FinishReason.TIME, "b": FinishReason.TIME}


def test_no_task_is_starved_by_rounding() -> None:
    pool = ScriptedPool(40, cap=2)
    specs = [TaskSpec("a"), TaskSpec("b"), TaskSpec("c", share=0.5)]
    books = CheckingDriver(
        Rounds(specs, pool, Stream.of(1, "control"), RandomPartition(), first_k=None)
    )
    books.feed(Started())
    sent: Counter[str] = Counter()
    for _ in range(50):
        answer(books)
        sent.update(d.task for d in books.in_flight.values())
        for request in books.arrive_order():
            books.feed(UpdateArrived(request, 1.0))
    assert sent == {"a": 40, "b": 40, "c": 20}, "100 clients in 50 rounds, 2 : 2 : 1"


@pytest.mark.parametrize("free", [True, False])
def test_cancelled_requests_free_their_clients_or_not(free: bool) -> None:
    _, books = start(4, TaskSpec("a"), TaskSpec("b"), free_on_cancel=free)
    answer(books)
    commands = books.feed(TasksStopped(("a",), StopReason.REMOVED))
    drops = [c for c in commands if isinstance(c, Drop)]
    assert {d.free_client for d in drops} == {free}
    assert {d.reason for d in drops} == {DropReason.CANCELLED}


def test_evaluation_every_other_round() -> None:
    _, books = start(2, TaskSpec("a", evaluate_every=2), first_k=1)
    answer(books)
    books.feed(UpdateArrived(books.arrive_order()[0], 1.0))
    assert books.rounds["a"] == 1
    assert books.in_flight, "no evaluation to wait for: the next round is under way"
    books.feed(UpdateArrived(books.arrive_order()[0], 1.0))
    assert books.to_evaluate == [Evaluate("a", 2)]
    assert not books.in_flight
