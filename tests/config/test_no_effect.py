"""No key is accepted and then ignored: each changes the run, or a note says that it cannot.

The keys are read off the classes that define them, so a new one fails here until it is tried. Each
is set to another value in a small run, with several algorithms; the two logs of events are
compared, and they differ exactly if there is no note.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

import fedast
from fedast.aggregation.aggregators import AGGREGATORS
from fedast.aggregation.averaging import Averaging
from fedast.aggregation.calibration import Cache
from fedast.aggregation.rate_control import RateControl
from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS
from fedast.aggregation.settings import Calibration
from fedast.algorithms.options import ALGORITHMS
from fedast.algorithms.selection import SELECTIONS, Speed
from fedast.algorithms.staleness import STALENESS_WEIGHTS
from fedast.config import schema as cfg
from fedast.config.load import apply_settings, load, parse
from fedast.config.no_effect import notes_of
from fedast.config.notes import for_all, lines
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError, ConfigWarning
from fedast.parts.registry import Registry
from fedast.run.build import build_tasks
from fedast.run.compute import arithmetic, choose_trainers, resolve_compute
from fedast.run.execute import execute
from fedast.run.simulate import simulate
from fedast.sim.availability import AVAILABILITY
from fedast.sim.delays import DELAYS
from fedast.tasks import paper
from fedast.tasks.client_optimizers import CLIENT_OPTIMIZERS
from fedast.tasks.options import TASKS
from fedast.tasks.partitions import PARTITIONS
from fedast.training.options import Batched, Serial

REPOSITORY = Path(__file__).parents[2]

TRACE = "client,on,off\n" + "".join(f"{c},0,{1 + c % 3}\n{c},4,\n" for c in range(20))
TIMES = "task,seconds\ndigits-mlp,0.3\ndigits-mlp,0.8\nsynthetic,0.2\nsynthetic,0.5\n"

BASE = """
seed = 3
[simulation]
clients = 20
max_time = 4.0
[simulation.availability]
model = "active_cap"
cap = 6
[compute]
device = "cpu"
trainer = "serial"
[[tasks]]
use = "digits-mlp"
local_steps = 2
target = 0.99
[[tasks]]
use = "synthetic"
local_steps = 2
target = 0.35
"""
ASYNC = ("algorithm.requests=12", "algorithm.ratio=3.0")
SYNC = ("algorithm.first_k=2",)
START: dict[str, tuple[str, ...]] = {
    name: (f"algorithm.name={name}", *(SYNC if kind.synchronous else ASYNC))
    for name, kind in ALGORITHMS.builtin.items()
} | {
    "centralized": ("algorithm.name=centralized",),
    "fedast-plus": (
        "algorithm.name=fedast-plus",
        *ASYNC,
        "algorithm.period=0.2",
        "algorithm.variance_window=4",
    ),
    "fedast-d": (
        "algorithm.name=fedast-d",
        *ASYNC,
        "algorithm.period=0.2",
        "algorithm.variance_window=4",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("files")
    (place / "trace.csv").write_text(TRACE)
    (place / "delays.csv").write_text(TIMES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield
    torch.set_num_threads(threads)


def given(settings: Sequence[str]) -> cfg.RunConfig:
    table = tomllib.loads(BASE)
    apply_settings(table, settings)
    return parse(table)


@cache
def log(settings: tuple[str, ...]) -> str:
    """All events of a short run: who trained what, when, and how good the models were."""
    config = resolve(given(settings))
    path = Path(f"events-{abs(hash(settings))}.jsonl")
    simulate(
        build_tasks(config),
        config.algorithm,
        config.simulation,
        seed=config.seed,
        compute=config.compute,
        events=path,
        noted=True,
    )
    # At its end a run gives up what is still out, which changes nothing any more.
    events = [json.loads(line) for line in path.read_text().splitlines()]
    last = events[-1]["t"]
    kept = [e for e in events if e["t"] < last or e["event"] in ("evaluate", "finish")]
    return "\n".join(map(json.dumps, kept))


def check(key: str, value: str, before: tuple[str, ...]) -> bool:
    """Whether a key has an effect; a note says so if and only if it has none."""
    after = (*before, f"{key}={value}")
    resolve(given(before))
    try:
        resolve(given(after))
    except ConfigError:
        return True  # refused, in one line
    noted = {note.place for note in notes_of(given(after)) if note.idle}
    differs = log(after) != log(before)
    says = any(key == place or key.startswith(place + ".") for place in noted)
    assert differs is not says, f"{key}: differs {differs}, noted {sorted(noted)}, {before}"
    return differs


# --- every key of every algorithm -----------------------------------------------------------------

ENDS = (
    "tasks.0.max_time=1.1",
    "tasks.1.target=0.99",
    "tasks.0.step_cost=4.0",
    "simulation.clients=8",
)
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("9", ()),
    "ratio": ("2.0", ()),
    "initial": ("shares", ("tasks.0.share=3.0",)),
    "selection": ("speed", ()),
    "max_staleness": ("0", ()),
    "staleness_weight": ("polynomial", ()),
    "staleness_weight.slope": ("2.0", ("algorithm.staleness_weight={name='polynomial'}",)),
    "staleness_weight.grace": ("0", ("algorithm.staleness_weight={name='hinge'}",)),
    "selection.candidates": ("4", ("algorithm.selection={name='speed'}",)),
    "cancel": ("keep-busy", (*ENDS, "algorithm.first_k=all")),
    "server_lr": ("0.6", ()),
    "evaluate_every": ("3", ()),
    "allocation_rule": ("uniform", ()),
    "variance_window": ("2", ("algorithm.allocation_rule=sqrt-variance",)),
    "period": ("0.6", ("algorithm.allocation_rule=sqrt-variance",)),
    "idle": ("false", ()),
    "first_k": ("1", ()),
    "stragglers": ("free", ()),
    "split": ("round-robin", ()),
    "alpha": ("1.0", ()),
    "candidates": ("3", ()),
    "extra": ("2", ()),
    "history": ("1", ()),
    "gamma": ("0.1", ()),
    "loss": ("mean", ()),
    "reference": ("1.0", ()),
    "largest": ("0.02", ()),
    "slope": ("0.2", ()),
    "fair": ("false", ()),
    "warmup": ("5.0", ()),
    "momentum": ("0.0", ()),
    "average": ("false", ()),
}
"""Another value, and what must be set beside it for the key to matter."""
NEVER = {
    ("centralized", "first_k"),
    ("centralized", "stragglers"),
    ("fedast-plus", "server_lr"),  # above the paper's
}
"""Options that an algorithm has in common with others and no use for: noted, always."""


def fitting(name: str, context: Sequence[str]) -> tuple[str, ...]:
    """Without options that the algorithm does not have."""
    known = ALGORITHMS.builtin[name].model_fields
    return tuple(
        s for s in context if not s.startswith("algorithm.") or s[10:].split("=")[0] in known
    )


def parts_of(kind: type[BaseModel]) -> Iterator[str]:
    """The options of the parts that an algorithm has."""
    for part, registry in (("selection", SELECTIONS), ("staleness_weight", STALENESS_WEIGHTS)):
        if part in kind.model_fields:
            names = {key for options in registry.builtin.values() for key in options.model_fields}
            yield from (f"{part}.{key}" for key in sorted(names))


ALGORITHM_KEYS = [
    (name, key)
    for name, kind in ALGORITHMS.builtin.items()
    for key in [*kind.model_fields, *parts_of(kind)]
    if (name, key) != ("fedast-plus", "control")  # acts on what swings: test_rate_control.py
]


@pytest.mark.parametrize(("name", "key"), ALGORITHM_KEYS)
def test_every_option_of_every_algorithm(name: str, key: str) -> None:
    value, context = OPTIONS[key]  # a new option has to be added there
    start = tuple(s for s in START[name] if not s.startswith(f"algorithm.{key}="))
    if "." not in key:  # an option of a part needs that part
        check(f"algorithm.{key}", value, start)
    if (name, key) not in NEVER:
        assert check(f"algorithm.{key}", value, (*start, *fitting(name, context)))


OVERRIDES = [
    ("fedast-s", "ratio", "2.0", ("tasks.0.buffer=2", "tasks.1.buffer=2")),
    ("fedast-nobuffer", "ratio", "2.0", ("tasks.0.evaluate_every=3", "tasks.1.evaluate_every=3")),
    ("fedast-d", "initial", "shares", ("tasks.0.requests=8", "tasks.1.requests=4")),
    ("fedast-d", "evaluate_every", "3", ("tasks.0.evaluate_every=2", "tasks.1.evaluate_every=2")),
    ("sync-st", "evaluate_every", "3", ("tasks.0.evaluate_every=2", "tasks.1.evaluate_every=2")),
    ("sync-st", "server_lr", "0.6", ("tasks.0.server_lr=0.5", "tasks.1.server_optimizer=adam")),
    ("fedast-s", "server_lr", "0.6", ("tasks.0.server_lr=0.5", "tasks.1.server_lr=0.5")),
    ("fedast-s", "selection", "{name='speed', candidates=1}", ()),
    ("sync-st", "stragglers", "free", ("algorithm.first_k=all",)),
    ("sync-st", "stragglers", "free", ("algorithm.first_k=6",)),
    ("sync-bayes-st", "alpha", "1.0", ("algorithm.candidates=1",)),
    ("sync-bayes-st", "history", "1", ("algorithm.candidates=1",)),
    ("fedast-s", "cancel", "keep-busy", ("simulation.until=time",)),
    (
        "fedast-d",
        "allocation_rule",
        "uniform",
        ("tasks=[{use='synthetic', local_steps=2, target=0.99}]",),
    ),
    (
        "fedast-d",
        "variance_window",
        "3",
        ("tasks=[{use='synthetic', local_steps=2, target=0.99}]",),
    ),
    (
        "fedast-s",
        "cancel",
        "keep-busy",
        ("tasks=[{use='synthetic', local_steps=2, target=0.99}]", "tasks.0.max_time=1.4"),
    ),
]


@pytest.mark.parametrize(("name", "key", "value", "context"), OVERRIDES)
def test_options_that_other_settings_leave_nothing_to_decide(
    name: str, key: str, value: str, context: tuple[str, ...]
) -> None:
    start = tuple(s for s in START[name] if not s.startswith(f"algorithm.{key}="))
    assert not check(f"algorithm.{key}", value, (*start, *context))


# --- every key of the simulation and of a task ----------------------------------------------------

KINDS = ("fedast-d", "fedast-nobuffer", "sync-st", "centralized")

SIMULATION = {
    "clients": ["25"],
    "max_time": ["3.0"],
    "until": ["time"],
    "loss_rate": ["0.3"],
    "speeds.factors": ["[3.0, 1.0, 0.2]"],
    "speeds.shares": ["[1.0, 0.0, 3.0]"],
    "delay.shifted-exponential.scale": ["0.8"],
    "delay.constant.value": ["0.7"],
    "delay.uniform.low": ["0.1"],
    "delay.uniform.high": ["3.0"],
    "delay.lognormal.median": ["0.7"],
    "delay.lognormal.sigma": ["1.5"],
    "delay.measured.file": [],
    "availability.active_cap.cap": ["7"],
    "availability.bernoulli.p": ["0.7"],
    "availability.trace.file": [],
    "availability.trace.leave": ["finish"],
}
FILES = {"measured": ", file='delays.csv'", "trace": ", file='trace.csv'"}


def nested(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key below a section, with the tag of a union where there is one."""
    tags: dict[str, Any] = {"delay": DELAYS.builtin, "availability": AVAILABILITY.builtin}
    for key in section.model_fields:
        if key in tags and section is cfg.Simulation:
            for tag, part in tags[key].items():
                yield from (f"{key}.{tag}.{one}" for one in part.model_fields)
        elif key == "speeds":
            yield from (f"{key}.{one}" for one in cfg.SpeedGroups.model_fields)
        else:
            yield path + key


