"""Observers: who else sees a run go by, such as a tracker of experiments.

A configuration names them under ``[[observers]]``. They see every command as it is carried out, and
every evaluation. When a run is resumed, they see what happened before the checkpoint again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from fedast.core.protocol import (
    Algorithm,
    ClientId,
    Command,
    Evaluated,
    Finish,
    Observer,
    RequestId,
    TaskName,
)
from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.records.metrics import RunMetrics


@dataclass(frozen=True)
class Watched:
    """The run that an observer is to see."""

    algorithm: Algorithm
    run_metrics: RunMetrics
    metrics: Mapping[TaskName, str]
    """What each task's evaluations measure."""
    folder: Path | None
    """Where the run's records go, if they are written."""
    cleanup: ExitStack
    """What an observer opens is closed when the run ends: ``cleanup.enter_context(...)``."""
    name: str = "run"
    """What a tracker may call it."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The configuration, one value for each dotted key."""
    live: Callable[[], bool] = lambda: True
    """Whether what happens is new: not while a run that is taken up again replays its past."""


class ObserverOptions(Options, ABC):
    """Options of an observer."""

    sees_past: ClassVar[bool] = True
    """Whether it must see again what happened before a federation's server was restarted. Then the
    whole log is replayed, which takes longer than to start from the last snapshot."""

    @abstractmethod
    def build(self, run: Watched) -> Observer: ...

    def check(self) -> None:
        """Raise ``ConfigError`` if it cannot be used here; called before a run begins."""


class Log(ObserverOptions):
    """Evaluations and finished tasks through Python's logging, as the logger ``fedast.run``."""

    name: ClassVar[str] = "log"
    sees_past: ClassVar[bool] = False

    def build(self, run: Watched) -> Observer:
        return _Log(run.metrics)


@final
class _Log:
    def __init__(self, metrics: Mapping[TaskName, str]) -> None:
        self._metrics = metrics
        self._logger = logging.getLogger("fedast.run")

    def commanded(self, now: float, command: Command) -> None:
        if isinstance(command, Finish):
            self._logger.info("%.1f %s: finished (%s)", now, command.task, command.reason)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        self._logger.info(
            "%.1f %s: round %d, %s %.4f, loss %.4f",
            now, event.task, event.round, self._metrics[event.task], event.metric, event.loss,
        )  # fmt: skip


OBSERVERS: Registry[ObserverOptions] = Registry(
    "observers",
    ObserverOptions,  # type: ignore[type-abstract]
    [__name__, "fedast.trackers"],
)
