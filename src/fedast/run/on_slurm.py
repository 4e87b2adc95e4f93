"""Runs as jobs of a Slurm cluster, through submitit (``pip install 'fedast[cluster]'``).

Each run is a job with the resources it asks for. Slurm's nodes share a file system, so runs write
their records where they belong; progress and requests to end are small files beside submitit's. A
job that ends without a result (its node died, it was preempted, its time was up) is begun again
from its run's newest checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, final

from pydantic import Field

from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError
from fedast.records.files import write_atomically
from fedast.records.run import RunResult
from fedast.run.batch import Ended, Pulse, Work, WorkerLost, carry_out
from fedast.run.executors import Executor, ExecutorOptions
from fedast.training.nodes import Facts, my_facts, problems

_ASK = 0.5
_ENDING = 120.0
"""Seconds that runs which were asked to end have for it."""


class Slurm(ExecutorOptions):
    """Jobs of a Slurm cluster."""

    name: ClassVar[str] = "slurm"
    partition: str | None = None
    cores: int = Field(1, ge=1)
    """Of each run."""
    gpus: int = Field(0, ge=0)
    """Of each run; Slurm gives whole ones."""
    memory: float | None = Field(None, gt=0, strict=False)
    """Of each run, in GB; default: Slurm's."""
    minutes: int = Field(24 * 60, ge=1)
    """The time limit of a job. With checkpoints a longer run goes on in another job."""
    most: int = Field(100, ge=1)
    """Jobs at a time, unless ``--jobs`` says otherwise."""
    allow_mixed: bool = False
    """Use nodes with different processors or GPUs, although they round differently."""
    logs: str = "fedast-slurm"
    """Folder for submitit's files; all nodes must see it."""
    through: Literal["slurm", "local"] = "slurm"
    """``local``: submitit's own processes on this machine, to try it out."""

    def build(self) -> Executor:
        try:
            import submitit  # noqa: F401
        except ModuleNotFoundError:
            problem = "submitit is not installed; pip install 'fedast[cluster]'"
            raise ConfigError("--on", problem) from None

        def executor(runs: Any, **options: Any) -> list[RunResult]:
            return carry_out(SlurmWorkers(self), runs, **options)

        return executor

    def jobs(self) -> int:
        return self.most if self.through == "slurm" else super().jobs()


@final
class SlurmWorkers:
    def __init__(self, options: Slurm) -> None:
        import submitit

        logs = Path(options.logs)
        try:
            logs.mkdir(parents=True, exist_ok=True)
            self._place = Path(tempfile.mkdtemp(prefix="batch-", dir=logs)).resolve()
            self._executor = submitit.AutoExecutor(folder=self._place, cluster=options.through)
        except (OSError, RuntimeError) as error:
            raise ConfigError("--on", f"jobs cannot be given to Slurm ({error})") from None
        given: dict[str, Any] = {
            "timeout_min": options.minutes,
            "cpus_per_task": options.cores,
            "gpus_per_node": options.gpus,
            "name": "fedast",
        }
        if options.memory is not None:
            given["mem_gb"] = options.memory
        if options.partition is not None:
            given["slurm_partition"] = options.partition
        self._executor.update_parameters(**given)
        self._mixed = options.allow_mixed
        self._errors = submitit.core.utils
        self._running: dict[int, Any] = {}
        self._seen: dict[int, int] = {}
        self._due = 0.0

    def begin(self, work: Work) -> None:
        self._file(work.number, "halt").unlink(missing_ok=True)
        if work.out is not None:
            work.out.mkdir(parents=True, exist_ok=True)
        self._running[work.number] = self._executor.submit(
            _job, work, self._place, my_facts(), self._mixed
        )

    def halt(self, number: int) -> None:
        self._file(number, "halt").touch()

    def pulses(self) -> Iterator[Pulse]:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _ASK
        for path in self._place.glob("*.pulse"):
            changed = path.stat().st_mtime_ns
            number = int(path.stem)
            if self._seen.get(number) != changed:
                self._seen[number] = changed
                yield pickle.loads(path.read_bytes())

    def ended(self) -> Iterator[Ended]:
        for number, job in list(self._running.items()):
            if job.done():
                del self._running[number]
                yield number, self._outcome(job)

    def _outcome(self, job: Any) -> tuple[RunResult, Compute] | Exception:
        try:
            outcome: tuple[RunResult, Compute] | Exception = job.result()
        except self._errors.UncompletedJobError:
            return WorkerLost(f"its job {job.job_id} ended without a result ({job.state})")
        except self._errors.FailedJobError as error:  # what could not even be read there
            return RuntimeError(str(error).strip().splitlines()[-1])
        return outcome

    def rest(self) -> None:
        pass

    def close(self) -> None:
        limit = time.monotonic() + _ENDING
        while self._running and time.monotonic() < limit:
            for _ in self.ended():
                pass
            time.sleep(0.05)
        for job in self._running.values():
            job.cancel()

    def _file(self, number: int, kind: str) -> Path:
        return self._place / f"{number}.{kind}"


def _of_the_first(place: Path, mine: Facts) -> Facts:
    """What the node has that was the first to begin a run of this batch."""
    first = place / "first-node"
    draft = place / f"{uuid.uuid4().hex}.node"
    draft.write_bytes(pickle.dumps(mine))
    with contextlib.suppress(FileExistsError):
        os.link(draft, first)
    draft.unlink()
    found: Facts = pickle.loads(first.read_bytes())
    return found


def _job(
    work: Work, place: Path, facts: Facts, allow_mixed: bool
) -> tuple[RunResult, Compute] | Exception:
    """On the node: one run; what it raises is returned, to be raised where it is understood."""
    from fedast.run.work import carried_out

    mine = my_facts()
    nodes = {"that was first": _of_the_first(place, mine), platform.node(): mine}
    uses_gpus = work.table["compute"]["device"] != "cpu"
    wrong = problems(facts, nodes, allow_mixed=allow_mixed, gpus=uses_gpus)
    if wrong:
        return RuntimeError(wrong[0])
    halted, over = threading.Event(), threading.Event()
    latest: list[Pulse] = []

    def watch() -> None:
        sent = 0
        while not over.wait(_ASK):
            if (place / f"{work.number}.halt").exists():
                halted.set()
            if len(latest) > sent:
                sent = len(latest)
                with contextlib.suppress(OSError):
                    write_atomically(place / f"{work.number}.pulse", pickle.dumps(latest[-1]))

    threading.Thread(target=watch, daemon=True).start()
    try:
        return carried_out(work, latest.append, halted.is_set)
    except Exception as error:
        return error
    finally:
        over.set()
        if latest:
            write_atomically(place / f"{work.number}.pulse", pickle.dumps(latest[-1]))
