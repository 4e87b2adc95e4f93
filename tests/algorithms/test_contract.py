"""What every algorithm must keep to, whatever happens: one suite, built as a user builds them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedast as cfg
from fedast.algorithms.allocation import Bound, Shares, Uniform
from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.algorithms.selection import Loss, Speed
from fedast.algorithms.staleness import Hinge, Polynomial
from fedast.core.protocol import (
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
from fedast.run.build import build_algorithm
from tests.support import Books, ScriptedPool, snapshot

VARIANTS: dict[str, AlgorithmOptions] = {
    "fedast-d": cfg.FedASTDynamic(period=0.3, variance_window=2),
    "fedast-d, bound": cfg.FedASTDynamic(period=0.3, variance_window=2, allocation_rule=Bound()),
    "fedast-d, shares": cfg.FedASTDynamic(period=0.3, variance_window=2, allocation_rule=Shares()),
    "fedast-d, uniform": cfg.FedASTDynamic(
        period=0.3, variance_window=2, allocation_rule=Uniform()
    ),
    "fedast-d, by loss": cfg.FedASTDynamic(period=0.3, variance_window=2, selection=Loss()),
    "fedast-s": cfg.FedASTStatic(),
    "fedast-s, by speed": cfg.FedASTStatic(selection=Speed(candidates=3)),
    "fedast-s, fresh only": cfg.FedASTStatic(max_staleness=1),
    "fedast-s, polynomial": cfg.FedASTStatic(staleness_weight=Polynomial()),
    "fedast-s, hinge": cfg.FedASTStatic(staleness_weight=Hinge(grace=1)),
    "fedast-s, keep busy": cfg.FedASTStatic(cancel="keep-busy"),
    "fedast-nobuffer": cfg.FedASTNoBuffer(),
    "fedbuff": cfg.FedBuff(),
    "fedbuff, any client": cfg.FedBuff(idle=False),
    "fedbuff, by loss": cfg.FedBuff(selection=Loss()),
    "sync-st": cfg.SyncST(first_k=2),
    "sync-st, all": cfg.SyncST(first_k="all"),
    "sync-st, round robin": cfg.SyncST(first_k=2, split="round-robin"),
    "sync-st, by speed": cfg.SyncST(first_k=2, selection=Speed()),
    "sync-st, by loss": cfg.SyncST(first_k=2, selection=Loss(candidates=3)),
    "sync-bayes-st": cfg.SyncBayesST(first_k=2, candidates=5, history=4, extra=1),
    "sync-ucb-st": cfg.SyncUCBST(first_k=2, extra=1),
    "sequential-fedavg": cfg.SequentialFedAvg(first_k=2),
    "centralized": cfg.Centralized(),
}


def test_no_algorithm_is_left_out() -> None:
    assert {config.name for config in VARIANTS.values()} == set(ALGORITHMS.builtin)


class Play:
    """An algorithm, its books, and everything that happened to it."""

    def __init__(self, variant: str, seed: int) -> None:
        self.config = VARIANTS[variant]
        self.alone = isinstance(self.config, cfg.Centralized)
        self.pool = ScriptedPool(1) if self.alone else ScriptedPool(12, cap=8)
        self.specs = [
            TaskSpec(
                name=f"t{i}",
                active_requests=4,
                buffer_size=1 if variant == "fedast-nobuffer" else 2,
                share=1.0 + i,
                target=0.9,
                max_rounds=30 if i else None,
                evaluate_every=2,
            )
            for i in range(3)
        ]
        self.seed = seed
        self.algorithm = build_algorithm(self.config, self.specs, self.pool, seed)
        self.books = Books(self.algorithm)
        self.told: list[tuple[bool, Event, list[Command]]] = []
        self.added = 0
        self.tell(Started())

    def tell(self, event: Event) -> list[Command]:
        commands = self.books.feed(event)
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
        asked = self.books.to_evaluate.pop(place)
        self.tell(Evaluated(asked.task, asked.round, metric, metric))

    def act(self, draw: int) -> None:
        """One of the things that can happen now, by a number."""
        kind, pick = draw % 16, draw // 16
        flying, gone = self.books.arrive_order(), sorted(self.books.gone)
        names = self.algorithm.unfinished
        if kind < 8 and flying:
            self.arrive(flying[pick % len(flying)])
        elif kind < 10 and flying and not self.alone:
            self.tell(RequestLost(flying[pick % len(flying)], invalid=kind == 8))
        elif kind == 10 and gone:
            commands = self.tell(UpdateArrived(gone[pick % len(gone)], 1.0))
            assert [type(c) for c in commands] == [Ignore], "what has ended counts no more"
        elif kind < 13 and self.books.to_evaluate:
            values = (0.1, 0.5, 0.2, 0.95, float("nan"))
            self.judge(pick % len(self.books.to_evaluate), values[pick % len(values)])
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
            if self.books.to_evaluate:
                self.judge(0, 0.95)
            else:
                self.arrive(self.books.arrive_order()[0])
        raise AssertionError(f"{self.algorithm.unfinished} do not end")


play = given(st.integers(0, 2**32), st.lists(st.integers(0, 2**12), max_size=90))
every = pytest.mark.parametrize("variant", VARIANTS)


@every
@play
@settings(max_examples=25)
def test_every_request_ends_once_and_every_task_ends(
    variant: str, seed: int, script: list[int]
) -> None:
    run = Play(variant, seed)
    for draw in script:
        run.act(draw)
        for status in run.algorithm.status():
            mine = [d for d in run.books.in_flight.values() if d.task == status.name]
            assert len(mine) == status.in_flight
            held = sum(task == status.name for task in run.books.accepted.values())
            assert held == status.buffered
    run.finish()
    assert not run.books.in_flight, "nothing stays in flight"
    assert not run.books.accepted, "no update is left over"
    assert set(run.books.finished) >= {spec.name for spec in run.specs}


@every
@play
@settings(max_examples=10)
def test_the_same_events_give_the_same_commands(variant: str, seed: int, script: list[int]) -> None:
    first = Play(variant, seed)
    for draw in script:
        first.act(draw)
    pool = ScriptedPool(1) if first.alone else ScriptedPool(12, cap=8)
    again = build_algorithm(first.config, first.specs, pool, seed)
    for empty, event, commands in first.told:
        pool.empty = empty
        assert again.handle(event) == commands


@every
def test_events_that_do_not_fit_change_nothing(variant: str) -> None:
    run = Play(variant, 1)
    for draw in range(0, 400, 7):
        run.act(draw)
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
        before = snapshot(run.algorithm)
        with pytest.raises(IllegalEvent):
            run.algorithm.handle(event)
        assert snapshot(run.algorithm) == before


@every
def test_tasks_are_stopped_together_or_not_at_all(variant: str) -> None:
    run = Play(variant, 1)
    run.tell(TasksStopped(("t0",), StopReason.REMOVED))
    before = snapshot(run.algorithm)
    with pytest.raises(IllegalEvent, match="finished already"):
        run.algorithm.handle(TasksStopped(("t1", "t0"), StopReason.REMOVED))
    assert snapshot(run.algorithm) == before
    assert run.algorithm.unfinished == ("t1", "t2")


@every
def test_losses_are_asked_for_where_they_decide(variant: str) -> None:
    """A driver that must give them has to train at once."""
    wanted = variant == "sync-ucb-st" or "by loss" in variant
    assert Play(variant, 1).algorithm.wants_loss is wanted


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "centralized"])
def test_a_task_that_joins_is_trained(variant: str) -> None:
    """(Centralized has one pseudo-client, which takes no task on.)"""
    run = Play(variant, 2)
    run.tell(TaskAdded(TaskSpec("new1", active_requests=2, target=0.9)))
    in_turn = variant == "sequential-fedavg"  # there it is the last one's turn
    for _ in range(300):
        if run.books.rounds.get("new1", 0) >= 2:
            return
        if run.books.to_evaluate:
            others = run.books.to_evaluate[0].task != "new1"
            run.judge(0, 0.95 if in_turn and others else 0.1)
        else:
            run.arrive(run.books.arrive_order()[0])
    raise AssertionError("the new task never got through two rounds")
