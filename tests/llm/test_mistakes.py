"""What users can get wrong about fine-tuning: one line each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from fedast.cli.main import cli
from fedast.tasks.task import BadTask, OutOfMemory
from fedast.training.trainer import DeviceTask

pytest.importorskip("transformers")
pytest.importorskip("peft")

from fedast.tasks.adapters.base import Base, base_of
from fedast.tasks.adapters.options import Lora, LoraCausalLM, LoraClassifier, adapter_model
from fedast.tasks.adapters.texts import JsonLines, Texts
from tests.llm.tiny import write_decoder, write_encoder, write_texts, write_tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm")
    write_decoder(folder / "decoder")
    write_encoder(folder / "encoder")
    write_texts(folder / "texts.jsonl")
    write_texts(folder / "plain.jsonl", labels=False)
    return folder


def _causal(place: Path, **changed: Any) -> LoraCausalLM:
    given: dict[str, Any] = {
        "base": str(place / "decoder"),
        "texts": JsonLines(path=str(place / "plain.jsonl")),
        "length": 16,
    }
    return LoraCausalLM(**given | changed)


def _said(build: Callable[[], object]) -> str:
    with pytest.raises(BadTask) as caught:
        build()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_base_that_is_not_there(place: Path) -> None:
    said = _said(lambda: _causal(place, base="smolm2").build(6, 1, "chat"))
    assert said == (
        "task 'chat': base model 'smolm2' is not there: it is not a folder, not one that fedast "
        "can fetch (minilm-l6, smollm2-135m-instruct), and not an id on the Hugging Face hub "
        "(owner/name)"
    )


def test_an_id_off_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAST_OFFLINE", "1")
    said = _said(lambda: _causal(place, base="nobody/nothing-at-all").build(6, 1, "chat"))
    assert said.startswith("task 'chat': base model 'nobody/nothing-at-all' cannot be loaded: ")


def test_a_folder_without_a_model(place: Path, tmp_path: Path) -> None:
    said = _said(lambda: _causal(place, base=str(tmp_path)).build(6, 1, "chat"))
    assert f"base model {str(tmp_path)!r} cannot be loaded" in said


def test_a_folder_with_damaged_weights(tmp_path: Path, place: Path) -> None:
    folder = write_decoder(tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    said = _said(lambda: _causal(place, base=str(folder)).build(6, 1, "chat"))
    assert "cannot be loaded" in said


def test_weights_of_another_shape(tmp_path: Path, place: Path) -> None:
    folder = write_decoder(tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    said = _said(lambda: _causal(place, base=str(folder)).build(6, 1, "chat"))
    assert said.endswith("its weights do not have the sizes that its config.json says")


def test_weights_that_are_incomplete(tmp_path: Path, place: Path) -> None:
    """transformers itself goes on with random numbers."""
    folder = write_decoder(tmp_path / "incomplete")
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = _said(lambda: _causal(place, base=str(folder)).build(6, 1, "chat"))
    assert said.endswith("weights are incomplete, 1 are missing, such as model.norm.weight")


def test_a_target_module_that_does_not_exist(place: Path) -> None:
    """PEFT itself says nothing as long as another target exists."""
    task = _causal(place, lora=Lora(targets=("q_proj", "values"))).build(6, 1, "chat")
    said = _said(lambda: DeviceTask.build(task, 1, torch.device("cpu")))
    assert said == (
        f"task 'chat': its model cannot be built: base model {str(place / 'decoder')!r} has no "
        "module 'values' for adapters; its linear layers are down_proj, gate_proj, k_proj, "
        "lm_head, o_proj, q_proj, up_proj, v_proj"
    )


def test_nothing_left_to_train(place: Path) -> None:
    with pytest.raises(ValueError, match="no adapter is left to train: lora_A, lora_B are frozen"):
        adapter_model(
            str(place / "decoder"),
            "causal-lm",
            {"peft_type": "LORA"},
            frozen=("lora_A", "lora_B"),
        )


def test_a_configuration_that_peft_refuses(place: Path) -> None:
    with pytest.raises(ValueError, match="PEFT does not accept this configuration"):
        adapter_model(str(place / "decoder"), "causal-lm", {"peft_type": "LORA", "rank": 3})


def test_an_encoder_cannot_predict_the_next_token(place: Path) -> None:
    task = _causal(place, base=str(place / "encoder")).build(6, 1, "chat")
    said = _said(lambda: DeviceTask.build(task, 1, torch.device("cpu")))
    assert "is an encoder (BertModel), which cannot predict the next token" in said


def test_a_tokenizer_that_does_not_fit(place: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, more=tuple(f"word{n}" for n in range(100)))
    said = _said(lambda: _causal(place, tokenizer=str(tmp_path)).build(6, 1, "chat"))
    assert "they do not belong together" in said
    assert str(base_of(str(place / "decoder")).vocabulary) in said


def test_a_folder_without_a_tokenizer(place: Path, tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    said = _said(lambda: _causal(place, base=str(folder)).build(6, 1, "chat"))
    assert "has no tokenizer that can be loaded" in said


def test_samples_longer_than_the_base_takes(place: Path) -> None:
    said = _said(lambda: _causal(place, length=65).build(6, 1, "chat"))
    assert "options.length is 65, but base model" in said
    assert "takes 64 tokens at most" in said


def short(clients: int, rng: np.random.Generator) -> Texts:
    texts = ["the king and the queen " * 10] * clients
    texts[3] = "the king"
    parts = [np.array([n]) for n in range(clients)]
    return Texts(texts, ["the sea " * 20], parts)


def test_a_client_with_too_little_text(place: Path) -> None:
    said = _said(lambda: _causal(place, texts=short).build(6, 1, "chat"))
    assert said == (
        "task 'chat': client 3 has too little text: 3 tokens, and a block takes 17; lower "
        "options.length, or choose clients with more text"
    )


def test_fewer_clients_with_texts_than_clients(place: Path) -> None:
    said = _said(lambda: _causal(place).build(9, 1, "chat"))
    assert said.endswith("plain.jsonl: has texts of 6 clients, not of 9")


def test_texts_without_labels(place: Path) -> None:
    options = LoraClassifier(
        base=str(place / "encoder"), texts=JsonLines(path=str(place / "plain.jsonl")), length=16
    )
    said = _said(lambda: options.build(6, 1, "mood"))
    assert said == "task 'mood': its texts have no labels, so there is nothing to classify"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON, one object per line"),
        ('{"text": 3, "client": 1}', "object 1 has no text"),
        ('{"text": "a"}', "object 1 does not say whose it is"),
    ],
)
def test_a_damaged_file_of_texts(place: Path, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(line + "\n")
    said = _said(lambda: _causal(place, texts=JsonLines(path=str(file))).build(1, 1, "chat"))
    assert problem in said


def test_a_device_without_room_for_the_base(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU raises this error while weights are moved to it; here the move is made to."""
    task = _causal(place).build(6, 1, "chat")

    def full(self: Base, structure: object, device: object = None) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    module: Any = task.model()
    module._structures._found.clear()
    monkeypatch.setattr(Base, "shared", full)
    task = replace(task, model=lambda: module)
    with pytest.raises(OutOfMemory, match="task 'chat': out of memory before training began"):
        DeviceTask.build(task, 1, torch.device("cpu"))


