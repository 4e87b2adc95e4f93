"""How an algorithm is written and drawn, the same in every figure.

Its options class says both (``display_name``, ``colour``). An algorithm without a colour of its own
gets one of a few spare colours, decided by its name alone. Several lines of one algorithm in a
figure share its hue and differ in tint, dashes and hatching. The colours of fedast's own algorithms
can be told apart with each kind of colour blindness (a test computes it).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fedast.algorithms.options import ALGORITHMS

SPARE = ("#17178B", "#A2D174", "#E80046", "#8B74FF")
"""For algorithms that have no colour of their own."""
TASKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B005D", "#000000")
"""For lines that are tasks: by their order in the run."""
_TINTS = (0.0, 0.45, 0.7)
"""How much white the first, second, third ... line of an algorithm has in it."""
Dash: TypeAlias = str | tuple[int, tuple[float, ...]]
_SOLID: tuple[Dash, ...] = ("-", (0, (5, 1, 1, 1)), (0, (1, 1)))
_DASHED: tuple[Dash, ...] = ("--", (0, (2, 1)), (0, (4, 1, 1, 1, 1, 1)))
_HATCHES = ("", "////", "....", "xxxx")


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, line style and hatching of a series."""

    colour: str
    dash: Dash = "-"
    hatch: str = ""


def display_name(algorithm: str) -> str:
    """An algorithm as text writes it, from the name that a record has."""
    options = ALGORITHMS.known(algorithm)
    return algorithm.rpartition(":")[2] if options is None else options.display_name


def colour_of(algorithm: str) -> str:
    """An algorithm's colour, the same wherever it is drawn."""
    options = ALGORITHMS.known(algorithm)
    if options is not None and options.colour:
        return options.colour
    name = algorithm if options is None else options.name
    return SPARE[zlib.crc32(name.rpartition(":")[2].encode()) % len(SPARE)]


def looks(algorithms: Mapping[str, str]) -> dict[str, Look]:
    """A look for each label, from the algorithm that each stands for."""
    before: Counter[str] = Counter()
    found = {}
    for label, algorithm in algorithms.items():
        colour, options = colour_of(algorithm), ALGORITHMS.known(algorithm)
        dashes = _DASHED if options is not None and options.synchronous else _SOLID
        number = before[colour]
        before[colour] += 1
        found[label] = Look(
            tinted(colour, _TINTS[number % len(_TINTS)]),
            dashes[(number + number // len(_TINTS)) % len(dashes)],
            _HATCHES[number % len(_HATCHES)],
        )
    return found


def task_looks(tasks: Sequence[str]) -> dict[str, Look]:
    """A look for each task."""
    return {
        task: Look(TASKS[number % len(TASKS)], _SOLID[number // len(TASKS) % len(_SOLID)])
        for number, task in enumerate(tasks)
    }


def tinted(colour: str, white: float) -> str:
    """A colour with so much white in it, 0 to 1."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02X}" for part in parts)
