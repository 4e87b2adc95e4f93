"""The order in which an algorithm gets its answers, whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedast.core.delivery import deliver
from fedast.core.protocol import (
    ClientId,
    Command,
    Evaluate,
    Evaluated,
    Event,
    MeasureVariances,
    PoolChanged,
    RequestId,
    Started,
    TaskName,
    TaskStatus,
    VariancesMeasured,
)


class Asking:
    """An algorithm that answers each event by the commands it was given for it."""

    variance_window = 2
    wants_loss = False
    unfinished: tuple[TaskName, ...] = ("a",)

    def __init__(self, commands: Mapping[type[Event], list[Command]]) -> None:
        self._commands = commands
        self.heard: list[Event] = []

    def handle(self, event: Event) -> list[Command]:
        self.heard.append(event)
        return self._commands.get(type(event), [])

    def status(self) -> list[TaskStatus]:
        return []


class Watching:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def commanded(self, now: float, command: Command) -> None:
        self.seen.append((now, command))

    def started(self, now: float, request: RequestId, client: ClientId) -> None: ...

    def evaluated(self, now: float, event: Evaluated) -> None:
        self.seen.append((now, event))


EVALUATED, MEASURED = Evaluated("a", 1, 0.5, 1.0), VariancesMeasured({"a": 2.0})


def answer(command: Command) -> Event | None:
    match command:
        case Evaluate():
            return EVALUATED
        case MeasureVariances():
            return MEASURED
        case _:
            return None


def test_variances_come_before_an_evaluation_that_was_asked_for_first() -> None:
    asking = Asking({Started: [Evaluate("a", 1), MeasureVariances(("a",))]})
    deliver(Started(), 3.0, asking, answer, Watching())
    assert asking.heard == [Started(), MEASURED, EVALUATED]


def test_what_follows_from_an_answer_is_dealt_with_too() -> None:
    asking = Asking(
        {
            PoolChanged: [MeasureVariances(("a",)), Evaluate("a", 1)],
            VariancesMeasured: [Evaluate("a", 1)],
        }
    )
    deliver(PoolChanged(), 0.0, asking, answer, Watching())
    assert asking.heard == [PoolChanged(), MEASURED, EVALUATED, EVALUATED]


def test_observers_see_commands_before_their_answers() -> None:
    watching = Watching()
    deliver(Started(), 3.0, Asking({Started: [Evaluate("a", 1)]}), answer, watching)
    assert watching.seen == [(3.0, Evaluate("a", 1)), (3.0, EVALUATED)]


def test_only_observers_see_the_newest_model_beside_the_average_that_decides() -> None:
    both = replace(EVALUATED, raw=(0.4, 1.2))
    asking, watching = Asking({Started: [Evaluate("a", 1)]}), Watching()
    deliver(Started(), 3.0, asking, lambda command: both, watching)
    assert asking.heard == [Started(), EVALUATED]
    assert watching.seen[-1] == (3.0, both)