def test_every_key_of_the_simulation_is_tried() -> None:
    assert set(nested(cfg.Simulation)) == set(SIMULATION)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("key", [key for key, values in SIMULATION.items() if values])
def test_every_key_of_the_simulation(name: str, key: str) -> None:
    start, path = START[name], key.split(".")
    if len(path) == 3:
        table = f"{{name='{path[1]}'{FILES.get(path[1], '')}}}"
        start = (*start, f"simulation.{path[0]}={table}")
        if path[1] == "trace" and name == "centralized":
            key, path = "availability.trace", path[:1]  # (as a whole; below)
    if name == "centralized" and path[0] == "availability":
        noted = {note.place for note in notes_of(given(start))}
        assert "simulation.availability" in noted or "active_cap" in key
        assert log(start) == log(START[name])
        return
    place = f"simulation.{path[0]}.{path[-1]}" if len(path) > 1 else f"simulation.{key}"
    check(place, SIMULATION[key][0], start)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("table", [
    "delay={model='constant'}", "delay={model='measured', file='delays.csv'}",
    "availability={model='always'}", "availability={model='bernoulli'}",
    "availability={model='trace', file='trace.csv'}",
])  # fmt: skip
def test_every_delay_and_availability(name: str, table: str) -> None:
    key, _, value = table.partition("=")
    check(f"simulation.{key}", value, START[name])


