"""A short campaign, and what the campaign itself relies on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.soak import fuzz_targets, results
from tests.soak.campaign import Run, Wave, run
from tests.soak.catalogue import ATTACKS, FAULTS


@pytest.mark.chaos
def test_a_short_campaign(tmp_path: Path) -> None:
    """``make soak`` is the long one. A failure names the seed; its records are in the folder."""
    found = asyncio.run(run(tmp_path / "run", seed=1, rounds=200, most=40, say=True))
    results.append(tmp_path / "results.jsonl", found)
    kept = results.read(tmp_path / "results.jsonl")
    print(results.table(kept), results.summary(kept), sep="\n\n")
    assert not found.problems, found.problems
    assert found.harms > 10


def test_every_harm_has_a_name_of_its_own() -> None:
    names = [make(random.Random(0)).name for make in (*FAULTS.values(), *ATTACKS.values())]
    assert len(set(names)) == len(names) > 50


def test_results_of_several_calls_add_up(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for seed in (1, 2):
        one = Run(seed, waves=[Wave(["a", "b"], 0.0), Wave(["a"], 3.0)])
        one.counts = {"sent": 10, "counted": 8, "late": 1}
        one.by_harm = {"a": {"sent": 10}, "b": {"sent": 4}}
        one.problems = ["it broke"] if seed == 2 else []
        results.append(path, one)
    runs = results.read(path)
    assert results.harms(runs) == 6
    table = results.table(runs).splitlines()
    assert table[2:] == [
        "| a | 4 | 20 | 0 | 0 | 0 | 0 |",
        "| b | 2 | 8 | 0 | 0 | 0 | 0 |",
        "| **all** | 6 | 20 | 16 | 0 | 0 | 2 |",
    ]
    summary = results.summary(runs)
    assert "2 runs (seeds 1-2), 6 faults" in summary
    assert "FAILED, seed 2: it broke" in summary


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_fuzzing_starts_from_sound_inputs(name: str) -> None:
    chance, target = random.Random(1), fuzz_targets.TARGETS[name]
    for example in fuzz_targets.examples()[name]:
        target(example)
        for _ in range(50):
            damaged = bytearray(example)
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            target(bytes(damaged))
