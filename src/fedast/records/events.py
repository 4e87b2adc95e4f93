"""``events.jsonl``: one JSON object per line, in time order, the same for the same run.

Schema 1 wrote a task's metric as ``accuracy``, whatever it was; ``from_schema_1`` translates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, assert_never, final

from fedast.core.protocol import (
    Accept,
    Aggregate,
    ClientId,
    Command,
    Dispatch,
    Drop,
    Evaluate,
    Evaluated,
    Finish,
    Ignore,
    MeasureVariances,
    Reallocate,
    RequestId,
    TaskName,
    Version,
)
from fedast.records.metrics import Model


class Writable(Protocol):
    def write(self, text: str, /) -> int: ...


@final
class EventLog:
    """An observer that writes every event as it happens."""

    def __init__(
        self,
        file: Writable,
        metrics: Mapping[TaskName, str],
        averaged: Collection[TaskName] = (),
    ) -> None:
        """``metrics`` names the metric of each task; ``averaged`` are tasks of which an average
        of the models is evaluated."""
        self._averaged = frozenset(averaged)
        self._file = file
        self._metrics = metrics

    def commanded(self, now: float, command: Command) -> None:
        match command:
            case Dispatch():
                self._write(
                    now,
                    "dispatch",
                    task=command.task,
                    request=command.request,
                    client=command.client,
                    version=command.version,
                )
            case Accept():
                self._write(
                    now,
                    "arrive",
                    task=command.task,
                    request=command.request,
                    client=command.client,
                    version=command.version,
                    staleness=command.staleness,
                )
            case Aggregate():
                self._write(
                    now,
                    "aggregate",
                    task=command.task,
                    round=command.round,
                    requests=list(command.requests),
                )
            case Drop():
                self._write(
                    now,
                    "drop",
                    task=command.task,
                    request=command.request,
                    reason=command.reason.value,
                )
            case Ignore():
                self._write(now, "ignored", request=command.request, reason=command.reason.value)
            case Reallocate():
                variances = command.variances
                self._write(
                    now,
                    "realloc",
                    cause=command.cause.value,
                    targets=dict(command.targets),
                    buffers=dict(command.buffers),
                    variances=None if variances is None else finite_values(variances),
                )
            case Finish():
                self._write(now, "finish", task=command.task, reason=command.reason.value)
            case Evaluate() | MeasureVariances():
                pass  # the log has the answers
            case _:
                assert_never(command)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        self._write(now, "start", request=request, client=client)

    def evaluated(self, now: float, event: Evaluated) -> None:
        decides: Model = "average" if event.task in self._averaged else "raw"
        found: list[tuple[Model, float, float]] = [(decides, event.metric, event.loss)]
        if event.raw is not None:
            found.append(("raw", *event.raw))
        for model, value, loss in found:
            self._write(
                now,
                "evaluate",
                task=event.task,
                round=event.round,
                model=model,
                metric=self._metrics[event.task],
                value=finite(value),
                loss=finite(loss),
            )

    def rolled_back(
        self,
        now: float,
        task: TaskName,
        *,
        version: Version,
        back_to: Version,
        why: str,
        suspects: Sequence[tuple[RequestId, ClientId]],
    ) -> None:
        """A federation's model went bad and back; the updates since then, and their clients."""
        self._write(
            now,
            "rollback",
            task=task,
            version=version,
            back_to=back_to,
            why=why,
            suspects=[list(suspect) for suspect in suspects],
        )

    def _write(self, now: float, event: str, **fields: Any) -> None:
        record = {"t": now, "event": event, **fields}
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")


def from_schema_1(event: Mapping[str, Any], metrics: Mapping[TaskName, str]) -> dict[str, Any]:
    """An event of schema 1 as schema 2 writes it; only ``evaluate`` differs.

    ``accuracy`` becomes ``value``, preceded by ``model`` ("raw": there was no other) and
    ``metric``, the name of the task's metric.
    """
    if event["event"] != "evaluate":
        return dict(event)
    new: dict[str, Any] = {}
    for key, value in event.items():
        if key == "accuracy":
            new |= {"model": "raw", "metric": metrics[event["task"]], "value": value}
        else:
            new[key] = value
    return new


def finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def finite_values(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in values.items()}
