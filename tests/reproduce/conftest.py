from __future__ import annotations

from pathlib import Path

import pytest

from tests.reproduce.support import SMALL


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path
