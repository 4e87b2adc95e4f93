"""Errors as one line on stderr, with the exit status that belongs to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NoReturn

import click

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
    click.echo(f"error: {message}", err=True)
    sys.exit(status)


def reports_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Report what users can get wrong in one line. Anything else is a bug and keeps its traceback.

    The error classes are imported when a command runs, so that ``fedast --help`` stays light.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        from fedast.federation.faults import ServerFault
        from fedast.federation.transport import TransportError
        from fedast.parts.errors import ConfigError
        from fedast.records.run import UnusableFolder
        from fedast.run.batch import ClusterLost
        from fedast.sim.tables import BadInputFile
        from fedast.tasks.data.cache import DataError
        from fedast.tasks.task import BadTask, TrainingFailed

        try:
            return command(*args, **kwargs)
        except (ConfigError, BadTask, BadInputFile, DataError, UnusableFolder) as error:
            fail(str(error))
        except (TransportError, ServerFault, ClusterLost) as error:
            fail(str(error), status=1)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if extra is None:
                raise
            fail(f"{error.name} is missing; install fedast[{extra}]")
        except TrainingFailed as error:
            fail(f"{error}\na run with checkpoints can go on: fedast run --resume DIR", status=1)
        except OSError as error:  # a full disk, a folder that went away
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except KeyboardInterrupt:
            sys.exit(130)

    return update_wrapper(run, command)
