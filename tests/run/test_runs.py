"""Whole runs, with real training: they learn, they are reproducible, they compare."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedast import (
    Allocation,
    Always,
    Constant,
    FedASTDynamic,
    FedASTNoBuffer,
    FedASTStatic,
    Goal,
    Median,
    ServerSide,
    Simulation,
    SpeedGroups,
    SyncST,
    Task,
    Training,
    simulate,
)
from fedast.algorithms.allocation import ALLOCATION_RULES
from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.core.protocol import Evaluated, TaskSpec
from fedast.parts.errors import ConfigError
from fedast.records.metrics import RunMetrics
from fedast.records.run import UnusableFolder, read_run
from fedast.run.batch import BatchRun, Interrupted, Pulse, run_batch
from fedast.run.execute import execute

EXAMPLES = Path(__file__).parents[2] / "examples"


def read_events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def quick(algorithm: str = "fedast-d", *settings: str) -> RunConfig:
    path = EXAMPLES / "quickstart.toml"
    settings = ("simulation.max_time=8", "simulation.clients=30", *settings)
    return resolve(load(path, settings, algorithm=algorithm), path.parent)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.builtin))
def test_running_a_runs_own_configuration_again_gives_the_identical_log(
    tmp_path: Path, algorithm: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    execute(quick(algorithm), first, events=True)
    again = resolve(load(first / "config.toml"), first)
    execute(again, second, events=True)
    log = (first / "events.jsonl").read_bytes()
    assert log
    assert (second / "events.jsonl").read_bytes() == log
    assert (second / "config.toml").read_bytes() == (first / "config.toml").read_bytes()
    assert (second / "curves.csv").read_bytes() == (first / "curves.csv").read_bytes()


@pytest.mark.parametrize("name", ["measured-delays", "devices-come-and-go"])
def test_a_run_keeps_the_files_it_needs(tmp_path: Path, name: str) -> None:
    path = EXAMPLES / f"{name}.toml"
    config = resolve(load(path, ["simulation.max_time=30"]), path.parent)
    first, second = tmp_path / "first", tmp_path / "second"
    execute(config, first, events=True)
    moved = first.rename(tmp_path / "moved")
    execute(resolve(load(moved / "config.toml"), moved), second, events=True)
    assert (second / "events.jsonl").read_bytes() == (moved / "events.jsonl").read_bytes()


def test_records_match_the_log(tmp_path: Path) -> None:
    execute(quick(), tmp_path / "run", events=True)
    result = read_run(tmp_path / "run")
    events = read_events(tmp_path / "run")
    for name, task in result.tasks.items():
        mine = [e for e in events if e.get("task") == name]
        arrivals = [e for e in mine if e["event"] == "arrive"]
        assert task.updates == len(arrivals)
        assert task.staleness_max == max(e["staleness"] for e in arrivals)
        assert task.staleness_mean == pytest.approx(np.mean([e["staleness"] for e in arrivals]))
        assert task.rounds == max(e["round"] for e in mine if e["event"] == "aggregate")
        evaluations = [e for e in mine if e["event"] == "evaluate"]
        assert [(p.time, p.value) for p in result.curves[name]] == [
            (e["t"], e["value"]) for e in evaluations
        ]
        assert task.final == evaluations[-1]["value"]
    assert result.finish_time == max(e["t"] for e in events if e["event"] == "finish")


def test_evaluating_more_often_changes_nothing_in_the_schedule(tmp_path: Path) -> None:
    logs = []
    for every in (1, 4):
        settings = [f"tasks.{n}.evaluate_every={every}" for n in (0, 1)]
        settings += [f"tasks.{n}.target=0.999" for n in (0, 1)]
        out = tmp_path / str(every)
        execute(quick("fedast-d", *settings), out, events=True)
        logs.append([e for e in read_events(out) if e["event"] != "evaluate" and e["t"] < 8])
    assert logs[0] == logs[1]


def blobs(name: str, rate: float = 0.2, **goal: float) -> Task:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 3
    inputs = torch.randn(600, 4, generator=generator) + 2 * labels[:, None]
    return Task(
        name=name,
        model=lambda: nn.Linear(4, 3),
        train=(inputs[:450], labels[:450]),
        test=(inputs[450:], labels[450:]),
        partition=list(np.arange(450).reshape(15, 30)),
        training=Training(local_steps=4, batch_size=10, client_lr=rate),
        goal=Goal(**goal),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        FedASTDynamic(requests=12, ratio=3.0, server_lr=0.5),
        FedASTStatic(requests=12, ratio=3.0, server_lr=0.5),
        FedASTNoBuffer(requests=12, server_lr=0.2),
        SyncST(first_k="all"),
    ],
    ids=lambda a: a.name,
)
def test_every_algorithm_learns_through_the_python_api(
    algorithm: AlgorithmOptions, tmp_path: Path
) -> None:
    tasks = [blobs("one", target=0.9), blobs("two", target=0.93)]
    outcome = simulate(tasks, algorithm, Simulation(clients=15, max_time=2000.0), seed=2)
    assert outcome.result.reached_all
    assert {t.finish_reason for t in outcome.result.tasks.values()} == {"target"}
    assert outcome.curves["one"][0].value < 0.85
    outcome.save(tmp_path / "saved")
    assert read_run(tmp_path / "saved") == outcome.result
    with torch.no_grad():
        scores = outcome.models["two"](tasks[1].test.inputs).argmax(1)
    assert float((scores == tasks[1].test.labels).float().mean()) >= 0.93


def test_a_task_that_diverges_ends_alone() -> None:
    wild = replace(blobs("wild", rate=1e6, target=0.99), loss=lambda out, _: (out**2).mean())
    tasks = [wild, blobs("tame", target=0.9)]
    outcome = simulate(tasks, FedASTStatic(server_lr=0.5), Simulation(clients=15, max_time=2000.0))
    assert outcome.result.tasks["wild"].finish_reason == "diverged"
    assert outcome.result.tasks["tame"].finish_reason == "target"
    assert outcome.result.to_json()["tasks"]["wild"]["final_loss"] is None


def test_constant_delays_by_hand() -> None:
    """One client, always there, four steps of 1: updates at 4, 8, 12, ... one round each."""
    task = blobs("one", max_rounds=3)
    alone = replace(task, partition=[np.arange(450)], allocation=Allocation(requests=1, buffer=1))
    world = Simulation(
        clients=1,
        delay=Constant(value=1.0),
        availability=Always(),
        speeds=SpeedGroups(factors=(1.0,), shares=(1.0,)),
    )
    result = simulate([alone], FedASTStatic(evaluate_every=1), world).result
    assert [point.time for point in result.curves["one"]] == [0.0, 4.0, 8.0, 12.0]
    assert result.tasks["one"].finish_reason == "rounds"
    assert result.finish_time == 12.0


def test_the_api_refuses_in_words() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedast-"):
        simulate([blobs("a")], "fedast")
    with pytest.raises(ConfigError, match="15 parts for 9 clients"):
        simulate([blobs("a")], "fedast-d", Simulation(clients=9))
    with pytest.raises(ConfigError, match="tasks: at least one task must start"):
        simulate([])


def test_a_stopped_run_has_complete_records(tmp_path: Path) -> None:
    asked = iter(range(1000))
    outcome = execute(quick(), tmp_path / "run", events=True, stop=lambda: next(asked) > 40)
    assert outcome.result.interrupted
    events = read_events(tmp_path / "run")
    assert [e["reason"] for e in events if e["event"] == "finish"] == ["interrupted"] * 2
    sent = sum(e["event"] == "dispatch" for e in events)
    ended = sum(len(e["requests"]) for e in events if e["event"] == "aggregate")
    ended += sum(e["event"] == "drop" for e in events)
    assert sent == ended
    assert read_run(tmp_path / "run").interrupted


def test_a_batch_gives_what_each_run_gives_alone(tmp_path: Path) -> None:
    configs = [quick("fedast-s"), quick("sync-st")]
    pulses: list[Pulse] = []
    runs = [BatchRun(c.algorithm.name, c, tmp_path / c.algorithm.name) for c in configs]
    results = run_batch(runs, jobs=2, progress=pulses.append)
    for config, result in zip(configs, results, strict=True):
        assert execute(config).result.curves == result.curves
    assert {pulse.run for pulse in pulses} == {0, 1}
    assert max(pulse.done for pulse in pulses) == 2


def test_a_batch_that_is_stopped_says_so() -> None:
    with pytest.raises(Interrupted):
        run_batch([BatchRun("a", quick(), None)], jobs=1, stop=lambda: True)


OPTIONS = [
    ("fedast-s", "algorithm.max_staleness=1"),
    ("fedast-d", "algorithm.max_staleness=1"),
    ("fedast-s", "algorithm.cancel=keep-busy"),
    ("fedast-d", "algorithm.cancel=keep-busy"),
    ("sync-st", "algorithm.cancel=keep-busy"),
    ("fedast-d", "algorithm.period=0.2"),
    ("fedast-d", "algorithm.variance_window=3"),
    ("fedast-d", "algorithm.allocation_rule=authors-code"),
    ("fedast-d", "algorithm.allocation_rule=bound"),
    ("sync-st", "algorithm.assignment=round-robin"),
    ("sync-st", "algorithm.first_k=all"),
    ("fedast-s", "simulation.loss_rate=0.3"),
    ("fedast-s", "simulation.speeds={factors=[1.0], shares=[1.0]}"),
    ("fedast-s", "simulation.delay={model='lognormal'}"),
    ("fedast-s", "simulation.availability={model='always'}"),
    ("sync-st", "simulation.availability={model='bernoulli', p=0.5}"),
    ("fedast-s", "tasks.0.leave_time=2.0"),
    ("fedast-s", "tasks.0.max_time=2.0"),
    ("fedast-s", "tasks.1.join_time=1.0"),
    ("fedast-s", "tasks.0.max_rounds=3"),
    ("sync-st", "tasks.0.share=3.0"),
    ("fedast-s", "tasks.0.step_cost=0.3"),
    ("fedast-s", "algorithm.staleness_weight=polynomial"),
    ("fedast-d", "algorithm.staleness_weight=hinge"),
    ("fedbuff", "algorithm.idle=false"),
    ("sync-bayes-st", "algorithm.alpha=1.0"),
    ("sync-bayes-st", "algorithm.candidates=3"),
    ("sync-ucb-st", "algorithm.extra=0"),
    ("sync-ucb-st", "algorithm.gamma=0.2"),
    ("fedast-s", "tasks.0.buffer=4"),
    ("fedast-d", "algorithm.allocation_rule=shares"),
    ("fedast-d", "algorithm.allocation_rule=uniform"),
    ("fedast-d", "algorithm.allocation_rule=tests.run.test_runs:all_to_the_last"),
    ("fedast-s", "algorithm.selection=speed"),
    ("fedast-s", "algorithm.selection=loss"),
    ("sync-st", "algorithm.selection=loss"),
    ("sync-st", "algorithm.selection=speed"),
    ("fedast-s", "tasks.0.server_optimizer=momentum"),
    ("sync-st", "tasks.0.server_optimizer=adam"),
    ("fedast-s", "tasks.0.server_optimizer=yogi"),
    ("fedast-s", "tasks.0.server_optimizer={name='fadas', patience=1}"),
    ("sync-st", "tasks.0.aggregator=median"),
    ("sync-st", "tasks.0.aggregator={name='trimmed-mean', trim=0.34}"),
    ("fedast-s", "tasks.0.aggregator={name='mean', clip=0.1}"),
    ("fedast-s", "tasks.0.aggregator={name='mean', clip='median'}"),
    ("fedast-s", "tasks.0.calibration=always"),
    ("fedast-s", "tasks.0.calibration=auto"),
]


def all_to_the_last(_variance: float, task: TaskSpec) -> float:
    return float(task.name == "synthetic")


def test_a_median_always_has_three_updates(tmp_path: Path) -> None:
    """Realloc takes requests away from the task whose updates are combined by their median, one
    client of which is hostile: its updates never move the model far."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(120, 3)).astype(np.float32))
    y = (x.sum(1) > 0).long()
    hostile = x.clone()
    hostile[:2] *= 1e6
    parts = [np.arange(2 * i, 2 * i + 2) for i in range(60)]

    def task(name: str, inputs: torch.Tensor, **server: Any) -> Task:
        return Task(
            name=name,
            model=lambda: nn.Linear(3, 2),
            train=(inputs, y),
            test=(x, y),
            partition=parts,
            training=Training(local_steps=2, batch_size=2, client_lr=0.1),
            goal=Goal(max_time=120.0),
            **server,
        )

    outcome = simulate(
        [
            task("robust", hostile, server=ServerSide(aggregator=Median())),
            task("synthetic", x),
        ],
        FedASTDynamic(
            requests=48,
            ratio=6.0,
            period=0.3,
            allocation_rule=ALLOCATION_RULES.parse(all_to_the_last, "allocation_rule"),
        ),
        Simulation(clients=60),
        seed=3,
        events=tmp_path / "events.jsonl",
    )
    events = read_events(tmp_path)
    starved = [e for e in events if e["event"] == "realloc" and e["cause"] == "period"]
    assert starved[0]["targets"] == {"robust": 6, "synthetic": 42}
    rounds = [e for e in events if e["event"] == "aggregate" and e["task"] == "robust"]
    assert all(len(e["requests"]) >= 3 for e in rounds)
    attacks = {
        e["request"]
        for e in events
        if e["event"] == "arrive" and e["task"] == "robust" and e["client"] == 0
    }
    assert any(attacks & set(e["requests"]) for e in rounds if e["t"] > starved[0]["t"])
    weights = outcome.models["robust"].get_parameter("weight")
    assert weights.abs().max() < 10.0


