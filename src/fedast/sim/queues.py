"""The clients' queues: one each, first come first served, one request at a time.

Only clients that hold a request take memory, so a pool of a million clients of
which a few thousand are busy costs what the few thousand cost. Queues are plain
lists: most hold one request, where a list is a tenth of the size of a deque.
"""

from __future__ import annotations

from typing import final

from fedast.core.protocol import ClientId, RequestId


@final
class Queues:
    def __init__(self) -> None:
        self._queues: dict[ClientId, list[RequestId]] = {}

    def push(self, client: ClientId, request: RequestId) -> bool:
        """Append a request; True if the client was idle and starts on it now."""
        queue = self._queues.get(client)
        if queue is None:
            self._queues[client] = [request]
            return True
        queue.append(request)
        return False

    def remove(self, client: ClientId, request: RequestId) -> RequestId | None:
        """Take a request out; the one that starts in its place, if it was the running one."""
        queue = self._queues[client]
        was_running = queue[0] == request
        if was_running:
            del queue[0]
        else:
            queue.remove(request)
        if not queue:
            del self._queues[client]
            return None
        return queue[0] if was_running else None

    def clear(self, client: ClientId) -> list[RequestId]:
        """Take out everything a client holds."""
        return list(self._queues.pop(client, ()))
