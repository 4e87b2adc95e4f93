"""Runs over a Ray cluster (``pip install 'fedast[cluster]'``).

Each run is a Ray task with the resources it asks for. Where the nodes see the folder that records
go to (a shared file system, or one machine), a run writes there itself. Elsewhere it writes to a
folder of its own, and its files travel: checkpoints as they are taken, everything when it ends.
Progress, requests to end, and files go through one small actor beside the driver.

A run whose node or worker dies is begun again from its newest checkpoint. Nothing is computed twice
into a result: a run is what its folder holds, and the folder has one writer at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from pydantic import Field

from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError
from fedast.records.run import RunResult
from fedast.run.batch import ClusterLost, Ended, Pulse, Work, WorkerLost, carry_out
from fedast.run.executors import Executor, ExecutorOptions
from fedast.run.ray_node import (
    LOOK,
    Post,
    grow_file,
    place_token,
    read_files,
    remote_run,
    write_files,
)
from fedast.training.nodes import my_facts
from fedast.training.ray_connection import check_nodes, connect, require_ray

if TYPE_CHECKING:
    from fedast.run.batch import BatchRun

_ENDING = 120.0
"""Seconds that runs which were asked to end have for it."""


class Ray(ExecutorOptions):
    """A Ray cluster, or a Ray on this machine if no address is given."""

    name: ClassVar[str] = "ray"
    cluster: str | None = None
    """HOST:PORT of the cluster, or ray://HOST:PORT from outside of it; default: RAY_ADDRESS, a Ray
    that runs on this machine, or one of its own."""
    cores: float = Field(1.0, gt=0, strict=False)
    """Of each run."""
    gpus: float = Field(0.0, ge=0, strict=False)
    """Of each run; 0.25 lets four share a GPU."""
    allow_mixed: bool = False
    """Use nodes with different processors or GPUs, although they round differently."""
    shared: bool | None = None
    """Whether all nodes see this machine's folders; default: found out."""

    def build(self) -> Executor:
        require_ray()

        def executor(runs: Any, **options: Any) -> list[RunResult]:
            return carry_out(RayWorkers(self), _forkless(runs), **options)

        return executor

    def jobs(self) -> int:
        connect(self.cluster)
        check_nodes(self.allow_mixed, gpus=self.gpus > 0)
        return places(self.cores, self.gpus)


def places(cores: float, gpus: float) -> int:
    """How many such runs fit into the cluster at once."""
    import ray

    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = has.get("CPU", 0) // cores
            count += int(min(fits, has.get("GPU", 0) // gpus) if gpus else fits)
    if count == 0:
        wants = f"{cores:g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        raise ConfigError("--cores", f"no node of the cluster has {wants} for a run")
    return count


def _forkless(runs: Any) -> Any:
    """Ray forbids forking in its workers, so a run has one worker of its own."""

    def prepared(run: BatchRun) -> BatchRun:
        from dataclasses import replace

        compute = run.config.compute
        for trainer in (compute.trainer, *compute.trainers.values()):
            if not isinstance(trainer, str) and trainer.forks:
                raise ConfigError(
                    "compute.trainer", f"{trainer.name} forks, which Ray forbids; use auto"
                )
            if not isinstance(trainer, str) and trainer.remote:
                raise ConfigError(
                    "compute.trainer",
                    f"{trainer.name} spreads one run over the cluster, --on ray many; use auto, or "
                    "--on local --jobs 1",
                )
        config = run.config.model_copy(
            update={"compute": compute.model_copy(update={"workers": 1})}
        )
        return replace(run, config=config)

    if isinstance(runs, list | tuple):
        return [prepared(run) for run in runs]
    return map(prepared, runs)


@final
class RayWorkers:
    def __init__(self, options: Ray) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        connect(options.cluster)
        check_nodes(options.allow_mixed, gpus=options.gpus > 0)
        places(options.cores, options.gpus)
        self._ray = ray
        self._options = options
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # It may be killed when memory runs out, and loses what it has: files come again at the end.
        post = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Post)
        self._post = post.options(scheduling_strategy=here).remote()
        self._run = ray.remote(
            num_cpus=options.cores, num_gpus=options.gpus, max_retries=0
        )(remote_run)  # fmt: skip
        self._facts = ray.put(my_facts())
        self._running: dict[Any, int] = {}
        self._out: dict[int, Path | None] = {}
        self._halted: set[int] = set()
        self._kept: list[Pulse] = []
        self._due = 0.0

    def begin(self, work: Work) -> None:
        self._out[work.number] = work.out
        self._halted.discard(work.number)
        self._ask(self._post.halt.remote(work.number, False))
        token, files = None, {}
        if work.out is not None:
            if self._options.shared is not False:
                token = place_token(work.out)
            if work.resume and not self._options.shared:
                files = read_files(work.out)
        given = self._ray.put(files)
        reference = self._run.remote(
            work, token, self._options.shared, [given], self._post, self._facts
        )
        self._running[reference] = work.number

    def halt(self, number: int) -> None:
        if number not in self._halted:
            self._halted.add(number)
            self._post.halt.remote(number, True)

    def pulses(self) -> Iterator[Pulse]:
        if time.monotonic() < self._due or not self._ray.is_initialized():
            return
        self._collect()
        kept, self._kept = self._kept, []
        yield from kept

    def _collect(self) -> None:
        self._due = time.monotonic() + LOOK
        pulses, deliveries, grown = self._ask(self._post.collect.remote())
        self._kept += pulses
        for number, files in deliveries:
            out = self._out[number]
            if out is not None and number in self._running.values():
                write_files(out, files)
        for number, name, offset, data in grown:
            out = self._out[number]
            if out is not None and number in self._running.values():
                grow_file(out, name, offset, data)

    def ended(self) -> Iterator[Ended]:
        if not self._running:
            return
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if ready:
            self._collect()  # what they sent before they ended, and not after their last files
        for reference in ready:
            number = self._running.pop(reference)
            yield number, self._outcome(number, reference)

    def _outcome(self, number: int, reference: Any) -> tuple[RunResult, Compute] | Exception:
        errors = self._ray.exceptions
        try:
            result, compute, files = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            return cause if isinstance(cause, Exception) else RuntimeError(str(cause))
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            return RuntimeError(
                f"Ray's object store is full ({type(error).__name__}); make room in memory or on "
                "the disk it spills to, and repeat the command"
            )
        except errors.OutOfMemoryError:
            return WorkerLost("Ray ended its worker, since its node ran out of memory")
        except errors.RayError as error:
            return WorkerLost(f"its worker is gone ({type(error).__name__})")
        out = self._out[number]
        if out is not None and files is not None:
            write_files(out, files)
        return result, compute

    def _ask(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterLost(
                f"Ray does not answer any more ({type(error).__name__}); finished runs are kept: "
                "start Ray again and repeat the command"
            ) from None

    def rest(self) -> None:
        pass

    def close(self) -> None:
        """The connection stays; a later batch uses it again."""
        if not self._ray.is_initialized():
            return
        limit = time.monotonic() + _ENDING
        while self._running and time.monotonic() < limit:
            for _ in self.ended():
                pass
            time.sleep(0.05)
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._due = 0.0