TASK: dict[str, tuple[str, tuple[str, ...]]] = {
    "use": ("digits-cnn", ()),
    "name": ("another", ()),
    "options": ("{alpha=3.0}", ()),
    "initialization": ("he", ()),
    "step_cost": ("0.4", ()),
    "requests": ("5", ()),
    "buffer": ("4", ()),
    "share": ("4.0", ("algorithm.initial=shares",)),
    "target": ("0.15", ()),
    "max_rounds": ("2", ()),
    "max_time": ("2.0", ()),
    "evaluate_every": ("2", ()),
    "join_time": ("1.0", ()),
    "leave_time": ("2.0", ()),
    "local_steps": ("3", ()),
    "batch_size": ("5", ()),
    "client_lr": ("0.05", ()),
    "server_lr": ("0.33", ()),
    "weight_decay": ("0.2", ()),
    "sampling": ("independent", ()),
    "client_optimizer.sgd": ("{name='sgd'}", ("tasks.0.client_optimizer=adam",)),
    "client_optimizer.adam": ("adam", ()),
    "client_optimizer.adamw": ("adamw", ()),
    "client_optimizer.sgd.momentum": ("0.7", ("tasks.0.client_optimizer={name='sgd'}",)),
    "client_optimizer.sgd.nesterov": ("true", ("tasks.0.client_optimizer={momentum=0.5}",)),
    "client_optimizer.sgd.proximal": ("2.0", ("tasks.0.client_optimizer={name='sgd'}",)),
    "client_optimizer.sgd.clip": ("0.1", ("tasks.0.client_optimizer={name='sgd'}",)),
    "client_optimizer.sgd.schedule": ("cosine", ("tasks.0.client_optimizer={name='sgd'}",)),
    **{
        f"client_optimizer.adam.{key}": (value, ("tasks.0.client_optimizer={name='adam'}",))
        for key, value in (("beta1", "0.2"), ("beta2", "0.5"), ("epsilon", "0.1"))
    },
    "server_optimizer.momentum": ("{name='momentum'}", ()),
    "server_optimizer.adam": ("{name='adam'}", ()),
    "server_optimizer.yogi": ("{name='yogi'}", ()),
    "server_optimizer.fadas": ("{name='fadas'}", ()),
    "server_optimizer.sgd": ("{name='sgd'}", ("tasks.0.server_optimizer=momentum",)),
    "server_optimizer.momentum.beta": ("0.2", ("tasks.0.server_optimizer={name='momentum'}",)),
    "server_optimizer.delayed-nesterov": ("{name='delayed-nesterov'}",
                                          ("tasks.0.server_optimizer=sgd",)),
    "server_optimizer.delayed-nesterov.beta": (
        "0.2", ("tasks.0.server_optimizer={name='delayed-nesterov'}",)),
    "server_optimizer.delayed-nesterov.every": (
        "1", ("tasks.0.server_optimizer={name='delayed-nesterov', every=3}",)),
    **{
        f"server_optimizer.{rule}.{key}": (value, (f"tasks.0.server_optimizer={{name='{rule}'}}",))
        for rule in ("adam", "yogi", "fadas")
        for key, value in (("beta1", "0.2"), ("beta2", "0.5"), ("epsilon", "0.1"))
    },
    "server_optimizer.fadas.patience": ("1", ("tasks.0.server_optimizer={name='fadas'}",
                                         "tasks.0.server_lr=2.0")),
    "aggregator.mean": ("{name='mean'}", ("tasks.0.aggregator=median", "tasks.0.buffer=4",
                                         "algorithm.first_k=4")),
    "aggregator.median": ("{name='median'}", ("tasks.0.buffer=4", "algorithm.first_k=4")),
    "aggregator.trimmed-mean": ("{name='trimmed-mean', trim=0.4}", ("tasks.0.buffer=4",
                                                                 "algorithm.first_k=4")),
    "aggregator.trimmed-mean.trim": ("0.4", ("tasks.0.aggregator={name='trimmed-mean', trim=0.26}",
                               "algorithm.first_k=5", "tasks.0.buffer=5", "tasks.0.requests=6")),
    **{
        f"aggregator.{name}.clip": ("0.1", (f"tasks.0.aggregator={{name='{name}', trim=0.26}}"
                                            if name == "trimmed-mean" else
                                            f"tasks.0.aggregator={{name='{name}'}}",
                               "algorithm.first_k=5", "tasks.0.buffer=5", "tasks.0.requests=6"))
        for name in ("mean", "median", "trimmed-mean")
    },
    "averaging.use": ("always", ()),
    "averaging.exponent": ("1.0", ("tasks.0.averaging=always",)),
    "averaging.raw_every": ("0", ("tasks.0.averaging=always",)),
    "calibration.use": ("always", ()),
    "calibration.precision": ("half", ("tasks.0.calibration={use='always'}",)),
    "sync.client_lr": ("0.05", ()),
    "sync.local_steps": ("3", ()),
    "sync.batch_size": ("5", ()),
    "sync.server_lr": ("0.33", ()),
    "sync.weight_decay": ("0.2", ()),
    "sync.client_optimizer": ("adam", ()),
    "sync.sampling": ("independent", ()),
}  # fmt: skip
ELSEWHERE = {"level", "calibration.place"} | {f"rate_control.{k}" for k in RateControl.model_fields}
"""Keys whose effect is not in the log; they have tests of their own below."""


