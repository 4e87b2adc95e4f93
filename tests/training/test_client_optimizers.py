"""Client optimizers against torch.optim, in every trainer; how they are named and checked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from fedast.config.load import load
from fedast.config.no_effect import notes_of
from fedast.config.resolve import resolve
from fedast.core.streams import Stream
from fedast.learner.local import LocalLearner
from fedast.parts.errors import ConfigError
from fedast.run.local_training import LocalTraining
from fedast.tasks.client_optimizers import SGD, Adam, AdamW, ClientOptimizerOptions, Schedule
from fedast.tasks.task import Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.choose import say_once
from fedast.training.lean import LeanTrainer
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Update, batches_of
from tests.cli.command import fedast

CPU = torch.device("cpu")


class Skip(nn.Module):
    """A skip connection, a bare parameter, and one that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.ones(3))
        self.out = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x + self.gain * torch.tanh(self.first(x)))
        return scores


def make_task(optimizer: Any, model: Any = Skip, **training: Any) -> Task:
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 6, generator=draws, dtype=torch.float64)
    data = inputs, torch.randint(4, (40,), generator=draws)
    how: dict[str, Any] = {"local_steps": 5, "batch_size": 4, "client_lr": 0.05} | training
    return Task(
        name="t",
        model=lambda: model().double(),
        train=data,
        test=data,
        partition=[np.arange(0, 15), np.arange(15, 40)],
        training=Training(weight_decay=0.03, client_optimizer=optimizer, **how),
    )


def jobs_of(device_task: DeviceTask) -> list[Job]:
    """Different clients, models and rounds; a request comes twice."""
    base = device_task.model.read()
    return [Job(n % 4, n % 2, base + 0.02 * (n % 4), 3 * (n % 4)) for n in range(5)]


def by_torch(device_task: DeviceTask, job: Job) -> torch.Tensor:
    """The update as anyone would write it with torch.optim."""
    how = device_task.task.training
    options: Any = how.client_optimizer
    batches, _ = batches_of(device_task, Stream.of(3, "train", "t"), job)
    module = Skip().double()
    nn.utils.vector_to_parameters(job.base.clone(), module.parameters())
    given = [parameter.detach().clone() for parameter in module.parameters()]
    common: dict[str, Any] = {"lr": how.client_lr, "weight_decay": how.weight_decay}
    optimizer: torch.optim.Optimizer
    if isinstance(options, SGD):
        optimizer = torch.optim.SGD(
            module.parameters(), momentum=options.momentum, nesterov=options.nesterov, **common
        )
    else:
        kind = torch.optim.AdamW if isinstance(options, AdamW) else torch.optim.Adam
        betas = options.beta1, options.beta2
        optimizer = kind(module.parameters(), betas=betas, eps=options.epsilon, **common)
    plan = options.schedule
    scheduler: lr_scheduler.LRScheduler | None = None
    span = plan.rounds or how.local_steps
    if plan.use == "linear":
        scheduler = lr_scheduler.LinearLR(optimizer, 1.0, plan.final, span)
    elif plan.use == "cosine":
        floor = plan.final * how.client_lr
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, span, floor)
    if scheduler is not None and plan.rounds is not None:
        for _ in range(min(job.version, span)):
            optimizer.step()  # (there are no gradients yet)
            scheduler.step()
    for batch in torch.from_numpy(batches):
        inputs, labels = device_task.train.batch(batch)
        loss = nn.functional.cross_entropy(module(inputs), labels)
        for parameter, start in zip(module.parameters(), given, strict=True):
            loss = loss + options.proximal / 2 * (parameter - start).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if options.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), options.clip)
        module.unused.grad = None  # (there is no pull on what does not move)
        optimizer.step()
        if scheduler is not None and plan.rounds is None:
            scheduler.step()
    after = nn.utils.parameters_to_vector(module.parameters())
    return ((job.base - after) / (how.local_steps * how.client_lr)).detach()


