"""What can be set about the server side of a task. No tensors here: see the modules beside."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import SerializeAsAny, model_validator

from fedast.aggregation.aggregators import AGGREGATORS, AggregatorOptions, Mean
from fedast.aggregation.averaging import Averaging
from fedast.aggregation.rate_control import RateControl
from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS, SGD, ServerOptimizerOptions
from fedast.parts.options import Section
from fedast.parts.registry import Part


class Calibration(Section):
    """Cached calibration (CA2FL): each client's latest update stands in for it."""

    use: Literal["never", "always", "auto"] = "never"
    """auto: in rounds where the measured variance says that it helps."""
    precision: Literal["single", "half"] = "single"
    """Of the cache, which has clients x parameters entries."""
    place: Literal["auto", "device", "host", "disk"] = "auto"
    """Where the cache is; auto: the first of them with room."""

    def memory(self, clients: int, parameters: int) -> int:
        """Bytes that the cache needs."""
        if self.use == "never":
            return 0
        return clients * parameters * (4 if self.precision == "single" else 2)


class ServerSide(Section):
    """What the server does with the updates of a task's round."""

    optimizer: Annotated[SerializeAsAny[ServerOptimizerOptions], Part(SERVER_OPTIMIZERS)] = SGD()
    """How the model steps along the aggregated update (fedast list server_optimizers)."""
    aggregator: Annotated[SerializeAsAny[AggregatorOptions], Part(AGGREGATORS)] = Mean()
    """How the updates of a round become one (fedast list aggregators)."""
    calibration: Calibration = Calibration()
    """Cached calibration."""
    averaging: Averaging = Averaging()
    """A running average of the models, which is evaluated and handed out."""
    rate_control: RateControl = RateControl()
    """A factor on the steps that depends on how the model moves."""

    def with_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> ServerSide:
        """With an algorithm's own defaults for what was not set."""
        open_parts = {
            key: table for key, table in defaults.items() if key not in self.model_fields_set
        }
        return self if not open_parts else ServerSide.model_validate({**dict(self), **open_parts})

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        for old, new in (("step", "optimizer"), ("combining", "aggregator")):
            if isinstance(given, dict) and old in given:
                warnings.warn(
                    f"ServerSide({old}=...) is now ServerSide({new}=...)",
                    DeprecationWarning,
                    stacklevel=3,
                )
                given = {new if key == old else key: value for key, value in given.items()}
        return given
