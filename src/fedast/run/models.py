"""The trained models of a run: ``models/TASK.safetensors``, and a card beside each.

A file holds the module's state under the module's own names, so ``load_state_dict`` takes it. The
card says where the model comes from and how to load it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedast.config.load import load
from fedast.config.resolve import options_of, resolve
from fedast.config.schema import RunConfig, TaskConfig
from fedast.core.protocol import TaskName
from fedast.records.files import write_atomically
from fedast.records.run import CONFIG, MODELS, RunResult, UnusableFolder
from fedast.tasks.data.sources import DATASETS
from fedast.tasks.options import build_task

if TYPE_CHECKING:
    import torch


def model_file(folder: Path, task: TaskName) -> Path:
    """Where a run's folder keeps this task's model."""
    return folder / MODELS / f"{task}.safetensors"


def save_models(
    folder: Path,
    modules: Mapping[TaskName, torch.nn.Module],
    result: RunResult,
    data: Mapping[TaskName, str],
    raw: Mapping[TaskName, torch.nn.Module] | None = None,
) -> None:
    """Write every task's model and card; ``data`` says what each was trained on. ``raw``: the
    newest models of tasks of which an average is the result; they go beside it."""
    from safetensors.torch import save_model

    places = {task: model_file(folder, task) for task in modules}
    shutil.rmtree(folder / MODELS, ignore_errors=True)
    (folder / MODELS).mkdir(parents=True)

    def write(module: torch.nn.Module, task: TaskName, path: Path) -> None:
        draft = path.with_name(f"{path.name}.part")
        about = {"task": task, "algorithm": result.algorithm, "seed": str(result.seed)}
        save_model(module, str(draft), metadata=about)  # tied parameters are written once
        _sort_metadata(draft)
        draft.replace(path)

    for task, module in (raw or {}).items():
        write(module, task, places[task].with_name(f"{task}.raw.safetensors"))
    for task, module in modules.items():
        path = places[task]
        write(module, task, path)
        text = _card(task, module, result, data.get(task, "data of your own"), path.name)
        write_atomically(path.with_name(f"{task}.md"), text)


def _sort_metadata(path: Path) -> None:
    """safetensors writes its metadata in any order; the same model shall be the same file."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def load_model(folder: Path, task: TaskName) -> torch.nn.Module:
    """The trained module of a task, in evaluation mode, from a run's folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model as load_into

    path = model_file(folder, task)
    if not (folder / CONFIG).is_file():
        raise UnusableFolder(f"{folder}: holds no run ({CONFIG} is missing)")
    config = resolve(load(folder / CONFIG), folder)
    known = {configured.name or configured.use: configured for configured in config.tasks}
    if task not in known:
        raise UnusableFolder(f"{folder}: has no task {task!r}; it has {', '.join(known)}")
    if not path.is_file():
        raise UnusableFolder(
            f"{path}: is missing; the run has not ended, or was made by a version of fedast that "
            "kept no models (run its config.toml again)"
        )
    module = _module(known[task], config)
    try:
        load_into(module, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UnusableFolder(f"{path}: does not fit the task's module: {error}") from error
    return module.eval()


def _module(task: TaskConfig, config: RunConfig) -> torch.nn.Module:
    """A fresh module of the task; its data is loaded only if it cannot be had otherwise."""
    options = options_of(task, config)
    make = options.model()
    if make is None:
        name = task.name or task.use
        make = build_task(options, config.simulation.clients, config.seed, name).model
    return make()


def data_of(config: RunConfig) -> dict[TaskName, str]:
    """What each task of a configuration is trained on, with licences where they are known."""
    found = {}
    for task in config.tasks:
        named = [DATASETS[name] for name in options_of(task, config).datasets if name in DATASETS]
        texts = [f"{dataset.title} (licence: {dataset.licence})" for dataset in named]
        found[task.name or task.use] = "; ".join(texts) or f"that of the task `{task.use}`"
    return found


def _card(task: TaskName, module: torch.nn.Module, result: RunResult, data: str, file: str) -> str:
    numbers = result.tasks[task]
    final = "not evaluated" if numbers.final is None else f"{numbers.final:.4g}"
    loss = "" if numbers.final_loss is None else f" (loss {numbers.final_loss:.4g})"
    size = sum(parameter.numel() for parameter in module.parameters())
    rows = {
        "task": task,
        "algorithm": f"{result.algorithm}, seed {result.seed}",
        numbers.metric: f"{final}{loss}",
        "training": f"{numbers.updates:,} updates in {numbers.rounds:,} rounds; "
        f"ended: {numbers.finish_reason}",
        "parameters": f"{size:,} ({type(module).__name__})",
        "data": data,
        "software": f"fedast {result.fedast or '0.1.0'}",
    }
    table = "\n".join(f"| {key} | {_cell(text)} |" for key, text in rows.items())
    return f"""# {_cell(task)}

| | |
|---|---|
{table}

## Load it

With fedast, from the run's folder:

```python
import fedast

model = fedast.load("RUN").model({task!r})
```

{_without_fedast(task, module, file)}"""


def _without_fedast(task: TaskName, module: torch.nn.Module, file: str) -> str:
    from fedast.tasks.adapters.module import AdapterModel

    if isinstance(module, AdapterModel):
        return f"""Without it: these are adapters over the base model `{module.design.base.name}`.
`fedast export RUN {task} --to peft` writes them as a folder for `PeftModel.from_pretrained`.
"""
    return f"""Without it, into a module of the same structure:

```python
from safetensors.torch import load_model

load_model(module, {file!r})
```
"""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
