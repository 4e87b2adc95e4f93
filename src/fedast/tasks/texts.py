"""Text tasks with small models of their own: they need no transformer. (Torch is imported when one
is built.)"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, SerializeAsAny

from fedast.core.streams import Stream
from fedast.parts.registry import Part
from fedast.tasks.client_optimizers import Adam
from fedast.tasks.data.messages import ALPHABET, MIN_MESSAGES
from fedast.tasks.options import TaskOptions
from fedast.tasks.partitions import PARTITIONS, Dirichlet, PartitionOptions
from fedast.tasks.task import BadTask, Goal, Indices, Task, Training

if TYPE_CHECKING:
    import torch

    from fedast.tasks.data.texts import Texts

WINDOW = 80
"""Characters before the one to predict, as in LEAF's Shakespeare."""


class IMDB(TaskOptions):
    """Film reviews, positive or negative, sum of word vectors and a linear layer."""

    name: ClassVar[str] = "imdb"
    display_name: ClassVar[str] = "IMDb"
    datasets = ("imdb",)
    defaults: ClassVar[Task] = Task(
        name=name,
        step_cost=0.2,
        # Three epochs over a client's 100 reviews. Plain SGD learned nothing at 0.3 and diverged at
        # 2. With Adam, 200 clients and FedAST(D) were between 0.81 and 0.84 after 200 rounds: one
        # seed, and the better of two rates on the test set.
        training=Training(local_steps=18, batch_size=16, client_lr=0.003, client_optimizer=Adam()),
    )
    partition: Annotated[SerializeAsAny[PartitionOptions], Part(PARTITIONS)] = Dirichlet(alpha=0.5)
    """How reviews are split over clients, by their label (fedast list partitions)."""
    samples: int = Field(100, ge=1)
    """Reviews per client; with power-law their mean."""
    words: int = Field(10_000, ge=100, le=32_767)
    """How many of the most frequent words count; the others are left out."""
    length: int = Field(200, ge=1)
    """Words of a review that are read, from its beginning."""
    embedded: int = Field(32, ge=1)
    """Length of a word's vector."""
    split_seed: int = Field(0, ge=0)
    """Which reviews are for testing: a fifth, the same in every run."""

    def model(self) -> Callable[[], torch.nn.Module]:
        from fedast.tasks.models import WordAverage

        return partial(WordAverage, self.words, self.embedded)

    def build(self, clients: int, seed: int, name: str) -> Task:
        import torch

        from fedast.tasks.dataset import Arrays

        numbers, labels, train, test = _reviews(self.words, self.length, self.split_seed)
        rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
        try:
            parts = self.partition.build()(labels[train], clients, self.samples, rng)
        except ValueError as error:
            raise BadTask(f"task {name!r}: {error}") from None

        def data(chosen: Indices) -> Arrays:
            return Arrays(
                torch.from_numpy(numbers[chosen]), torch.from_numpy(labels[chosen]), _long
            )

        return replace(
            self.defaults,
            name=name,
            model=self.model(),
            train=data(train),
            test=data(test),
            partition=parts,
        )


