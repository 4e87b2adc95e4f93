"""A plug-in whose name is taken: said, not dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedast.parts.errors import ConfigError
from fedast.sim.delays import DELAYS
from tests.plugin import install

DELAY = """
from fedast.sim.delays import Constant
class Mine(Constant):
    '''A delay of somebody else's.'''
"""


def problems(name: str) -> list[tuple[str, str]]:
    return [(part.source, part.problem) for part in DELAYS.listed() if part.name == name]


def test_a_built_in_name_stays_built_in_and_the_plug_in_is_listed_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = next(iter(DELAYS.builtin))
    install(monkeypatch, tmp_path, "taker", DELAY, {"fedast.delays": f"{taken} = taker:Mine"})
    assert DELAYS.find(taken, "delay") is DELAYS.builtin[taken]
    assert ("taker", f"fedast has its own {taken}; write taker:Mine instead") in problems(taken)
    assert DELAYS.find("taker:Mine", "delay").__name__ == "Mine"


def test_a_name_that_two_packages_offer_stands_for_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("first_one", "second_one"):
        folder = tmp_path / package
        folder.mkdir()
        install(monkeypatch, folder, package, DELAY, {"fedast.delays": f"twice = {package}:Mine"})
    with pytest.raises(ConfigError, match="first_one and second_one both offer it") as raised:
        DELAYS.find("twice", "simulation.delay.name")
    assert "write first_one:Mine" in str(raised.value)
    assert "twice" not in DELAYS.names()
    assert len(problems("twice")) == 2
