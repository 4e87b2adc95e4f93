"""FedBuff: buffered asynchronous aggregation.

Nguyen et al.: "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022.

The rule. A fixed number of clients trains at any time; every update goes into a
buffer, which is averaged when full, each update weighted by its staleness if
that is asked for (``staleness_weight``); and a client that has finished is
replaced by a random *idle* one. That is FedAST with a fixed allocation but for
the idle: FedAST asks any client, busy or not, so that slow clients take part as
often as fast ones. Every request, from the first on, has a client of its own, so
no more are out than clients may be active. With several tasks, each is a FedBuff
of its own over the shared clients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, final

from fedast.algorithms.options import BufferedOptions
from fedast.core.protocol import Algorithm, ClientId, Pool, TaskSpec
from fedast.core.streams import Stream

_TRIES_PER_CLIENT = 20
"""A uniform draw misses the only idle client this often with negligible probability (e^-20)."""


@final
class IdleOnly:
    """A pool that gives only clients that hold no request."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        everyone = self._pool.everyone()
        if len(holders) >= len(everyone) and all(client in holders for client in everyone):
            return None
        for _ in range(_TRIES_PER_CLIENT * len(everyone)):
            client = self._pool.draw(stream, holders)
            if client is None or client not in holders:
                return client  # None: nobody is there, or nobody else may become active
        return None

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return self._pool.available(stream, extra)

    def everyone(self) -> Sequence[ClientId]:
        return self._pool.everyone()


class FedBuff(BufferedOptions):
    """FedBuff: asynchronous and buffered, a finished client is replaced by an idle one."""

    name: ClassVar[str] = "fedbuff"
    display_name: ClassVar[str] = "FedBuff"
    colour: ClassVar[str] = "#7A28F0"
    idle: bool = True
    """Whether only idle clients are asked; if not, it is FedAST with a fixed allocation."""

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        chosen = IdleOnly(pool) if self.idle else pool
        return self.buffers(tasks, chosen, stream, capped_start=self.idle)

    def usual_requests(self, active_cap: int | None, clients: int) -> int:
        usual = super().usual_requests(active_cap, clients)
        return min(usual, active_cap or clients) if self.idle else usual
