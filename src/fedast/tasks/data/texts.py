"""Text for language models: raw texts with their labels, and with the people who wrote them.

``reviews`` (labels, no people), ``messages`` and ``roles`` (people, no labels) give training and
test texts. ``token_blocks`` turns texts into blocks of tokens, client by client, with any
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np

from fedast.tasks.data.cache import DataError
from fedast.tasks.data.messages import MIN_MESSAGES
from fedast.tasks.data.packed import Indices, PackedTexts, pack
from fedast.tasks.data.sources import Say, load, tell

TRAIN_SHARE = 0.8
TEST_SHARE = 0.2

Encode = Callable[[list[str]], Sequence[Sequence[int]]]
"""The tokens of each text, such as
``lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]``."""


@final
@dataclass(frozen=True, eq=False)
class Texts:
    texts: Sequence[str]
    labels: Indices | None = None
    """The class of each text."""
    people: Indices | None = None
    """Who wrote each text: a place in ``TextData.people``; ascending."""

    def __len__(self) -> int:
        return len(self.texts)


@final
@dataclass(frozen=True, eq=False)
class TextData:
    """Texts to train and to test on."""

    train: Texts
    test: Texts
    people: tuple[str, ...] = ()
    """Who is a client; none: the texts come without people and are split by label."""


def reviews(*, split_seed: int = 0, test_share: float = TEST_SHARE, say: Say = tell) -> TextData:
    """IMDb's reviews with their sentiments, 0 or 1; the split is the same in every run."""
    stored = load("imdb", say)
    texts = PackedTexts(stored.array("text"), stored.array("starts"))
    labels = stored.array("labels")
    train, test = review_split(len(labels), split_seed, test_share)
    return TextData(
        Texts(texts.take(train), labels=labels[train]), Texts(texts.take(test), labels=labels[test])
    )


def review_split(count: int, split_seed: int, test_share: float) -> tuple[Indices, Indices]:
    """(train, test): which of the reviews."""
    held_out = round(count * test_share)
    if not 0 < held_out < count:
        raise DataError(f"imdb: a test share of {test_share} of {count} reviews leaves one empty")
    order = np.random.default_rng(split_seed).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def messages(*, min_messages: int = MIN_MESSAGES, say: Say = tell) -> TextData:
    """Chat messages by sender; of each sender, the first four fifths are for training.

    Senders with fewer than ``min_messages`` (at least 2) are left out.
    """
    stored = load("chitchat", say)
    senders = stored.array("senders")
    sizes = np.bincount(senders)
    people = np.flatnonzero(sizes >= max(2, min_messages))
    if not len(people):
        raise DataError(
            f"chitchat: no sender has {min_messages} messages; the largest has {sizes.max()}"
        )
    firsts = np.cumsum(sizes) - sizes
    cuts = np.minimum((TRAIN_SHARE * sizes).astype(np.int64), sizes - 1)
    number = np.full(len(sizes), -1)
    number[people] = np.arange(len(people))
    place = np.arange(len(senders)) - firsts[senders]
    training = place < cuts[senders]
    texts = PackedTexts(stored.array("text"), stored.array("starts"))

    def part(chosen: Any) -> Texts:
        indices = np.flatnonzero(chosen & (number[senders] >= 0))
        return Texts(texts.take(indices), people=number[senders[indices]])

    names = stored.array("names")
    return TextData(part(training), part(~training), tuple(str(names[i]) for i in people))


def roles(*, say: Say = tell) -> TextData:
    """Shakespeare's roles, two texts each: the first four fifths of it, and the rest."""
    from fedast.tasks.data.shakespeare import ALPHABET, split_at

    stored = load("shakespeare", say)
    codes, starts = stored.array("codes"), stored.array("starts")
    letters = np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)
    whole = [letters[codes[start:end]].tobytes().decode("ascii") for start, end in pairwise(starts)]
    people = np.arange(len(whole))
    train = PackedTexts(*pack(text[: split_at(len(text))] for text in whole))
    test = PackedTexts(*pack(text[split_at(len(text)) :] for text in whole))
    names = tuple(str(name) for name in stored.array("names"))
    return TextData(Texts(train, people=people), Texts(test, people=people), names)


TEXT_DATA: Mapping[str, Callable[..., TextData]] = {
    "imdb": reviews,
    "chitchat": messages,
    "shakespeare": roles,
}


# --- tokens -----------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of tokens, those of one person in a row."""

    tokens: Indices
    """A row per block."""
    people: Indices
    """Who has a block at all, as places in ``TextData.people``; ascending."""
    starts: Indices
    """The first block of each of ``people``, and the end (for ``partitions.natural``)."""


def token_blocks(
    texts: Texts, encode: Encode, length: int, separator: Sequence[int] = (), at_once: int = 1000
) -> Blocks:
    """A person's texts joined, with ``separator`` after each, and cut into blocks of ``length``.

    What is left at the end is shorter than a block and is dropped, so a person with less than
    ``length`` tokens has none. Texts without people are one person's.
    """
    if length < 2:
        raise DataError(f"a block of {length} tokens has no next token; at least 2 are needed")
    tokens: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    after = np.asarray(separator, dtype=np.int64)
    sizes = np.zeros(len(texts), dtype=np.int64)
    for start in range(0, len(texts), at_once):
        some = encode(list(texts.texts[start : start + at_once]))
        for place, row in enumerate(some, start):
            tokens += [np.asarray(row, dtype=np.int64), after]
            sizes[place] = len(row) + len(after)
    owners = np.zeros(len(texts), dtype=np.int64) if texts.people is None else texts.people
    totals = np.bincount(owners, weights=sizes).astype(np.int64)
    counts = totals // length
    if not counts.any():
        raise DataError(
            f"too little text: nobody has {length} tokens (the most is {totals.max(initial=0)}); "
            "use shorter blocks"
        )
    stream = np.concatenate(tokens)
    firsts = np.cumsum(totals) - totals
    people = np.flatnonzero(counts)
    begins = np.concatenate([firsts[p] + length * np.arange(counts[p]) for p in people])
    blocks = stream[begins[:, None] + np.arange(length)]
    return Blocks(blocks, people, np.concatenate(([0], np.cumsum(counts[people]))))
