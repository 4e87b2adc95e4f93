"""The server side of a task against values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedast.aggregation import calibration as caches
from fedast.aggregation.aggregators import AGGREGATORS, Mean, Median, TrimmedMean, clipped
from fedast.aggregation.calibration import Cache, Calibrator, NoRoom, size_text
from fedast.aggregation.delayed_nesterov import DelayedNesterov
from fedast.aggregation.server import Server
from fedast.aggregation.server_optimizers import (
    SERVER_OPTIMIZERS,
    SGD,
    Adam,
    Fadas,
    Momentum,
    ServerOptimizerOptions,
    Yogi,
)
from fedast.aggregation.settings import Calibration, ServerSide
from fedast.parts.errors import ConfigError

MEAN = Mean()
AVERAGE = MEAN.build()


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values)


def server(
    side: ServerSide, *, rate: float = 0.5, clients: int = 4, size: int = 2, trained: int = 2
) -> Server:
    return Server(
        side, lr=rate, scale=2.0, initial=torch.zeros(size), trained=trained, clients=clients
    )


# --- aggregators --------------------------------------------------------------------------


def test_median_and_trimmed_mean_by_hand() -> None:
    updates = rows((1.0, 5.0), (2.0, -9.0), (3.0, 1.0), (100.0, 2.0), (4.0, 3.0))
    assert Median().build()(updates).tolist() == [3.0, 2.0]
    # one of five at either end: (2 + 3 + 4) / 3 and (1 + 2 + 3) / 3
    assert TrimmedMean(trim=0.2).build()(updates).tolist() == [3.0, 2.0]
    assert Median().build()(updates[:4]).tolist() == [2.5, 1.5], "middle two"
    assert MEAN.build()(updates).tolist() == pytest.approx([22.0, 0.4])


def test_one_poisoned_update_does_not_move_the_median() -> None:
    honest = rows((1.0,), (1.1,), (0.9,), (1.05,))
    for bad in (float("nan"), float("inf"), -1e30):
        found = Median().build()(torch.cat([honest, rows((bad,))]))
        assert 0.9 <= found.item() <= 1.1


def test_clipping_shortens_and_keeps_the_direction() -> None:
    updates = rows((3.0, 4.0), (0.3, 0.4), (0.0, 0.0))
    torch.testing.assert_close(clipped(1.0, updates), rows((0.6, 0.8), (0.3, 0.4), (0.0, 0.0)))
    torch.testing.assert_close(clipped("median", updates), rows((0.3, 0.4), (0.3, 0.4), (0.0, 0.0)))


@given(st.integers(1, 40), st.floats(0.01, 0.49))
def test_a_trimmed_mean_always_leaves_something(updates: int, trim: float) -> None:
    found = torch.arange(float(updates))[:, None]
    for how in (Mean(), Median(), TrimmedMean(trim=trim)):
        assert how.build()(found).item() == pytest.approx((updates - 1) / 2)


# --- stepping ---------------------------------------------------------------------------


def test_momentum_by_hand_and_momentum_zero_is_plain() -> None:
    stepper = Momentum(beta=0.5).build(torch.zeros(1), 1, lr=0.1, scale=1.0)
    assert stepper.step(torch.tensor([2.0]), 0).item() == pytest.approx(0.2)
    assert stepper.step(torch.tensor([2.0]), 0).item() == pytest.approx(0.3)  # 0.1 (1 + 2)
    torch.manual_seed(0)
    nothing = Momentum(beta=0.0).build(torch.zeros(50), 40, lr=0.3, scale=1.0)
    plain = SGD().build(torch.zeros(50), 40, lr=0.3, scale=1.0)
    for _ in range(5):
        g = torch.randn(50)
        assert torch.equal(nothing.step(g, 3), plain.step(g, 3))


def test_delayed_momentum_by_hand_and_zero_is_plain() -> None:
    stepper = DelayedNesterov(beta=0.5, every=2).build(torch.zeros(2), 1, lr=0.1, scale=1.0)
    steps = [stepper.step(torch.tensor([g, 1.0]), 0).tolist() for g in (2.0, 4.0, 0.0)]
    # m = 0; then it becomes 3, which is added by half; what is not trained has no momentum
    assert steps == [pytest.approx([x, 0.1]) for x in (0.2, 0.55, 0.15)]
    again = DelayedNesterov(beta=0.5, every=2).build(torch.zeros(2), 1, lr=0.1, scale=1.0)
    again.restore(stepper.state())
    nothing = DelayedNesterov(beta=0.0, every=2).build(torch.zeros(2), 1, lr=0.3, scale=1.0)
    for direction in torch.randn(5, 2):
        assert torch.equal(again.step(direction, 0), stepper.step(direction, 0))
        assert torch.equal(nothing.step(direction, 3), 0.3 * direction)


def swings(beta: float, every: int, rate: float) -> bool:
    """Whether x grows whose steps are computed from what it was some 25 rounds ago: a shifted
    exponential delay, as in the paper's experiments, and older updates count less."""
    stepper = DelayedNesterov(beta=beta, every=every).build(
        torch.zeros(1, dtype=torch.float64), 1, lr=rate, scale=1.0
    )
    delay = torch.arange(8.0, 200.0, dtype=torch.float64)
    weight = torch.exp((8 - delay) / 17) * (26 / (1 + delay)).clamp_max(2)
    past = torch.ones(2200, dtype=torch.float64)  # the newest last
    for _ in range(2000):
        stale = (past[-200:-8].flip(0) * weight).sum() / weight.sum()
        past = torch.cat([past[1:], past[-1:] - stepper.step(stale.reshape(1), 0)])
    return bool(past[-200:].abs().max() > 1)


