"""Configuration: what is accepted, what is refused and in which words, what it resolves to."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from fedast.algorithms.fedast import FedASTDynamic, FedASTNoBuffer
from fedast.config.load import apply_setting, load, parse
from fedast.config.resolve import resolve
from fedast.config.schema import Compute, RunConfig
from fedast.parts.errors import ConfigError
from fedast.records import toml
from fedast.run.build import build_tasks
from fedast.run.compute import resolve_compute
from fedast.sim.availability import ActiveCap
from fedast.tasks.task import Task

EXAMPLES = Path(__file__).parents[2] / "examples"

BASE = """
[algorithm]
name = "fedast-d"
requests = 40
ratio = 8

[simulation]
clients = 100
max_time = 9.0

[[tasks]]
use = "digits-mlp"

[[tasks]]
use = "synthetic"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def resolved(tmp_path: Path, text: str = BASE, *settings: str) -> RunConfig:
    path = write(tmp_path, text)
    return resolve(load(path, settings), path.parent)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algorithm.requets=3", "algorithm.requets: unknown key; did you mean 'requests'?"),
        ("algoritm.name='x'", "algoritm: unknown key; did you mean 'algorithm'?"),
        ("algorithm.name='fedast'", "algorithm.name: unknown value 'fedast'; did you mean"),
        ("simulation.client=3", "simulation.client: unknown key; did you mean 'clients'?"),
        ("simulation.clients=0", "simulation.clients: input should be greater than or equal to 1"),
        ("simulation.clients='many'", "simulation.clients: input should be a valid integer"),
        ("simulation.clients=2.5", "simulation.clients: input should be a valid integer"),
        ("simulation.delay.name='normal'", "simulation.delay.name: unknown value 'normal'"),
        ("simulation.delay.scale=-1", "simulation.delay.scale: input should be"),
        ("simulation.loss_rate=1.0", "simulation.loss_rate: input should be less than 1"),
        ("simulation.max_time=nan", "simulation.max_time: input should be a finite number"),
        ("simulation.availability={model='active_cap',cap=101}", "cap: is 101, but there are only"),
        ("simulation.speeds.factors=[1.0]", "simulation.speeds: needs as many shares as factors"),
        ("tasks.synthetic.client_lr=-0.1", "tasks.synthetic.client_lr: input should be gr"),
        ("tasks.synthetic.target=1.1", "tasks.synthetic.target: an accuracy is a fraction"),
        ("tasks.synthetic.targte=0.5", "tasks.synthetic.targte: unknown key; did you mean 'target"),
        ("tasks.synthetic.use='sinthetic'", "use: unknown value 'sinthetic'; did you mean 'synth"),
        ("tasks.synthetic.buffer=21", "tasks.synthetic.buffer: is 21, but the task has only 20"),
        ("tasks.synthetic.options={gamma=1.0}", "tasks.synthetic.options.gamma: unknown key"),
        ("tasks.synthetic.options={alpha='x'}", "tasks.synthetic.options.alpha: input should be"),
        (
            "tasks.synthetic.options={alpha=-1.0}",
            "alpha: input should be greater than or",
        ),
        ("tasks.synthetic.name='digits-mlp'", "two tasks have this name"),
        ("tasks.shakespeare.target=1", "there is no task 'shakespeare'; there are digits-mlp"),
        ("algorithm.requests=1", "algorithm.requests: is 1, but 2 tasks need at least one each"),
        ("seed", "seed: expected key=value"),
        ("seed=-1", "seed: input should be greater than or equal to 0"),
        ("tasks.synthetic.join_time=9.0", "join_time: must be earlier than its time limit, 9.0"),
        ("tasks.synthetic.name='[red]x'", "name: use letters, digits, spaces"),
        ("tasks.synthetic.name='all tasks'", "name: use letters, digits, spaces"),
        ("tasks.synthetic.options={alpha=nan}", "alpha: input should be a finite number"),
        ("tasks.synthetic.options={alpha='0.5'}", "alpha: input should be a valid number"),
        ("algorithms.sync-st.first_kk=3", "algorithms.sync-st.first_kk: unknown key; did you mean"),
        ("algorithms.sync-st.server_lr=-1", "algorithms.sync-st.server_lr: input should be"),
        ("algorithms.sync-st=5", "algorithms.sync-st: input should be a valid dictionary"),
        ("compute.threads=100000", "compute.threads: input should be less than or equal to 256"),
        ("algorithm.ratio=1e-320", "algorithm.ratio: input should be greater than or equal to 1"),
        ("simulation.speeds.shares=[1e308]", "less than or equal to 1000000000"),
        ("algorithm.name.x.y=1", "algorithm.name.x.y: 'x' cannot be set inside a plain value"),
        ("algorithm.allocation_rule='bond'", "unknown value 'bond'; did you mean 'bound'"),
        (
            "tasks.synthetic.server_optimizer=adm",
            "server_optimizer: unknown value 'adm'; did you mean",
        ),
        (
            "tasks.synthetic.server_optimizer={name='adam', beta=1}",
            "server_optimizer.beta: adam has no",
        ),
        ("tasks.synthetic.aggregator=middle", "aggregator: unknown value 'middle'; there are mean"),
        (
            "tasks.synthetic.calibration={uses='auto'}",
            "calibration.uses: unknown key; did you mean",
        ),
        (
            "tasks.synthetic.aggregator={name='trimmed-mean', trim=0.01}",
            "synthetic.buffer: is 100, but the task has only",
        ),
        ("compute.device='tpu'", "compute.device: input should be 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_bad_values_are_named_with_a_remedy(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved(tmp_path, BASE, setting)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml")
    path = write(tmp_path, "a = [")
    with pytest.raises(ConfigError, match=r"run\.toml: is not valid TOML"):
        load(path)
    with pytest.raises(ConfigError, match=r"run\.toml: tasks: is missing"):
        load(write(tmp_path, "seed = 1"))


