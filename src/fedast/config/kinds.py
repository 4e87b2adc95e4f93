"""Every kind of part that a configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedast.aggregation.aggregators import AGGREGATORS
from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS
from fedast.algorithms.allocation import ALLOCATION_RULES
from fedast.algorithms.options import ALGORITHMS
from fedast.algorithms.selection import SELECTIONS
from fedast.algorithms.staleness import STALENESS_WEIGHTS
from fedast.federation.transports import TRANSPORTS
from fedast.parts.registry import Registry
from fedast.records.observers import OBSERVERS
from fedast.sim.availability import AVAILABILITY
from fedast.sim.delays import DELAYS
from fedast.tasks.adapters.texts import TEXTS
from fedast.tasks.client_optimizers import CLIENT_OPTIMIZERS
from fedast.tasks.metrics import METRICS
from fedast.tasks.options import TASKS
from fedast.tasks.partitions import PARTITIONS
from fedast.training.options import TRAINERS

KINDS: Mapping[str, Registry[Any]] = {
    registry.kind: registry
    for registry in (
        ALGORITHMS,
        ALLOCATION_RULES,
        SELECTIONS,
        STALENESS_WEIGHTS,
        DELAYS,
        AVAILABILITY,
        CLIENT_OPTIMIZERS,
        SERVER_OPTIMIZERS,
        AGGREGATORS,
        TASKS,
        METRICS,
        PARTITIONS,
        TEXTS,
        TRAINERS,
        OBSERVERS,
        TRANSPORTS,
    )
}
