"""``fedast demo``: a comparison of the packaged demo.toml."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import jobs_option, json_option, quiet_option, ui_option
from fedast.cli.starting import loading_pytorch

_ALGORITHMS = ("fedast-d", "fedast-s", "fedast-nobuffer", "sync-st")


@click.command()
@click.option("--out", default="fedast-demo", show_default=True,
              type=click.Path(file_okay=False), help="Folder for records and figures.")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@jobs_option()
@click.option("--overwrite", is_flag=True, help="Replace a demo that is already there.")
@ui_option()
@quiet_option()
@json_option()
@reports_errors
def demo(
    out: str, seeds: int, jobs: int | None, overwrite: bool, ui: bool, quiet: bool, as_json: bool
) -> None:
    """Watch FedAST train three models over 200 clients and race synchronous training."""
    with loading_pytorch():
        from importlib.resources import as_file, files

        from fedast.cli.compare import compare_configs

    with as_file(files("fedast.run") / "demo.toml") as path:
        compare_configs(
            (str(path),),
            algorithms=_ALGORITHMS,
            seeds=seeds,
            baseline="sync-st",
            out=out,
            jobs=jobs,
            settings=(),
            device="cpu",
            trainer="serial",
            precision=None,
            events=False,
            overwrite=overwrite,
            ui=ui,
            offline=True,
            quiet=quiet,
            as_json=as_json,
        )
