"""A run's trained model in a form that other software loads."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.core.protocol import TaskName
from fedast.parts.errors import ConfigError
from fedast.records.run import CONFIG, MODELS
from fedast.run.build import build_tasks
from fedast.run.models import load_model

if TYPE_CHECKING:
    import torch

_SAMPLES = 2
"""In the example batch: with one, an exporter takes the batch axis for a constant."""


def export(folder: Path, task: TaskName, form: str, out: Path | None = None) -> Path:
    """Write a task's model as ``form``, one of ``FORMS``; the file or folder. Without ``out`` it
    goes beside the model in the run's folder."""
    suffix, write = FORMS[form]
    model = load_model(folder, task)
    path = folder / MODELS / f"{task}{suffix}" if out is None else out
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}{suffix}")  # torch.export insists on its suffix
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's exporters, about their own insides
            write(model, _Example(folder, task), draft)
        if draft.is_dir() and path.is_dir():
            shutil.rmtree(path)
        draft.replace(path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
    return path


class _Example:
    """Inputs of a task, loaded when a form needs them."""

    def __init__(self, folder: Path, task: TaskName) -> None:
        self._folder = folder
        self._task = task

    def inputs(self) -> torch.Tensor:
        import torch

        config = resolve(load(self._folder / CONFIG), self._folder)
        task = next(found for found in build_tasks(config) if found.name == self._task)
        inputs: torch.Tensor = task.test.batch(torch.arange(_SAMPLES))[0]
        return inputs


def _state_dict(model: torch.nn.Module, example: _Example, path: Path) -> None:
    import torch

    torch.save(model.state_dict(), path)


def _torch_export(model: torch.nn.Module, example: _Example, path: Path) -> None:
    import torch

    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (example.inputs(),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)


def _onnx(model: torch.nn.Module, example: _Example, path: Path) -> None:
    import torch

    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            "--to onnx", f"needs {' and '.join(missing)}; pip install 'fedast[export]'"
        )
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        model,
        (example.inputs(),),
        str(path),
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _peft(model: torch.nn.Module, example: _Example, path: Path) -> None:
    from fedast.tasks.adapters.module import AdapterModel

    if not isinstance(model, AdapterModel):
        raise ConfigError("--to peft", "this task trains a whole model, not adapters over a base")
    model.save_pretrained(path)


Write = Callable[["torch.nn.Module", _Example, Path], None]
FORMS: Mapping[str, tuple[str, Write]] = {
    "state-dict": (".pt", _state_dict),
    "torch-export": (".pt2", _torch_export),
    "onnx": (".onnx", _onnx),
    "peft": ("-adapter", _peft),
}
"""By name: the suffix of the file or folder, and what writes it."""
