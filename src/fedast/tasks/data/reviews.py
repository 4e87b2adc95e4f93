"""IMDb's 50,000 film reviews (Maas et al., 2011): texts, sentiments, and their words as numbers.

A review that occurs twice would be trained and tested on; every text is kept once. The words are
numbered by how often they occur in all reviews (as Keras numbers them): 1 is the most frequent, 0
is a word beyond the 65,535 most frequent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.tasks.data.cache import DataError
from fedast.tasks.data.packed import pack, tidy

VOCABULARY = 65_535
FEWEST = 10
"""Reviews, below which there is nothing to split."""

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_SENTIMENTS = {"neg": 0, "pos": 1}


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def review_files(files: Mapping[str, bytes]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    if "reviews.json" not in files:
        raise DataError("imdb: no file reviews.json")
    try:
        rows = [(row["t"], row["s"]) for row in json.loads(files["reviews.json"])]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"reviews.json: is not a list of reviews with text t and sentiment s ({error!r})"
        ) from error
    return _reviews(rows)


def review_folder(folder: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The package's file, or the layout of Stanford's archive: train/pos/0_9.txt and so on."""
    if (folder / "reviews.json").is_file():
        return review_files({"reviews.json": (folder / "reviews.json").read_bytes()})
    place = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    rows = [
        (path.read_text(encoding="utf-8", errors="replace"), label)
        for part in ("train", "test")
        for kind, label in _SENTIMENTS.items()
        for path in sorted((place / part / kind).glob("*.txt"))
    ]
    if not rows:
        raise DataError(
            f"{folder}: has neither reviews.json nor Stanford's aclImdb/train/pos/*.txt "
            "nor a Hugging Face dataset"
        )
    return _reviews(rows)


def review_hub(splits: Any) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    return _reviews(
        (text, label)
        for part in ("train", "test")
        for text, label in zip(splits[part]["text"], splits[part]["label"], strict=True)
    )


def _reviews(
    rows: Iterable[tuple[Any, Any]],
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    sentiment: dict[str, int] = {}
    found = 0
    for text, label in rows:
        found += 1
        if not isinstance(text, str) or label not in (0, 1):
            raise DataError(
                f"imdb: review {found} is not a text with sentiment 0 or 1 (sentiment {label!r})"
            )
        sentiment.setdefault(tidy(text), int(label))
    sentiment.pop("", None)
    labels = np.array(list(sentiment.values()), dtype=np.int64)
    if len(labels) < FEWEST or len(np.unique(labels)) < 2:
        raise DataError(
            f"imdb: too little text: {len(labels)} different reviews, "
            f"{int(labels.sum())} of them positive"
        )
    content, starts = pack(sentiment)
    said = [words(text) for text in sentiment]
    counts = Counter(word for review in said for word in review)
    number = {word: n for n, (word, _) in enumerate(counts.most_common(VOCABULARY), 1)}
    notes = {
        "reviews": len(labels),
        "positive": int(labels.sum()),
        "duplicates left out": found - len(labels),
        "words": sum(map(len, said)),
        "different words": len(counts),
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "text": content,
        "starts": starts,
        "labels": labels,
        "words": np.array(
            [number.get(word, 0) for review in said for word in review], dtype=np.uint16
        ),
        "word_starts": np.cumsum([0, *map(len, said)], dtype=np.int64),
    }
    return arrays, notes
