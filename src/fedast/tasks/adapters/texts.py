"""Where texts come from, and which client has which: a kind of part."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.tasks.task import BadTask, Indices


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
