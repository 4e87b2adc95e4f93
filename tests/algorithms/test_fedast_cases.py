"""FedAST against cases worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedast.algorithms.allocation import ALLOCATION_RULES
from fedast.algorithms.async_progress import RATIO_LIMIT, buffer_size_for
from fedast.algorithms.asynchronous import Asynchronous
from fedast.core.protocol import (
    Accept,
    Aggregate,
    Command,
    Dispatch,
    Drop,
    DropReason,
    Evaluate,
    Evaluated,
    Finish,
    FinishReason,
    IllegalEvent,
    MeasureVariances,
    PoolChanged,
    Reallocate,
    ReallocCause,
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
from fedast.testing.driver import CheckingDriver, ScriptedPool


def start(
    *specs: TaskSpec, pool: ScriptedPool | None = None, **options: object
) -> tuple[Asynchronous, CheckingDriver]:
    options.setdefault("dynamic", False)
    algorithm = Asynchronous(specs, pool or ScriptedPool(50), Stream.of(1, "control"), **options)  # type: ignore[arg-type]
    books = CheckingDriver(algorithm)
    books.feed(Started())
    return algorithm, books


def arrive(books: CheckingDriver, task: str) -> list[Command]:
    request = next(r for r in books.arrive_order() if books.in_flight[r].task == task)
    return books.feed(UpdateArrived(request, work_time=1.0))


def test_start_sends_the_target_and_evaluates_round_0() -> None:
    _, books = start(TaskSpec("a", active_requests=3), TaskSpec("b", active_requests=1))
    assert sorted(d.task for d in books.in_flight.values()) == ["a", "a", "a", "b"]
    assert books.to_evaluate == [Evaluate("a", 0), Evaluate("b", 0)]


def test_the_buffer_is_averaged_when_full_and_the_newest_model_goes_out() -> None:
    _, books = start(TaskSpec("a", active_requests=4, buffer_size=2, evaluate_every=1))
    first = arrive(books, "a")
    assert [type(c).__name__ for c in first] == ["Accept", "Dispatch"]
    second = arrive(books, "a")
    assert second[1:] == [
        Aggregate("a", 1, (0, 1)),
        Evaluate("a", 1),
        Dispatch(5, "a", second[3].client, version=1),  # type: ignore[union-attr]
    ]


def test_evaluation_every_so_many_rounds() -> None:
    _, books = start(TaskSpec("a", active_requests=2, evaluate_every=3))
    books.to_evaluate.clear()
    for _ in range(7):
        arrive(books, "a")
    assert books.to_evaluate == [Evaluate("a", 3), Evaluate("a", 6)]


def test_a_lost_request_is_replaced() -> None:
    _, books = start(TaskSpec("a", active_requests=2))
    commands = books.feed(RequestLost(0))
    assert commands[0] == Drop(0, "a", DropReason.LOST)
    assert isinstance(commands[1], Dispatch)
    assert len(books.in_flight) == 2


def test_an_update_that_is_too_stale_is_dropped_and_sent_again() -> None:
    _, books = start(TaskSpec("a", active_requests=3), max_staleness=1)
    slow = max(books.in_flight)
    for _ in range(2):
        arrive(books, "a")
    commands = books.feed(UpdateArrived(slow, work_time=9.0))
    assert commands[0].staleness == 2  # type: ignore[union-attr]
    assert commands[1] == Drop(slow, "a", DropReason.STALE)
    assert isinstance(commands[2], Dispatch)
    assert books.rounds["a"] == 2


def test_a_task_at_its_target_hands_its_requests_over_in_proportion() -> None:
    _, books = start(
        TaskSpec("a", active_requests=6, target=0.9),
        TaskSpec("b", active_requests=4, buffer_size=2),
        TaskSpec("c", active_requests=2, buffer_size=1),
    )
    commands = books.feed(Evaluated("a", 0, 0.95, 0.1))
    assert commands[0] == Finish("a", FinishReason.TARGET)
    assert all(isinstance(c, Drop) for c in commands[1:7])
    assert commands[7] == Reallocate(
        ReallocCause.HANDOVER,
        targets={"b": 8, "c": 4},
        buffers={"b": 4, "c": 2},  # R/b stays 2 for both
    )


def test_filling_up_is_gradual() -> None:
    algorithm, books = start(
        TaskSpec("a", active_requests=4, target=0.9), TaskSpec("b", active_requests=2)
    )
    books.feed(Evaluated("a", 0, 0.95, 0.1))
    flights = []
    for _ in range(6):
        commands = arrive(books, "b")
        assert sum(isinstance(c, Dispatch) for c in commands) in (1, 2)
        flights.append(algorithm.status()[1].in_flight)
    assert flights == [3, 4, 5, 6, 6, 6]


def test_shrinking_is_gradual_and_a_new_task_is_not_starved() -> None:
    algorithm, books = start(TaskSpec("a", active_requests=6, buffer_size=3))
    commands = books.feed(TaskAdded(TaskSpec("b", active_requests=2)))
    assert commands == [
        Reallocate(ReallocCause.ADD, {"a": 4, "b": 2}, {"a": 2, "b": 1}),
        Evaluate("b", 0),
    ]
    commands = arrive(books, "a")
    assert [c.task for c in commands if isinstance(c, Dispatch)] == ["b"], "room goes to b"
    arrive(books, "a")
    assert [s.in_flight for s in algorithm.status()] == [4, 1]
    commands = arrive(books, "b")
    assert [c.task for c in commands if isinstance(c, Dispatch)] == ["b", "b"], "K = 2"
    assert [s.in_flight for s in algorithm.status()] == [4, 2]


def test_removal_hands_over_and_says_so() -> None:
    _, books = start(
        TaskSpec("a", active_requests=2), TaskSpec("b", active_requests=2, buffer_size=1)
    )
    commands = books.feed(TasksStopped(("a",), StopReason.REMOVED))
    assert commands[0] == Finish("a", FinishReason.REMOVED)
    assert commands[-1] == Reallocate(ReallocCause.REMOVE, {"b": 4}, {"b": 2})


def test_the_round_limit_waits_for_the_last_evaluation() -> None:
    algorithm, books = start(TaskSpec("a", active_requests=2, max_rounds=1, target=0.9))
    books.feed(Evaluated("a", 0, 0.1, 2.0))
    commands = arrive(books, "a")
    assert Evaluate("a", 1) in commands
    assert not any(isinstance(c, Dispatch) for c in commands), "no work for a task that ends"
    assert algorithm.unfinished == ("a",)
    assert books.feed(Evaluated("a", 1, 0.95, 0.1)) == [Finish("a", FinishReason.TARGET)]


def test_the_time_limit_evaluates_a_model_that_was_not() -> None:
    _, books = start(TaskSpec("a", active_requests=2, evaluate_every=4))
    books.feed(Evaluated("a", 0, 0.1, 2.0))
    arrive(books, "a")
    commands = books.feed(TasksStopped(("a",), StopReason.TIME))
    assert commands[0] == Evaluate("a", 1)
    assert books.feed(Evaluated("a", 1, 0.4, 1.0)) == [Finish("a", FinishReason.TIME)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_diverges_ends_its_own_task_only(value: float) -> None:
    algorithm, books = start(TaskSpec("a", active_requests=2), TaskSpec("b", active_requests=2))
    commands = books.feed(Evaluated("a", 0, 0.1, value))
    assert commands[0] == Finish("a", FinishReason.DIVERGED)
    assert algorithm.unfinished == ("b",)
    assert algorithm.status()[1].active_requests == 4


def test_skipped_picks_are_made_up_when_the_pool_changes() -> None:
    pool = ScriptedPool(50)
    pool.empty = True
    algorithm, books = start(TaskSpec("a", active_requests=5), pool=pool)
    assert not books.in_flight
    pool.empty = False
    for flying in (2, 4, 5, 5):
        books.feed(PoolChanged())
        assert algorithm.status()[0].in_flight == flying


# --- Realloc ------------------------------------------------------------------------------


def reallocated(rule: str, variances: dict[str, float]) -> Reallocate:
    """Two tasks of R = 24, b = 3 (ratio 8), window 2; the period is 0.5 * 2 * 48 = 48 updates.

    They differ in everything an allocation rule may look at: eta_s 0.1 and 0.4, eta_c 0.1
    and 0.2, tau 4 and 2.
    """
    _, books = start(
        TaskSpec(
            "a", active_requests=24, buffer_size=3, server_lr=0.1, client_lr=0.1, local_steps=4
        ),
        TaskSpec(
            "b", active_requests=24, buffer_size=3, server_lr=0.4, client_lr=0.2, local_steps=2
        ),
        dynamic=True,
        allocation_rule=ALLOCATION_RULES.builtin[rule]().build(),
        variance_window=2,
        period=0.5,
    )
    asked = []
    for number in range(48):
        commands = arrive(books, "ab"[number % 2])
        asked.append(any(isinstance(c, MeasureVariances) for c in commands))
    assert asked == [False] * 47 + [True]
    realloc = books.feed(VariancesMeasured(variances))[0]
    assert isinstance(realloc, Reallocate)
    assert (realloc.cause, realloc.variances) == (ReallocCause.PERIOD, variances)
    return realloc


@pytest.mark.parametrize(
    ("rule", "variances", "targets", "buffers"),
    [
        # sigma: 3 and 1, so 48 is split 36 : 12
        ("sqrt-variance", {"a": 9.0, "b": 1.0}, {"a": 36, "b": 12}, {"a": 4, "b": 2}),
        # sigma^2 eta_s eta_c tau: 9 * 0.04 = 0.36 and 1 * 0.16; roots 0.6 : 0.4
        ("bound", {"a": 9.0, "b": 1.0}, {"a": 29, "b": 19}, {"a": 4, "b": 2}),
        # sigma^2 eta_s / (eta_c tau^2): 8 * 0.1 / 1.6 = 0.5 and 1 * 0.4 / 0.8 = 0.5
        ("authors-code", {"a": 8.0, "b": 1.0}, {"a": 24, "b": 24}, {"a": 3, "b": 3}),
        # 16 * 0.0625 = 1 and 1 * 0.5: 32 : 16
        ("authors-code", {"a": 16.0, "b": 1.0}, {"a": 32, "b": 16}, {"a": 4, "b": 2}),
        # one buffer's worth is 8: without it b would get 48 / 11 = 4
        ("sqrt-variance", {"a": 100.0, "b": 1.0}, {"a": 40, "b": 8}, {"a": 5, "b": 1}),
    ],
)
def test_realloc_by_hand(
    rule: str,
    variances: dict[str, float],
    targets: dict[str, int],
    buffers: dict[str, int],
) -> None:
    realloc = reallocated(rule, variances)
    assert realloc.targets == targets
    assert realloc.buffers == buffers


@pytest.mark.parametrize(
    ("requests", "ratio", "size"),
    [
        (96, 32.0, 3),
        (33, 32.0, 1),
        (37, 32.0, 1),  # 37 per place is the paper's limit, not above it
        (38, 32.0, 2),  # the nearest is 1, which would be 38 per place
        (47, 32.0, 2),
        (78, 32.0, 3),  # 39 with 2 places
        (50, 40.0, 1),  # the task started above the limit
        (5, 32.0, 1),
    ],
)
def test_buffer_sizes_by_hand(requests: int, ratio: float, size: int) -> None:
    assert buffer_size_for(requests, ratio) == size
    assert buffer_size_for(requests, ratio, minimum=3) == max(size, 3)


@given(requests=st.integers(1, 2000), start=st.integers(1, 400), places=st.integers(1, 20))
def test_the_ratio_stays_below_the_limit_if_it_started_there(
    requests: int, start: int, places: int
) -> None:
    ratio = start / places
    size = buffer_size_for(requests, ratio)
    if ratio <= RATIO_LIMIT:
        assert requests / size <= RATIO_LIMIT
    nearest = max(1, round(requests / ratio))
    assert size == nearest or (size == nearest + 1 and requests / nearest > RATIO_LIMIT)


def test_realloc_respects_a_tasks_minimum_buffer() -> None:
    """Task b would get R = 12 of 48, so a buffer of 2; a median of two is a mean."""
    specs = [
        TaskSpec("a", active_requests=24, buffer_size=3),
        TaskSpec("b", active_requests=24, buffer_size=3, min_buffer_size=3),
    ]
    _, books = start(*specs, dynamic=True, variance_window=2, period=0.5)
    for number in range(48):
        arrive(books, "ab"[number % 2])
    realloc = books.feed(VariancesMeasured({"a": 9.0, "b": 1.0}))[0]
    assert isinstance(realloc, Reallocate)
    assert (realloc.targets, realloc.buffers) == ({"a": 36, "b": 12}, {"a": 4, "b": 3})


def test_a_task_keeps_enough_requests_for_its_minimum_buffer() -> None:
    """R/b is 1 here, so Realloc could leave task b a single request."""
    specs = [
        TaskSpec("a", active_requests=4, buffer_size=4),
        TaskSpec("b", active_requests=4, buffer_size=4, min_buffer_size=3),
    ]
    _, books = start(*specs, dynamic=True, variance_window=1, period=0.125)
    arrive(books, "b")
    assert isinstance(arrive(books, "a")[-1], MeasureVariances)
    realloc = books.feed(VariancesMeasured({"a": 1e6, "b": 1.0}))[0]
    assert isinstance(realloc, Reallocate)
    assert realloc.targets == {"a": 5, "b": 3}
    (joined, *_) = books.feed(TaskAdded(TaskSpec("c", active_requests=3)))
    assert isinstance(joined, Reallocate)
    assert joined.targets["b"] == joined.buffers["b"] == 3


def test_realloc_comes_before_the_buffer_is_judged() -> None:
    """An arrival that triggers Realloc is handled with the new R and b."""
    _, books = start(
        TaskSpec("a", active_requests=8, buffer_size=4),
        TaskSpec("b", active_requests=8, buffer_size=4),
        dynamic=True,
        variance_window=1,
        period=0.0625,  # two updates
    )
    arrive(books, "b")
    assert isinstance(arrive(books, "a")[-1], MeasureVariances)
    commands = books.feed(VariancesMeasured({"a": 1.0, "b": 49.0}))
    assert commands[0].buffers == {"a": 1, "b": 7}  # type: ignore[union-attr]
    assert isinstance(commands[1], Aggregate), "a's one update fills the shrunk buffer"
    assert not any(isinstance(c, Dispatch) for c in commands), "K = 0: a has 7 of 2 in flight"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_variances_that_cannot_be_leave_the_allocation(value: float) -> None:
    _, books = start(
        TaskSpec("a", active_requests=2),
        TaskSpec("b", active_requests=2),
        dynamic=True,
        variance_window=1,
        period=0.25,
    )
    arrive(books, "a")
    assert isinstance(arrive(books, "b")[-1], MeasureVariances)
    commands = books.feed(VariancesMeasured({"a": value, "b": 1.0}))
    assert not any(isinstance(c, Reallocate) for c in commands)


def test_the_period_counts_open_tasks_and_updates_that_count() -> None:
    """Period 1 * 2 open tasks * 6 requests = 12 counted updates; stale ones do not count."""
    _, books = start(
        TaskSpec("a", active_requests=2),
        TaskSpec("b", active_requests=2),
        TaskSpec("c", active_requests=2, target=0.5),
        dynamic=True,
        variance_window=1,
        period=1.0,
        max_staleness=1,
    )
    books.feed(Evaluated("c", 0, 0.9, 0.1))
    slow = min(r for r, d in books.in_flight.items() if d.task == "a")

    def newest(task: str) -> bool:
        """Let the task's newest request arrive; whether that brings Realloc."""
        request = max(r for r, d in books.in_flight.items() if d.task == task and r != slow)
        commands = books.feed(UpdateArrived(request, 1.0))
        return any(isinstance(c, MeasureVariances) for c in commands)

    assert not any(newest("ab"[number % 2]) for number in range(10))
    assert any(isinstance(c, Drop) for c in books.feed(UpdateArrived(slow, 9.0)))
    assert [newest("a"), newest("b")] == [False, True]


