from __future__ import annotations

from fedast.core.protocol import Evaluated, Observers, TaskSpec


def test_a_task_with_nothing_but_a_name_is_the_smallest_there_is() -> None:
    """One request, averaged alone, evaluated every round, without an end of its own."""
    assert TaskSpec("a") == TaskSpec(
        name="a",
        active_requests=1,
        buffer_size=1,
        share=1.0,
        target=None,
        higher_is_better=True,
        max_rounds=None,
        evaluate_every=1,
        server_lr=1.0,
        client_lr=0.1,
        local_steps=1,
        batch_size=1,
    )


class Noted:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def commanded(self, *what: object) -> None:
        self.seen.append(what)

    started = evaluated = commanded


def test_several_observers_see_the_same() -> None:
    first, second = Noted(), Noted()
    both = Observers((first, second))
    found = Evaluated("a", 0, 0.5, 1.0)
    both.started(1.0, 4, 7)
    both.evaluated(2.0, found)
    assert first.seen == second.seen == [(1.0, 4, 7), (2.0, found)]
