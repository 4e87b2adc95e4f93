"""Every fault and attack of the campaign, by the names that ``--only`` and ``--skip`` take."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.soak import attacks, faults, lies, mistakes, operators
from tests.soak.harm import Harm

FAULTS: Mapping[str, Callable[[random.Random], Harm]] = {
    **faults.FAULTS,
    **mistakes.MISTAKES,
    **operators.OPERATORS,
}
"""One at a time."""
ATTACKS: Mapping[str, Callable[[random.Random], Harm]] = {**attacks.ATTACKS, **lies.LIES}
"""Several at a time."""
