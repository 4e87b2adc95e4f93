"""Weights & Biases: a run in a project; offline if WANDB_MODE or ``mode`` says so."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, final

from fedast.trackers.tracking import Row, Tracked, Tracker, TrackerOptions


class WandB(TrackerOptions):
    """A Weights & Biases run, with simulated_time as its x axis; log in with `wandb login`."""

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"
    project: str = "fedast"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    """Whether to upload while it runs; default: WANDB_MODE, else online."""

    def tracker(self) -> Tracker:
        return _WandB(self.project, self.entity, self.mode)


@final
class _WandB:
    def __init__(
        self, project: str, entity: str | None, mode: Literal["online", "offline"] | None
    ) -> None:
        self._project = project
        self._entity = entity
        self._mode = mode
        self._run: Any = None

    def begin(self, run: Tracked) -> str:
        import wandb

        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            name=run.name,
            config=dict(run.parameters),
            dir=None if run.folder is None else str(run.folder),
            id=run.known_as,
            resume=None if run.known_as is None else "allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, init_timeout=60),
        )
        for axis in ("simulated_time", "real_time"):
            self._run.define_metric(axis, hidden=True)
        self._run.define_metric("*", step_metric="simulated_time")
        return str(self._run.id)

    def send(self, row: Row) -> None:
        self._run.log(dict(row.values))

    def end(self, *, interrupted: bool) -> None:
        self._run.finish(exit_code=1 if interrupted else 0)
