"""What every delay model must keep to.

- A duration is finite and not negative.
- It depends on its arguments alone: the request's random stream, the task, the client and its
  speed. So the order in which requests are sent changes nothing, and a run can be repeated.
- Its options survive being written to a file and read back.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedast.core.streams import Stream
from fedast.sim.delays import DELAYS, Delay, DelayOptions, Timing


def delay_contract(delay: Any) -> type[DelayContract]:
    """The suite for a delay model: its options, or its name."""
    options = DELAYS.parse(delay, "delay")
    return type("TestDelay", (DelayContract,), {"options": options})


_requests = st.lists(
    st.tuples(
        st.integers(0, 2**32),
        st.integers(1, 100),
        st.floats(0.01, 100.0),
        st.integers(0, 999),
        st.floats(0.01, 100.0),
    ),
    min_size=1,
    max_size=20,
)

_inherited = settings(suppress_health_check=[HealthCheck.differing_executors])
"""The suite is one class, run once for each subclass."""


class DelayContract:
    """The suite; ``delay_contract`` fills in the options."""

    options: ClassVar[DelayOptions]
    tasks: ClassVar[tuple[str, ...]] = ("a", "b")

    @given(_requests)
    @_inherited
    def test_durations_are_finite_and_not_negative(self, requests: list[Any]) -> None:
        model = self.options.build(self.tasks)
        for request in requests:
            duration = self._draw(model, request)
            assert math.isfinite(duration)
            assert duration >= 0.0

    @given(_requests)
    @_inherited
    def test_a_duration_depends_on_its_arguments_alone(self, requests: list[Any]) -> None:
        model = self.options.build(self.tasks)
        drawn = [self._draw(model, request) for request in requests]
        again = [self._draw(model, request) for request in reversed(requests)]
        fresh = [self._draw(self.options.build(self.tasks), request) for request in requests]
        assert drawn == again[::-1] == fresh

    def test_options_survive_a_file(self) -> None:
        table = self.options.model_dump(mode="json")
        assert DELAYS.parse(table, "delay") == self.options

    def _draw(self, model: Delay, request: Any) -> float:
        number, steps, cost, client, speed = request
        timing = Timing(self.tasks[number % len(self.tasks)], steps, cost)
        return model.duration(Stream.of(number, "delay"), timing, client, speed)
