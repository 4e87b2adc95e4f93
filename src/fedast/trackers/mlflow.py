"""MLflow: a run on its tracking server or in its local store."""

from __future__ import annotations

from typing import Any, ClassVar, final

from fedast.trackers.tracking import Row, Tracked, Tracker, TrackerOptions

_PARAMETERS = 100
"""The most that one request may bring."""


class MLflow(TrackerOptions):
    """An MLflow run, on the server of MLFLOW_TRACKING_URI, else where MLflow stores by itself."""

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"
    uri: str | None = None
    """The tracking server or store; default: MLFLOW_TRACKING_URI."""
    experiment: str = "fedast"

    def tracker(self) -> Tracker:
        return _MLflow(self.uri, self.experiment)


@final
class _MLflow:
    def __init__(self, uri: str | None, experiment: str) -> None:
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._id = ""

    def begin(self, run: Tracked) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._uri)
        if run.known_as is not None:
            self._id = run.known_as
            self._client.update_run(self._id, status="RUNNING")
            return self._id
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else None
        if experiment is None:
            experiment = self._client.create_experiment(self._experiment)
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        given = [Param(key, str(value)[:6000]) for key, value in run.parameters.items()]
        for first in range(0, len(given), _PARAMETERS):
            self._client.log_batch(self._id, params=given[first : first + _PARAMETERS])
        return self._id

    def send(self, row: Row) -> None:
        from mlflow.entities import Metric

        moment = round(row.moment * 1000)
        self._client.log_batch(
            self._id,
            [Metric(name, value, moment, row.step) for name, value in row.values.items()],
        )

    def end(self, *, interrupted: bool) -> None:
        self._client.set_terminated(self._id, "KILLED" if interrupted else "FINISHED")