OPTIMIZERS: dict[str, ClientOptimizerOptions] = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.8, nesterov=True, clip=0.3),
    "adam": Adam(beta1=0.8, beta2=0.95, epsilon=1e-4),
    "adamw": AdamW(),
    "fedprox": SGD(proximal=0.7),
    "cosine": AdamW(schedule=Schedule(use="cosine", final=0.1), clip=0.5),
    "linear": SGD(schedule=Schedule(use="linear"), proximal=0.2),
    "by round": SGD(momentum=0.5, schedule=Schedule(use="cosine", rounds=8, final=0.1)),
    "linear by round": Adam(schedule=Schedule(use="linear", rounds=6, final=0.2)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_trainer_takes_the_steps_of_torch_optim(name: str) -> None:
    device_task = DeviceTask.build(make_task(OPTIMIZERS[name]), 3, CPU)
    device_tasks, jobs = {"t": device_task}, jobs_of(device_task)
    wanted = [by_torch(device_task, job) for job in jobs]
    batched = BatchedTrainer(device_tasks, 3)
    assert not batched.alone
    found: dict[str, list[Update]] = {"serial": SerialTrainer(device_tasks, 3).train("t", jobs)}
    found |= {"batched": batched.train("t", jobs), "again": batched.train("t", jobs[::-1])[::-1]}
    processes = ProcessTrainer(device_tasks, 3, workers=1)
    try:
        found |= {"processes": processes.train("t", jobs)}
    finally:
        processes.close()
    for trainer, updates in found.items():
        for update, delta in zip(updates, wanted, strict=True):
            off = float((update.delta - delta).norm() / delta.norm())
            assert off < 1e-10, f"{trainer}: off by {off:.1e}"


@pytest.mark.cuda
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_a_gpu_batches_take_the_steps_of_torch_optim(name: str) -> None:
    here = DeviceTask.build(make_task(OPTIMIZERS[name]), 3, CPU)
    wanted = [by_torch(here, job) for job in jobs_of(here)]
    there = DeviceTask.build(make_task(OPTIMIZERS[name]), 3, torch.device("cuda"))
    batched, jobs = BatchedTrainer({"t": there}, 3), jobs_of(there)
    assert not batched.alone
    for updates in (batched.train("t", jobs), batched.train("t", jobs[::-1])[::-1]):
        for update, delta in zip(updates, wanted, strict=True):
            assert float((update.delta.cpu() - delta).norm() / delta.norm()) < 1e-10


def test_a_schedule_by_round_follows_the_models_of_a_run() -> None:
    """From the round where the rate is zero, clients move nothing; in a federation as well."""
    falling = SGD(schedule=Schedule(use="linear", rounds=1))
    learner = LocalLearner([make_task(falling)], {"t": 1.0}, seed=1, device=CPU, variance_window=2)
    moved = []
    for version in range(2):
        before = learner.parameters("t").clone()
        learner.dispatch(version, "t", 0, version)
        learner.accept(version, "t")
        learner.aggregate("t", (version,))
        moved.append(float((learner.parameters("t") - before).norm()))
    assert moved[0] > 0
    assert moved[1] == 0


def test_kernels_for_plain_sgd_are_left_aside_for_other_optimizers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say_once.cache_clear()

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))

    for optimizer, said in ((SGD(), False), (SGD(momentum=0.9), True), (SGD(clip=0.01), True)):
        device_task = DeviceTask.build(make_task(optimizer, model), 3, CPU)
        jobs = jobs_of(device_task)
        serial = SerialTrainer({"t": device_task}, 3).train("t", jobs)
        for _ in range(2):
            trainers = [kind({"t": device_task}, 3) for kind in (LeanTrainer, BatchedTrainer)]
        assert ("kernels for its model are for plain SGD only" in caplog.text) is said
        for trainer in trainers:
            for one, other in zip(serial, trainer.train("t", jobs), strict=True):
                torch.testing.assert_close(other.delta, one.delta, rtol=1e-10, atol=1e-12)
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


