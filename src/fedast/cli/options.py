"""Options that several commands have. Imports nothing but click, so that help is quick."""

from __future__ import annotations

from collections.abc import Callable
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
    return click.option(
        "--on", default="local", show_default=True, metavar="EXECUTOR",
        help="Where runs are carried out (fedast list executors).",
    )  # fmt: skip


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
        offline_option(),
        quiet_option(),
        json_option(),
    ):  # fmt: skip
        command = option(command)
    return command
