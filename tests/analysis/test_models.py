"""Trained models: what a run leaves, reads back and exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import fedast
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.run import UnusableFolder
from fedast.run.execute import execute
from fedast.run.models import model_file
from fedast.run.simulate import Outcome

CONFIG = """
seed = 3
[simulation]
clients = 12
[algorithm]
name = "fedast-s"
requests = 8
[[tasks]]
use = "digits-mlp"
max_rounds = 6
[[tasks]]
use = "digits-cnn"
name = "pictures v1.5"
max_rounds = 4
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "run.toml"
    file.write_text(CONFIG)
    out = folder / "one"
    return out, execute(resolve(load(file), folder), out)


def test_a_file_holds_the_module_s_own_names_and_the_evaluated_weights(
    made: tuple[Path, Outcome],
) -> None:
    folder, outcome = made
    assert sorted(path.name for path in (folder / "models").iterdir()) == [
        "digits-mlp.md",
        "digits-mlp.safetensors",
        "pictures v1.5.md",
        "pictures v1.5.safetensors",
    ]
    for task, module in outcome.models.items():
        kept = load_file(model_file(folder, task))
        expected = module.state_dict()
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[name], expected[name]) for name in kept)


def test_the_loaded_model_has_the_recorded_accuracy(made: tuple[Path, Outcome]) -> None:
    folder, outcome = made
    runs = fedast.load(folder)
    for task in ("digits-mlp", "pictures v1.5"):
        model = runs.model(task)
        assert not model.training
        config = resolve(load(folder / "config.toml"), folder)
        from fedast.run.build import build_tasks

        test = next(found for found in build_tasks(config) if found.name == task).test
        x, y = test.batch(torch.arange(len(test)))
        with torch.no_grad():
            accuracy = float((model(x).argmax(1) == y).float().mean())
        assert accuracy == pytest.approx(outcome.result.tasks[task].final, abs=1e-6)


def test_the_card_says_what_it_is(made: tuple[Path, Outcome]) -> None:
    text = (made[0] / "models" / "digits-mlp.md").read_text()
    for part in ("fedast-s, seed 3", "accuracy", "updates in 6 rounds", "model('digits-mlp')"):
        assert part in text


def test_outcome_save_keeps_models_too(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    made[1].save(tmp_path / "saved")
    assert model_file(tmp_path / "saved", "digits-mlp").is_file()


def test_overwriting_removes_the_models_of_before(
    made: tuple[Path, Outcome], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    (out / "models").mkdir(parents=True)
    (out / "models" / "other.safetensors").write_bytes(b"old")
    config = resolve(load(made[0] / "config.toml"), made[0])
    execute(config, out, overwrite=True)
    assert "other.safetensors" not in [path.name for path in (out / "models").iterdir()]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.toml").unlink(), "config.toml is missing"),
        (lambda folder: model_file(folder, "digits-mlp").unlink(), "is missing; the run has not"),
        (
            lambda folder: model_file(folder, "digits-mlp").write_bytes(b"\0" * 40),
            "does not fit the task's module",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    made: tuple[Path, Outcome], tmp_path: Path, spoil: object, message: str
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    spoil(copy)  # type: ignore[operator]
    result = CliRunner().invoke(cli, ["export", str(copy), "digits-mlp"])
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_an_unknown_task_names_the_known_ones(made: tuple[Path, Outcome]) -> None:
    with pytest.raises(UnusableFolder, match=r"it has digits-mlp, pictures v1\.5"):
        fedast.load(made[0]).model("mnist")


def test_a_state_dict_is_what_torch_loads(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    file = tmp_path / "deep" / "model.pt"
    result = CliRunner().invoke(cli, ["export", str(made[0]), "digits-mlp", "--out", str(file)])
    assert result.exit_code == 0, result.output
    assert f"wrote {file}" in result.output
    found = torch.load(file, weights_only=True)
    expected = made[1].models["digits-mlp"].state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("task", ["digits-mlp", "pictures v1.5"])
def test_onnx_computes_what_torch_does(
    made: tuple[Path, Outcome], tmp_path: Path, task: str
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    result = CliRunner().invoke(
        cli, ["export", str(made[0]), task, "--to", "onnx", "--out", str(file)]
    )
    assert result.exit_code == 0, result.output
    model = made[1].models[task]
    sample = _sample(made[0], task, 7)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {"input": sample.numpy()})
    with torch.no_grad():
        expected = model(sample)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_an_exported_program_runs_without_fedast(made: tuple[Path, Outcome]) -> None:
    result = CliRunner().invoke(cli, ["export", str(made[0]), "digits-mlp", "--to", "torch-export"])
    assert result.exit_code == 0, result.output
    file = made[0] / "models" / "digits-mlp.pt2"
    sample = _sample(made[0], "digits-mlp", 5)
    code = (
        "import sys, torch\n"
        "program = torch.export.load(sys.argv[1]).module()\n"
        f"print(program(torch.zeros({tuple(sample.shape)})).shape)\n"
        "assert 'fedast' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "[5, 10]" in done.stdout


def _sample(folder: Path, task: str, count: int) -> torch.Tensor:
    from fedast.run.build import build_tasks

    config = resolve(load(folder / "config.toml"), folder)
    test = next(found for found in build_tasks(config) if found.name == task).test
    inputs: torch.Tensor = test.batch(torch.arange(count))[0]
    return inputs
