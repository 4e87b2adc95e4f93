"""Sequential FedAvg: one task after another, each with all clients.

McMahan et al.: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017, run once per task: the naive way that the FedAST
paper's introduction starts from. Its time grows linearly with the tasks.

The rule. All available clients train the first task that has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from fedast.algorithms.options import SyncOptions
from fedast.algorithms.rounds import Returned
from fedast.core.protocol import ClientId, Pool, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.errors import ConfigError


@final
class OneAfterAnother:
    wants_loss = False

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        return [pool.available(stream), *([] for _ in tasks[1:])]

    def waits_for_all(self) -> bool:
        return False

    def learn(self, returned: Sequence[Returned]) -> None:
        pass


class SequentialFedAvg(SyncOptions):
    """Sequential FedAvg: one task after another, each with all clients."""

    name: ClassVar[str] = "sequential-fedavg"
    display_name: ClassVar[str] = "Sequential FedAvg"
    colour: ClassVar[str] = "#5D2E00"

    def assignment(self) -> OneAfterAnother:
        return OneAfterAnother()

    def check(self, *, active_cap: int | None, until: str) -> None:
        if until != "each":
            raise ConfigError(
                "simulation.until", 'must be "each": the next task begins when one has ended'
            )
