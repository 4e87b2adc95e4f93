"""fedast: train several models at once over one pool of federated clients.

The names below are the Python API; each is imported when it is first used, so
that ``import fedast`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedast.experiments.config import (
        ActiveCap,
        Always,
        Bernoulli,
        Constant,
        FedASTDynamic,
        FedASTNoBuffer,
        FedASTStatic,
        Lognormal,
        Measured,
        ShiftedExponential,
        Simulation,
        SpeedGroups,
        SyncST,
        Trace,
        Uniform,
    )
    from fedast.experiments.simulate import Outcome, simulate
    from fedast.learn.partition import dirichlet, iid, power_law, shards
    from fedast.learn.points import Arrays, Windows
    from fedast.learn.task import Allocation, Goal, Task, Training

__version__ = "0.1.0"

_HOMES = {
    "fedast.experiments.config": (
        "ActiveCap",
        "Always",
        "Bernoulli",
        "Constant",
        "FedASTDynamic",
        "FedASTNoBuffer",
        "FedASTStatic",
        "Lognormal",
        "Measured",
        "ShiftedExponential",
        "Simulation",
        "SpeedGroups",
        "SyncST",
        "Trace",
        "Uniform",
    ),
    "fedast.experiments.simulate": ("Outcome", "simulate"),
    "fedast.learn.partition": ("dirichlet", "iid", "power_law", "shards"),
    "fedast.learn.points": ("Arrays", "Windows"),
    "fedast.learn.task": ("Allocation", "Goal", "Task", "Training"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActiveCap",
    "Allocation",
    "Always",
    "Arrays",
    "Bernoulli",
    "Constant",
    "FedASTDynamic",
    "FedASTNoBuffer",
    "FedASTStatic",
    "Goal",
    "Lognormal",
    "Measured",
    "Outcome",
    "ShiftedExponential",
    "Simulation",
    "SpeedGroups",
    "SyncST",
    "Task",
    "Trace",
    "Training",
    "Uniform",
    "Windows",
    "dirichlet",
    "iid",
    "power_law",
    "shards",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedast' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
