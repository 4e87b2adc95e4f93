"""Datasets of the Hugging Face hub: by id, or as a folder on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedast.tasks.data.cache import DataError


def is_dataset(folder: Path) -> bool:
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


def load_id(hub: str) -> Any:
    try:
        return _library().load_dataset(hub)
    except DataError:
        raise
    except Exception as error:  # the library raises whatever its transports raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"Hugging Face {hub}: could not be loaded: {reason}") from error


def load_folder(folder: Path) -> Any:
    library = _library()
    try:
        if (folder / "dataset_dict.json").is_file():
            return library.load_from_disk(str(folder))
        files = {part: _parquet(folder, part) for part in ("train", "test")}
        return library.load_dataset("parquet", data_files={k: v for k, v in files.items() if v})
    except Exception as error:
        raise DataError(f"{folder}: is not a Hugging Face dataset ({error})") from error
