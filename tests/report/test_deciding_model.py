"""Where there are curves of the newest model and of an average, the average is the curve."""

from __future__ import annotations

from fedast.report.ui.history import FromEvents, History


def test_the_page_draws_the_average_and_not_the_newest_model_beside_it() -> None:
    history = History()
    events = FromEvents(history, {}, 10)
    for t, model, value in ((0.0, "average", 0.1), (0.0, "raw", 0.2), (4.0, "average", 0.5)):
        row = {"event": "evaluate", "task": "a", "round": 1, "metric": "accuracy", "loss": 1.0}
        events.add({"t": t, **row, "model": model, "value": value})
    assert history.curve("a").model == "average"
    assert list(history.curve("a").value) == [0.1, 0.5]
    events.add({"t": 1.0, **row, "task": "b", "model": "raw", "value": 0.3})
    assert list(history.curve("b").value) == [0.3]
    assert history.skipped == 0
