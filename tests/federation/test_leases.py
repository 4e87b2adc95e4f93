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
    assert found.overdue({1: 7}, 1000.0) == []
    assert found.overdue({1: 7}, 1100.0) == []
    assert [late.request for late in found.overdue({1: 7}, 1100.1)] == [7]


def late(found: Leases, oldest: dict[int, int], now: float) -> list[tuple[int, int, bool]]:
    return [(one.client, one.request, one.silent) for one in found.overdue(oldest, now)]


def test_an_unanswered_request_is_overdue_and_the_next_has_its_own_time() -> None:
    found = leases()
    found.assigned(1, 7, 0.0)
    found.assigned(1, 8, 50.0)  # still busy with the first
    assert late(found, {1: 7}, 100.0) == []
    assert late(found, {1: 7}, 100.5) == [(1, 7, False)]
    assert late(found, {1: 8}, 100.6) == []
    assert late(found, {1: 8}, 200.5) == []
    found.answered(1, 8, 200.6)
    assert late(found, {1: 9}, 200.7) == []
    assert late(found, {}, 301.0) == []
    assert late(found, {1: 10}, 1000.0) == []  # it had nothing to do in between


def test_answers_to_other_requests_do_not_prolong_a_requests_time() -> None:
    found = leases()
    found.assigned(1, 7, 0.0)
    for step in range(99):
        assert late(found, {1: 7}, float(step)) == []
        found.answered(1, 100 + step, float(step))  # out of order: 7 is left lying
    assert late(found, {1: 7}, 100.5) == [(1, 7, False)]


def paced(seconds: float, clients: int = 3) -> Leases:
    """Clients 1, 2, ... have answered, each after so many seconds."""
    found = leases()
    for client in range(1, clients + 1):
        found.assigned(client, client, 0.0)
        found.answered(client, client, seconds)
    return found


def test_the_time_allowed_goes_by_a_clients_own_pace() -> None:
    found = paced(0.5)
    assert found.allowed(1) == 12.0  # lease and redeliver_after: the least
    assert found.allowed(99) == 12.0  # no history: the others' pace
    found = paced(5.0)
    assert found.allowed(1) == found.allowed(99) == 40.0
    assert paced(50.0).allowed(1) == 100.0  # request_timeout: the most
    assert leases().allowed(1) == 100.0  # nobody knows anything yet


def test_a_slow_client_gets_more_time_and_is_never_called_silent_when_it_answers() -> None:
    """It takes 60 s where others take half a second, and begins without any history."""
    found, now, request, open_since = paced(0.5), 0.5, 10, 0.5
    outcomes = []
    found.assigned(9, request, now)
    while now < 2000:
        now += 0.25
        found.tick(now)
        found.assigned(1, 5, now)
        found.answered(1, 5, now)  # others go on
        if now - open_since >= 60.0:  # it has finished what it began, in time or not
            found.answered(9, request, now)
            outcomes.append("answered")
            request, open_since = request + 1, now
            found.assigned(9, request, now)
        for one in found.overdue({9: request}, now):
            outcomes.append("silent" if one.silent else "late")
            found.assigned(9, request, now)
    assert "silent" not in outcomes
    assert outcomes.count("late") <= 4
    assert outcomes[-20:] == ["answered"] * 20


def test_a_client_that_never_answers_while_others_do_is_called_silent_in_the_end() -> None:
    found, now = paced(0.5), 0.5
    seen = []
    for request in range(10, 20):
        found.assigned(9, request, now)
        while not (ended := found.overdue({9: request}, now)):
            now += 1.0
            found.assigned(1, 5, now)
            found.answered(1, 5, now)
        seen.append((ended[0].allowed, ended[0].silent))
    assert [allowed for allowed, _ in seen[:5]] == [12.0, 24.0, 48.0, 96.0, 100.0]
    assert [silent for _, silent in seen] == [False] * 4 + [True] * 6


def test_nobody_is_silent_while_nobody_answers() -> None:
    found, now = leases(), 0.0
    for request in range(5):
        found.assigned(1, request, now)
        now += 101.0
        assert late(found, {1: request}, now) == [(1, request, False)]


def test_a_rest_ends_in_time_or_with_a_late_answer() -> None:
    found = leases()
    found.assigned(1, 7, 0.0)
    assert late(found, {1: 7}, 100.5) == [(1, 7, False)]
    found.rest(1, 50.0, 100.5)
    assert found.rested([1], 150.0) == []
    assert found.rested([1], 150.5) == [1]
    found.rest(1, 50.0, 200.0)
    found.answered(1, 7, 201.0)
    assert found.rested([1], 201.0) == [1]
    assert found.rested([2], 0.0) == [2]  # rested before a restart of the server


def test_an_idle_clients_queue_is_redelivered_less_and_less_often() -> None:
    found = leases()
    found.assigned(1, 7, 0.0)
    times = [now for now in range(100) if found.to_redeliver(1, [7], float(now))]
    assert [later - sooner for sooner, later in pairwise(times)][:5] == [5, 9, 17, 17, 17]
    assert times[0] == 3
    assert not found.to_redeliver(1, [], 1e6)  # nothing waits for it
    found.answered(1, 7, 200.0)
    found.assigned(1, 8, 200.0)
    assert found.to_redeliver(1, [8], 202.1)


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


def test_strikes_fade_with_good_updates_and_a_pardon_forgets_everything() -> None:
    found = Membership(strikes=3, forgive_after=5)
    for number in range(2):
        found.strike(1, float(number), f"reason {number}")
    for _ in range(5):
        found.succeeded(1)
    assert found.strikes[1] == 1
    for _ in range(5):
        found.succeeded(1)
    assert found.strikes[1] == 0
    for number in range(3):
        found.strike(1, 10.0 + number, f"reason {number}")
        for _ in range(4):
            found.succeeded(1)  # not enough to be forgiven one
    assert found.to_quarantine(1)
    found.quarantine(1)
    assert [(r.time, r.why) for r in found.reasons(1)][-1] == (12.0, "reason 2")
    assert len(found.reasons(1)) == 5
    found.pardon(1)
    assert found.quarantined == set()
    assert found.reasons(1) == []
    found.strike(1)
    assert not found.to_quarantine(1)