def test_a_new_tasks_share_is_taken_in_proportion() -> None:
    _, books = start(TaskSpec("a", active_requests=12), TaskSpec("b", active_requests=4))
    (added, *_) = books.feed(TaskAdded(TaskSpec("c", active_requests=4)))
    assert isinstance(added, Reallocate)
    assert added.targets == {"a": 9, "b": 3, "c": 4}


def test_an_evaluation_that_ends_nothing_sends_nothing() -> None:
    pool = ScriptedPool(50)
    pool.empty = True
    _, books = start(TaskSpec("a", active_requests=2), pool=pool)
    pool.empty = False
    assert books.feed(Evaluated("a", 0, 0.1, 1.0)) == []


def test_no_task_gets_more_than_two_when_the_pool_changes() -> None:
    pool = ScriptedPool(50)
    pool.empty = True
    _, books = start(*(TaskSpec(name, active_requests=6) for name in "abc"), pool=pool)
    pool.empty = False
    commands = books.feed(PoolChanged())
    assert Counter(c.task for c in commands if isinstance(c, Dispatch)) == dict.fromkeys("abc", 2)


def test_no_realloc_before_every_task_has_a_full_window() -> None:
    _, books = start(
        TaskSpec("a", active_requests=2),
        TaskSpec("b", active_requests=2),
        dynamic=True,
        variance_window=2,
        period=0.25,
    )
    for _ in range(6):
        assert not any(isinstance(c, MeasureVariances) for c in arrive(books, "a"))
    arrive(books, "b")
    assert isinstance(arrive(books, "b")[-1], MeasureVariances)


