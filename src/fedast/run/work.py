"""One run of many, in the process that carries it out, wherever that is."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import final

from fedast.config.load import parse
from fedast.config.schema import Compute
from fedast.core.protocol import Algorithm, ClientId, Command, Evaluated, Finish, RequestId
from fedast.records.metrics import RunMetrics
from fedast.records.run import RunResult
from fedast.run.batch import Pulse, Work
from fedast.tasks.task import OutOfMemory


def carried_out(
    work: Work, send: Callable[[Pulse], None], halted: Callable[[], bool]
) -> tuple[RunResult, Compute]:
    """Do a run here; ``send`` is given its progress, ``halted`` says whether it is to end."""
    import torch

    from fedast.run.checkpointing import Every
    from fedast.run.execute import execute, resume

    def watch(algorithm: Algorithm, run_metrics: RunMetrics) -> Pulser:
        return Pulser(work.number, run_metrics, send)

    try:
        every = None if work.every is None else Every.parse(work.every)
        if work.resume and work.out is not None:
            outcome = resume(work.out, every=every, watch=(watch,), stop=halted)
        else:
            outcome = execute(
                parse(work.table), work.out, events=work.events, overwrite=work.overwrite,
                watch=(watch,), stop=halted, every=every,
            )  # fmt: skip
        return outcome.result, outcome.compute
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"out of memory ({error})") from None
    finally:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # Other runs on this device may need the memory.
            gc.collect()
            torch.cuda.empty_cache()


@final
class Pulser:
    """An observer that reports the progress of a run a few times a second."""

    def __init__(self, number: int, run_metrics: RunMetrics, send: Callable[[Pulse], None]) -> None:
        self._number = number
        self._run_metrics = run_metrics
        self._send = send
        self._due = 0.0

    def commanded(self, now: float, command: Command) -> None:
        if isinstance(command, Finish) or time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.2
            self._send(self.pulse(now))

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass

    def pulse(self, now: float) -> Pulse:
        tasks = self._run_metrics.tasks
        return Pulse(
            run=self._number,
            time=now,
            updates=self._run_metrics.updates,
            done=sum(task.finish_reason is not None for task in tasks.values()),
            tasks=tuple(
                (name, task.curve[-1].value if task.curve else None) for name, task in tasks.items()
            ),
            reached=tuple(task.time_to_target for task in tasks.values()),
        )
