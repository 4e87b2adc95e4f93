"""A driver that checks every command it is given, a pool that a test controls, and snapshots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, final

from fedast.core.protocol import (
    Accept,
    Aggregate,
    Algorithm,
    ClientId,
    Command,
    Dispatch,
    Drop,
    Evaluate,
    Event,
    Finish,
    Ignore,
    MeasureVariances,
    Reallocate,
    RequestId,
    TaskName,
)
from fedast.core.streams import Stream


def snapshot(value: Any) -> Any:
    """Everything an object holds, as plain comparable values."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, dict):
        return [(snapshot(k), snapshot(v)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return [snapshot(entry) for entry in value]
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(value, "__dict__", {}))
    if callable(value) and not names:
        return repr(value)
    return {name: snapshot(getattr(value, name)) for name in sorted(names)}


@final
class ScriptedPool:
    """A pool that is empty when the test says so."""

    def __init__(self, clients: int, cap: int | None = None) -> None:
        self.clients = clients
        self.cap = cap
        self.empty = False

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        client = stream.below(self.clients)
        if self.empty:
            return None
        if self.cap is not None and len(holders) >= self.cap and client not in holders:
            return None
        return client

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        count = min(self.clients, (self.cap or self.clients) + extra)
        return [] if self.empty else stream.sample(self.clients, count)

    def everyone(self) -> Sequence[ClientId]:
        return [] if self.empty else range(self.clients)


@final
class CheckingDriver:
    """What a driver knows from commands alone; it asserts that each of them is legal."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.in_flight: dict[RequestId, Dispatch] = {}
        self.accepted: dict[RequestId, TaskName] = {}
        self.gone: dict[RequestId, str] = {}
        """Every request that has ended: how."""
        self.rounds: dict[TaskName, int] = {}
        self.to_evaluate: list[Evaluate] = []
        self.finished: dict[TaskName, str] = {}
        self.ever_reallocated = False

    def feed(self, event: Event) -> list[Command]:
        commands = self.algorithm.handle(event)
        for command in commands:
            self._note(command)
        return commands

    def _note(self, command: Command) -> None:
        match command:
            case Dispatch():
                assert command.task not in self.finished, "a finished task gets no requests"
                assert command.version == self.rounds.get(command.task, 0), "newest model only"
                assert command.request not in self.in_flight
                assert command.request not in self.gone
                self.in_flight[command.request] = command
            case Accept():
                sent = self.in_flight.pop(command.request)
                assert (sent.task, sent.client, sent.version) == (
                    command.task,
                    command.client,
                    command.version,
                )
                assert command.staleness == self.rounds.get(command.task, 0) - command.version
                assert command.staleness >= 0
                self.accepted[command.request] = command.task
            case Aggregate():
                assert command.task not in self.finished
                assert command.requests, "a round takes at least one update"
                assert command.round == self.rounds.get(command.task, 0) + 1
                self.rounds[command.task] = command.round
                for request in command.requests:
                    assert self.accepted.pop(request) == command.task
                    self.gone[request] = "aggregated"
            case Drop():
                held = self.in_flight.pop(command.request, None) is not None
                held = self.accepted.pop(command.request, None) is not None or held
                assert held, "only what is held can be dropped"
                self.gone[command.request] = command.reason
            case Evaluate():
                assert command.round == self.rounds.get(command.task, 0)
                self.to_evaluate.append(command)
            case Finish():
                assert command.task not in self.finished, "a task finishes once"
                self.finished[command.task] = command.reason
            case Ignore():
                assert command.request in self.gone
            case Reallocate():
                self.ever_reallocated = True
            case MeasureVariances():
                pass

    def arrive_order(self) -> list[RequestId]:
        return sorted(self.in_flight)
