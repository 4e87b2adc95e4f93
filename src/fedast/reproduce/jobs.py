"""Run studies, job by job, and store each result as soon as it is there."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedast.algorithms.options import AsyncOptions
from fedast.config.identity import identity
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import Compute, RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.records import toml
from fedast.records.compact import CompactRun, write
from fedast.records.files import write_atomically
from fedast.records.run import RunResult
from fedast.reproduce.store import with_precision
from fedast.reproduce.study import Scale, Study, Variant, slug
from fedast.run.batch import BatchRun, Pulse, run_batch
from fedast.run.executors import Executor
from fedast.version import __version__


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    variant: Variant
    seed: int
    config: RunConfig
    identity: str

    @property
    def label(self) -> str:
        return f"{self.variant.study.name}: {', '.join(self.variant.key)}, seed {self.seed}"

    @property
    def path(self) -> str:
        """Relative to the results folder, without suffix."""
        return f"{self.variant.study.name}/{self.variant.slug}/seed-{self.seed}"


def jobs_of(
    studies: Sequence[Study],
    scale: Scale,
    seeds: int | None = None,
    *,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[Job]:
    """All runs of the studies, each once; with ``only``, of variants with all these labels."""
    found: dict[str, Job] = {}
    for study in studies:
        first = study.config.first_seed
        for seed in range(first, first + (seeds or study.config.seeds)):
            for variant in study.variants():
                if not _has_labels(variant, only):
                    continue
                config = variant.config(seed, scale, settings)
                key = identity(config)
                found.setdefault(key, Job(variant, seed, config, key))
    return list(found.values())


def check_only(studies: Sequence[Study], only: Sequence[str]) -> None:
    """Raise ``ConfigError`` if a label does not exist, or if no variant has all of them."""
    labels = {value.label for study in studies for axis in study.axes for value in axis.values}
    known = {slug(label): label for label in labels}
    for label in only:
        if slug(label) not in known:
            raise ConfigError("--only", f"no run has the label {label!r}{nearest(label, labels)}")
    if not any(_has_labels(variant, only) for study in studies for variant in study.variants()):
        raise ConfigError("--only", f"no run has all of these labels: {', '.join(only)}")


def _has_labels(variant: Variant, labels: Sequence[str]) -> bool:
    return set(map(slug, labels)) <= set(map(slug, variant.key))


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    scale: Scale,
    *,
    at_a_time: int,
    executor: Executor = run_batch,
    progress: Callable[[Pulse], None] = lambda pulse: None,
    done: Callable[[Job, RunResult], None] = lambda job, result: None,
    failed: Callable[[Job, Exception], None],
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run all of them, ``at_a_time`` in parallel; a failed one does not end the others."""

    def store(number: int, result: RunResult, compute: Compute) -> None:
        job = jobs[number]
        if result.interrupted:
            if not stop():  # nobody asked it to: no client would ever be available again, say
                failed(job, RuntimeError("it ended before its tasks did"))
            return
        path = folder / f"{_free_path(folder, job)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        config = job.config.model_copy(update={"compute": compute})
        table = config.model_dump(mode="json", exclude={"algorithms"})
        write_atomically(path.with_suffix(".toml"), toml.dumps(table))
        machine = describe_machine(compute, min(at_a_time, len(jobs)))
        write(path, _compact(job, result, scale, machine))
        done(job, result)

    executor(
        [BatchRun(job.label, job.config, None) for job in jobs],
        jobs=at_a_time,
        progress=progress,
        done=store,
        failed=lambda number, error: failed(jobs[number], error),
        say=say,
        stop=stop,
    )


def describe_machine(compute: Compute, at_a_time: int) -> dict[str, str]:
    """What a run was made on, and how many runs shared it."""
    import torch

    if compute.device == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = f"CPU, {os.cpu_count()} cores"
    return {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "precision": compute.precision,
        "fedast": __version__,
        "at_a_time": str(at_a_time),
    }


def _free_path(folder: Path, job: Job) -> str:
    """The job's path, or one beside it if another run has that."""
    file = folder / f"{job.path}.toml"
    if not file.is_file():
        return job.path
    there = resolve(load(file), file.parent)
    if identity(with_precision(there, job.config.compute.precision)) != job.identity:
        head, _, tail = job.path.rpartition("/")
        return f"{head}-{job.identity[:8]}/{tail}"
    return job.path


def _compact(job: Job, result: RunResult, scale: Scale, machine: Mapping[str, str]) -> CompactRun:
    asynchronous = isinstance(job.config.algorithm, AsyncOptions)
    return CompactRun.of(
        result,
        scale=scale,
        machine=machine,
        requests={
            task.name or task.use: task.requests or 0
            for task in (job.config.tasks if asynchronous else ())
        },
        final_at=job.variant.final_at(scale),
    )
