"""When checkpoints of a run are taken, and how a run is resumed from one."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from fedast.learner.checkpoints import Checkpoint, save
from fedast.learner.replay import RecordingLearner, ReplayFailed, ResumableLearner
from fedast.parts.errors import ConfigError
from fedast.records.schedule import Schedule
from fedast.version import __version__

FOLDER, EVERY = "checkpoints", "every"
_WALL = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Every:
    """``50`` is simulated time; ``30s``, ``5m`` and ``1h`` are real time."""

    text: str
    amount: float
    real: bool

    @classmethod
    def parse(cls, text: str) -> Every:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
        if found is None or float(found[1]) <= 0:
            raise ConfigError(
                "--checkpoint-every",
                f"give simulated time, such as 50, or real time, such as 30s, 5m, 1h; got {text!r}",
            )
        return cls(text, float(found[1]) * _WALL.get(found[2], 1.0), bool(found[2]))


@dataclass(frozen=True)
class Checkpointing:
    """Where checkpoints go, how often they are taken, and the one to resume from."""

    folder: Path
    every: Every
    config: Mapping[str, Any] | None = None
    """Everything that determines the run, to be written into them."""
    resume: Checkpoint | None = None


@final
class Checkpointer:
    """Takes checkpoints between the simulator's steps, and ends a replay at its step."""

    def __init__(
        self,
        checkpointing: Checkpointing,
        learner: ResumableLearner,
        recording: RecordingLearner,
        schedule: Schedule,
        *,
        careful: bool,
        live: Callable[[], None] = lambda: None,
    ) -> None:
        """``careful``: training may fail at any moment, so keep the state before each step.
        ``live`` is called when a replay has ended and matched what was recorded."""
        self._careful = careful
        self._good: tuple[int, float, dict[str, torch.Tensor], int, str] | None = None
        """The latest state between two steps: steps, time, tensors, answers, schedule."""
        self._schedule = schedule
        self._live = live
        self._checkpointing = checkpointing
        self._learner = learner
        self._recording = recording
        self._steps = 0
        self._began = time.monotonic()
        self._waiting = checkpointing.resume
        """The checkpoint to resume from, until the replay has reached its step."""
        self._last = 0.0
        if self._waiting is not None:
            self._began -= self._waiting.wall_seconds

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def replaying(self) -> bool:
        """Whether the replay is still on its way to its checkpoint."""
        return self._waiting is not None

    def before_step(self, now: float, *, stopping: bool) -> None:
        if self._waiting is not None and self._steps == self._waiting.steps:
            self._check(self._waiting, now)
            self._recording.go_live(self._waiting.tensors)
            self._waiting = None
            self._live()
            self._last = self._clock(now)
        elif self._waiting is None:
            due = self._clock(now) - self._last >= self._checkpointing.every.amount
            if self._steps > 0 and (due or stopping):
                self._take(now)
            if self._careful:  # cheap: tensors are replaced, never changed, so nothing is copied
                self._good = self._state(now)
        self._steps += 1

    def ended(self) -> None:
        """The run is over, which must not happen before the checkpoint's step."""
        if self._waiting is not None:
            raise ReplayFailed("it ended before the checkpoint's step")

    def rescue(self) -> None:
        """Training failed within a step: save the state before that step."""
        if self._good is not None:
            self._save(*self._good)

    def _check(self, kept: Checkpoint, now: float) -> None:
        # Version 0.1.0 stored the time but no hash. (Machines may round a logarithm differently.)
        same = math.isclose(now, kept.time, rel_tol=1e-9)
        if not same or kept.schedule not in (None, self._schedule.digest()):
            raise ReplayFailed("its schedule differs")

    def _clock(self, now: float) -> float:
        return self.wall_seconds if self._checkpointing.every.real else now

    def _take(self, now: float) -> None:
        self._last = self._clock(now)
        self._save(*self._state(now))

    def _state(self, now: float) -> tuple[int, float, dict[str, torch.Tensor], int, str]:
        answered = len(self._recording.answers)
        return self._steps, now, self._learner.state(), answered, self._schedule.digest()

    def _save(
        self,
        steps: int,
        now: float,
        tensors: dict[str, torch.Tensor],
        answered: int,
        schedule: str,
    ) -> None:
        save(
            self._checkpointing.folder,
            Checkpoint(
                steps=steps,
                time=now,
                wall_seconds=self.wall_seconds,
                tensors=tensors,
                answers=tuple(self._recording.answers[:answered]),
                schedule=schedule,
                config=self._checkpointing.config,
                fedast=__version__,
            ),
        )
