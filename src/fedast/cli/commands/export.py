"""``fedast export``."""

from __future__ import annotations

from pathlib import Path

import click

from fedast.cli.errors import reports_errors
from fedast.cli.starting import loading_pytorch, over


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("task")
@click.option("--to", "form", default="state-dict", show_default=True,
              type=click.Choice(["state-dict", "onnx", "torch-export", "peft"]),
              help="What other software will load it.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH",
              help="Where to write it; default: beside the model in RUN/models.")  # fmt: skip
@reports_errors
def export(run: Path, task: str, form: str, out: Path | None) -> None:
    """Write the trained model of TASK in the folder RUN for other software.

    state-dict is for torch.load and load_state_dict (the run's own .safetensors file holds the
    same), torch-export for torch.export.load without this package, onnx for any ONNX runtime,
    peft (a folder, of tasks that train adapters) for PeftModel.from_pretrained.
    """
    with loading_pytorch():
        from fedast.run.export import export as write

    written = write(run, task, form, out)
    over()
    click.echo(f"wrote {written}")
