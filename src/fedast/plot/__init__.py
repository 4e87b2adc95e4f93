"""Figures of runs: functions of what ``fedast.load`` gives, which return a matplotlib figure.

    runs = fedast.load("fedast-demo")
    fedast.plot.curves(runs).savefig("curves.pdf")

Each takes a ``Run``, ``Runs``, a list of runs or the folder of ``run`` or ``compare``, and draws
those that have a result. Runs of one configuration with different seeds are one series: their mean,
and how they spread. ``series``, ``panel`` and ``x`` can be any key of the configuration
(``"algorithm.first_k"``), ``"algorithm"``, ``"run"`` or a function of the run. ``columns`` is how
many columns of a paper the figure is as wide as, 1 or 2. An algorithm has the same colour in every
figure. ``fedast compare`` and ``fedast report`` draw with the same functions.
"""

from __future__ import annotations

from fedast.plot.figures import allocation, curves, dots, gains, race, sweep, tasks, times
from fedast.plot.requests import participation, staleness

__all__ = [
    "allocation",
    "curves",
    "dots",
    "gains",
    "participation",
    "race",
    "staleness",
    "sweep",
    "tasks",
    "times",
]