def test_the_period_begins_anew_with_every_realloc() -> None:
    """0.5 * 2 open tasks * 8 requests: every eighth update."""
    _, books = start(
        TaskSpec("a", active_requests=4),
        TaskSpec("b", active_requests=4),
        dynamic=True,
        variance_window=1,
        period=0.5,
    )
    asked = []
    for number in range(24):
        commands = arrive(books, "ab"[number % 2])
        asked.append(isinstance(commands[-1], MeasureVariances))
        if asked[-1]:
            books.feed(VariancesMeasured({"a": 1.0, "b": 1.0}))
    assert asked == ([False] * 7 + [True]) * 3


def test_a_task_alone_is_never_reallocated() -> None:
    _, books = start(TaskSpec("a", active_requests=2), dynamic=True, variance_window=1, period=0.25)
    for _ in range(10):
        assert isinstance(arrive(books, "a")[0], Accept)
    assert not books.ever_reallocated


@pytest.mark.parametrize(
    ("buffered", "buffers"), [(True, {"a": 7, "b": 1}), (False, dict.fromkeys("ab", 1))]
)
def test_realloc_leaves_one_request_where_a_buffer_takes_one(
    buffered: bool, buffers: dict[str, int]
) -> None:
    """R = b, or no buffer at all: one buffer's worth is a single request."""
    _, books = start(
        TaskSpec("a", active_requests=4, buffer_size=4),
        TaskSpec("b", active_requests=4, buffer_size=4),
        dynamic=True,
        buffered=buffered,
        variance_window=1,
        period=0.125,  # two updates
    )
    arrive(books, "a")
    assert isinstance(arrive(books, "b")[-1], MeasureVariances)
    realloc = books.feed(VariancesMeasured({"a": 1.0, "b": 0.0}))[0]
    assert isinstance(realloc, Reallocate)
    assert realloc.targets == {"a": 7, "b": 1}
    assert realloc.buffers == buffers


