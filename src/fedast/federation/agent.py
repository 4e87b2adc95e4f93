"""The client of a federation: takes one request at a time, trains, uploads, and only then
acknowledges the request.

Only data comes over the wire, never code: the model's architecture, the training settings and the
training data are this machine's own, and a request only names a task and a model version. A request
that is delivered twice (the agent died, or its acknowledgement was lost) is trained again to the
same update, which the transport stores once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, final

import numpy as np

from fedast.core.protocol import ClientId, TaskName
from fedast.federation import wire
from fedast.federation.transport import ClientTransport, Delivery
from fedast.learner.protocol import Evaluation

log = logging.getLogger("fedast.client")

_MODELS_KEPT = 4
_HELLO_EVERY = 5.0


class Training(Protocol):
    """What an agent needs of local training."""

    @property
    def tasks(self) -> Sequence[TaskName]: ...

    def size(self, task: TaskName) -> int:
        """Length of the task's model as a vector: parameters, then floating-point buffers."""
        ...

    def buffers(self, task: TaskName) -> int:
        """How many entries at its end are buffers."""
        ...

    def train(
        self, task: TaskName, request: int, vector: wire.Vector, version: int
    ) -> tuple[wire.Vector, float, int]:
        """From a model and its version: the update of the parameters followed by the new values of
        the buffers, the mean training loss, and the number of samples of this client."""
        ...

    def measure(self, task: TaskName, vector: wire.Vector) -> tuple[Evaluation, int]:
        """How a model does on held-out samples, and their number."""
        ...

    def samples(self, task: TaskName) -> int:
        """How many samples of this task the client has."""
        ...


@final
class Agent:
    def __init__(
        self,
        client: ClientId,
        transport: ClientTransport,
        training: Training,
        *,
        software: str,
        hello_every: float = _HELLO_EVERY,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._transport = transport
        self._training = training
        self._software = software
        self._hello_every = hello_every
        self._clock = clock
        self._models: OrderedDict[str, wire.Vector] = OrderedDict()
        self._stopping = asyncio.Event()
        self._idle = True
        self.done = 0
        """Requests that were answered."""

    def stop(self) -> None:
        """Finish the current request, say goodbye, and end."""
        self._stopping.set()

    async def run(self) -> None:
        greeting = asyncio.create_task(self._greet())
        try:
            while not self._stopping.is_set():
                delivery = await self._transport.next(1.0)
                if delivery is not None:
                    self._idle = False
                    await self.serve(delivery)
                    self._idle = True
        finally:
            greeting.cancel()
            with suppress(asyncio.CancelledError):
                await greeting
            await self._transport.hello(self._hello(bye=True))
            await self._transport.close()

    async def _greet(self) -> None:
        while True:
            await self._transport.hello(self._hello())
            await asyncio.sleep(self._hello_every)

    def _hello(self, bye: bool = False) -> bytes:
        tasks = tuple(self._training.tasks)
        samples = tuple(self._training.samples(task) for task in tasks)
        return wire.encode(
            wire.Hello(self._client, self._software, tasks, bye, self._idle, samples)
        )

    async def serve(self, delivery: Delivery) -> None:
        """Answer one request."""
        notice = wire.decode_notice(delivery.data)
        if notice is not None:
            self._tell(notice)
            await delivery.done()
            return
        try:
            request = wire.decode(delivery.data, wire.Request)
        except wire.OtherProtocol as error:
            log.error("a request cannot be decoded: %s", error)
            await delivery.give_back()
            await asyncio.sleep(5.0)
            return
        except wire.WireError as error:
            log.error("a request cannot be decoded: %s", error)
            await delivery.done()
            return
        alive = asyncio.create_task(self._keep_alive(delivery))
        try:
            update = await self._answer(request)
        finally:
            alive.cancel()
            with suppress(asyncio.CancelledError):
                await alive
        precision = "half" if request.half else "single"
        data = wire.encode(update, precision)
        kind = "e" if request.kind == "evaluate" else ""
        await self._transport.upload(f"{kind}{request.id}-{request.token}", data)
        self.done += 1
        log.info("answered request %d", request.id)
        await delivery.done()

    def _tell(self, notice: wire.Notice) -> None:
        """Pass on what the server says; it is only text, whatever is in it."""
        text, software = (
            "".join(c if c.isprintable() else " " for c in said)[:500]
            for said in (notice.text, notice.software)
        )
        log.error(
            "the server (%s, wire format %d) does not admit this client (%s, wire format %d): %s",
            software, notice.protocol, self._software, wire.PROTOCOL, text,
        )  # fmt: skip

    async def _keep_alive(self, delivery: Delivery) -> None:
        while True:
            await asyncio.sleep(self._transport.patience / 3)
            await delivery.working()

    async def _answer(self, request: wire.Request) -> wire.Update:
        """The update, or a failure that says why there is none."""
        if request.task not in self._training.tasks:
            return self._failure(request, f"this client has no task {request.task!r}")
        if request.size != self._training.size(request.task):
            return self._failure(
                request,
                f"the server's model has {request.size} parameters, this client's has "
                f"{self._training.size(request.task)}; use the same configuration on both sides",
            )
        try:
            vector = await self._model(request)
        except wire.WireError as error:
            return self._failure(request, str(error))
        if vector is None:  # if it still counts, another client gets it
            return self._failure(request, wire.MODEL_GONE)
        if request.kind == "evaluate":
            return await self._evaluate(request, vector)
        began = self._clock()
        try:
            trained, loss, samples = await asyncio.to_thread(
                self._training.train, request.task, request.id, vector, request.version
            )
        except Exception as error:  # whatever the user's own data or model raises
            log.exception("training failed")
            return self._failure(request, f"{type(error).__name__}: {error}"[:500])
        work = self._clock() - began
        end = len(trained) - self._training.buffers(request.task)
        vector, buffers = np.split(trained.astype(np.float32), [end])
        return wire.Update(
            request=request.id,
            token=request.token,
            task=request.task,
            loss=loss,
            work_seconds=work,
            samples=samples,
            vector=vector,
            buffers=buffers if len(buffers) else None,
        )

    async def _evaluate(self, request: wire.Request, vector: wire.Vector) -> wire.Update:
        try:
            found, samples = await asyncio.to_thread(self._training.measure, request.task, vector)
        except Exception as error:  # whatever the user's own data or model raises
            log.exception("evaluation failed")
            return self._failure(request, f"{type(error).__name__}: {error}"[:500])
        return wire.Update(
            request=request.id,
            token=request.token,
            task=request.task,
            loss=found.loss,
            work_seconds=0.0,
            samples=samples,
            vector=None,
            metric=found.metric,
            means=found.means or None,
        )

    def _failure(self, request: wire.Request, why: str) -> wire.Update:
        log.error("request %d: %s", request.id, why)
        return wire.Update(
            request.id, request.token, request.task, 0.0, 0.0, 0, vector=None, failed=why
        )

    async def _model(self, request: wire.Request) -> wire.Vector | None:
        if request.model in self._models:
            self._models.move_to_end(request.model)
            return self._models[request.model]
        data = await self._transport.fetch(request.model)
        if data is None:
            return None
        if not wire.is_model(request.model, data):
            raise wire.WireError("the model does not match the digest in its name")
        model = wire.decode(data, wire.Model)
        if model.vector.shape != (request.size,):
            raise wire.WireError(f"the model has {model.vector.size} entries, not {request.size}")
        self._models[request.model] = model.vector
        while len(self._models) > _MODELS_KEPT:
            self._models.popitem(last=False)
        return model.vector