def task_keys() -> Iterator[str]:
    parts: dict[str, type[BaseModel]] = {
        "sync": cfg.TrainingOverrides,
        "calibration": Calibration,
        "averaging": Averaging,
        "rate_control": RateControl,
    }
    kinds: dict[str, Registry[Any]] = {
        "client_optimizer": CLIENT_OPTIMIZERS,
        "server_optimizer": SERVER_OPTIMIZERS,
        "aggregator": AGGREGATORS,
    }
    tried: set[tuple[str, str]] = set()
    for key in cfg.TaskConfig.model_fields:
        if key in kinds:
            for name, options in kinds[key].builtin.items():
                yield f"{key}.{name}"
                fields = [one for one in options.model_fields if (key, one) not in tried]
                if key == "client_optimizer":  # whose options in common are tried once
                    tried |= {(key, one) for one in fields}
                yield from (f"{key}.{name}.{one}" for one in fields)
        elif key in parts:
            yield from (f"{key}.{one}" for one in parts[key].model_fields)
        else:
            yield key


def test_every_key_of_a_task_is_tried() -> None:
    assert set(task_keys()) == set(TASK) | ELSEWHERE


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("key", list(TASK))
def test_every_key_of_a_task(name: str, key: str) -> None:
    value, context = TASK[key]
    start = START[name]
    context = fitting(name, context)
    path = key.split(".")
    whole = path[0] in ("client_optimizer", "server_optimizer", "aggregator") and len(path) == 2
    last = path[0] if whole else f"{path[0]}.{path[-1]}" if len(path) > 1 else key
    place = f"tasks.digits-mlp.{last}"
    if name == "centralized" and path[0] == "calibration":  # an effect in the last digits only
        noted = {note.place for note in notes_of(given((*start, "tasks.0.calibration=always")))}
        assert "tasks.digits-mlp.calibration" in noted
        return
    if (
        context
        and len(path) < 3
        and key
        not in (
            "client_optimizer.sgd",
            "server_optimizer.sgd",
            "aggregator.mean",
        )
    ):
        check(place, value, start)
    try:
        resolve(given((*start, *context)))
    except ConfigError:
        return  # a trimmed mean of one, say: refused
    check(place, value, (*start, *context))


