"""TensorBoard: event files in the run's folder. The step is the simulated time."""

from __future__ import annotations

import time
from typing import Any, ClassVar, final

from fedast.trackers.tracking import Row, Tracked, Tracker, TrackerOptions


class TensorBoard(TrackerOptions):
    """TensorBoard event files, in track/tensorboard of the run's folder (else in ./runs)."""

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"
    folder: str | None = None
    """Where its files go instead; a run has a folder of its own below it."""

    def tracker(self) -> Tracker:
        return _TensorBoard(self.folder)


@final
class _TensorBoard:
    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._writer: Any = None

    def begin(self, run: Tracked) -> str:
        from torch.utils.tensorboard import SummaryWriter

        if self._folder is None and run.folder is not None:
            place = str(run.folder / "tensorboard")  # also if the folder was moved meanwhile
        elif run.known_as is not None:
            place = run.known_as
        else:
            place = f"{self._folder or 'runs'}/{run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        self._writer = SummaryWriter(place)
        if run.known_as is None:
            table = "\n".join(f"| {key} | {value} |" for key, value in run.parameters.items())
            self._writer.add_text("configuration", f"| key | value |\n|---|---|\n{table}")
        return place

    def send(self, row: Row) -> None:
        for name, value in row.values.items():
            self._writer.add_scalar(name, value, row.step, row.moment)
        self._writer.flush()

    def end(self, *, interrupted: bool) -> None:
        self._writer.close()
