"""fedast: train several models at once over one pool of federated clients.

The names below are the Python API; each is imported when it is first used, so
that ``import fedast`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedast.deprecated import DEPRECATED, deprecated
from fedast.version import __version__ as __version__

if TYPE_CHECKING:
    from fedast.aggregation.aggregators import Mean, Median, TrimmedMean
    from fedast.aggregation.server_optimizers import SGD, Adam, Fadas, Momentum, Yogi
    from fedast.aggregation.settings import Calibration, ServerSide
    from fedast.algorithms.centralized import Centralized
    from fedast.algorithms.fedast import FedASTDynamic, FedASTNoBuffer, FedASTStatic
    from fedast.algorithms.fedbuff import FedBuff
    from fedast.algorithms.options import AlgorithmOptions, AsyncOptions, SyncOptions
    from fedast.algorithms.sequential_fedavg import SequentialFedAvg
    from fedast.algorithms.sync_bayes_st import SyncBayesST
    from fedast.algorithms.sync_st import SyncST
    from fedast.algorithms.sync_ucb_st import SyncUCBST
    from fedast.config.schema import Compute, Simulation, SpeedGroups
    from fedast.parts.errors import ConfigError, ConfigWarning
    from fedast.run.simulate import Outcome, simulate
    from fedast.sim.availability import ActiveCap, Always, Bernoulli, Trace
    from fedast.sim.delays import Constant, Lognormal, Measured, ShiftedExponential, Uniform
    from fedast.tasks.dataset import Arrays, Windows
    from fedast.tasks.partitions import dirichlet, iid, power_law, shards
    from fedast.tasks.task import Allocation, Goal, Task, Training

_HOMES = {
    "fedast.aggregation.aggregators": ("Mean", "Median", "TrimmedMean"),
    "fedast.aggregation.server_optimizers": ("Adam", "Fadas", "Momentum", "SGD", "Yogi"),
    "fedast.aggregation.settings": ("Calibration", "ServerSide"),
    "fedast.algorithms.centralized": ("Centralized",),
    "fedast.algorithms.fedast": ("FedASTDynamic", "FedASTNoBuffer", "FedASTStatic"),
    "fedast.algorithms.fedbuff": ("FedBuff",),
    "fedast.algorithms.options": ("AlgorithmOptions", "AsyncOptions", "SyncOptions"),
    "fedast.algorithms.sequential_fedavg": ("SequentialFedAvg",),
    "fedast.algorithms.sync_bayes_st": ("SyncBayesST",),
    "fedast.algorithms.sync_st": ("SyncST",),
    "fedast.algorithms.sync_ucb_st": ("SyncUCBST",),
    "fedast.config.schema": ("Compute", "Simulation", "SpeedGroups"),
    "fedast.parts.errors": ("ConfigError", "ConfigWarning"),
    "fedast.run.simulate": ("Outcome", "simulate"),
    "fedast.sim.availability": ("ActiveCap", "Always", "Bernoulli", "Trace"),
    "fedast.sim.delays": ("Constant", "Lognormal", "Measured", "ShiftedExponential", "Uniform"),
    "fedast.tasks.dataset": ("Arrays", "Windows"),
    "fedast.tasks.partitions": ("dirichlet", "iid", "power_law", "shards"),
    "fedast.tasks.task": ("Allocation", "Goal", "Task", "Training"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SGD",
    "ActiveCap",
    "Adam",
    "AlgorithmOptions",
    "Allocation",
    "Always",
    "Arrays",
    "AsyncOptions",
    "Bernoulli",
    "Calibration",
    "Centralized",
    "Compute",
    "ConfigError",
    "ConfigWarning",
    "Constant",
    "Fadas",
    "FedASTDynamic",
    "FedASTNoBuffer",
    "FedASTStatic",
    "FedBuff",
    "Goal",
    "Lognormal",
    "Mean",
    "Measured",
    "Median",
    "Momentum",
    "Outcome",
    "SequentialFedAvg",
    "ServerSide",
    "ShiftedExponential",
    "Simulation",
    "SpeedGroups",
    "SyncBayesST",
    "SyncOptions",
    "SyncST",
    "SyncUCBST",
    "Task",
    "Trace",
    "Training",
    "TrimmedMean",
    "Uniform",
    "Windows",
    "Yogi",
    "dirichlet",
    "iid",
    "power_law",
    "shards",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in DEPRECATED:
        return deprecated(name)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedast' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
