"""Processes that outlive the command which started them, and are found again by a later one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

import psutil

from fedast.records.files import write_atomically


@final
class Processes:
    """Named processes, recorded in a file with their process id and start time.

    The id alone would not do: the system gives it to another process after ours has ended, and
    that one must not be taken for ours, let alone be killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recorded: dict[str, tuple[int, str]] = {}
        if path.is_file():
            found = json.loads(path.read_text())
            self._recorded = {name: (pid, started) for name, (pid, started) in found.items()}

    def start(
        self, name: str, command: Sequence[str], log: Path, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, cwd=cwd, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.record(name, process.pid)
        return process

    def record(self, name: str, pid: int) -> None:
        process = _find(pid)
        self._recorded[name] = (pid, "" if process is None else _started(process))
        write_atomically(self._path, json.dumps(self._recorded))

    def alive(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._alive().items()}

    def _alive(self) -> dict[str, psutil.Process]:
        found = {}
        for name, (pid, started) in self._recorded.items():
            process = _find(pid)
            if process is not None and _started(process) == started:
                found[name] = process
        return found

    def end(self, names: Sequence[str], patience: float = 15.0) -> None:
        """Ask these processes to end, all at once, and kill those that have not after ``patience``
        seconds. The calling process is left out."""
        alive = self._alive()
        wanted = {name for name in names if name in alive and alive[name].pid != os.getpid()}
        _signal((alive[name] for name in wanted), signal.SIGTERM)
        end = time.monotonic() + patience
        # (psutil.wait_procs would reap children, whose exit status their Popen still wants.)
        while left := [process for name, process in self._alive().items() if name in wanted]:
            if time.monotonic() > end:
                _signal(left, signal.SIGKILL)
                break
            time.sleep(0.1)

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal; whether the process is running."""
        found = [process for known, process in self._alive().items() if known == name]
        _signal(found, number)
        return bool(found)

    def forget(self) -> None:
        self._recorded = {}
        self._path.unlink(missing_ok=True)


def by_hand(folder: Path) -> dict[str, int]:
    """nats-server, servers and clients of the federation in a folder, whoever started them: by
    their working directory or the credentials they were given."""
    found: dict[str, int] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            name = _role(process, folder.resolve())
            if name is not None and process.status() != psutil.STATUS_ZOMBIE:
                found[name] = process.pid
    return found


def _role(process: psutil.Process, folder: Path) -> str | None:
    command = process.cmdline()
    if not command:
        return None
    if Path(command[0]).name.startswith("nats-server"):
        place = Path(process.cwd())
        return "nats" if place.is_relative_to(folder / "nats") else None
    if "--creds" not in command[:-1] or not {"serve", "client"} & set(command):
        return None
    keys = (Path(process.cwd()) / command[command.index("--creds") + 1]).resolve()
    return keys.name if keys.is_relative_to(folder) else None


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            process.send_signal(number)


def _find(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def _started(process: psutil.Process) -> str:
    """When a process started, in a form that setting the machine's clock does not change."""
    try:
        started = process.create_time()
    except psutil.NoSuchProcess:
        return "ended"
    if psutil.LINUX:  # psutil adds the boot time, which moves with the clock, to clock ticks
        return str(round((started - psutil.boot_time()) * os.sysconf("SC_CLK_TCK")))
    return str(started)
