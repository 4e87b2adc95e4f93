"""Executors: where the runs of a comparison or a study are carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol

from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    from fedast.config.schema import Compute
    from fedast.records.run import RunResult
    from fedast.run.batch import BatchRun, Pulse


class Executor(Protocol):
    """Carries out many runs, ``jobs`` at a time, and returns their results in order.

    A run's result does not depend on where it is carried out, only on its configuration. What
    it leaves is in its folder (``BatchRun.out``) when ``done`` is called with its number, result
    and compute. ``runs`` are taken from their iterator one by one, when there is room for the next:
    a sweep decides late what that is. ``progress`` is told how far runs are, ``say`` what a user
    should know. With ``failed``, a run that fails does not end the others and has no place among
    the results. ``prune`` is asked again and again about each run under way; one for which it is
    true is told to end, and is done with what it has (its tasks are interrupted). ``Interrupted``
    is raised if ``stop`` says so, after the runs under way have written their records.
    """

    def __call__(
        self,
        runs: Iterable[BatchRun],
        *,
        jobs: int,
        events: bool = False,
        overwrite: bool = False,
        progress: Callable[[Pulse], None] = ...,
        done: Callable[[int, RunResult, Compute], None] = ...,
        failed: Callable[[int, Exception], None] | None = None,
        say: Callable[[str], None] = ...,
        stop: Callable[[], bool] = ...,
        prune: Callable[[int], bool] = ...,
    ) -> list[RunResult]: ...


class ExecutorOptions(Options, ABC):
    """Options of an executor."""

    @abstractmethod
    def build(self) -> Executor: ...

    def jobs(self) -> int:
        """How many runs at a time, where the user does not say."""
        from fedast.run.batch import default_jobs

        return default_jobs()


class Local(ExecutorOptions):
    """Processes on this machine, each with one run at a time."""

    name: ClassVar[str] = "local"

    def build(self) -> Executor:
        from fedast.run.batch import run_batch

        return run_batch


EXECUTORS: Registry[ExecutorOptions] = Registry(
    "executors",
    ExecutorOptions,  # type: ignore[type-abstract]
    [__name__, "fedast.run.on_ray", "fedast.run.on_slurm"],
)
