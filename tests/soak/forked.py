"""Real processes of ``fedast`` that start at once.

Most of a start is importing torch. A fork server has done that already, so a campaign can kill and
start a process every second or two. Each is a process of its own, with its own connections.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.soak.preload"])
_PR_SET_PDEATHSIG = 1


def _fedast(arguments: Sequence[str], log: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing is left over
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from fedast.cli.main import main

    sys.argv = ["fedast", *arguments]
    main()


@final
class Forked:
    """A process of the fork server, as ``field.Running`` has it."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._process = _CONTEXT.Process(target=_fedast, args=(list(arguments), str(log)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return code
