"""Processes that outlive the command which started them, and are found again by a later one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from fedast.records.files import write_atomically


@final
class Processes:
    """Named processes, noted in a file with when they were born.

    A number alone would not do: it is given to somebody else after a process has ended, and
    whoever has it then must not be taken for ours, let alone be killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: dict[str, tuple[int, str]] = {}
        if path.is_file():
            found = json.loads(path.read_text())
            self._noted = {name: (pid, born) for name, (pid, born) in found.items()}

    def start(
        self, name: str, command: Sequence[str], log: Path, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, cwd=cwd, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        self.note(name, process.pid)
        return process

    def note(self, name: str, pid: int) -> None:
        self._noted[name] = (pid, _born(pid) or "")
        write_atomically(self._path, json.dumps(self._noted))

    def alive(self) -> dict[str, int]:
        return {name: pid for name, (pid, born) in self._noted.items() if _born(pid) == born}

    def end(self, names: Sequence[str], patience: float = 15.0) -> None:
        """Ask them to end, all at once; kill those that do not. (Never the one that asks.)"""
        alive = {
            name: pid for name, pid in self.alive().items() if name in names and pid != os.getpid()
        }
        _signal(alive, signal.SIGTERM)
        end = time.monotonic() + patience
        while left := {name: pid for name, pid in self.alive().items() if name in alive}:
            if time.monotonic() > end:
                _signal(left, signal.SIGKILL)
                break
            time.sleep(0.1)

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Whether it is there to be signalled."""
        found = {known: pid for known, pid in self.alive().items() if known == name}
        _signal(found, number)
        return bool(found)

    def forget(self) -> None:
        self._noted = {}
        self._path.unlink(missing_ok=True)


def _signal(whom: dict[str, int], number: signal.Signals) -> None:
    for pid in whom.values():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)


def _born(pid: int) -> str | None:
    """When a process was born, in words of the system's own; None if it is no more."""
    entry = Path(f"/proc/{pid}/stat")
    if entry.parent.parent.joinpath("self").exists():
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if words[0] == "Z" else words[19]
    asked = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, born = asked.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else " ".join(born.split())
