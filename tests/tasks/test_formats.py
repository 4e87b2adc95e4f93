"""Files of datasets are read correctly, and broken ones are refused by name."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedast.tasks.data.cache import DataError
from fedast.tasks.data.formats import (
    check_images,
    read_cifar_batch,
    read_cifar_png,
    read_idx,
    read_json_labels,
)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def test_idx_plain_and_gzipped() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(read_idx(idx(array), "x"), array)
    assert np.array_equal(read_idx(gzip.compress(idx(array)), "x.gz"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x: is not an idx file"),
        (b"PK\3\4aaaa", "x: is not an idx file"),
        (idx(np.arange(24).reshape(2, 12))[:-1], "x: truncated idx file"),
        (idx(np.arange(24).reshape(2, 12)) + b"!", "x: truncated idx file"),
        (idx(np.arange(24).reshape(2, 12))[:6], "x: truncated idx file"),
        (gzip.compress(idx(np.arange(6)), mtime=0)[:-9], "x: damaged gzip file"),
    ],
)
def test_broken_idx_files_are_named(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(content, "x")


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def test_cifar_png_is_one_image_a_row() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3))
    assert np.array_equal(read_cifar_png(png(images.reshape(5, 1024, 3)), "b.png"), images)
    with pytest.raises(DataError, match=r"b\.png: rows of 1000 pixels"):
        read_cifar_png(png(np.zeros((2, 1000, 3))), "b.png")
    with pytest.raises(DataError, match=r"b\.png: damaged PNG"):
        read_cifar_png(png(images.reshape(5, 1024, 3))[:200], "b.png")


def test_json_labels() -> None:
    assert list(read_json_labels(b"[3, 1]", "l.json")) == [3, 1]
    with pytest.raises(DataError, match=r"l\.json: is not a list of labels"):
        read_json_labels(b"[3, ", "l.json")


def batch(path: Path, images: np.ndarray[Any, Any], labels: list[int], key: bytes) -> Path:
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1).astype(np.uint8)
    path.write_bytes(pickle.dumps({b"data": flat, key: labels}, protocol=2))
    return path


def test_cifar_batch(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3))
    path = batch(tmp_path / "train", images, [1, 2, 3, 0], b"fine_labels")
    found, labels = read_cifar_batch(path, "fine_labels")
    assert np.array_equal(found, images)
    assert list(labels) == [1, 2, 3, 0]


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("boom",))


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({b"data": Bomb(), b"labels": []}))
    with pytest.raises(DataError, match="is not a CIFAR batch"):
        read_cifar_batch(path, "labels")
    assert capsys.readouterr().out == ""


def images(count: int = 20, classes: int = 10) -> dict[str, Any]:
    return {
        f"{part}_{kind}": np.zeros((count, 28, 28), np.uint8) if kind == "x"
        else np.arange(count) % classes
        for part in ("train", "test")
        for kind in ("x", "y")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_y": np.arange(20) % 11}, "m: a train label is outside the 10 classes"),
        ({"test_y": np.arange(20) - 1}, "m: a test label is outside the 10 classes"),
        ({"train_y": np.arange(20) % 9}, "m: class 9 has no training samples"),
        ({"train_y": np.arange(19) % 10}, "m: 20 train images but 19 labels"),
        ({"test_y": np.zeros((20, 1), np.int64)}, "m: test labels have shape"),
        ({"test_x": np.zeros((20, 28, 27), np.uint8)}, "m: test images are"),
    ],
)
def test_what_must_be_true_of_images(change: dict[str, Any], message: str) -> None:
    check_images("m", images(), 10, (28, 28))
    with pytest.raises(DataError, match=message):
        check_images("m", images() | change, 10, (28, 28))