def test_without_options_it_is_the_papers_dynamic_fedast() -> None:
    """A window of 8 updates, and Realloc every 0.75 * 2 tasks * 16 requests = 24 updates."""
    specs = [TaskSpec(name, active_requests=8, buffer_size=2) for name in "ab"]
    algorithm = Asynchronous(specs, ScriptedPool(50), Stream.of(1, "control"))
    assert algorithm.variance_window == 8
    assert Asynchronous(specs, ScriptedPool(50), Stream.of(1), dynamic=False).variance_window == 0
    books = CheckingDriver(algorithm)
    books.feed(Started())
    asked = [isinstance(arrive(books, "ab"[n % 2])[-1], MeasureVariances) for n in range(24)]
    assert asked == [False] * 23 + [True]
    assert books.rounds == {"a": 6, "b": 5}, "twelve updates each in buffers of two, b's last waits"


@pytest.mark.parametrize("requests", [0, 7])
def test_a_new_task_needs_requests_and_leaves_every_other_one(requests: int) -> None:
    _, books = start(TaskSpec("a", active_requests=4), TaskSpec("b", active_requests=4))
    with pytest.raises(IllegalEvent, match=f"asks for {requests} of 8 active"):
        books.feed(TaskAdded(TaskSpec("c", active_requests=requests)))
    (added, *_) = books.feed(TaskAdded(TaskSpec("c", active_requests=6)))
    assert isinstance(added, Reallocate)
    assert added.targets == {"a": 1, "b": 1, "c": 6}


def test_where_there_is_room_a_new_task_is_sent_at_once() -> None:
    pool = ScriptedPool(50)
    pool.empty = True
    _, books = start(TaskSpec("a", active_requests=4), pool=pool)
    pool.empty = False
    commands = books.feed(TaskAdded(TaskSpec("b", active_requests=2)))
    assert [c.task for c in commands if isinstance(c, Dispatch)] == ["a", "b"], "none starves"