def test_requests_that_contradict_each_other(tmp_path: Path) -> None:
    both = ("tasks.0.requests=10", "tasks.1.requests=10")
    with pytest.raises(ConfigError, match="is 40, but the tasks ask for 20"):
        resolved(tmp_path, BASE, *both)
    with pytest.raises(ConfigError, match="is 40, which leaves 0 for 1 tasks"):
        resolved(tmp_path, BASE, "tasks.0.requests=40")


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    config = resolved(tmp_path)
    assert [task.requests for task in config.tasks] == [20, 20]
    assert [task.buffer for task in config.tasks] == [2, 2]
    assert [task.server_lr for task in config.tasks] == [0.1, 0.1]
    assert [task.evaluate_every for task in config.tasks] == [4, 4]
    assert config.simulation.availability == ActiveCap(cap=30)
    assert config.tasks[1].options == {"alpha": 0.5, "beta": 0.5, "max_samples": 200}


def test_weights_begin_as_the_configuration_says(tmp_path: Path) -> None:
    rules = ("tasks.0.initialization='he'", "tasks.1.initialization='glorot'")
    plain = build_tasks(resolved(tmp_path))
    he, glorot = build_tasks(resolved(tmp_path, BASE, *rules))

    def layer(task: Task) -> nn.Linear:
        torch.manual_seed(0)
        return next(part for part in task.model().modules() if isinstance(part, nn.Linear))

    assert all(layer(task).bias.any() for task in plain)
    assert not layer(he).bias.any()
    assert not layer(glorot).bias.any()
    for task, fan in (
        (he, layer(he).in_features / 2),
        (glorot, sum(layer(glorot).weight.shape) / 2),
    ):
        largest = float(layer(task).weight.detach().abs().max())
        assert 0.9 < largest / math.sqrt(3 / fan) <= 1


def test_the_total_follows_the_cap_as_in_the_paper(tmp_path: Path) -> None:
    text = BASE.replace("requests = 40\nratio = 8", "").replace("= 100", "= 1000")
    config = resolved(tmp_path, text)
    assert isinstance(config.algorithm, FedASTDynamic)
    assert config.algorithm.requests == 384
    assert [(task.requests, task.buffer) for task in config.tasks] == [(192, 6), (192, 6)]


def test_no_buffer_is_evaluated_as_often(tmp_path: Path) -> None:
    text = BASE.replace("requests = 40\nratio = 8", "").replace("= 100", "= 1000")
    config = resolved(tmp_path, text, "algorithm.name=fedast-nobuffer")
    assert isinstance(config.algorithm, FedASTNoBuffer)
    assert [(task.buffer, task.evaluate_every) for task in config.tasks] == [(1, 24), (1, 24)]
    assert config.tasks[0].server_lr == 0.038


def test_synchronous_settings_hold_for_synchronous_algorithms_only(tmp_path: Path) -> None:
    text = BASE + "sync = {client_lr = 0.7}\n"
    assert resolved(tmp_path, text).tasks[1].client_lr == 0.2
    path = write(tmp_path, text)
    config = resolve(load(path, algorithm="sync-st"))
    assert config.tasks[1].client_lr == 0.7
    assert (config.tasks[1].sync, config.tasks[1].requests) == (None, None)
    assert config.tasks[1].server_lr == 1.0


def option(config: RunConfig, name: str) -> object:
    return getattr(config.algorithm, name)


def test_switching_the_algorithm_takes_its_own_settings(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "[algorithms.sync-st]\nfirst_k = 4\n")
    assert option(load(path, algorithm="sync-st"), "first_k") == 4
    assert option(load(path, algorithm="fedast-d"), "requests") == 40
    with pytest.raises(ConfigError, match="unknown value"):
        resolved(tmp_path, BASE + "[algorithms.sync]\nfirst_k = 4\n")


