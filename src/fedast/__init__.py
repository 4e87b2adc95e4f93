"""fedast: train several models at once over one pool of federated clients.

The names below are the Python API; each is imported when it is first used, so
that ``import fedast`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedast.version import __version__ as __version__

if TYPE_CHECKING:
    from fedast.aggregation.settings import (
        Adaptive,
        Calibration,
        Combining,
        Momentum,
        Plain,
        ServerSide,
    )
    from fedast.config.errors import ConfigError, ConfigWarning
    from fedast.config.schema import (
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
    from fedast.run.simulate import Outcome, simulate
    from fedast.tasks.dataset import Arrays, Windows
    from fedast.tasks.partitions import dirichlet, iid, power_law, shards
    from fedast.tasks.task import Allocation, Goal, Task, Training

_HOMES = {
    "fedast.config.schema": (
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
    "fedast.config.errors": ("ConfigError", "ConfigWarning"),
    "fedast.run.simulate": ("Outcome", "simulate"),
    "fedast.tasks.partitions": ("dirichlet", "iid", "power_law", "shards"),
    "fedast.tasks.dataset": ("Arrays", "Windows"),
    "fedast.aggregation.settings": (
        "Adaptive",
        "Calibration",
        "Combining",
        "Momentum",
        "Plain",
        "ServerSide",
    ),
    "fedast.tasks.task": ("Allocation", "Goal", "Task", "Training"),
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
