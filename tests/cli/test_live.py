"""The views of a run under way count updates per second of the time that they watched."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fedast.algorithms.asynchronous import Asynchronous
from fedast.cli.live import LineView, LiveView
from fedast.core.protocol import Accept, TaskSpec
from fedast.core.streams import Stream
from fedast.records.metrics import RunMetrics
from fedast.testing.driver import ScriptedPool

SPEC = TaskSpec("a", active_requests=2, buffer_size=1)


@pytest.mark.parametrize("terminal", [False, True])
def test_what_was_replayed_is_not_in_the_rate(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """Else a server that was started again seemed to be a thousand times faster at first."""
    now = [100.0]
    monkeypatch.setattr("fedast.cli.live.time.monotonic", lambda: now[0])
    lines: list[str] = []
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    view = LiveView(screen, "title", {}, "seconds") if terminal else LineView(lines.append, "title")
    run_metrics = RunMetrics([SPEC])
    view.watch(Asynchronous([SPEC], ScriptedPool(3), Stream(0)), run_metrics)

    def update(count: int) -> None:
        for number in range(count):
            command = Accept(number, "a", 0, 0, 0)
            run_metrics.commanded(1.0, command)
            view.commanded(1.0, command)

    update(5000)
    run_metrics.went_live()
    update(1)  # the first sign of life
    for _ in range(20):
        now[0] += 1.0
        update(3)
    if isinstance(view, LiveView):
        caption = str(view._table().caption)
        assert "5061 updates" in caption
        assert "· 3 updates/s" in caption
    else:
        assert re.search(r"updates=50\d\d \(3/s\)", lines[-1]), lines[-1]
