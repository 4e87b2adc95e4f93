"""Options that several commands have. Imports nothing but click, so that help is quick."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def set_option(text: str = "Override a key.") -> Decorator:
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=text)


def device_option(text: str) -> Decorator:
    return click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help=text)


def precision_option(text: str) -> Decorator:
    choices = click.Choice(["auto", "fp32", "tf32", "fp16", "bf16"])
    return click.option("--precision", type=choices, help=text)


def jobs_option(text: str = "Runs at a time; default: one per core.") -> Decorator:
    return click.option("--jobs", type=click.IntRange(min=1), help=text)


def on_option() -> Decorator:
    """``--on`` and what it may need to know; the command gets one table ``on``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def gathered(*args: Any, on: str, **options: Any) -> Any:
            given = {key: options.pop(key) for key in _ON}
            asked = {_ON[key]: value for key, value in given.items() if value not in (None, False)}
            return command(*args, on={"name": on, **asked}, **options)

        wrapped: Callable[..., Any] = update_wrapper(gathered, command)
        for option in (
            click.option("--allow-mixed", is_flag=True,
                         help="Use nodes with different processors or GPUs, which round "
                              "differently."),
            click.option("--gpus", type=click.FloatRange(min=0, min_open=True),
                         help="GPUs of each run on a cluster; 0.25 lets four share one."),
            click.option("--cores", type=click.IntRange(min=1),
                         help="Cores of each run on a cluster; default: 1."),
            click.option("--address", metavar="HOST:PORT", help="The Ray cluster, for --on ray."),
            click.option("--on", default="local", show_default=True, metavar="EXECUTOR",
                         help="Where runs are carried out: local, ray, slurm "
                              "(fedast list executors)."),
        ):  # fmt: skip
            wrapped = option(wrapped)
        return wrapped

    return decorate


_ON = {"address": "cluster", "cores": "cores", "gpus": "gpus", "allow_mixed": "allow_mixed"}
"""Options beside ``--on``, and what executors call them."""


def ui_option() -> Decorator:
    return click.option("--ui", is_flag=True, help="Watch it on a local page, in a browser.")


def track_option() -> Decorator:
    return click.option(
        "--track", multiple=True, metavar="NAME",
        help="Send what happens to a tracker: tensorboard, wandb, mlflow, trackio, or another "
             "(fedast list observers); repeatable.",
    )  # fmt: skip


def quiet_option(text: str = "Print only the end result.") -> Decorator:
    return click.option("--quiet", "-q", is_flag=True, help=text)


def json_option(text: str = "Print the result as JSON only.") -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=text)


def columns_option() -> Decorator:
    return click.option(
        "--columns", default=2, show_default=True, type=click.IntRange(1, 2),
        help="Columns of a paper that a figure is as wide as.",
    )  # fmt: skip


def offline_option() -> Decorator:
    return click.option("--offline", is_flag=True, help="Refuse to fetch data that is not cached.")


def folder_argument() -> Decorator:
    return click.argument("folder", type=click.Path(file_okay=False))


def config_argument(**attributes: Any) -> Decorator:
    return click.argument("config", type=click.Path(dir_okay=False), **attributes)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the commands that simulate configurations: ``run`` and ``compare``."""
    for option in (
        set_option("Override a key, such as simulation.clients=50; repeatable."),
        device_option("Where to train; default: what the configuration says."),
        click.option("--trainer", metavar="NAME",
                     help="How to train: auto, serial, processes, batched, or one of your own "
                          "(package.module:Name); default: what the configuration says."),
        precision_option("Precision of matrix products on a GPU; default: tf32."),
        click.option("--events", is_flag=True, help="Also write events.jsonl, every event."),
        track_option(),
        click.option("--overwrite", is_flag=True, help="Replace a run that is already there."),
        ui_option(),
        offline_option(),
        quiet_option(),
        json_option(),
    ):  # fmt: skip
        command = option(command)
    return command