class ChitChat(TaskOptions):
    """Chat messages by sender, next character from 80, LSTM."""

    name: ClassVar[str] = "chitchat"
    display_name: ClassVar[str] = "Chit-Chat"
    datasets = ("chitchat",)
    defaults: ClassVar[Task] = Task(
        name=name,
        goal=Goal(evaluate_hint=2),
        step_cost=0.555,  # Shakespeare's
        training=Training(
            local_steps=27, batch_size=64, client_lr=7.0, weight_decay=7e-5, sampling="independent"
        ),
    )
    min_messages: int = Field(MIN_MESSAGES, ge=2)
    """A sender with fewer messages is no client."""
    test_windows: int = Field(20_000, ge=1)
    """Test windows to evaluate on during a run."""
    final_test: bool = False
    """Whether the last model is tested on all test windows (many minutes on a CPU)."""

    def model(self) -> Callable[[], torch.nn.Module]:
        from fedast.tasks.models import CharLSTM

        return partial(CharLSTM, len(ALPHABET))

    def build(self, clients: int, seed: int, name: str) -> Task:
        """A client per sender, in random order; if there are more clients, senders are used
        again."""
        import torch

        from fedast.tasks.dataset import Windows
        from fedast.tasks.partitions import natural, one_each

        codes, begins, starts, tests = _windows(self.min_messages)
        rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
        # The same for all seeds: another sample per seed would add noise to comparisons.
        chosen = np.random.default_rng(0).choice(
            len(tests), min(self.test_windows, len(tests)), replace=False
        )
        text = torch.from_numpy(codes)
        every = torch.from_numpy(tests)
        return replace(
            self.defaults,
            name=name,
            model=self.model(),
            train=Windows(text, torch.from_numpy(begins), WINDOW),
            test=Windows(text, every[torch.from_numpy(np.sort(chosen))], WINDOW),
            final_test=Windows(text, every, WINDOW) if self.final_test else None,
            partition=natural(starts, one_each(len(starts) - 1, clients, rng)),
        )


def _long(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.long()


@lru_cache(maxsize=2)
def _reviews(
    words: int, length: int, split_seed: int
) -> tuple[npt.NDArray[np.int16], Indices, Indices, Indices]:
    """(the beginnings of all reviews in numbers, labels, which to train on, which to test on)."""
    from fedast.tasks.data.sources import load, tell
    from fedast.tasks.data.texts import TEST_SHARE, review_split

    stored = load("imdb", tell)
    starts, labels = stored.array("word_starts"), stored.array("labels")
    every = stored.array("words")
    every[every > words] = 0
    place = starts[:-1, None] + np.arange(length)
    inside = place < starts[1:, None]
    found = np.where(inside, every[np.minimum(place, len(every) - 1)], 0)
    return found.astype(np.int16), labels, *review_split(len(labels), split_seed, TEST_SHARE)


@lru_cache(maxsize=2)
def _windows(
    min_messages: int,
) -> tuple[npt.NDArray[np.uint8], Indices, Indices, Indices]:
    """(codes, where training windows begin, the first of each sender and the end, test windows).

    Senders without a window for both training and testing are left out.
    """
    from fedast.tasks.data.cache import DataError
    from fedast.tasks.data.texts import messages

    found = messages(min_messages=min_messages)
    people = len(found.people)
    both = zip(_by_person(found.train, people), _by_person(found.test, people), strict=True)
    kept = [pair for pair in both if min(map(len, pair)) > WINDOW]
    if not kept:
        raise DataError(
            f"chitchat: too little text: no sender with {min_messages} messages has more than "
            f"{WINDOW} characters in both parts"
        )
    codes = np.concatenate([part for pair in kept for part in pair])
    sizes = np.array([[len(train), len(test)] for train, test in kept])
    begins = (np.cumsum(sizes) - sizes.ravel()).reshape(-1, 2)
    train, test = (
        np.concatenate(
            [
                np.arange(begin, begin + size - WINDOW)
                for begin, size in zip(begins[:, part], sizes[:, part], strict=True)
            ]
        )
        for part in (0, 1)
    )
    return codes, train, np.concatenate(([0], np.cumsum(sizes[:, 0] - WINDOW))), test


_CODES = np.full(256, 255, dtype=np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def _by_person(texts: Texts, people: int) -> list[npt.NDArray[np.uint8]]:
    """Each person's messages as codes of ``ALPHABET``, a line each."""
    assert texts.people is not None
    ends = np.cumsum(np.bincount(texts.people, minlength=people))
    found, start = [], 0
    for end in ends:
        text = "".join(f"{message}\n" for message in texts.texts[start:end])
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text)
        codes = _CODES[np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8)]
        found.append(codes[codes < len(ALPHABET)])
        start = end
    return found