def first_k(path: Path, *settings: str, **options: object) -> object:
    return option(load(path, settings, **options), "first_k")  # type: ignore[arg-type]


def test_settings_of_an_algorithm_count_when_it_runs(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "[algorithms.sync-st]\nfirst_k = 4\n")
    own = "algorithms.sync-st.first_k=8"
    assert first_k(path, own, algorithm="sync-st") == 8
    assert first_k(path, "algorithms.sync-st={first_k=8}", algorithm="sync-st") == 8
    assert first_k(path, "algorithms={sync-st={first_k=8}}", algorithm="sync-st") == 8
    assert first_k(path, "algorithm.first_k=9", algorithm="sync-st") == 9
    whole = 'algorithm={name="sync-st"}'
    assert first_k(path, whole) == 4
    assert first_k(path, whole, own) == 8
    assert first_k(path, 'algorithm={name="sync-st", first_k=9}') == 9
    # Of the algorithm that the file has anyway.
    assert option(load(path, ["algorithms.fedast-d.ratio=3.0"]), "ratio") == 3.0
    alone = write(
        tmp_path, BASE.replace("requests = 40", "") + "[algorithms.fedast-d]\nrequests = 6\n"
    )
    assert option(load(alone), "requests") == 6


def test_settings_of_an_algorithm_that_does_not_run_are_refused(tmp_path: Path) -> None:
    path, own = write(tmp_path, BASE), "algorithms.sync-st.first_k=8"
    for setting in (own, "algorithms.sync-st={first_k=8}", "algorithms={sync-st={first_k=8}}"):
        with pytest.raises(ConfigError, match=r"sync-st does not run here \(but fedast-d\)"):
            load(path, [setting])
        with pytest.raises(ConfigError, match="sync-st does not run here"):
            load(path, [setting], algorithm="sync-ucb-st", beside=("fedast-d", "sync-ucb-st"))
        assert load(path, [setting], algorithm="fedast-s", beside=("fedast-s", "sync-st"))
    write(tmp_path, BASE + "[algorithms.sync-st]\nfirst_k = 4\n")
    assert load(path)  # a file may serve commands that do


def test_an_option_is_not_said_twice(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "[algorithms.fedast-d]\nratio = 4\n")
    with pytest.raises(
        ConfigError, match=r"algorithms\.fedast-d\.ratio: is set under \[algorithm\]"
    ):
        load(path)
    path = write(tmp_path, BASE)
    with pytest.raises(
        ConfigError, match=r"algorithms\.fedast-d\.ratio: algorithm\.ratio is set too"
    ):
        load(path, ["algorithms.fedast-d.ratio=2.0", "algorithm.ratio=3.0"])
    with pytest.raises(ConfigError, match="is set to 'fedast-s', but --algorithm says fedbuff"):
        load(path, ["algorithm.name=fedast-s"], algorithm="fedbuff")


@pytest.mark.parametrize(
    "path", [*sorted(EXAMPLES.glob("*.toml")), EXAMPLES.parent / "src/fedast/run/demo.toml"]
)
@pytest.mark.parametrize("algorithm", [None, "sync-st", "fedast-nobuffer"])
def test_resolving_is_final_and_survives_the_file(path: Path, algorithm: str | None) -> None:
    config = resolve(load(path, algorithm=algorithm), path.parent)
    assert resolve(config) == config
    text = toml.dumps(config.model_dump(mode="json", exclude={"algorithms"}))
    assert resolve(parse(tomllib.loads(text))) == config


def test_a_number_for_a_name_is_no_trouble(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no task 'zzz'"):
        load(write(tmp_path, BASE), ["tasks.0.name=5", "tasks.zzz.target=1"])
    with pytest.raises(ConfigError, match=r"algorithms\.sync-st: must be a table"):
        load(write(tmp_path, "algorithms = {sync-st = 5}\n" + BASE), algorithm="sync-st")


def test_settings_reach_tasks_by_name_and_number() -> None:
    table = tomllib.loads(BASE)
    for setting in ("tasks.synthetic.target=0.4", "tasks.0.name=first", "algorithm.name = sync-st"):
        apply_setting(table, setting)
    assert table["tasks"][1]["target"] == 0.4
    assert table["tasks"][0]["name"] == "first"
    assert table["algorithm"]["name"] == "sync-st"


@pytest.mark.parametrize(("gpu", "precision"), [(True, "tf32"), (False, "fp32")])
def test_the_precision_of_a_run_that_asks_for_none(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, precision: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert resolve_compute(Compute()).precision == precision
    if gpu:
        assert resolve_compute(Compute(precision="fp16")).precision == "fp16"