# --- keys whose effect is elsewhere ---------------------------------------------------------------

MNIST = "tasks=[{use='mnist'}, {use='fashion-mnist'}]"


def test_the_level_of_a_target() -> None:
    def target(*settings: str) -> float | None:
        return resolve(given((MNIST, *settings))).tasks[0].target

    def noted(*settings: str) -> bool:
        found = notes_of(given((MNIST, *settings)))
        return "tasks.mnist.level" in {note.place for note in found}

    high = "tasks.0.level=high"
    assert target(high) != target()
    assert not noted(high)
    assert target(high, "tasks.0.target=0.5") == target("tasks.0.target=0.5")
    assert noted(high, "tasks.0.target=0.5")
    assert not noted(high, f"tasks.0.target={target(high)}")  # as a resolved file has it


def test_the_place_of_a_cache() -> None:
    start = torch.zeros(3)
    assert Cache(Calibration(use="always", place="disk"), 4, start).place == "disk"
    assert Cache(Calibration(use="always", place="host"), 4, start).place == "host"
    place = "tasks.0.calibration={place='disk'}"
    assert [str(note) for note in notes_of(given((place,)))] == [
        'tasks.digits-mlp.calibration.place: has no effect: calibration is "never" used'
    ]
    assert not notes_of(given((place, "tasks.0.calibration.use=auto")))


PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 5.0},
    "iid": {},
    "shards": {"classes_per_client": 4},
    "power-law": {"exponent": 2.0},
}


@pytest.mark.parametrize("kind", PARTITIONS.builtin)
def test_every_option_of_an_image_task(kind: str) -> None:
    labels = np.repeat(np.arange(10), 600)

    def parts(**options: Any) -> list[list[int]]:
        task = paper.MNIST.read(options, "x")
        parts = task.split(labels, 20, np.random.default_rng(0))
        return [part.tolist() for part in parts]

    usual = parts(partition=kind)
    assert (usual == parts()) is (kind == "dirichlet")
    assert parts(partition=kind, samples=30) != usual
    assert set(PARTITION_OPTIONS[kind]) == set(PARTITIONS.builtin[kind].model_fields)
    for key, value in PARTITION_OPTIONS[kind].items():
        assert parts(partition={"name": kind, key: value}) != usual
        setting = f"tasks.0.options={{partition={{name='{kind}', {key}={value}}}}}"
        assert not notes_of(given((MNIST, setting)))


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn", "synthetic"])
def test_every_option_of_an_embedded_task(name: str) -> None:
    values = {"alpha": "7.0", "beta": "7.0", "samples": "20", "max_samples": "60"}
    start = (*START["fedast-s"], f"tasks=[{{use='{name}', local_steps=2, target=0.99}}]")
    for key in TASKS.builtin[name].model_fields:
        differs = check(f"tasks.{name}.options.{key}", values[key], start)
        # In LEAF's definition alpha moves the scores of all classes alike, and no label.
        assert differs or (name, key) == ("synthetic", "alpha")


def test_options_of_the_other_tasks_are_known_here() -> None:
    """Fashion-MNIST's ReLU, Shakespeare's test set and what reviews and messages have are tried
    where their data is."""
    tried = {*TASKS.builtin["mnist"].model_fields, "relu_on_logits", "test_windows", "final_test"}
    tried |= {"words", "length", "embedded", "split_seed", "min_messages"}
    for kind in TASKS.builtin.values():
        if kind.datasets:
            assert set(kind.model_fields) <= tried


def test_every_key_of_compute() -> None:
    tried = set()
    tasks = build_tasks(resolve(given(START["fedast-s"])))

    def settled(**options: Any) -> cfg.Compute:
        return choose_trainers(resolve_compute(cfg.Compute(device="cpu", **options)), tasks, 0)

    def noted(*settings: str) -> set[str]:
        return {note.place for note in notes_of(given(settings))}

    assert set(settled(trainer="serial").trainers.values()) == {Serial()}
    assert set(settled(trainer="batched").trainers.values()) == {Batched()}
    trainers = {"digits-mlp": "serial", "synthetic": "batched"}
    found = settled(trainer="processes", trainers=trainers)
    assert found.model_dump()["trainers"] == trainers
    table = "compute.trainers={digits-mlp='serial', synthetic='batched'}"
    assert "compute.trainer" in noted(table, "compute.trainer=processes")
    assert "compute.trainer" not in noted(table, "compute.trainer=serial")
    tried |= {"trainer", "trainers", "device"}
    assert "compute.workers" in noted("compute.workers=3")  # BASE trains serially
    assert "compute.workers" not in noted("compute.workers=3", "compute.trainer=processes")
    assert settled(trainer="processes", workers=3).workers == 3
    assert "compute.batch_limit" in noted("compute.batch_limit=3")
    assert "compute.batch_limit" not in noted("compute.batch_limit=3", "compute.trainer=batched")
    tried |= {"workers", "batch_limit"}
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        resolve_compute(cfg.Compute(device="cpu", precision="bf16"))
    with arithmetic(settled(trainer="serial", threads=2)):
        assert torch.get_num_threads() == 2
    tried |= {"precision", "threads"}
    assert tried == set(cfg.Compute.model_fields)


