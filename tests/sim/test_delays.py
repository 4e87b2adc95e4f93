from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from fedast.core.streams import Stream
from fedast.sim.delays import (
    ConstantDelay,
    Delay,
    LognormalDelay,
    MeasuredDelay,
    ShiftedExponentialDelay,
    Speeds,
    Timing,
    UniformDelay,
)
from fedast.sim.tables import BadInputFile

TIMING = Timing("a", steps=27, step_cost=0.24)
UNIT = 27 * 0.24 * 1.3
"""steps * step_cost * speed"""


def draw(delay: Delay, count: int = 20_000) -> list[float]:
    streams = Stream.of(5, "delay")
    return [delay.duration(streams.at(i), TIMING, 0, 1.3) for i in range(count)]


@pytest.mark.parametrize(
    ("delay", "distribution"),
    [
        # P(X <= x) = 1 - exp(-(x - beta) / (2 beta)), beta = 0.5 speed step_cost, times 27 steps
        (ShiftedExponentialDelay(0.5), stats.expon(loc=0.5 * UNIT, scale=1.0 * UNIT).cdf),
        (UniformDelay(0.5, 2.0), stats.uniform(loc=0.5 * UNIT, scale=1.5 * UNIT).cdf),
        (LognormalDelay(2.0, 0.7), stats.lognorm(s=0.7, scale=2.0 * UNIT).cdf),
    ],
)
def test_distributions(delay: Delay, distribution: Callable[[float], float]) -> None:
    assert stats.kstest(draw(delay), distribution).pvalue > 0.001


def test_the_paper_formula_is_what_is_tested() -> None:
    beta = 0.5 * 1.3 * 0.24
    for x in (beta, 2 * beta, 5 * beta):
        paper = 1 - math.exp(-(x - beta) / (2 * beta))
        assert stats.expon(loc=0.5 * UNIT, scale=UNIT).cdf(27 * x) == pytest.approx(paper)


def test_constant() -> None:
    assert set(draw(ConstantDelay(2.0), 3)) == {2.0 * UNIT}


def test_speed_groups_are_exact_and_shuffled() -> None:
    speeds = Speeds(1000, (1.3, 1.0, 0.7), (0.25, 0.5, 0.25), seed=3)
    found = [speeds.of(client) for client in range(1000)]
    assert Counter(found) == {1.3: 250, 1.0: 500, 0.7: 250}
    assert 80 < found[:500].count(1.3) < 170
    other = Speeds(1000, (1.3, 1.0, 0.7), (0.25, 0.5, 0.25), seed=4)
    assert found != [other.of(client) for client in range(1000)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_measured_draws_the_clients_own_rows_else_the_tasks(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", "task,client,seconds\na,0,1\na,0,2\na,1,30\nb,,9\n")
    delay = MeasuredDelay(path, ["a", "b"])
    stream = Stream.of(0, "x")
    draws = {
        client: Counter(delay.duration(stream.at(i), TIMING, client, 1.0) for i in range(300))
        for client in (0, 1, 2)
    }
    assert draws[0].keys() == {1.0, 2.0}
    assert draws[1].keys() == {30.0}
    assert draws[2].keys() == {1.0, 2.0, 30.0}
    assert all(count > 50 for count in draws[2].values())
    assert delay.duration(stream, Timing("b", 5, 5.0), 0, 2.0) == 18.0, "speed, nothing else"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,time\na,1\n", "no column 'seconds'"),
        ("task,seconds\n", "no rows"),
        ("task,seconds\na,fast\n", "line 2: seconds is not a number: 'fast'"),
        ("task,seconds\na,nan\n", "line 2: seconds is not a number"),
        ("task,seconds\na,1\na,-1\n", "line 3: seconds must be positive"),
        ("task,seconds\na\n", "line 2: expected task,seconds"),
        ("task,seconds\na,1,2\n", "line 2: expected task,seconds"),
        ("task,client,seconds\na,x,1\n", "line 2: client is not a whole number"),
        ("task,seconds\nb,1\n", "no row for task 'a'"),
    ],
)
def test_bad_measurements_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "d.csv", text)
    with pytest.raises(BadInputFile, match=message) as error:
        MeasuredDelay(path, ["a"])
    assert str(path) in str(error.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputFile, match="cannot be read"):
        MeasuredDelay(tmp_path / "none.csv", ["a"])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80" * 20)
    with pytest.raises(BadInputFile, match="not a CSV"):
        MeasuredDelay(tmp_path / "binary.csv", ["a"])


def test_the_mean_of_the_paper_model_is_three_beta() -> None:
    assert statistics.fmean(draw(ShiftedExponentialDelay(0.5))) == pytest.approx(
        1.5 * UNIT, rel=0.03
    )
