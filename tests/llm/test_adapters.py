"""Adapters over a frozen base model: training, sharing, export. With tiny random transformers."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fedast import Compute, FedASTDynamic, Goal, Simulation, simulate
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.core.protocol import TaskName
from fedast.core.streams import Stream
from fedast.records.run import read_run
from fedast.run.build import build_tasks
from fedast.run.checkpointing import FOLDER, Every
from fedast.run.execute import execute, resume
from fedast.training.batched import BatchedTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, batches_of

pytest.importorskip("transformers")
pytest.importorskip("peft")

from fedast.tasks.adapters.base import base_of, quiet
from fedast.tasks.adapters.options import Lora, LoraCausalLM, LoraClassifier, LoraTask
from fedast.tasks.adapters.texts import JsonLines
from tests.llm.plain import plain_accuracy, plain_loss
from tests.llm.tiny import write_decoder, write_encoder, write_texts
from tests.run.test_resume import Steps, same

CLIENTS = 6
NAME = TaskName("t")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm")
    torch.manual_seed(0)
    write_decoder(folder / "decoder")
    write_encoder(folder / "encoder")
    write_texts(folder / "texts.jsonl", clients=CLIENTS)
    return folder


def _options(place: Path, kind: type[LoraTask], base: str, **lora: Any) -> LoraTask:
    return kind(
        base=str(place / base),
        texts=JsonLines(path=str(place / "texts.jsonl")),
        length=16,
        lora=Lora(r=4, **lora),
    )


CASES: list[tuple[type[LoraTask], str, dict[str, Any]]] = [
    (LoraCausalLM, "decoder", {}),
    (LoraCausalLM, "decoder", {"train": "B", "targets": ("q_proj", "v_proj", "down_proj")}),
    (LoraClassifier, "decoder", {}),
    (LoraClassifier, "encoder", {"dropout": 0.2}),
]


@pytest.mark.parametrize(("kind", "base", "lora"), CASES)
def test_clients_side_by_side_give_the_serial_trainer_s_updates(
    place: Path, kind: type[LoraTask], base: str, lora: dict[str, Any]
) -> None:
    task = _options(place, kind, base, **lora).build(CLIENTS, 1, NAME)
    device_task = DeviceTask.build(task, 1, torch.device("cpu"))
    batched = BatchedTrainer({NAME: device_task}, 1)
    assert not batched.alone  # it can be stacked
    start = device_task.model.read()
    other = start + 0.01 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))
    jobs = [Job(5, 0, start), Job(6, 3, other), Job(7, 4, start)]
    expected = SerialTrainer({NAME: device_task}, 1).train(NAME, jobs)
    for mine, right in zip(batched.train(NAME, jobs), expected, strict=True):
        assert float((mine.delta - right.delta).norm() / right.delta.norm()) < 1e-4
        assert float(mine.loss) == pytest.approx(float(right.loss), rel=1e-4)


def test_a_step_is_that_of_peft_and_torch_optim(place: Path) -> None:
    """One step of the serial trainer against transformers, PEFT and AdamW on their own."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    task = _options(place, LoraCausalLM, "decoder").build(CLIENTS, 1, NAME)
    task = replace(task, training=task.training.model_copy(update={"local_steps": 1}))
    device_task = DeviceTask.build(task, 1, torch.device("cpu"))
    start = device_task.model.read()
    (update,) = SerialTrainer({NAME: device_task}, 1).train(NAME, [Job(5, 2, start)])

    with quiet():
        base = AutoModelForCausalLM.from_pretrained(place / "decoder")
        theirs = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, task_type="CAUSAL_LM"))
    named = dict(theirs.named_parameters())
    device_task.model.write(start)
    mine = dict(device_task.model.module.named_parameters())
    with torch.no_grad():
        for name, value in mine.items():
            named[name.replace(".weight", ".default.weight")].copy_(value)
    batches, _ = batches_of(device_task, Stream.of(1, "train", NAME), Job(5, 2, start))
    ids, labels = task.train.batch(torch.from_numpy(batches[0]))
    optimizer = torch.optim.AdamW(
        [p for p in theirs.parameters() if p.requires_grad],
        lr=task.training.client_lr,
        weight_decay=task.training.weight_decay,
    )
    logits = theirs(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten().long())
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    moved = torch.cat(
        [
            (value - named[name.replace(".weight", ".default.weight")]).flatten()
            for name, value in mine.items()
        ]
    ).detach()
    assert float((update.delta * task.training.client_lr - moved).norm() / moved.norm()) < 1e-3


def test_only_adapters_are_versions_and_updates(place: Path) -> None:
    both = _options(place, LoraCausalLM, "decoder").build(CLIENTS, 1, NAME)
    only_b = _options(place, LoraCausalLM, "decoder", train="B").build(CLIENTS, 1, NAME)
    sizes = []
    for task in (both, only_b):
        device_task = DeviceTask.build(task, 1, torch.device("cpu"))
        trainer = SerialTrainer({NAME: device_task}, 1)
        (update,) = trainer.train(NAME, [Job(1, 0, device_task.model.read())])
        sizes.append((len(device_task.model.read()), len(update.delta)))
    # r = 4 on query (32 x 32) and value (16 x 32) of two layers.
    a, b = 2 * 4 * (32 + 32), 2 * 4 * (32 + 16)
    assert sizes == [(a + b, a + b), (b, b)]