def test_momentum_zero_is_plain(tmp_path: Path) -> None:
    logs = []
    for step in ("{rule='momentum', beta=0.0}", "plain"):
        config = quick("fedast-s", f"tasks.0.server_optimizer={step}")
        execute(config, tmp_path / step, events=True)
        logs.append((tmp_path / step / "events.jsonl").read_text())
    assert logs[0] == logs[1]


def test_initial_shares(tmp_path: Path) -> None:
    config = quick("fedast-s", "algorithm.initial=shares", "tasks.0.share=3.0")
    first, second = (task.requests for task in config.tasks)
    assert first is not None
    assert second is not None
    assert first == pytest.approx(3 * second, abs=2)


@pytest.mark.parametrize(("algorithm", "setting"), OPTIONS)
def test_every_option_reaches_the_run(tmp_path: Path, algorithm: str, setting: str) -> None:
    """One setting changed, the log of events changes."""
    path = EXAMPLES / "quickstart.toml"
    base = ["simulation.max_time=7", "simulation.clients=30", "tasks.1.leave_time=4.0"]
    if not algorithm.startswith("sync"):
        base.append("algorithm.requests=20")
        if "hinge" in setting:
            base.append("algorithm.staleness_grace=1")
        if algorithm == "fedast-d":
            base += ["algorithm.period=0.5", "algorithm.ratio=2", "tasks.0.local_steps=5"]
    else:
        base += ["algorithm.first_k=3", "simulation.clients=12", "simulation.max_time=20"]
        base.append("tasks.1.leave_time=0.5")
    logs = []
    for settings in (base, [*base, setting]):
        config = resolve(load(path, settings, algorithm=algorithm), path.parent)
        out = tmp_path / str(len(settings))
        execute(config, out, events=True)
        logs.append((out / "events.jsonl").read_text())
    assert logs[0] != logs[1]


