"""The server's own copies of the models that it has published and clients may still fetch.

The learner keeps only the newest version of a model, and requests for older ones are open. A
transport that has lost its models gets them again from here. If a copy could not be written, or a
crash has damaged it, and the transport has lost that model too, clients say so and get other
requests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import final

from fedast.federation import wire
from fedast.records.files import write_atomically

log = logging.getLogger("fedast.server")


@final
class ModelStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, data: bytes, others: Collection[str]) -> None:
        """Keep a model, and of the existing ones only these ``others``."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                if path.name not in others:
                    path.unlink(missing_ok=True)
            write_atomically(self._folder / name, data)
        except OSError as error:
            log.warning("no copy of model %s is kept: %s", name, error)

    def get(self, name: str) -> bytes | None:
        """The model as it was published; None if there is no intact copy."""
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            return None
        return data if wire.is_model(name, data) else None
