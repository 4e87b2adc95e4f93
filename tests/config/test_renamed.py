"""Keys of earlier versions are read, and noted under their names of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedast.config.load import load
from fedast.parts.errors import ConfigError

OLD = """
[algorithm]
name = "fedast-s"
server_rate = 0.5

[[tasks]]
use = "digits-mlp"
client_rate = 0.2

[[tasks]]
use = "synthetic"
sync = { client_rate = 0.3 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    return path


def test_each_old_key_of_a_file_is_noted(path: Path) -> None:
    notes: list[str] = []
    config = load(path, note=notes.append)
    assert [note.split(";")[0] for note in notes] == [
        "algorithm.server_rate is now called server_lr",
        "tasks.digits-mlp.client_rate is now called client_lr",
        "tasks.synthetic.sync.client_rate is now called client_lr",
    ]
    assert config.tasks[0].client_lr == 0.2
    assert load(path) == config, "without note nothing is said, and nothing changes"


@pytest.mark.parametrize("text", [OLD, OLD.replace("_rate", "_lr")])
@pytest.mark.parametrize("key", ["client_rate", "client_lr"])
def test_a_setting_overrides_the_key_under_either_name(path: Path, text: str, key: str) -> None:
    path.write_text(text)
    notes: list[str] = []
    config = load(path, [f"tasks.digits-mlp.{key}=0.1"], note=notes.append)
    assert config.tasks[0].client_lr == 0.1
    expected = 3 if text == OLD else int(key == "client_rate")
    assert len(notes) == expected, "a key that is in the file and in a setting is noted once"


def test_an_old_key_within_the_value_of_a_setting(path: Path) -> None:
    path.write_text(OLD.replace("_rate", "_lr"))
    notes: list[str] = []
    config = load(path, ["tasks.1.sync={client_rate=0.7}"], note=notes.append)
    assert config.tasks[1].sync is not None
    assert config.tasks[1].sync.client_lr == 0.7
    assert notes == [
        "tasks.synthetic.sync.client_rate is now called client_lr; the old name is still read"
    ]


def test_a_key_under_both_names_is_an_error(path: Path) -> None:
    path.write_text(OLD.replace("client_rate = 0.2", "client_rate = 0.2\nclient_lr = 0.2"))
    with pytest.raises(ConfigError, match="is now called client_lr, which is set too"):
        load(path)