@pytest.mark.parametrize("leave", ["lose", "finish"])
def test_what_a_leaving_client_does_with_its_requests(tmp_path: Path, leave: str) -> None:
    path = EXAMPLES / "devices-come-and-go.toml"
    settings = ["simulation.loss_rate=0.0", f"simulation.availability.leave={leave}"]
    settings.append("simulation.max_time=40")
    execute(resolve(load(path, settings), path.parent), tmp_path / "run", events=True)
    reasons = {e["reason"] for e in read_events(tmp_path / "run") if e["event"] == "drop"}
    assert ("lost" in reasons) is (leave == "lose")


def test_events_and_records_may_share_a_folder(tmp_path: Path) -> None:
    outcome = simulate([blobs("a", max_rounds=2)], "fedast-s", events=tmp_path / "events.jsonl")
    outcome.save(tmp_path)
    with pytest.raises(UnusableFolder, match="holds another run"):
        outcome.save(tmp_path)


def test_a_metric_at_target_with_a_broken_loss_reached_nothing() -> None:
    run_metrics = RunMetrics([TaskSpec("a", target=0.1)])
    run_metrics.evaluated(1.0, Evaluated("a", 4, 0.2, float("nan")))
    assert run_metrics.tasks["a"].time_to_target is None


def test_own_model_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "wide: accuracy 0.9" in printed
    assert "is on ring 2" in printed


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS.builtin) - {"sequential-fedavg"}))
def test_tasks_train_on_until_all_have_reached_their_targets(
    tmp_path: Path, algorithm: str
) -> None:
    targets = ("tasks.digits-mlp.target=0.7", "tasks.synthetic.target=0.2")
    ends = quick(algorithm, *targets, "simulation.max_time=60", 'simulation.until="all"')
    result = execute(ends, tmp_path / "all", events=True).result
    reached = {name: task.time_to_target for name, task in result.tasks.items()}
    times = [time for time in reached.values() if time is not None]
    assert len(times) == 2
    assert max(times) == result.finish_time
    assert {task.finish_reason for task in result.tasks.values()} == {"target"}
    early = min(reached, key=lambda name: reached[name] or 0.0)
    accepted = [e for e in read_events(tmp_path / "all") if e["event"] == "arrive"]
    late = [e for e in accepted if e["task"] == early and e["t"] > min(times)]
    assert late, "the first to be there went on"


