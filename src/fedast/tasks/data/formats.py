"""Reading data files: idx, CIFAR's two layouts. Each error names the file."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.tasks.data.cache import DataError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_IDX_TYPES = {0x08: np.uint8, 0x09: np.int8, 0x0B: np.int16, 0x0C: np.int32, 0x0D: np.float32}


def read_idx(content: bytes, name: str) -> npt.NDArray[Any]:
    """LeCun's idx format, gzipped or plain: two zeros, type, dimensions, sizes, data."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise DataError(f"{name}: damaged gzip file ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise DataError(f"{name}: is not an idx file")
    kind, dimensions = np.dtype(_IDX_TYPES[content[2]]).newbyteorder(">"), content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name}: truncated idx file: {len(content)} bytes")
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int)
    if len(content) - start != int(shape.prod()) * kind.itemsize:
        raise DataError(
            f"{name}: truncated idx file: {len(content)} bytes for shape {tuple(shape)}"
        )
    return np.frombuffer(content, dtype=kind, offset=start).reshape(shape)


def read_cifar_png(content: bytes, name: str) -> Images:
    """A PNG with one image a row: 32x32 pixels, row by row, red, green and blue together."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(f"{name}: damaged PNG ({error})") from error
    if pixels.shape[1:] != (1024, 3):
        raise DataError(f"{name}: rows of {pixels.shape[1]} pixels, expected 1024")
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3))


def read_json_labels(content: bytes, name: str) -> Labels:
    try:
        return np.asarray(json.loads(content), dtype=np.int64)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: is not a list of labels ({error})") from error


class _ArraysOnly(pickle.Unpickler):
    """CIFAR's own batches are pickles; this reads arrays and plain values and runs no code."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)


def read_cifar_batch(path: Path, label_key: str) -> tuple[Images, Labels]:
    """A batch in CIFAR's python layout, as torchvision keeps it: (images, labels)."""
    try:
        with path.open("rb") as file:
            batch: Mapping[bytes, Any] = _ArraysOnly(file, encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[label_key.encode()], dtype=np.int64)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # a pickle can be broken in any way
        raise DataError(f"{path}: is not a CIFAR batch ({error})") from error
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels


def check_images(
    name: str, arrays: Mapping[str, npt.NDArray[Any]], classes: int, shape: tuple[int, ...]
) -> None:
    """What must be true of an image dataset before it is stored."""
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if labels.ndim != 1:
            raise DataError(f"{name}: {part} labels have shape {labels.shape}, expected a list")
        if images.shape[1:] != shape or images.dtype != np.uint8:
            raise DataError(f"{name}: {part} images are {images.shape[1:]}, expected {shape}")
        if len(images) != len(labels):
            raise DataError(f"{name}: {len(images)} {part} images but {len(labels)} labels")
        if len(labels) == 0 or labels.min() < 0 or labels.max() >= classes:
            raise DataError(f"{name}: a {part} label is outside the {classes} classes")
        absent = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
        if part == "train" and len(absent):
            raise DataError(f"{name}: class {absent[0]} has no training samples")
