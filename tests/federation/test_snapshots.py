"""Snapshots are pickles, so one is read only if it was written with the federation's own secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedast.federation.segments import Position
from fedast.federation.snapshots import Mark, Snapshot, Snapshots, Unusable


def test_a_snapshot_without_the_secret_is_not_read(tmp_path: Path) -> None:
    found = Snapshot(7, Position(0, 1), Mark(0, 0), b"a pickle")
    Snapshots(tmp_path, lambda: b"of somebody else").save(found)
    ours = Snapshots(tmp_path, lambda: b"ours")
    with pytest.raises(Unusable, match="damaged"):
        ours.load(7)
    ours.save(found)
    assert ours.load(7).payload == b"a pickle"
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b"a pickle", b"b pickle"))
    with pytest.raises(Unusable, match="damaged"):
        ours.load(7)
