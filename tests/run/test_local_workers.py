"""Processes on this machine: what Ctrl-C does while one is being started."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from fedast.cli.interrupt import interruptible
from fedast.run.batch import Work
from fedast.run.local_workers import LocalWorkers


def test_ctrl_c_while_a_process_starts_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that is being started must not get it, but the command must."""
    submit = ProcessPoolExecutor.submit

    def interrupted(self: ProcessPoolExecutor, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return submit(self, *arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    workers = LocalWorkers()
    try:
        with interruptible() as stop:
            workers.begin(Work(0, {}, None, False, False, None, False))
            assert stop()
    finally:
        workers.close()
    assert [number for number, _ in workers.ended()] == [0]