def test_momentum_that_lags_by_a_latency_does_not_lower_the_stable_rate() -> None:
    """... as it does when it is quicker."""
    rate = 3.3 / 25
    assert not swings(0.0, 1, rate)
    assert not swings(0.5, 31, rate)
    assert swings(0.5, 1, rate)
    assert swings(0.5, 15, rate)


def test_adam_yogi_and_fadas_by_hand() -> None:
    """epsilon 1, so v starts at 1; one step with g = 2, then one with g = 0."""
    for rule, second, third in (
        # v = 0.5 + 0.5 * 4 = 2.5, m = 1; then v = 1.25, m = 0.5
        ("adam", 1 / (2.5**0.5 + 1), 0.5 / (1.25**0.5 + 1)),
        # v = 1 - 0.5 * sign(1 - 4) * 4 = 3; then g = 0 leaves it
        ("yogi", 1 / (3**0.5 + 1), 0.5 / (3**0.5 + 1)),
        # the largest v stays 2.5
        ("fadas", 1 / (2.5**0.5 + 1), 0.5 / (2.5**0.5 + 1)),
    ):
        options = {"name": rule, "beta1": 0.5, "beta2": 0.5, "epsilon": 1.0}
        how = SERVER_OPTIMIZERS.parse(options, "server_optimizer")
        stepper = how.build(torch.zeros(1), 1, lr=1.0, scale=1.0)
        assert stepper.step(torch.tensor([2.0]), 0).item() == pytest.approx(second)
        assert stepper.step(torch.tensor([0.0]), 0).item() == pytest.approx(third)


def test_fadas_steps_shrink_with_the_delay_beyond_its_patience() -> None:
    def first(delay: int, how: ServerOptimizerOptions | None = None) -> float:
        stepper = (how or Fadas(patience=10)).build(torch.zeros(1), 1, lr=0.2, scale=1.0)
        return float(stepper.step(torch.tensor([1.0]), delay))

    assert first(10) == first(0)
    assert first(20) == pytest.approx(first(0) * (1 / 20) / 0.2)
    assert first(40) == pytest.approx(first(20) / 2)
    assert first(40, Adam()) == first(0, Adam())


def test_what_sgd_does_not_train_moves_plainly_whatever_the_step() -> None:
    direction = torch.tensor([1.0, 4.0])
    for how, expected in ((Momentum(beta=0.9), 0.4), (Adam(), 4.0), (SGD(), 0.4)):
        stepper = how.build(torch.zeros(2), 1, lr=0.1, scale=1.0)
        stepper.step(direction, 0)
        assert stepper.step(direction, 0)[1].item() == pytest.approx(expected)


@pytest.mark.parametrize("how", [Momentum(), Yogi(), Fadas()])
def test_a_restored_step_goes_on_as_before(how: ServerOptimizerOptions) -> None:
    torch.manual_seed(1)
    first = how.build(torch.zeros(6), 5, lr=0.1, scale=1.0)
    for _ in range(3):
        first.step(torch.randn(6), 12)
    second = how.build(torch.zeros(6), 5, lr=0.1, scale=1.0)
    second.restore({name: value.clone() for name, value in first.state().items()})
    g = torch.randn(6)
    assert torch.equal(first.step(g, 12), second.step(g, 12))


# --- calibration --------------------------------------------------------------------------


def test_calibration_by_hand() -> None:
    """Four clients, one parameter: h + mean(Delta_i - h_i), then h follows."""
    always = Calibrator(Calibration(use="always"), 4, torch.zeros(1))
    assert always.direction([0, 1], rows((4.0,), (8.0,)), None, AVERAGE).item() == 6.0  # h all 0
    assert always.cache.mean.item() == 3.0  # (4 + 8) / 4
    # clients 0 and 2: 3 + ((5 - 4) + (1 - 0)) / 2
    assert always.direction([0, 2], rows((5.0,), (1.0,)), None, AVERAGE).item() == 4.0
    assert always.cache.mean.item() == pytest.approx((5 + 8 + 1) / 4)
    # weights count for what is new, not for what is remembered: 3.5 + 0.5 (9 - 8)
    weights = torch.tensor([0.5])
    assert always.direction([1], rows((9.0,)), weights, AVERAGE).item() == pytest.approx(4.0)


