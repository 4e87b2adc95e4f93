from __future__ import annotations

import pytest

from fedast.core.ledger import Ledger
from fedast.core.protocol import IgnoreReason, IllegalEvent


def test_a_request_leaves_the_flight_once() -> None:
    ledger = Ledger()
    request = ledger.open("a", client=7, version=0)
    assert ledger.in_flight("a") == 1
    assert list(ledger.holders) == [7]
    assert ledger.complete(request.id) == request
    assert ledger.in_flight("a") == 0
    assert list(ledger.holders) == []
    assert ledger.complete(request.id) is IgnoreReason.DUPLICATE
    assert ledger.drop(request.id) is None


def test_an_update_after_a_drop_is_late_then_a_duplicate() -> None:
    ledger = Ledger()
    request = ledger.open("a", client=7, version=0)
    assert ledger.drop(request.id) == request
    assert ledger.complete(request.id) is IgnoreReason.LATE
    assert ledger.complete(request.id) is IgnoreReason.DUPLICATE


def test_a_client_holds_until_its_last_request_ends() -> None:
    ledger = Ledger()
    first, second = ledger.open("a", 7, 0), ledger.open("b", 7, 0)
    ledger.complete(first.id)
    assert list(ledger.holders) == [7]
    ledger.drop(second.id)
    assert list(ledger.holders) == []


def test_drop_all_takes_one_task_only() -> None:
    ledger = Ledger()
    mine = [ledger.open("a", client, 0) for client in range(3)]
    ledger.open("b", 9, 0)
    assert ledger.drop_all("a") == mine
    assert (ledger.in_flight("a"), ledger.in_flight("b"), ledger.total_in_flight) == (0, 1, 1)


@pytest.mark.parametrize("request_id", [-1, 0, 99])
def test_an_id_that_was_never_given_out_is_refused(request_id: int) -> None:
    with pytest.raises(IllegalEvent, match="never sent"):
        Ledger().complete(request_id)
