"""``fedast`` as the tests call it: in this process, which has imported everything already."""

from __future__ import annotations

import subprocess
import sys
import traceback

from click.testing import CliRunner

from fedast.cli.main import cli


def fedast(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command here. What it would have printed as a traceback is in ``stderr`` too."""
    done = CliRunner().invoke(cli, arguments, prog_name="fedast")
    errors = done.stderr
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        errors += "".join(traceback.format_exception(done.exception))
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, errors)


def fedast_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as users do."""
    command = [sys.executable, "-m", "fedast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def refused(*arguments: str) -> str:
    """The one line with which a command is refused."""
    done = fedast(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    return line