def test_a_client_twice_in_a_buffer_is_remembered_by_its_later_update() -> None:
    cache = Cache(Calibration(use="always"), 3, torch.zeros(1))
    cache.remember([1, 1, 2], rows((5.0,), (7.0,), (2.0,)))
    assert cache.latest([0, 1, 2]).flatten().tolist() == [0.0, 7.0, 2.0]
    assert cache.mean.item() == pytest.approx(3.0)


@pytest.mark.parametrize("precision", ["single", "half"])
@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_every_cache_keeps_the_mean_of_what_it_holds(
    place: Literal["device", "host", "disk"], precision: Literal["single", "half"]
) -> None:
    torch.manual_seed(0)
    settings = Calibration(use="always", place=place, precision=precision)
    cache = Cache(settings, 7, torch.zeros(33))
    assert cache.place == place
    for step in range(20):
        cache.remember([step % 7, (3 * step) % 7], torch.randn(2, 33))
    torch.testing.assert_close(cache.latest(range(7)).mean(dim=0), cache.mean)
    assert cache.state()["rows"].element_size() == (4 if precision == "single" else 2)
    assert settings.memory(7, 33) == cache.state()["rows"].nbytes


def test_auto_calibrates_where_clients_differ_and_not_where_noise_does() -> None:
    def used(own: float, noise: float) -> float:
        torch.manual_seed(2)
        centres = own * torch.randn(10, 20)
        chosen = Calibrator(Calibration(use="auto"), 10, torch.zeros(20))
        for _ in range(200):
            clients = torch.randint(10, (3,)).tolist()
            updates = 1.0 + centres[clients] + noise * torch.randn(3, 20)
            chosen.direction(clients, updates, None, AVERAGE)
        return chosen.rounds / 200

    assert used(own=1.0, noise=0.2) > 0.9
    assert used(own=0.2, noise=1.0) < 0.1


def test_auto_that_does_not_calibrate_is_the_plain_mean() -> None:
    torch.manual_seed(3)
    auto = server(ServerSide(calibration=Calibration(use="auto")), clients=5)
    plain = server(ServerSide(), clients=5)
    for _ in range(2):  # fewer pairs than it wants to have seen
        updates = torch.randn(3, 2)
        assert torch.equal(
            auto.step([0, 1, 2], updates, None, [1]), plain.step([], updates, None, [1])
        )
    assert auto.calibrator is not None
    assert auto.calibrator.rounds == 0


def test_a_restored_server_goes_on_as_before() -> None:
    torch.manual_seed(4)
    side = ServerSide(optimizer=Momentum(), calibration=Calibration(use="auto", precision="half"))
    first, second = server(side), server(side)
    for _ in range(12):
        first.step([0, 1, 2], torch.randn(3, 2), None, [1])
    second.restore({name: value.clone() for name, value in first.state().items()})
    for _ in range(5):
        updates = torch.randn(2, 2)
        assert torch.equal(
            first.step([3, 1], updates, (0.5, 1.0), [1]),
            second.step([3, 1], updates, (0.5, 1.0), [1]),
        )


def test_no_room_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_free_memory", lambda: 1000)
    asked = Calibration(use="always", place="host")
    with pytest.raises(NoRoom, match=r"needs 39\.1 KiB, but host has 1,000 bytes free"):
        Cache(asked, 100, torch.zeros(100))
    assert Cache(Calibration(use="always"), 100, torch.zeros(100)).place == "disk"


def test_a_cache_on_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = Cache(Calibration(use="always", place="disk"), 10, torch.zeros(10))
    cache.remember([3], torch.ones(1, 10))
    assert not list(tmp_path.iterdir())


def test_sizes_are_readable() -> None:
    found = [size_text(n) for n in (12, 2048, 3 << 20, 5 << 30, 5000 << 30)]
    assert found == ["12 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB", "5,000.0 GiB"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SERVER_OPTIMIZERS.parse("foo", "server_optimizer"),
        lambda: Momentum(beta=2.0),
        lambda: AGGREGATORS.parse("krum", "aggregator"),
        lambda: TrimmedMean(trim=0.9),
        lambda: Calibration(use="sometimes"),  # type: ignore[arg-type]
        lambda: ServerSide(optimizer=3),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises((ValueError, ConfigError)):
        make()