def test_a_frozen_a_is_the_same_wherever_a_task_is_built(place: Path) -> None:
    """It is not sent, so server and clients must come to the same by themselves."""
    options = _options(place, LoraCausalLM, "decoder", train="B")
    built = []
    for _ in range(2):
        torch.rand(3)  # whatever else draws in a process
        task = options.build(CLIENTS, 7, NAME)
        built.append(DeviceTask.build(task, 7, torch.device("cpu")).model.module.state_dict())
    fixed = [name for name in built[0] if "lora_A" in name]
    assert fixed
    assert all(torch.equal(built[0][name], built[1][name]) for name in fixed)
    assert any(float(built[0][name].norm()) > 0 for name in fixed)


def test_the_base_is_loaded_once_and_never_copied(place: Path) -> None:
    tasks = [
        _options(place, LoraCausalLM, "decoder").build(CLIENTS, 1, "a"),
        _options(place, LoraClassifier, "decoder").build(CLIENTS, 1, "b"),
    ]
    base = base_of(str(place / "decoder"))
    weights = {tensor.data_ptr() for tensor in base.weights()}
    for task in tasks:
        module: Any = task.model()
        for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            inside = [
                parameter
                for name, parameter in copied.structure().named_parameters()
                if "lora" not in name and "score" not in name
            ]
            parameters = [one for one in base.weights() if isinstance(one, torch.nn.Parameter)]
            assert len(inside) == len(parameters)
            assert {parameter.data_ptr() for parameter in inside} <= weights
        assert len(pickle.dumps(module)) < 20_000


def test_it_learns(place: Path) -> None:
    task = _options(place, LoraClassifier, "encoder").build(CLIENTS, 1, NAME)
    training = task.training.model_copy(update={"client_lr": 0.03})
    task = replace(task, training=training, goal=Goal(target=0.85, max_rounds=30))
    outcome = simulate([task], FedASTDynamic(requests=6), Simulation(clients=CLIENTS), seed=1)
    assert outcome.result.tasks[NAME].finish_reason == "target"


CONFIG = """
seed = 2
[simulation]
clients = 6
[algorithm]
name = "fedast-d"
requests = 6
[compute]
trainer = "batched"
[[tasks]]
use = "lora-causal-lm"
name = "words"
max_rounds = 4
[tasks.options]
base = "{place}/decoder"
length = 16
lora = {{ r = 4, train = "B" }}
texts = {{ name = "json-lines", path = "{place}/texts.jsonl" }}
[[tasks]]
use = "lora-classifier"
name = "mood"
max_rounds = 4
client_lr = 0.005
[tasks.options]
base = "{place}/encoder"
length = 16
lora = {{ r = 4 }}
texts = {{ name = "json-lines", path = "{place}/texts.jsonl" }}
"""


def test_a_run_from_a_file_exports_what_plain_peft_loads_and_scores_alike(
    place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(place=place))
    out = tmp_path / "out"
    ran = CliRunner().invoke(cli, ["run", str(file), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    for task in ("words", "mood"):
        said = CliRunner().invoke(cli, ["export", str(out), task, "--to", "peft"])
        assert said.exit_code == 0, said.output
    assert (out / "models" / "words.safetensors").stat().st_size < 10_000

    result = read_run(out)
    words, mood = build_tasks(load(out / "config.toml"))
    loss = plain_loss(out / "models" / "words-adapter", place / "decoder", words)
    assert loss == pytest.approx(result.tasks["words"].final_loss, rel=1e-5)
    accuracy = plain_accuracy(out / "models" / "mood-adapter", place / "encoder", mood)
    assert accuracy == pytest.approx(result.tasks["mood"].final, abs=1e-6)


def test_a_checkpoint_has_adapters_only_and_a_run_goes_on_from_it(
    place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(place=place))
    config = resolve(load(file), tmp_path)
    counted = Steps()
    whole = execute(config, tmp_path / "whole", events=True, stop=counted)
    parts = tmp_path / "parts"
    execute(config, parts, events=True, every=Every.parse("1"), stop=Steps(counted.asked // 2))
    kept = [path for path in (parts / FOLDER).rglob("*") if path.is_file()]
    assert kept
    assert max(path.stat().st_size for path in kept) < 100_000  # the bases have 200,000
    same(tmp_path / "whole", parts, whole, resume(parts))


def test_only_adapters_can_be_exported_for_peft(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = tmp_path / "run.toml"
    file.write_text('[simulation]\nclients = 4\n[[tasks]]\nuse = "synthetic"\nmax_rounds = 1\n')
    assert CliRunner().invoke(cli, ["run", str(file), "--out", str(out)]).exit_code == 3
    said = CliRunner().invoke(cli, ["export", str(out), "synthetic", "--to", "peft"])
    assert said.exit_code == 2
    assert said.output.strip() == (
        "error: --to peft: this task trains a whole model, not adapters over a base"
    )


def test_compute_names_its_trainer(place: Path) -> None:
    task = replace(
        _options(place, LoraCausalLM, "decoder").build(CLIENTS, 1, NAME), goal=Goal(max_rounds=2)
    )
    finals = []
    for trainer in ("serial", "batched", "processes"):
        compute = Compute(trainer=trainer, workers=2)
        world = Simulation(clients=CLIENTS)
        outcome = simulate([task], FedASTDynamic(requests=4), world, seed=1, compute=compute)
        finals.append(outcome.result.tasks[NAME].final)
    assert finals[1] == pytest.approx(finals[0], rel=1e-4)
    assert finals[2] == pytest.approx(finals[0], rel=1e-4)
