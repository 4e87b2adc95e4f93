"""Client selection and allocation as options: cases worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from fedast.algorithms.allocation import Shares, Uniform
from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.selection import LossSelection, Selection, SpeedSelection, draw
from fedast.algorithms.sync_st import RandomPartition
from fedast.core.protocol import Dispatch, Started, TaskSpec, UpdateArrived
from fedast.core.streams import Stream
from fedast.testing.driver import ScriptedPool

TASK = TaskSpec("t", active_requests=4, buffer_size=2)


def trace(selection: Selection | None, clients: int = 30, updates: int = 200) -> list[int]:
    """The clients that a static FedAST asks; client i works i + 1 long and has loss i."""
    algorithm = Asynchronous(
        [TASK], ScriptedPool(clients), Stream.of(5, "control"), dynamic=False, selection=selection
    )
    queue = [c for c in algorithm.handle(Started()) if isinstance(c, Dispatch)]
    asked = [c.client for c in queue]
    for _ in range(updates):
        sent = queue.pop(0)
        found = algorithm.handle(
            UpdateArrived(sent.request, work_time=sent.client + 1.0, loss=float(sent.client))
        )
        new = [c for c in found if isinstance(c, Dispatch)]
        queue.extend(new)
        asked.extend(c.client for c in new)
    return asked


@pytest.mark.parametrize("rule", [SpeedSelection, LossSelection])
def test_with_one_candidate_every_rule_is_uniform(rule: type[SpeedSelection]) -> None:
    assert trace(rule(1)) == trace(None)


def test_speed_prefers_the_fast_and_loss_the_badly_served() -> None:
    plain = trace(None, updates=2000)
    fast = trace(SpeedSelection(3), updates=2000)
    lossy = trace(LossSelection(3), updates=2000)
    mean = {name: sum(t) / len(t) for name, t in (("any", plain), ("fast", fast), ("loss", lossy))}
    assert mean["fast"] < mean["any"] - 4 < mean["loss"] - 8
    assert len(Counter(fast)) == len(Counter(lossy)) == 30, "nobody is shut out"


def test_best_by_hand() -> None:
    speed = SpeedSelection()
    speed.learn(1, "t", 2.0, None)  # the first is usual by definition
    speed.learn(2, "t", 6.0, None)  # usual is 4 now: 1.5
    assert speed.best("t", [2, 1]) == 1
    assert speed.best("t", [2, 9]) == 9, "unseen counts as average"
    speed.learn(3, "u", 100.0, None)
    assert speed.best("t", [2, 3]) == 3, "slow work of a slow task is not a slow client"
    speed.learn(4, "t", 3.8, None)  # usual is (2 + 6 + 3.8) / 3 = 3.93
    assert speed.best("t", [9, 4]) == 4, "a little faster than average"
    loss = LossSelection()
    loss.learn(1, "t", 1.0, 0.5)
    loss.learn(2, "t", 1.0, 0.7)
    assert loss.best("t", [1, 2]) == 2
    assert loss.best("t", [2, 3]) == 3, "unseen first"
    assert loss.best("u", [2, 3]) == 2, "per task: both unseen, the first"
    loss.learn(2, "t", 1.0, float("nan"))
    assert loss.best("t", [1, 2]) == 2, "no number, no news"


def test_slowness_is_smoothed() -> None:
    speed = SpeedSelection()
    speed.learn(1, "t", 2.0, None)
    speed.learn(1, "t", 6.0, None)  # 1.5 of what is usual now, 4
    assert speed._slowness[1] == pytest.approx(0.75 * 1.0 + 0.25 * 1.5)


def test_work_that_took_no_time_says_nothing() -> None:
    speed = SpeedSelection()
    speed.learn(1, "t", 0.0, None)
    assert speed.best("t", [2, 1]) == 2, "both count as average: the first"


def test_two_candidates_unless_told_otherwise() -> None:
    assert SpeedSelection().candidates == LossSelection().candidates == 2


def test_an_empty_pool_gives_nobody() -> None:
    pool = ScriptedPool(5)
    pool.empty = True
    assert draw(SpeedSelection(), "t", pool, Stream.of(1), ()) is None


def test_a_round_takes_as_many_clients_and_the_best_of_them() -> None:
    selection = LossSelection(candidates=2)
    for client in range(40):
        selection.learn(client, "a", 1.0, float(client))
        selection.learn(client, "b", 1.0, float(-client))
    pool = ScriptedPool(40, cap=20)
    tasks = [TaskSpec("a"), TaskSpec("b")]
    high, low = RandomPartition(selection).assign(tasks, pool, Stream.of(3))
    assert len(high) == len(low) == 10
    assert len({*high, *low}) == 20
    assert sum(high) / 10 > 23
    assert sum(low) / 10 < 16


def test_a_round_without_choice_takes_everyone() -> None:
    groups = RandomPartition(SpeedSelection(3)).assign([TASK], ScriptedPool(7), Stream.of(3))
    assert sorted(groups[0]) == list(range(7))


class First:
    """Takes the first candidate, and notes whom it could choose from."""

    wants_loss = False

    def __init__(self, candidates: int) -> None:
        self.candidates = candidates
        self.choices: list[Sequence[int]] = []

    def best(self, task: str, candidates: Sequence[int]) -> int:
        self.choices.append(candidates)
        return candidates[0]

    def learn(self, client: int, task: str, work_time: float, loss: float | None) -> None:
        pass


def test_every_place_of_a_round_has_as_many_candidates_of_its_own() -> None:
    selection, tasks = First(3), [TaskSpec("a"), TaskSpec("b")]
    RandomPartition(selection).assign(tasks, ScriptedPool(100, cap=10), Stream.of(3))
    assert [len(choice) for choice in selection.choices] == [3] * 10
    assert len({client for choice in selection.choices for client in choice}) == 30


def test_a_round_with_one_candidate_each_is_the_random_round() -> None:
    pool, tasks = ScriptedPool(40, cap=9), [TaskSpec("a"), TaskSpec("b")]
    plain, chosen = RandomPartition(), RandomPartition(SpeedSelection(1))
    one, other = Stream.of(3), Stream.of(3)
    for _ in range(5):
        assert plain.assign(tasks, pool, one) == chosen.assign(tasks, pool, other)


def test_allocations_without_variance() -> None:
    uniform, shares = Uniform().build(), Shares().build()
    assert uniform(9.0, TASK) == uniform(1.0, TASK)
    assert shares(9.0, TaskSpec("t", share=3.0)) == 3 * shares(1.0, TaskSpec("u", share=1.0))
