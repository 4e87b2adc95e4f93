"""Errors as one line on stderr, with the exit status that belongs to them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NoReturn

import click

from fedast.cli.starting import over

_EXTRAS = {
    "nats": "deploy",
    "cryptography": "deploy",
    "prometheus_client": "deploy",
    "starlette": "ui",
    "uvicorn": "ui",
}
"""Packages that only an extra installs."""


def fail(message: str, status: int = 2) -> NoReturn:
    """Print one line and exit; status 2 is for what the user can correct."""
    over()
    click.echo(f"error: {message}", err=True)
    sys.exit(status)


_DEBUG = f"{__name__}.debug"


def debug_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--debug``, which the whole command and every subcommand have."""

    def keep(context: click.Context, option: click.Parameter, value: bool) -> None:
        context.meta[_DEBUG] = value or context.meta.get(_DEBUG, False)

    return click.option(
        "--debug", is_flag=True, expose_value=False, callback=keep,
        help="Show where an error comes from, with its traceback.",
    )(command)  # fmt: skip


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error that is reported in one line, if --debug asks for it."""
    context = click.get_current_context(silent=True)
    if context is None or not context.meta.get(_DEBUG) or isinstance(error, click.ClickException):
        return
    earlier: BaseException | None = error
    while earlier is not None:  # what it says in place of its causes is for those who do not ask
        earlier.__suppress_context__ = False
        earlier = earlier.__cause__ or earlier.__context__
    click.echo("".join(traceback.format_exception(error)), err=True, nl=False)


def reports_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Report what users can get wrong in one line, ``--debug`` with its traceback before it. An
    error in fedast itself always keeps its traceback."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            show_traceback(error)
            _report(error)
            raise

    return debug_option(update_wrapper(run, command))


def _report(error: Exception) -> None:
    """End with one line, if it is an error that users can do something about.

    The classes are imported here, so that ``fedast --help`` and a command's first word are quick.
    """
    from fedast.federation.faults import ServerFault
    from fedast.federation.transport import TransportError
    from fedast.parts.blame import in_users_code, placed
    from fedast.parts.errors import ConfigError
    from fedast.records.run import UnusableFolder
    from fedast.run.batch import ClusterLost
    from fedast.sim.tables import BadInputFile
    from fedast.tasks.data.cache import DataError
    from fedast.tasks.task import BadTask, TrainingFailed

    match error:
        case click.ClickException() | click.Abort() | click.exceptions.Exit():
            return
        case ConfigError() | BadTask() | BadInputFile() | DataError() | UnusableFolder():
            fail(str(error))
        case TransportError() | ServerFault() | ClusterLost():
            fail(str(error), status=1)
        case ModuleNotFoundError() if error.name in _EXTRAS:
            fail(f"{error.name} is missing; install fedast[{_EXTRAS[error.name]}]")
        case TrainingFailed():
            fail(f"{error}\na run with checkpoints can go on: fedast run --resume DIR", status=1)
        case OSError():  # a full disk, a folder that went away
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        case _ if in_users_code(error):
            fail(f"{placed(error)}; --debug shows the traceback", status=1)
        case _:
            return
