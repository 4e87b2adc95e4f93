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
    from fedast import plot as plot
    from fedast.aggregation.aggregators import AggregatorOptions, Mean, Median, TrimmedMean
    from fedast.aggregation.delayed_nesterov import DelayedNesterov
    from fedast.aggregation.server_optimizers import (
        SGD,
        Adam,
        Fadas,
        Momentum,
        ServerOptimizerOptions,
        Yogi,
    )
    from fedast.aggregation.settings import Calibration, ServerSide
    from fedast.algorithms.allocation import AllocationOptions
    from fedast.algorithms.centralized import Centralized
    from fedast.algorithms.fedast import FedASTDynamic, FedASTNoBuffer, FedASTStatic
    from fedast.algorithms.fedast_plus import FedASTPlus
    from fedast.algorithms.fedbuff import FedBuff
    from fedast.algorithms.options import (
        AlgorithmOptions,
        AsyncOptions,
        BufferedOptions,
        SyncOptions,
    )
    from fedast.algorithms.selection import SelectionOptions
    from fedast.algorithms.sequential_fedavg import SequentialFedAvg
    from fedast.algorithms.staleness import StalenessOptions
    from fedast.algorithms.sync_bayes_st import SyncBayesST
    from fedast.algorithms.sync_st import SyncST
    from fedast.algorithms.sync_ucb_st import SyncUCBST
    from fedast.analysis.runs import Run, Runs, load
    from fedast.config.schema import Compute, Simulation, SpeedGroups
    from fedast.parts.errors import ConfigError, ConfigWarning
    from fedast.records.observers import ObserverOptions
    from fedast.run.simulate import Outcome, simulate
    from fedast.sim.availability import ActiveCap, Always, AvailabilityOptions, Bernoulli, Trace
    from fedast.sim.delays import (
        Constant,
        DelayOptions,
        Lognormal,
        Measured,
        ShiftedExponential,
        Uniform,
    )
    from fedast.sweeps.run import SweepOutcome, sweep
    from fedast.tasks.dataset import Arrays, Windows
    from fedast.tasks.metrics import MetricOptions, metric
    from fedast.tasks.options import TaskOptions
    from fedast.tasks.partitions import PartitionOptions, dirichlet, iid, power_law, shards
    from fedast.tasks.task import Allocation, Goal, Task, Training

_HOMES = {
    "fedast.aggregation.aggregators": ("AggregatorOptions", "Mean", "Median", "TrimmedMean"),
    "fedast.aggregation.delayed_nesterov": ("DelayedNesterov",),
    "fedast.aggregation.server_optimizers": (
        "Adam",
        "Fadas",
        "Momentum",
        "SGD",
        "ServerOptimizerOptions",
        "Yogi",
    ),
    "fedast.aggregation.settings": ("Calibration", "ServerSide"),
    "fedast.algorithms.allocation": ("AllocationOptions",),
    "fedast.algorithms.centralized": ("Centralized",),
    "fedast.algorithms.fedast": ("FedASTDynamic", "FedASTNoBuffer", "FedASTStatic"),
    "fedast.algorithms.fedast_plus": ("FedASTPlus",),
    "fedast.algorithms.fedbuff": ("FedBuff",),
    "fedast.algorithms.options": (
        "AlgorithmOptions",
        "AsyncOptions",
        "BufferedOptions",
        "SyncOptions",
    ),
    "fedast.algorithms.selection": ("SelectionOptions",),
    "fedast.algorithms.sequential_fedavg": ("SequentialFedAvg",),
    "fedast.algorithms.staleness": ("StalenessOptions",),
    "fedast.algorithms.sync_bayes_st": ("SyncBayesST",),
    "fedast.algorithms.sync_st": ("SyncST",),
    "fedast.algorithms.sync_ucb_st": ("SyncUCBST",),
    "fedast.analysis.runs": ("Run", "Runs", "load"),
    "fedast.config.schema": ("Compute", "Simulation", "SpeedGroups"),
    "fedast.parts.errors": ("ConfigError", "ConfigWarning"),
    "fedast.records.observers": ("ObserverOptions",),
    "fedast.run.simulate": ("Outcome", "simulate"),
    "fedast.sim.availability": ("ActiveCap", "Always", "AvailabilityOptions", "Bernoulli", "Trace"),
    "fedast.sim.delays": (
        "Constant",
        "DelayOptions",
        "Lognormal",
        "Measured",
        "ShiftedExponential",
        "Uniform",
    ),
    "fedast.sweeps.run": ("SweepOutcome", "sweep"),
    "fedast.tasks.dataset": ("Arrays", "Windows"),
    "fedast.tasks.metrics": ("MetricOptions", "metric"),
    "fedast.tasks.options": ("TaskOptions",),
    "fedast.tasks.partitions": ("PartitionOptions", "dirichlet", "iid", "power_law", "shards"),
    "fedast.tasks.task": ("Allocation", "Goal", "Task", "Training"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SGD",
    "ActiveCap",
    "Adam",
    "AggregatorOptions",
    "AlgorithmOptions",
    "Allocation",
    "AllocationOptions",
    "Always",
    "Arrays",
    "AsyncOptions",
    "AvailabilityOptions",
    "Bernoulli",
    "BufferedOptions",
    "Calibration",
    "Centralized",
    "Compute",
    "ConfigError",
    "ConfigWarning",
    "Constant",
    "DelayOptions",
    "DelayedNesterov",
    "Fadas",
    "FedASTDynamic",
    "FedASTNoBuffer",
    "FedASTPlus",
    "FedASTStatic",
    "FedBuff",
    "Goal",
    "Lognormal",
    "Mean",
    "Measured",
    "Median",
    "MetricOptions",
    "Momentum",
    "ObserverOptions",
    "Outcome",
    "PartitionOptions",
    "Run",
    "Runs",
    "SelectionOptions",
    "SequentialFedAvg",
    "ServerOptimizerOptions",
    "ServerSide",
    "ShiftedExponential",
    "Simulation",
    "SpeedGroups",
    "StalenessOptions",
    "SweepOutcome",
    "SyncBayesST",
    "SyncOptions",
    "SyncST",
    "SyncUCBST",
    "Task",
    "TaskOptions",
    "Trace",
    "Training",
    "TrimmedMean",
    "Uniform",
    "Windows",
    "Yogi",
    "dirichlet",
    "iid",
    "load",
    "metric",
    "plot",
    "power_law",
    "shards",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in DEPRECATED:
        return deprecated(name)
    if name == "plot":
        return import_module("fedast.plot")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedast' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF, "plot"])
