"""Publishing models and sending the requests that refer to them.

An assignment (request, client, model) has a token, which is part of the request's name. A request
that was sent after the last commit before a crash may be decided differently afterwards: then its
token differs, and an update with the old token is ignored. The transport's epoch follows the token:
it makes a name a new one, and says nothing about the assignment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.federation import wire
from fedast.federation.driver import Send
from fedast.federation.log_events import ModelPublished
from fedast.federation.model_store import ModelStore
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import ServerTransport

_TOKENS_KEPT = 100_000
_MISSED_EVERY = 5.0


@final
class Publisher:
    def __init__(
        self,
        *,
        state: ServerState,
        learner: ServerLearner,
        transport: ServerTransport,
        store: ModelStore,
        recorder: Recorder,
        tasks: Sequence[TaskName],
        half: bool,
    ) -> None:
        """``tasks``: all of them, in a fixed order. ``half``: uploads in half precision."""
        self._state = state
        self._learner = learner
        self._transport = transport
        self._store = store
        self._recorder = recorder
        self._half = half
        self._numbers = {name: number for number, name in enumerate(tasks)}
        self.sizes = {name: learner.parameters(name).numel() for name in tasks}
        self.secret = b""
        """The key of the tokens."""
        self.epoch = ""
        """Of the transport; it begins with an x, which no token has."""
        self._missed: dict[str, float] = {}
        """When models were last published again because a client missed them."""
        self._sent: OrderedDict[RequestId, tuple[ClientId, str]] = OrderedDict()
        """Requests that were sent lately, with their clients and tokens: this tells an answer that
        comes after its request has ended from one that was made up."""

    @property
    def upload_limit(self) -> int:
        """The most bytes that an upload may have: the largest model, and a header."""
        return 4 * max(self.sizes.values()) + 65536

    async def publish(self, task: TaskName, version: Version) -> str:
        """Publish a model unless that is done; its name."""
        models = self._state.models
        if (task, version) not in models:
            name, data = self._newest(task, version)
            await asyncio.to_thread(self._store.keep, name, data, set(models.values()))
            await self._transport.publish(name, data)
            self._recorder.note(ModelPublished(task, version, name))
        return models[task, version]

    def _newest(self, task: TaskName, version: Version) -> tuple[str, bytes]:
        """The name and the message of the newest model."""
        newest = self._learner.version(task)
        assert version == newest, f"{task}: version {version} was replaced by {newest}"
        vector = self._learner.parameters(task).detach().cpu().numpy()
        data = wire.encode(wire.Model(task, version, vector.astype(np.float32)))
        return wire.model_name(data, self._numbers[task], version), data

    async def publish_again(self) -> list[tuple[TaskName, Version]]:
        """Publish every model that clients may fetch, as the transport may have lost it. Those of
        which there is no copy."""
        return [key for key in list(self._state.models) if not await self._publish_copy(*key)]

    async def missed(self, task: TaskName, version: Version, now: float) -> None:
        """A client could not fetch this model: perhaps the transport has lost it. It is published
        again, but not over and over, no matter how many clients ask."""
        name = self._state.models.get((task, version))
        if name is None or now - self._missed.get(name, -_MISSED_EVERY) < _MISSED_EVERY:
            return
        self._missed = {
            known: then for known, then in self._missed.items() if now - then < _MISSED_EVERY
        }
        self._missed[name] = now
        await self._publish_copy(task, version)

    async def _publish_copy(self, task: TaskName, version: Version) -> bool:
        """Publish a model once more; False if there is no copy of it."""
        name = self._state.models[task, version]
        data = await asyncio.to_thread(self._store.get, name)
        if data is None and version == self._learner.version(task):
            _, data = self._newest(task, version)
        if data is None or not wire.is_model(name, data):
            return False
        await self._transport.publish(name, data)
        return True

    async def send(self, send: Send) -> None:
        """Send a training request to its client."""
        model = await self.publish(send.task, send.version)
        token = self.token(send)
        request = wire.Request(
            kind="train",
            id=send.request,
            token=f"{token}{self.epoch}",
            task=send.task,
            version=send.version,
            model=model,
            size=self.sizes[send.task],
            half=self._half,
        )
        self._sent[send.request] = send.client, token
        while len(self._sent) > _TOKENS_KEPT:
            self._sent.popitem(last=False)
        data = wire.encode(request)
        await self._transport.send(send.client, self.request_name(send), data, model)

    async def send_evaluation(
        self, task: TaskName, version: Version, tokens: Mapping[ClientId, str]
    ) -> None:
        """Ask these clients to evaluate a model, each with its own token."""
        model = await self.publish(task, version)
        for client, token in tokens.items():
            request = wire.Request(
                kind="evaluate",
                id=version,
                token=token,
                task=task,
                version=version,
                model=model,
                size=self.sizes[task],
                half=False,
            )
            name = f"e{self._numbers[task]}-{version}-{token}"
            await self._transport.send(client, name, wire.encode(request), model)

    async def withdraw(self, send: Send) -> None:
        await self._transport.withdraw(send.client, self.request_name(send))

    def request_name(self, send: Send) -> str:
        sent = self._sent.get(send.request)  # its model may be retired by now
        token = self.token(send) if sent is None else sent[1]
        return f"{send.request}-{token}{self.epoch}"

    def accepts(self, send: Send, token: str) -> bool:
        """Whether this is the token of an open request, of whatever epoch."""
        return token.partition("x")[0] == self.token(send)

    def was_sent(self, request: RequestId, client: ClientId, token: str) -> bool:
        """Whether this client was sent this request with this token, of whatever epoch."""
        return self._sent.get(request) == (client, token.partition("x")[0])

    def forget(self, request: RequestId) -> None:
        self._sent.pop(request, None)

    def token(self, send: Send) -> str:
        model = self._state.models.get((send.task, send.version), "")
        return wire.token(self.secret, send.request, send.client, model)
