"""How long an experiment would take, by speeds measured here on generated data.

For the larger model, whose data has to be brought: its ResNet-18 with the study's own settings and
augmentation, on generated images of CIFAR-100's shape. Images decide nothing about speed; how many
updates the target takes they cannot say, so hours are given for a number of updates per task.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from fedast.config.plan import plan
from fedast.config.schema import Compute
from fedast.learner.evaluation import measure
from fedast.learner.inference import inference
from fedast.parts.errors import ConfigError
from fedast.reproduce.load import find_studies
from fedast.run import bench
from fedast.run.compute import arithmetic, precision_of
from fedast.tasks.dataset import Arrays
from fedast.tasks.models import resnet18
from fedast.tasks.paper import CIFAR100, crop_and_flip
from fedast.tasks.task import Task
from fedast.training.trainer import DeviceTask

STUDY = "larger-model"
_EVALUATED = 1000
"""Images at a time, as in a run."""


@dataclass(frozen=True)
class Hours:
    """One run of the study."""

    tasks: int
    algorithm: str
    evaluations: float
    """Per task."""
    hours: float


@dataclass(frozen=True)
class Estimate:
    device: str
    precision: str
    trainer: str
    """The fastest of those that were measured."""
    clients: int
    """Trained together."""
    ms: float
    """Per local update."""
    evaluation_ms: float
    """Of the test set."""
    updates: int
    """Per task, that the hours are for."""
    runs: Sequence[Hours]


def generated_task(*, quick: bool = False) -> Task:
    clients, samples = (3, 40) if quick else (100, 300)
    draws = torch.Generator().manual_seed(0)
    train, test = (
        Arrays(
            torch.randn(count, 3, 32, 32, generator=draws),
            torch.randint(100, (count,), generator=draws),
        )
        for count in (clients * samples, 40 if quick else 10_000)
    )
    return replace(
        CIFAR100.defaults,
        model=partial(resnet18, width=4) if quick else resnet18,
        train=train,
        test=test,
        partition=[np.arange(n * samples, (n + 1) * samples) for n in range(clients)],
        augment=crop_and_flip,
    )


def estimate(
    names: Sequence[str],
    compute: Compute,
    trainers: Sequence[str],
    *,
    together: int,
    seconds: float = 2.0,
    updates: int = 10_000,
    quick: bool = False,
) -> Estimate:
    """``compute`` must be resolved."""
    if list(names) != [STUDY]:
        raise ConfigError("--estimate", f"is there for {STUDY} only")
    task = generated_task(quick=quick)
    with arithmetic(compute):
        device_task = DeviceTask.build(task, 0, torch.device(compute.device))
        speeds = [
            bench.measure_one(device_task, name, compute, together, seconds) for name in trainers
        ]
        best = min(speeds, key=lambda speed: speed.ms)
        model = inference(device_task, precision_of(compute))
        model.load(device_task.model.read().clone())
        began = time.perf_counter()
        measure(device_task, model, device_task.test, _EVALUATED)
        evaluation_ms = 1e3 * (time.perf_counter() - began)
    (study,) = find_studies([STUDY])
    runs = []
    for variant in study.variants():
        config = variant.config(1, "full")
        tasks = [replace(task, name=one.name or one.use) for one in config.tasks]
        spec = plan(tasks, config.algorithm, config.simulation)[0]
        per_round = config.algorithm.updates_per_round(spec.buffer_size)
        assert per_round is not None, "the study's algorithms take a fixed number in a round"
        evaluations = updates / per_round / spec.evaluate_every
        seconds_each = (updates * best.ms + evaluations * evaluation_ms) / 1e3
        runs.append(
            Hours(len(tasks), variant.key[1], evaluations, len(tasks) * seconds_each / 3600)
        )
    return Estimate(
        compute.device,
        compute.precision,
        best.trainer,
        best.clients,
        best.ms,
        evaluation_ms,
        updates,
        runs,
    )
