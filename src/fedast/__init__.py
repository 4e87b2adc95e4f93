"""fedast: train several models at once over one pool of federated clients.

The names below are the Python API; each is imported when it is first used, so
that ``import fedast`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedast.version import __version__ as __version__

if TYPE_CHECKING:
    from fedast.experiments.config import (
        ActiveCap,
        Always,
        Bernoulli,
        Centralized,
        Compute,
        Constant,
        FedASTDynamic,
        FedASTNoBuffer,
        FedASTStatic,
        FedBuff,
        Lognormal,
        Measured,
        SequentialFedAvg,
        ShiftedExponential,
        Simulation,
        SpeedGroups,
        SyncBayesST,
        SyncST,
        SyncUCBST,
        Trace,
        Uniform,
    )
    from fedast.experiments.load import ConfigError, ConfigWarning
    from fedast.experiments.simulate import Outcome, simulate
    from fedast.learn.partition import dirichlet, iid, power_law, shards
    from fedast.learn.points import Arrays, Windows
    from fedast.learn.server.settings import (
        Adaptive,
        Calibration,
        Combining,
        Momentum,
        Plain,
        ServerSide,
    )
    from fedast.learn.task import Allocation, Goal, Task, Training

_HOMES = {
    "fedast.experiments.config": (
        "ActiveCap",
        "Always",
        "Bernoulli",
        "Centralized",
        "Compute",
        "Constant",
        "FedASTDynamic",
        "FedASTNoBuffer",
        "FedASTStatic",
        "FedBuff",
        "Lognormal",
        "Measured",
        "SequentialFedAvg",
        "ShiftedExponential",
        "Simulation",
        "SpeedGroups",
        "SyncBayesST",
        "SyncST",
        "SyncUCBST",
        "Trace",
        "Uniform",
    ),
    "fedast.experiments.load": ("ConfigError", "ConfigWarning"),
    "fedast.experiments.simulate": ("Outcome", "simulate"),
    "fedast.learn.partition": ("dirichlet", "iid", "power_law", "shards"),
    "fedast.learn.points": ("Arrays", "Windows"),
    "fedast.learn.server.settings": (
        "Adaptive",
        "Calibration",
        "Combining",
        "Momentum",
        "Plain",
        "ServerSide",
    ),
    "fedast.learn.task": ("Allocation", "Goal", "Task", "Training"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActiveCap",
    "Adaptive",
    "Allocation",
    "Always",
    "Arrays",
    "Bernoulli",
    "Calibration",
    "Centralized",
    "Combining",
    "Compute",
    "ConfigError",
    "ConfigWarning",
    "Constant",
    "FedASTDynamic",
    "FedASTNoBuffer",
    "FedASTStatic",
    "FedBuff",
    "Goal",
    "Lognormal",
    "Measured",
    "Momentum",
    "Outcome",
    "Plain",
    "SequentialFedAvg",
    "ServerSide",
    "ShiftedExponential",
    "Simulation",
    "SpeedGroups",
    "SyncBayesST",
    "SyncST",
    "SyncUCBST",
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
