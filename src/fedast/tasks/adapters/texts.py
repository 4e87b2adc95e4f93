"""Where texts come from, and which client has which: a kind of part."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from pydantic import Field, SerializeAsAny

from fedast.parts.options import Options
from fedast.parts.registry import Part, Registry
from fedast.tasks.partitions import PARTITIONS, Dirichlet, PartitionOptions, natural
from fedast.tasks.task import BadTask, Indices

if TYPE_CHECKING:
    from fedast.tasks.data.texts import TextData


@final
@dataclass(frozen=True, slots=True)
class Texts:
    """Documents for training and testing, and which of the former each client has."""

    train: Sequence[str]
    test: Sequence[str]
    partition: Sequence[Indices]
    train_labels: npt.NDArray[np.int64] | None = None
    """A class number for each document; None: there are no classes."""
    test_labels: npt.NDArray[np.int64] | None = None

    @property
    def classes(self) -> int:
        """How many classes the labels have."""
        if self.train_labels is None or self.test_labels is None:
            return 0
        return 1 + int(max(self.train_labels.max(), self.test_labels.max()))


class TextOptions(Options, ABC):
    """A source of texts."""

    datasets: ClassVar[tuple[str, ...]] = ()
    """The datasets that must be in the cache (fedast data list)."""

    @abstractmethod
    def build(self, clients: int, rng: np.random.Generator) -> Texts:
        """The texts over so many clients."""


class JsonLines(TextOptions):
    """A file of your own, with an object per line: text, client and, to classify, label."""

    name: ClassVar[str] = "json-lines"
    path: str
    """The file. ``client`` and ``label`` may be numbers or names."""
    holdout: float = Field(0.2, gt=0, lt=1)
    """The part of each client's texts that models are tested on."""

    def build(self, clients: int, rng: np.random.Generator) -> Texts:
        rows = self._rows()
        owners = sorted({str(row["client"]) for row in rows})
        if len(owners) < clients:
            raise BadTask(f"{self.path}: has texts of {len(owners)} clients, not of {clients}")
        names = sorted({str(row["label"]) for row in rows if "label" in row})
        train: list[int] = []
        test: list[int] = []
        parts = []
        chosen = [owners[number] for number in rng.permutation(len(owners))[:clients]]
        mine: dict[str, list[int]] = {owner: [] for owner in owners}
        for number, row in enumerate(rows):
            mine[str(row["client"])].append(number)
        for owner in chosen:
            order = rng.permutation(mine[owner])
            held = round(len(order) * self.holdout)
            test += [int(number) for number in order[:held]]
            parts.append(np.arange(len(train), len(train) + len(order) - held))
            train += [int(number) for number in order[held:]]

        def labels(numbers: list[int]) -> npt.NDArray[np.int64] | None:
            return (
                np.array([names.index(str(rows[n]["label"])) for n in numbers]) if names else None
            )

        return Texts(
            [rows[number]["text"] for number in train],
            [rows[number]["text"] for number in test],
            parts,
            labels(train),
            labels(test),
        )

    def _rows(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines if line.strip()]
        except OSError as error:
            raise BadTask(f"{self.path}: {error.strerror}") from None
        except ValueError as error:
            raise BadTask(f"{self.path}: is not JSON, one object per line: {error}") from None
        labelled = [isinstance(row, dict) and "label" in row for row in rows]
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise BadTask(f"{self.path}: object {number} has no text")
            if "client" not in row:
                raise BadTask(f"{self.path}: object {number} does not say whose it is (client)")
            if any(labelled) and not labelled[number - 1]:
                raise BadTask(f"{self.path}: object {number} has no label, others have one")
        return rows


class Imdb(TextOptions):
    """IMDb's film reviews with their sentiment, split over clients by label."""

    name: ClassVar[str] = "imdb"
    datasets = ("imdb",)
    samples: int = Field(64, ge=1)
    """Reviews of each client."""
    partition: Annotated[SerializeAsAny[PartitionOptions], Part(PARTITIONS)] = Dirichlet(alpha=0.5)
    """How reviews are split over clients (fedast list partitions)."""
    test_samples: int = Field(1000, ge=1)
    """Reviews to test on, the same for all seeds."""

    def build(self, clients: int, rng: np.random.Generator) -> Texts:
        from fedast.tasks.data.texts import reviews

        found = reviews()
        labels, held = found.train.labels, found.test.labels
        assert labels is not None
        assert held is not None
        count = min(self.test_samples, len(held))
        chosen = np.random.default_rng(0).permutation(len(held))[:count]
        return Texts(
            found.train.texts,
            [found.test.texts[number] for number in chosen],
            self.partition.build()(labels, clients, self.samples, rng),
            labels,
            held[chosen],
        )


class _ByPeople(TextOptions, ABC):
    """Texts of people, each of whom is a client; if there are more clients, people are used
    again."""

    minimum: int = Field(2000, ge=1)
    """People with fewer characters to train on are left out."""
    test_characters: int = Field(100_000, ge=1)
    """About so many characters are tested on, the same for all seeds."""

    @abstractmethod
    def data(self) -> TextData: ...

    def build(self, clients: int, rng: np.random.Generator) -> Texts:
        found = self.data()
        train, test = found.train, found.test
        assert train.people is not None
        assert test.people is not None
        sizes = np.bincount(
            train.people, [len(text) for text in train.texts], minlength=len(found.people)
        )
        people = np.flatnonzero(sizes >= self.minimum)
        if not len(people):
            raise BadTask(
                f"{self.name}: nobody has {self.minimum} characters; the most is {sizes.max():.0f}"
            )
        firsts = np.searchsorted(train.people, np.arange(len(found.people) + 1))
        rounds = -(-clients // len(people))
        owners = np.concatenate([rng.permutation(people) for _ in range(rounds)])[:clients]
        held, left = [], self.test_characters
        for number in np.random.default_rng(0).permutation(len(test.texts)):
            if left > 0 and sizes[test.people[number]] >= self.minimum:
                held.append(test.texts[number][:left])
                left -= len(held[-1])
        return Texts(train.texts, held, natural(firsts, owners))


class Chitchat(_ByPeople):
    """Chat messages, by the people who wrote them."""

    name: ClassVar[str] = "chitchat"
    datasets = ("chitchat",)

    def data(self) -> TextData:
        from fedast.tasks.data.texts import messages

        return messages()


class Shakespeare(_ByPeople):
    """Shakespeare's plays, by speaking role."""

    name: ClassVar[str] = "shakespeare"
    datasets = ("shakespeare",)

    def data(self) -> TextData:
        from fedast.tasks.data.texts import roles

        return roles()


def _from_function(name: str, function: Callable[..., Any]) -> type[TextOptions]:
    class FromFunction(TextOptions):
        def build(self, clients: int, rng: np.random.Generator) -> Texts:
            found = function(clients, rng)
            if not isinstance(found, Texts):
                raise BadTask(f"{name}: returned {type(found).__name__}, not Texts")
            return found

    FromFunction.name = name
    return FromFunction


TEXTS: Registry[TextOptions] = Registry(
    "texts",
    TextOptions,  # type: ignore[type-abstract]
    [__name__],
    adapt=_from_function,
)
