"""The audit trail: which commands were given to a federation, by whom, and with what result.

A file of JSON lines beside the records. It is only ever appended to: by the server for commands
that come over the network, by ``fedast federation`` for commands run on this machine (``admit``,
``renew``, ``backup`` and so on). A line is on disk before its command is answered. Status queries
are not recorded, unless they are refused.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path
from typing import final

AUDIT = "audit.jsonl"
_LONGEST = 1000
"""Longest text in a line, so that nobody can fill the disk with one."""


@final
class AuditTrail:
    def __init__(self, folder: Path) -> None:
        """``folder``: that of the records; it is created if necessary."""
        self.path = folder / AUDIT

    def write(self, who: str, command: str, argument: str, answer: str) -> None:
        """Append a line, durably. ``who``: the name of a key, or ``shell: USER``."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "who": who[:_LONGEST],
            "command": command[:_LONGEST],
            "argument": argument[:_LONGEST],
            "answer": answer[:_LONGEST],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # One write, so that lines of several processes do not mix. A line that a crash or a
            # full disk cut off must not swallow this one.
            end = os.lseek(file, 0, os.SEEK_END)
            torn = end > 0 and os.pread(file, 1, end - 1) != b"\n"
            data = ("\n" if torn else "") + json.dumps(entry) + "\n"
            if os.write(file, data.encode()) != len(data):
                raise OSError(f"{self.path}: the disk is full")
            os.fsync(file)
        finally:
            os.close(file)


def shell_user() -> str:
    """Who runs commands on this machine: whoever may use the authority's key and the files."""
    try:
        return f"shell: {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in a container
        return f"shell: user {os.getuid()}"
