"""How the files of each dataset become arrays, whichever way they came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.tasks.data import shakespeare
from fedast.tasks.data.cache import DataError
from fedast.tasks.data.formats import (
    check_images,
    read_cifar_batch,
    read_cifar_png,
    read_idx,
    read_json_labels,
)

Arrays = dict[str, npt.NDArray[Any]]
Parsed = tuple[Arrays, dict[str, Any]]
"""Arrays to store, and facts about them to remember."""

# --- images ----------------------------------------------------------------------------------

_IDX = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}


def idx_files(name: str) -> Callable[[Mapping[str, bytes]], Parsed]:
    def parse(files: Mapping[str, bytes]) -> Parsed:
        arrays: Arrays = {}
        for key, stem in _IDX.items():
            file = next((f for f in (stem, f"{stem}.gz") if f in files), None)
            if file is None:
                raise DataError(f"{name}: no file {stem}")
            arrays[key] = read_idx(files[file], file)
        arrays["train_y"] = arrays["train_y"].astype(np.int64)
        arrays["test_y"] = arrays["test_y"].astype(np.int64)
        return _checked(name, arrays, 10, (28, 28))

    return parse


def idx_folder(name: str, torchvision: str) -> Callable[[Path], Parsed]:
    def parse(folder: Path) -> Parsed:
        for place in (folder, folder / "raw", folder / torchvision / "raw"):
            files = {
                path.name: path
                for stem in _IDX.values()
                for path in (place / stem, place / f"{stem}.gz")
                if path.is_file()
            }
            if files:
                return idx_files(name)({key: path.read_bytes() for key, path in files.items()})
        raise DataError(
            f"{folder}: has neither torchvision's {torchvision}/raw/{_IDX['train_x']} "
            "nor a Hugging Face dataset"
        )

    return parse


def cifar10_files(files: Mapping[str, bytes]) -> Parsed:
    wanted = [*(f"data_batch_{n}.png" for n in range(1, 6)), "test_batch.png"]
    for file in (*wanted, "train_lables.json", "test_lables.json"):
        if file not in files:
            raise DataError(f"cifar10: no file {file}")
    pictures = [read_cifar_png(files[file], file) for file in wanted]
    arrays: Arrays = {
        "train_x": np.concatenate(pictures[:5]),
        "train_y": read_json_labels(files["train_lables.json"], "train_lables.json"),
        "test_x": pictures[5],
        "test_y": read_json_labels(files["test_lables.json"], "test_lables.json"),
    }
    return _checked("cifar10", arrays, 10, (32, 32, 3))


def cifar_folder(
    name: str, inner: str, train: tuple[str, ...], test: str, label_key: str, classes: int
) -> Callable[[Path], Parsed]:
    def parse(folder: Path) -> Parsed:
        place = next((p for p in (folder, folder / inner) if (p / test).is_file()), None)
        if place is None:
            raise DataError(
                f"{folder}: has neither torchvision's {inner}/{test} nor a Hugging Face dataset"
            )
        parts = [read_cifar_batch(place / file, label_key) for file in train]
        test_x, test_y = read_cifar_batch(place / test, label_key)
        arrays: Arrays = {
            "train_x": np.concatenate([images for images, _ in parts]),
            "train_y": np.concatenate([labels for _, labels in parts]),
            "test_x": test_x,
            "test_y": test_y,
        }
        return _checked(name, arrays, classes, (32, 32, 3))

    return parse


def image_hub(name: str, classes: int, shape: tuple[int, ...]) -> Callable[[Any], Parsed]:
    def parse(splits: Any) -> Parsed:
        arrays: Arrays = {}
        for part in ("train", "test"):
            table = splits[part]
            image = next((c for c in ("image", "img") if c in table.column_names), None)
            label = next((c for c in ("fine_label", "label") if c in table.column_names), None)
            if image is None or label is None:
                raise DataError(f"{name}: columns {table.column_names}, expected image and label")
            arrays[f"{part}_x"] = np.stack([np.asarray(row, np.uint8) for row in table[image]])
            arrays[f"{part}_y"] = np.asarray(table[label], dtype=np.int64)
        return _checked(name, arrays, classes, shape)

    return parse


def _checked(name: str, arrays: Arrays, classes: int, shape: tuple[int, ...]) -> Parsed:
    check_images(name, arrays, classes, shape)
    return arrays, {"train": len(arrays["train_y"]), "test": len(arrays["test_y"])}


# --- text ------------------------------------------------------------------------------------


def play_files(texts: Mapping[str, bytes]) -> Parsed:
    plays = {}
    for file, content in texts.items():
        play = file.removesuffix(".txt").removesuffix("_gut")
        if play not in shakespeare.POEMS:
            plays[play] = content.decode("utf-8", errors="replace")
    return _corpus(shakespeare.build_corpus(plays))


def _corpus(corpus: shakespeare.Corpus) -> Parsed:
    lengths = np.diff(corpus.starts)
    parts = [shakespeare.windows(corpus.starts, role) for role in range(len(lengths))]
    largest = [corpus.names[role] for role in np.argsort(-lengths, kind="stable")[:5]]
    notes = {
        "roles": len(corpus.names),
        "characters": len(corpus.codes),
        "train": sum(len(train) for train, _ in parts),
        "test": sum(len(test) for _, test in parts),
        "short roles left out": corpus.short_roles,
        "characters dropped": corpus.dropped_characters,
        "largest roles": largest,
    }
    names = np.array(corpus.names, dtype=np.str_)
    return {"codes": corpus.codes, "starts": corpus.starts, "names": names}, notes


def play_folder(folder: Path) -> Parsed:
    texts = {path.name: path.read_bytes() for path in sorted(folder.glob("*.txt"))}
    gutenberg = {name: text for name, text in texts.items() if name.endswith("_gut.txt")}
    if not texts:
        raise DataError(f"{folder}: has no plays (*.txt) and no Hugging Face dataset")
    return play_files(gutenberg or texts)


def window_hub(splits: Any) -> Parsed:
    """LEAF's rows are windows x and the character y after each; join them into texts again."""
    texts: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    table = splits["train"]
    for role, x, y in zip(table["character_id"], table["x"], table["y"], strict=True):
        follows = role in last and last[role][1:] == x
        texts.setdefault(role, []).append(y if follows else x + y)
        last[role] = x + y
    return _corpus(shakespeare.corpus_of({role: "".join(p) for role, p in texts.items()}))
