"""A folder that one process holds is refused to others, until that process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedast.records.lock import LOCK, locked
from fedast.records.run import UnusableFolder

HOLD = """
import sys
from pathlib import Path
from fedast.records.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_held_by_another_process_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UnusableFolder, match="another fedast command is using this folder"):
            locked(folder).__enter__()
        other.kill()
    assert (folder / LOCK).exists(), "the file of a killed process stays, its lock does not"
    with locked(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFolder, match="cannot be written"):
        locked(tmp_path / "file" / "folder").__enter__()
