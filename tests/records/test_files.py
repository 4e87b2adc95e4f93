"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedast.records.files import write_atomically


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("content", ["häßlich\n", b"\x00\xff"])
def test_the_content_is_replaced_and_nothing_else_is_left(
    tmp_path: Path, content: str | bytes, durable: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("before, and longer than what comes after it")
    write_atomically(path, content, durable=durable)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after", durable=True)
    assert path.read_text() == "before"
    monkeypatch.undo()
    write_atomically(path, "after", durable=True)  # the draft that is left is in nobody's way
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_private_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    stale = tmp_path / f"secret.{os.getpid()}.part"
    stale.write_text("of a killed process")
    stale.chmod(0o666)
    write_atomically(path, b"key", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
