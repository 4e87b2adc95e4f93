from __future__ import annotations

from pathlib import Path

import pytest

from fedast.core.streams import Stream
from fedast.sim.availability import ActiveCapPool, AlwaysPool, BernoulliPool, TracePool
from fedast.sim.tables import BadInputFile


def test_cap_skips_strangers_while_full() -> None:
    pool, stream = ActiveCapPool(100, cap=10), Stream.of(0, "x")
    holders = dict.fromkeys(range(10))
    draws = [pool.draw(stream, holders) for _ in range(3000)]
    assert {d for d in draws if d is not None} == set(range(10))
    assert 0.85 < draws.count(None) / len(draws) < 0.95
    assert None not in [pool.draw(stream, dict.fromkeys(range(9))) for _ in range(500)]


def test_cap_gives_a_round_fresh_distinct_clients() -> None:
    pool, stream = ActiveCapPool(100, cap=30), Stream.of(0, "x")
    first, second = pool.available(stream), pool.available(stream)
    assert len(set(first)) == len(set(second)) == 30
    assert set(first) != set(second)


def test_bernoulli_rounds() -> None:
    pool, stream = BernoulliPool(1000, 0.3), Stream.of(0, "x")
    sizes = [len(pool.available(stream)) for _ in range(50)]
    assert 280 < sum(sizes) / 50 < 320
    assert len(set(sizes)) > 5
    assert len(BernoulliPool(3, 0.01).available(stream)) >= 1
    assert pool.draw(stream, ()) is not None


def test_always() -> None:
    pool, stream = AlwaysPool(3), Stream.of(0, "x")
    assert list(pool.available(stream)) == [0, 1, 2]
    assert {pool.draw(stream, ()) for _ in range(100)} == {0, 1, 2}


def write(path: Path, rows: str) -> Path:
    path.write_text("client,on,off\n" + rows)
    return path


def test_trace_follows_the_clock(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "0,0,10\n0,10,20\n1,5,\n2,0,7\n")
    pool, stream = TracePool(path, clients=4), Stream.of(0, "x")
    assert set(pool.available(stream)) == {0, 2}
    assert pool.next_change() == 5
    assert pool.advance(5.0) == []
    assert set(pool.available(stream)) == {0, 1, 2}
    assert pool.advance(7.0) == [2]
    assert pool.advance(10.0) == [0], "off and on again at once: its requests are lost"
    assert set(pool.available(stream)) == {0, 1}
    assert pool.advance(30.0) == [0]
    assert {pool.draw(stream, ()) for _ in range(20)} == {1}
    assert pool.next_change() is None


def test_trace_without_losing(tmp_path: Path) -> None:
    pool = TracePool(write(tmp_path / "t.csv", "0,0,3\n"), clients=1, lose=False)
    assert pool.advance(3.0) == []
    assert pool.draw(Stream.of(0), ()) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("7,0,1\n", "client 7, but the run has clients 0 to 3"),
        ("0,2,1\n", "needs 0 <= on < off"),
        ("0,-1,1\n", "needs 0 <= on < off"),
        ("0,0,5\n0,4,6\n", "line 3: overlaps"),
        ("0,soon,5\n", "on is not a number"),
        ("0,,5\n", "line 2: expected"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(BadInputFile, match=message):
        TracePool(write(tmp_path / "t.csv", rows), clients=4)
