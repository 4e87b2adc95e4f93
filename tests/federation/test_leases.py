"""Leases, time limits and quarantine: the rules alone, without a server."""

from __future__ import annotations

from itertools import pairwise

from fedast.federation.leases import Leases
from fedast.federation.membership import Membership


def leases() -> Leases:
    return Leases(lease=10.0, request_timeout=100.0, redeliver_after=2.0, now=0.0)


def test_a_lease_ends_without_a_heartbeat() -> None:
    found = leases()
    found.seen(1, 0.0)
    found.seen(2, 5.0)
    assert found.expired([1, 2], 10.0) == []
    assert found.expired([1, 2], 10.1) == [1]
    found.seen(1, 10.2)
    assert found.expired([1, 2], 15.1) == [2]
    assert found.expired([3], 1e6) == []  # never seen: it has just been replayed


def test_time_in_which_the_server_was_held_up_does_not_count() -> None:
    found = leases()
    found.seen(1, 0.0)
    found.tick(1.0)
    found.tick(60.0)
    assert found.expired([1], 60.0) == []
    assert found.expired([1], 69.9) == [1]


def test_after_a_restart_everybody_has_the_full_time() -> None:
    found = leases()
    found.restart([1], 1000.0)
    assert found.expired([1], 1010.0) == []
    assert found.expired([1], 1010.1) == [1]
    assert found.overdue({1: 7}, 1100.0) == []
    assert found.overdue({1: 7}, 1100.1) == [(1, 7)]


def test_an_unanswered_request_is_overdue_and_the_next_has_its_own_time() -> None:
    found = leases()
    found.assigned(1, 0.0)
    found.assigned(1, 50.0)  # still busy with the first
    assert found.overdue({1: 7}, 100.0) == []
    assert found.overdue({1: 7}, 100.5) == [(1, 7)]
    assert found.overdue({1: 8}, 200.5) == []
    found.answered(1, 200.6)
    assert found.overdue({1: 9}, 300.5) == []
    assert found.overdue({}, 301.0) == []
    assert found.overdue({1: 10}, 1000.0) == []  # it had nothing to do in between


def test_an_idle_clients_queue_is_redelivered_less_and_less_often() -> None:
    found = leases()
    found.assigned(1, 0.0)
    times = [now for now in range(100) if found.to_redeliver(1, [7], float(now))]
    assert [later - sooner for sooner, later in pairwise(times)][:5] == [5, 9, 17, 17, 17]
    assert times[0] == 3
    assert not found.to_redeliver(1, [], 1e6)  # nothing waits for it
    found.answered(1, 200.0)
    assert found.to_redeliver(1, [7], 202.1)


def test_quarantine_after_strikes_or_failures_in_a_row() -> None:
    found = Membership(strikes=2)
    found.strike(1)
    assert not found.to_quarantine(1)
    found.strike(1)
    assert found.to_quarantine(1)
    found.quarantine(1)
    assert not found.to_quarantine(1)
    for _ in range(9):
        found.failed(2)
    assert not found.to_quarantine(2)
    found.succeeded(2)
    found.failed(2)
    assert not found.to_quarantine(2)
    for _ in range(9):
        found.failed(2)
    assert found.to_quarantine(2)
    assert found.quarantined == {1}
