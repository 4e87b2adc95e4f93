"""The small version of several adapters over one base, as the documentation has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedast.records.run import read_run

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the base model of a machine without a GPU."""
    made = tmp_path_factory.mktemp("adapters")
    subprocess.run(
        [sys.executable, EXAMPLES / "tiny_decoder.py", "tiny-decoder"], cwd=made, check=True
    )
    return made


def test_every_algorithm_trains_two_adapters_over_one_base(folder: Path) -> None:
    names = ["fedast-d", "fedast-plus", "sequential-fedavg", "sync-st"]
    chosen = [word for name in names for word in ("--algorithm", name)]
    subprocess.run(
        [sys.executable, "-m", "fedast", "compare", EXAMPLES / "adapters-small.toml", *chosen,
         "--seeds", "1", "--jobs", "2", "--out", "both"],
        cwd=folder, check=True,
    )  # fmt: skip
    for name in names:
        result = read_run(folder / "both" / name / "seed-1")
        for task in ("chat", "shakespeare"):
            assert result.tasks[task].finish_reason == "target", (name, task)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers about itself
def test_what_was_trained_is_loaded_by_peft(folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = folder / "both" / "fedast-d" / "seed-1"
    export = [sys.executable, "-m", "fedast", "export", str(run), "chat", "--to", "peft"]
    subprocess.run(export, cwd=folder, check=True)
    base = AutoModelForCausalLM.from_pretrained(folder / "tiny-decoder")
    model = PeftModel.from_pretrained(base, run / "models" / "chat-adapter")
    assert any("lora_B" in name and value.any() for name, value in model.named_parameters())