def test_every_key_of_a_federation_is_read() -> None:
    read = {
        node.attr
        for part in ("run", "cli")
        for path in (REPOSITORY / "src/fedast" / part).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert set(cfg.FederationConfig.model_fields) <= read
    for key, value in (("evaluators", "9"), ("holdout", "0.5")):
        alone = (f"federation.{key}={value}",)
        assert f"federation.{key}" in {note.place for note in notes_of(given(alone))}
        assert not notes_of(given((*alone, "federation.evaluate=clients")))


def test_every_key_of_a_file() -> None:
    own = {"algorithm", "simulation", "compute", "federation", "tasks"}  # above
    assert set(cfg.RunConfig.model_fields) == own | {"seed", "path", "algorithms", "observers"}
    assert check("seed", "5", START["fedast-s"])
    assert "path" in {note.place for note in notes_of(given(("path=['.']",)))}


# --- what is said, and where ----------------------------------------------------------------------


def test_a_file_for_several_algorithms_is_told_only_what_none_has_a_use_for() -> None:
    start = ("tasks.0.requests=8", "tasks.0.share=2.0", "tasks.0.calibration.place=host")

    def found(name: str) -> list[Any]:
        return [note for note in notes_of(given((*START[name], *start))) if note.idle]

    alone = {note.place for note in found("sync-st")}
    assert alone == {"tasks.digits-mlp.requests", "tasks.digits-mlp.calibration.place"}
    both = for_all({name: found(name) for name in ("fedast-d", "sync-st")})
    assert {label: [note.place for note in notes] for label, notes in both.items()} == {
        "fedast-d": ["tasks.digits-mlp.calibration.place"], "sync-st": []
    }  # fmt: skip


def test_one_line_for_all_tasks() -> None:
    config = given(("tasks.0.share=2.0", "tasks.1.share=3.0", *START["fedast-s"]))
    (line,) = lines(notes_of(config), 2)
    assert line.startswith("tasks.*.share: has no effect: fedast-s uses it only")


@pytest.mark.parametrize("name", sorted(ALGORITHMS.builtin))
def test_a_runs_own_configuration_is_not_noted(name: str, tmp_path: Path) -> None:
    """It writes out every default and all that follows from something else."""
    execute(resolve(given(START[name])), tmp_path / name)
    again = load(tmp_path / name / "config.toml")
    before = {note.place for note in notes_of(given(START[name]))}
    assert {note.place for note in notes_of(again)} <= before


def test_published_configurations_are_not_noted_beyond_shares() -> None:
    """Files of an earlier version: every key is in them, most with its default."""
    said = set()
    for path in (REPOSITORY / "results").glob("*/*/seed-1.toml"):
        said |= {note.key for note in notes_of(load(path)) if note.idle}
    assert said <= {"share", "simulation.availability"}


def test_the_python_api_warns() -> None:
    config = resolve(given(START["fedast-s"]))
    tasks = build_tasks(config)
    short = config.simulation.model_copy(update={"max_time": 0.5})
    with pytest.warns(ConfigWarning, match=r"algorithm\.selection: has no effect"):
        simulate(tasks, fedast.FedASTStatic(requests=12, selection=Speed(candidates=1)), short)
    with pytest.warns(ConfigWarning) as told:
        simulate(tasks, fedast.SyncST(first_k=2), short)
    assert [str(warning.message).split(":")[0] for warning in told] == [
        "tasks.*.requests", "tasks.*.buffer"
    ]  # fmt: skip