def test_a_machine_without_room_for_the_base(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error that torch itself raises when memory cannot be had."""
    folder = write_decoder(tmp_path / "large")

    def full(*args: object, **kwargs: object) -> torch.Tensor:
        return torch.empty(2**55)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(OutOfMemory) as caught:
        _causal(place, base=str(folder)).build(6, 1, "chat")
    said = str(caught.value)
    assert said.startswith(f"base model {str(folder)!r} does not fit into this machine's memory")
    assert "\n" not in said


def test_a_misspelled_option_of_a_file(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f"""
[simulation]
clients = 6
[[tasks]]
use = "lora-causal-lm"
max_rounds = 1
[tasks.options]
base = "{place}/decoder"
lora = {{ rank = 4 }}
texts = {{ name = "json-lines", path = "{place}/plain.jsonl" }}
"""
    )
    said = CliRunner().invoke(cli, ["validate", str(file)])
    assert said.exit_code == 2
    assert "tasks.lora-causal-lm.options.lora.rank" in said.output
    assert len(said.output.strip().splitlines()) == 1


def test_options_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from fedast.config.kinds import KINDS; "
        "assert 'lora-causal-lm' in KINDS['tasks'].names(); "
        "KINDS['tasks'].find('lora-classifier', '')(base='x', texts={'name': 'json-lines', "
        "'path': 'x'}); sys.exit(any(n in sys.modules for n in ('torch', 'transformers', 'peft')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
