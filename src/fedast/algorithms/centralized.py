"""Centralized: plain SGD on the pooled data of each task, the ceiling of any federation.

The rule. One pseudo-client has every task's whole training data. In each round
it trains every open task for its local steps, from the newest model, and the
model takes its place. (``run/build.py`` pools the data.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from fedast.algorithms.options import SyncOptions
from fedast.algorithms.rounds import Returned
from fedast.core.protocol import ClientId, Pool, TaskSpec
from fedast.core.streams import Stream


@final
class PseudoClient:
    wants_loss = False

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        return [pool.everyone()[:1] for _ in tasks]

    def waits_for_all(self) -> bool:
        return True

    def learn(self, returned: Sequence[Returned]) -> None:
        pass


class Centralized(SyncOptions):
    """Centralized: plain SGD on the pooled data of each task; the ceiling."""

    name: ClassVar[str] = "centralized"
    display_name: ClassVar[str] = "Centralized"
    colour: ClassVar[str] = "#000000"
    pools_data = True

    def assignment(self) -> PseudoClient:
        return PseudoClient()

    def updates_per_round(self, buffer_size: int) -> int | None:
        return 1
