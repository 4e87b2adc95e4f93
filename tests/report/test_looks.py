"""Names and colours of algorithms: fedast's own, and those of others."""

from __future__ import annotations

import sys
import types
from itertools import combinations
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.options import ALGORITHMS
from fedast.report.looks import SPARE, colour_of, display_name, looks

# How full colour blindness changes linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-
# based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
VISION = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
]


def seen(colour: str, vision: str) -> npt.NDArray[np.float64]:
    """A colour in CIELAB, in which distances are about as large as they look."""
    rgb = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    shown = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    x, y, z = np.array(TO_XYZ) @ shown / (0.95047, 1.0, 1.08883)
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_can_be_told_apart(vision: str) -> None:
    """2.3 is what can just be seen side by side; the Okabe-Ito palette itself has 16."""
    own = {name: colour_of(name) for name in ALGORITHMS.builtin}
    assert len(set(own.values())) == len(own)
    for (one, a), (other, b) in combinations({**own, **{c: c for c in SPARE}}.items(), 2):
        distance = float(np.linalg.norm(seen(a, vision) - seen(b, vision)))
        assert distance > 15, f"{one} and {other}: {distance:.1f}"


def test_names_are_as_in_text() -> None:
    assert display_name("fedast-d") == "FedAST(D)"
    assert display_name("sequential-fedavg") == "Sequential FedAvg"
    for name, options in ALGORITHMS.builtin.items():
        assert options.display_name != name, "each has a name as text writes it"
        assert options.colour


class Mine(FedASTDynamic):
    """An algorithm of somebody else's."""

    name: ClassVar[str] = "mine"


class Named(FedASTDynamic):
    """The same with a name for figures."""

    display_name: ClassVar[str] = "Mine++"
    colour: ClassVar[str] = "#123456"


def test_other_people_s_algorithms_have_a_name_and_a_lasting_colour() -> None:
    assert Mine.display_name == "mine", "not that of the class it derives from"
    address = f"{__name__}:Named"
    assert (display_name(address), colour_of(address)) == ("Mine++", "#123456")
    assert colour_of(f"{__name__}:Mine") == colour_of("mine"), "by its class or by its name alone"
    assert colour_of("mine") in SPARE
    assert display_name("somewhere.else:TheirAlgorithm") == "TheirAlgorithm"


def test_a_callable_can_say_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("their_module")

    def plain(tasks: object, pool: object, stream: object) -> None: ...

    def named(tasks: object, pool: object, stream: object) -> None: ...

    named.display_name = "Theirs(X)"  # type: ignore[attr-defined]
    module.plain, module.named = plain, named  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_module", module)
    assert display_name("their_module:plain") == "plain"
    assert display_name("their_module:named") == "Theirs(X)"


def test_reading_a_name_imports_nothing() -> None:
    assert display_name("antigravity:fly") == "fly"
    assert "antigravity" not in sys.modules


def test_lines_of_one_algorithm_share_its_hue_and_differ() -> None:
    sync = dict.fromkeys(("Sync-ST", "equal", "as FedAST"), "sync-st")
    found = looks({**sync, "D": "fedast-d"})
    assert found["Sync-ST"].colour == colour_of("sync-st")
    assert len({look.colour for look in found.values()}) == 4
    assert len({look.dash for look in found.values()}) == 4, "asynchronous solid, others dashed"
    assert found["D"].dash == "-"
    many = looks({str(number): "sync-st" for number in range(9)})
    assert len({(look.colour, look.dash) for look in many.values()}) == 9
    assert len({(look.colour, look.hatch) for look in many.values()}) == 9