OWN = '''
from fedast.tasks.client_optimizers import ClientOptimizerOptions

class Rule:
    def __init__(self, power, whole):
        self.power, self.whole = power, whole

    def state(self, parameter):
        return {}

    def step(self, parameter, gradient, state, lr):
        size = gradient.norm() if self.whole else gradient.abs() + 1e-3
        parameter.sub_(lr * gradient / size**self.power)

class Tamed(ClientOptimizerOptions):
    """Gradients to a power."""

    power: float = 0.5
    whole: bool = False

    def build(self, *, weight_decay):
        return Rule(self.power, self.whole)
'''
FILE = """
[simulation]
clients = 5
[[tasks]]
use = "synthetic"
max_rounds = 2
client_optimizer = %s
"""


def test_ones_own_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tamed.py").write_text(OWN)
    file = tmp_path / "run.toml"
    file.write_text(FILE % '{ name = "tamed:Tamed", power = 0.9, clip = 2.0 }')
    monkeypatch.chdir(tmp_path)
    done = fedast("run", "run.toml", "--out", "there", "--set", "seed=1")
    assert done.returncode == 0, done.stderr
    kept = load(tmp_path / "there/config.toml").tasks[0].client_optimizer
    assert kept is not None
    assert (kept.address(), kept.clip) == ("tamed:Tamed", 2.0)
    for whole in (False, True):
        own = type(kept).model_validate({"whole": whole, "schedule": "linear"})
        device_task = DeviceTask.build(make_task(own), 3, CPU)
        trainer = BatchedTrainer({"t": device_task}, 3)
        assert bool(trainer.alone) is whole  # it mixes the entries of a tensor
        jobs = jobs_of(device_task)
        serial = SerialTrainer({"t": device_task}, 3).train("t", jobs)
        for one, other in zip(serial, trainer.train("t", jobs), strict=True):
            torch.testing.assert_close(other.delta, one.delta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("'lion'", "tasks.synthetic.client_optimizer: unknown value 'lion'"),
        ("{ nesterov = true }", "client_optimizer: nesterov needs a momentum above 0"),
        ("{ name = 'adam', momentum = 0.9 }", "adam has no such option (sgd: yes)"),
        ("{ schedule = 'step' }", "client_optimizer.schedule"),
        ("{ clip = 0.0 }", "client_optimizer.clip: input should be greater than 0"),
        ("{ schedule = { use = 'cosine', round = 3 } }", "schedule.round: unknown key"),
    ],
)
def test_mistakes_name_the_key(given: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE % given)
    with pytest.raises(ConfigError) as raised:
        resolve(load(file))
    assert said in str(raised.value)


def test_what_a_file_says_is_resolved_and_written_out(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE % "{ momentum = 0.9, schedule = 'cosine' }")
    config = resolve(load(file))
    assert config.tasks[0].client_optimizer == SGD(momentum=0.9, schedule=Schedule(use="cosine"))
    assert resolve(config) == config
    assert not [note for note in notes_of(load(file)) if "optimizer" in note.place]
    file.write_text(FILE % "{ schedule = { final = 0.5 }, clip = 1.0 }")
    (note,) = [note for note in notes_of(load(file)) if "optimizer" in note.place]
    assert "schedule" in note.place
    listed = fedast("list", "client-optimizers").stdout
    assert "adamw" in listed
    assert "proximal" in listed
    assert "client_optimizers" in fedast("list").stdout


def test_a_federations_client_trains_with_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE % "{ schedule = { use = 'linear', rounds = 2 } }")
    training = LocalTraining(resolve(load(file)), 1)
    vector = training._device_tasks["synthetic"].model.read().numpy()
    norms = [float(np.linalg.norm(training.train("synthetic", 7, vector, v)[0])) for v in (0, 1, 2)]
    assert norms[0] > norms[1] > norms[2] == 0
