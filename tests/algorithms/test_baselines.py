"""The other baselines against cases worked out by hand and against slower ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.centralized import PseudoClient
from fedast.algorithms.fedbuff import FedBuff
from fedast.algorithms.rounds import Returned, Rounds
from fedast.algorithms.sequential_fedavg import OneAfterAnother
from fedast.algorithms.staleness import hinge, polynomial
from fedast.algorithms.sync_bayes_st import (
    BayesianOptimisation,
    distances,
    expected_improvement,
    posterior,
)
from fedast.algorithms.sync_ucb_st import UpperConfidenceBounds
from fedast.core.protocol import (
    Accept,
    Aggregate,
    Algorithm,
    Dispatch,
    Evaluated,
    Event,
    Started,
    TaskSpec,
    UpdateArrived,
)
from fedast.core.streams import Stream
from fedast.sim.availability import AlwaysPool
from fedast.testing.driver import CheckingDriver, ScriptedPool

A, B = TaskSpec("a", batch_size=2), TaskSpec("b", batch_size=2)


# --- Sync-UCB-ST --------------------------------------------------------------------------------


def learnt() -> UpperConfidenceBounds:
    """Two rounds with gamma = 0.5: client 0 lost 3 then 1, client 1 lost 2 and sat out."""
    rule = UpperConfidenceBounds(gamma=0.5, extra=0)
    rule.assign([A], ScriptedPool(3), Stream.of(0))
    rule.learn([Returned(0, "a", 1.0, 3.0), Returned(1, "a", 1.0, 2.0)])
    rule.learn([Returned(0, "a", 1.0, 1.0)])
    return rule


def test_ucb_scores_by_hand() -> None:
    """L and N of client 0: 2 (0.5 * 3 + 1) = 5 and 1.5; of client 1: 0.5 * 4 and 0.5; T = 1.5."""
    rule = learnt()
    assert rule.score(0, "a") == pytest.approx(5 / 1.5 + math.sqrt(2 * math.log(1.5) / 1.5))
    assert rule.score(1, "a") == pytest.approx(4 + math.sqrt(2 * math.log(1.5) / 0.5))
    assert rule.score(2, "a") == math.inf, "never seen: first choice"


def test_ucb_takes_the_best_and_tasks_choose_in_turn() -> None:
    rule = UpperConfidenceBounds(extra=0)
    pool, stream = ScriptedPool(4), Stream.of(0)
    assert [sorted(g) for g in rule.assign([A, B], pool, stream)] == [[0, 1, 2, 3]] * 2
    assert rule.waits_for_all()
    losses = {0: 9.0, 1: 8.0, 2: 2.0, 3: 1.0}
    rule.learn([Returned(c, t, 1.0, loss) for c, loss in losses.items() for t in "ab"])
    assert not rule.waits_for_all()
    first, second = rule.assign([A, B], pool, stream)
    assert (sorted(first), sorted(second)) == ([2, 3], [0, 1]), "round 1: b chooses first"
    rule.learn([])
    first, second = rule.assign([A, B], pool, stream)
    assert (sorted(first), sorted(second)) == ([0, 1], [2, 3]), "round 2: a does"


def test_ucb_without_discount_counts_rounds() -> None:
    """gamma = 1: T = 3 rounds, client 0 lost 2 * 3 on average in N = 2 of them."""
    rule = UpperConfidenceBounds(gamma=1.0)
    rule.assign([A], ScriptedPool(1), Stream.of(0))
    for returned in ([Returned(0, "a", 1.0, 2.0)], [Returned(0, "a", 1.0, 4.0)], []):
        rule.learn(returned)
    assert rule.score(0, "a") == pytest.approx(2 * 3.0 + math.sqrt(2 * math.log(3) / 2))


@pytest.mark.parametrize(("clients", "sizes"), [(1, [0, 1]), (2, [1, 1]), (3, [1, 1]), (9, [2, 2])])
def test_ucb_spares_nobody_that_a_task_needs(clients: int, sizes: list[int]) -> None:
    """Five are to spare, but not before every task has a client."""
    rule, pool = UpperConfidenceBounds(extra=5), AlwaysPool(clients)
    rule.assign([A, B], pool, Stream.of(0))
    rule.learn([])
    assert sorted(len(group) for group in rule.assign([A, B], pool, Stream.of(0))) == sizes


def test_ucb_tells_equal_scores_apart_by_chance() -> None:
    rule, pool, stream = UpperConfidenceBounds(extra=0), AlwaysPool(6), Stream.of(0)
    rule.assign([A, B], pool, stream)
    rule.learn([])
    assert len({tuple(sorted(rule.assign([A, B], pool, stream)[0])) for _ in range(20)}) > 5


def test_ucb_scale_of_the_loss() -> None:
    rule = UpperConfidenceBounds(per_batch=False)
    rule.assign([A], ScriptedPool(1), Stream.of(0))
    rule.learn([Returned(0, "a", 1.0, 3.0)])
    assert rule.score(0, "a") == pytest.approx(3.0), "ln 1 = 0: no bonus after one round"


# --- Sync-Bayes-ST ------------------------------------------------------------------------------


def test_bods_cost_by_hand() -> None:
    """Slowest: a 5, b 2. Counts over 4 clients: a 1, 1, 0, 0 and b 1, 0, 0, 0."""
    rule = BayesianOptimisation(alpha=0.25)
    rule.assign([A, B], ScriptedPool(4), Stream.of(0))
    returned = [
        Returned(0, "a", 3.0, None),
        Returned(1, "a", 5.0, None),
        Returned(2, "b", 2.0, None),
    ]
    rule._counts.update((r.client, r.task) for r in returned)
    variance = (2 / 4 - (2 / 4) ** 2) + (1 / 4 - (1 / 4) ** 2)
    assert rule.cost(returned) == pytest.approx(0.25 * 7.0 + 0.75 * variance)


def test_bods_cost_of_a_lone_client() -> None:
    """Whoever is alone takes part as often as everybody: no variance."""
    rule = BayesianOptimisation(alpha=0.25)
    rule.assign([A], ScriptedPool(1), Stream.of(0))
    rule.learn([Returned(0, "a", 3.0, None)])
    assert rule.cost([Returned(0, "a", 3.0, None)]) == pytest.approx(0.25 * 3.0)


def test_bods_tries_one_assignment_first_and_then_75() -> None:
    """Ten clients are drawn with ten numbers and shuffled with nine."""
    rule, pool, stream = BayesianOptimisation(), ScriptedPool(10), Stream.of(0)
    for tried in (1, 75, 75):
        before = stream.counter
        groups = rule.assign([A, B], pool, stream)
        assert stream.counter - before == 10 + tried * 9
        assert [len(group) for group in groups] in ([2, 3], [3, 2]), "five are to spare"
        rule.learn([Returned(client, "a", 1.0, None) for client in groups[0]])


def test_bods_remembers_the_latest_rounds() -> None:
    rule, pool, stream = BayesianOptimisation(history=4), ScriptedPool(10), Stream.of(0)
    costs = []
    for number in range(7):
        rule.assign([A, B], pool, stream)
        rule.learn([Returned(number, "a", float(number), None)])
        costs.append(rule.cost([Returned(number, "a", float(number), None)]))
    assert rule._costs == pytest.approx(costs[-4:])
    assert rule._past[-1] == rule._current
    assert rule._apart == pytest.approx(distances(rule._past, rule._past))
    assert rule._apart.shape == (4, 4)
    usual = BayesianOptimisation()
    usual.assign([A], ScriptedPool(2), stream)
    for _ in range(302):
        usual.learn([])
    assert len(usual._past) == len(usual._costs) == 300


def test_where_a_cost_was_measured_some_doubt_is_left() -> None:
    """Expected improvement divides by it."""
    apart, between = np.zeros((1, 1)), np.array([[0.0], [2.0]])
    mean, deviation = posterior(apart, between, np.array([1.0]), noise=0.0)
    assert mean[0] == pytest.approx(1.0)
    assert 0.0 < deviation[0] < 1e-3 < deviation[1] < 1.0
    assert np.isfinite(expected_improvement(mean, deviation, best=1.0)).all()


def vectors(count: int) -> tuple[list[frozenset[tuple[int, str]]], np.ndarray]:
    rng = np.random.default_rng(0)
    dense = (rng.random((count, 30)) < 0.3).astype(float)
    sets = [frozenset((int(i), "a") for i in np.flatnonzero(row)) for row in dense]
    return sets, dense


def test_the_gaussian_process_is_scikit_learns() -> None:
    sets, dense = vectors(25)
    values = np.random.default_rng(1).normal(size=20)
    between = distances(sets[20:], sets[:20])
    mean, deviation = posterior(distances(sets[:20], sets[:20]), between, values, noise=1e-3)
    kernel = Matern(length_scale=between.mean(), nu=2.5)
    oracle = GaussianProcessRegressor(kernel, alpha=1e-3, optimizer=None)
    oracle.fit(dense[:20], values)
    expected_mean, expected_deviation = oracle.predict(dense[20:], return_std=True)
    assert mean == pytest.approx(expected_mean, abs=1e-6)
    assert deviation == pytest.approx(expected_deviation, abs=1e-6)


def test_expected_improvement() -> None:
    found = expected_improvement(np.array([0.0, 2.0]), np.array([1.0, 1e-9]), best=0.5)
    by_hand = 0.5 * stats.norm.cdf(0.5) + stats.norm.pdf(0.5)
    assert found == pytest.approx([by_hand, 0.0], abs=1e-9)


def test_bayes_learns_to_avoid_a_slow_client() -> None:
    """Client 0 takes 100 with any task, the others 1; a spare client lets it be left out."""
    rule, pool, stream = (
        BayesianOptimisation(alpha=1.0, extra=1),
        ScriptedPool(5, cap=4),
        Stream.of(0),
    )
    chosen = []
    for _ in range(60):
        groups = rule.assign([A, B], pool, stream)
        chosen.append(0 in {client for group in groups for client in group})
        rule.learn([
            Returned(c, t.name, 100.0 if c == 0 else 1.0, None)
            for t, group in zip((A, B), groups, strict=True) for c in group
        ])  # fmt: skip
    assert sum(chosen[30:]) < 6, "by chance it would be 24 of 30"


# --- Sequential FedAvg, FedBuff ------------------------------------------------------------------


def test_centralized_is_one_client_that_trains_everything() -> None:
    rule = PseudoClient()
    assert [list(g) for g in rule.assign([A, B], ScriptedPool(3), Stream.of(0))] == [[0], [0]]
    assert rule.waits_for_all() is True


def test_sequential_trains_one_task_after_another() -> None:
    specs = [TaskSpec("a", target=0.5), TaskSpec("b")]
    books = CheckingDriver(
        Rounds(specs, ScriptedPool(6), Stream.of(0), OneAfterAnother(), first_k=2)
    )
    books.feed(Started())
    books.feed(Evaluated("a", 0, 0.1, 1.0))
    books.feed(Evaluated("b", 0, 0.1, 1.0))
    assert {d.task for d in books.in_flight.values()} == {"a"}
    assert len(books.in_flight) == 6
    for request in books.arrive_order()[:2]:
        books.feed(UpdateArrived(request, 1.0))
    books.feed(Evaluated("a", 1, 0.9, 0.1))
    assert {d.task for d in books.in_flight.values()} == {"b"}


def trace(algorithm: Algorithm, count: int = 60) -> list[object]:
    books = CheckingDriver(algorithm)
    commands: list[object] = list(books.feed(Started()))
    for _ in range(count):
        event: Event = UpdateArrived(books.arrive_order()[0], 1.0)
        commands += books.feed(event)
    return commands


def test_fedbuff_with_uniform_selection_is_static_fedast_with_one_task() -> None:
    spec = TaskSpec("a", active_requests=6, buffer_size=2)
    ours = FedBuff(idle=False).build([spec], ScriptedPool(9), Stream.of(1))
    theirs = Asynchronous([spec], ScriptedPool(9), Stream.of(1), dynamic=False)
    assert trace(ours) == trace(theirs)


@pytest.mark.parametrize(("clients", "requests", "cap"), [(20, 6, None), (9, 9, None), (40, 9, 9)])
def test_fedbuff_asks_idle_clients_only(clients: int, requests: int, cap: int | None) -> None:
    """From the first send on, also where every client that may be active is."""
    spec = TaskSpec("a", active_requests=requests, buffer_size=2)
    books = CheckingDriver(FedBuff().build([spec], ScriptedPool(clients, cap), Stream.of(1)))

    def one_request_each() -> None:
        busy = [dispatch.client for dispatch in books.in_flight.values()]
        assert len(busy) == len(set(busy)) == requests

    books.feed(Started())
    one_request_each()
    for _ in range(100):
        books.feed(UpdateArrived(books.arrive_order()[0], 1.0))
        one_request_each()


def test_fedbuff_sends_no_more_requests_than_clients_may_be_active() -> None:
    spec = TaskSpec("a", active_requests=12, buffer_size=2)
    for pool in (ScriptedPool(40, cap=9), ScriptedPool(9)):
        books = CheckingDriver(FedBuff().build([spec], pool, Stream.of(1)))
        books.feed(Started())
        assert len(books.in_flight) == 9
        books.feed(UpdateArrived(books.arrive_order()[0], 1.0))
        assert len({dispatch.client for dispatch in books.in_flight.values()}) == 9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("requests", [3, 6])
def test_fedbuff_with_two_tasks_asks_idle_clients_only(seed: int, requests: int) -> None:
    """From the first send on, over both tasks; with 12 requests there are too few of 10 clients."""
    specs = [TaskSpec(name, active_requests=requests, buffer_size=2) for name in "ab"]
    books = CheckingDriver(FedBuff().build(specs, ScriptedPool(10), Stream.of(seed)))
    busy: set[int] = set()
    event: Event = Started()
    for _ in range(100):
        for command in books.feed(event):
            if isinstance(command, Dispatch):
                assert command.client not in busy
                busy.add(command.client)
            elif isinstance(command, Accept):
                busy.remove(command.client)
        event = UpdateArrived(books.arrive_order()[0], 1.0)


def test_no_buffer_is_fedast_with_a_buffer_of_one() -> None:
    for_buffer = TaskSpec("a", active_requests=6, buffer_size=1)
    plain = Asynchronous([for_buffer], ScriptedPool(9), Stream.of(1), dynamic=False)
    without = Asynchronous(
        [TaskSpec("a", active_requests=6, buffer_size=3)],
        ScriptedPool(9), Stream.of(1), dynamic=False, buffered=False,
    )  # fmt: skip
    assert trace(plain) == trace(without)


def test_staleness_weights() -> None:
    assert [polynomial(0.5)(s) for s in (0, 3, 8)] == pytest.approx([1.0, 0.5, 1 / 3])
    assert [hinge(0.5, 4)(s) for s in (0, 4, 6)] == pytest.approx([1.0, 1.0, 0.5])
    spec = TaskSpec("a", active_requests=3, buffer_size=2)
    algorithm = Asynchronous(
        [spec], ScriptedPool(9), Stream.of(1), dynamic=False, weight=polynomial(1.0)
    )
    steps = [c for c in trace(algorithm, 4) if isinstance(c, Aggregate)]
    assert steps[0].weights == (1.0, 1.0)
    assert steps[1].weights == (0.5, 0.5), "2 and 3 were sent before the first round ended"