def test_targets_are_only_noted_where_time_ends_a_run() -> None:
    config = quick("fedast-s", "tasks.digits-mlp.target=0.3", 'simulation.until="time"')
    result = execute(config).result
    task = result.tasks["digits-mlp"]
    assert task.time_to_target is not None
    assert task.finish_reason == "time"
    assert result.finish_time == 8.0


@pytest.mark.parametrize("algorithm", ["fedast-d", "fedast-plus"])
def test_a_target_that_is_held_ends_a_task(algorithm: str) -> None:
    """... when the mean of its last five evaluations is there; the first at it is noted too."""
    config = quick(algorithm, "simulation.max_time=80", "simulation.until=held")
    outcome = execute(config, None)
    for task in config.tasks:
        name = task.name or task.use
        result, target = outcome.result.tasks[name], task.target
        assert result.finish_reason == "target"
        assert target is not None
        values = [point.value for point in outcome.curves[name]]
        means = [sum(values[i - 5 : i]) / 5 for i in range(5, len(values) + 1)]
        assert means[-1] >= target > max(means[:-1], default=0.0)
        assert result.time_to_target is not None
        assert result.time_held == outcome.curves[name][-1].time >= result.time_to_target
        assert {point.model for point in outcome.curves[name]} == {
            "average" if algorithm == "fedast-plus" else "raw"
        }


def test_what_a_run_goes_on_until_must_be_there() -> None:
    with pytest.raises(ConfigError, match="needs a limit"):
        resolve(load(EXAMPLES / "heterogeneous.toml", ['simulation.until="time"',
                                                       "simulation.max_time=0.001"]).model_copy(
            update={"simulation": Simulation(until="time")}
        ))  # fmt: skip


def test_reallocations_are_kept(tmp_path: Path) -> None:
    result = execute(quick("fedast-d", "algorithm.period=0.05"), tmp_path / "run", events=True)
    noted = [e for e in read_events(tmp_path / "run") if e["event"] == "realloc"]
    assert noted
    assert set(result.result.requests) == {"digits-mlp", "synthetic"}
    for name, steps in result.result.requests.items():
        assert list(steps) == [(e["t"], e["targets"][name]) for e in noted if name in e["targets"]]


def test_one_task_after_another_needs_ends() -> None:
    with pytest.raises(ConfigError, match="the next task begins"):
        quick("sequential-fedavg", 'simulation.until="all"')
