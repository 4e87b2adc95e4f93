"""Whole federations over the in-memory transport: they learn, survive, and keep exact books."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedast.config.errors import ConfigError
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.agent import Agent, Training
from fedast.federation.log_events import ClientJoined, Entry, UploadIgnored
from fedast.federation.memory import Hub, MemoryClient, MemoryServer, send_command
from fedast.federation.transport import Delivery, Gone
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.learner.checkpoints import newest, save
from fedast.records.run import UnusableFolder
from fedast.run.federate import Federation, LocalTraining
from fedast.tasks.dataset import Arrays
from fedast.tasks.task import Task
from fedast.training.flat import FlatModel
from tests.aggregation.test_running_statistics import Normalised, make_task
from tests.federation.nats_support import free_port
from tests.federation.support import audit, events, two_tasks


def agent(hub: Hub, config: RunConfig, client: int) -> Agent:
    training = LocalTraining(config, client)
    return Agent(client, MemoryClient(hub, client), training, software="test", hello_every=0.2)


async def federate(
    config: RunConfig,
    folder: Path,
    hub: Hub,
    *,
    meanwhile: Callable[[Federation, list[Agent]], Coroutine[Any, Any, None]] | None = None,
) -> Federation:
    """A server and its clients in one loop, to the end."""
    agents = [agent(hub, config, client) for client in range(config.simulation.clients)]
    federation = Federation(config, MemoryServer(hub), folder)
    running = [asyncio.create_task(a.run()) for a in agents]
    side = asyncio.create_task(meanwhile(federation, agents)) if meanwhile else None
    try:
        async with asyncio.timeout(90):
            await federation.run()
    finally:
        for a in agents:
            a.stop()
        await asyncio.gather(*running)
        if side is not None:
            async with asyncio.timeout(10):
                await side
    return federation


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedast-d", "requests = 8\nratio = 2\nserver_rate = 0.5"),
        ("fedast-nobuffer", "requests = 8\nserver_rate = 0.3"),
        ("fedbuff", "requests = 4\nratio = 2\nserver_rate = 0.5"),
        ("sync-st", "first_k = 2"),
        ("sync-ucb-st", "first_k = 2"),
        ("sequential-fedavg", "first_k = 3"),
    ],
)
def test_a_federation_trains_two_tasks_to_target(
    tmp_path: Path, algorithm: str, options: str
) -> None:
    config = two_tasks(tmp_path, algorithm=algorithm, options=options)
    asyncio.run(federate(config, tmp_path / "run", Hub()))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["algorithm"] == algorithm
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    counts = audit(tmp_path / "run")
    assert counts["arrive"] > 10


def test_a_server_that_is_stopped_goes_on(tmp_path: Path) -> None:
    """Stopped in the middle: nothing is lost, nothing counts twice."""
    config = two_tasks(tmp_path, target=0.85)
    hub = Hub(patience=1.0)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 20:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=stop_soon))
    first = audit(tmp_path / "run")
    before = events(tmp_path / "run")
    assert first["open"] > 0
    hub.changed, hub.told = asyncio.Event(), asyncio.Queue()
    asyncio.run(federate(config, tmp_path / "run", hub))
    after = events(tmp_path / "run")
    keys = ("event", "request", "task", "client", "round")
    said = [{k: e.get(k) for k in keys} for e in before if e["event"] != "finish"]
    again = [{k: e.get(k) for k in keys} for e in after]
    # What was committed is there again, word for word, but for the interruption itself.
    cut = next(i for i, e in enumerate(before) if e["event"] == "finish") if any(
        e["event"] == "finish" for e in before
    ) else len(before)  # fmt: skip
    assert again[:cut] == said[:cut]
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2


@pytest.mark.parametrize("kind", ["nan", "shape", "garbage", "huge number"])
def test_bad_updates_are_refused_and_their_sender_is_quarantined(tmp_path: Path, kind: str) -> None:
    config = two_tasks(tmp_path, clients=4, federation="strikes = 1")
    hub = Hub()

    def spoilt(request: wire.Request) -> bytes:
        vector = np.zeros(request.size - (kind == "shape"), np.float32)
        if kind == "nan":
            vector[0] = np.nan
        update = wire.Update(request.id, request.token, request.task, 0.0, 0.0, 1, vector)
        good = wire.encode(update)
        if kind == "garbage":
            return b"garbage"
        if kind == "huge number":  # an integer that no float can hold
            bad = good.replace(b'"loss":0.0', b'"loss":1' + b"0" * 400)
            length = int.from_bytes(good[5:9], "big") + len(bad) - len(good)
            return bad[:5] + length.to_bytes(4, "big") + bad[9:]
        return good

    async def attack(federation: Federation, agents: list[Agent]) -> None:
        """Client 3 is evil from the start: it is there, and takes requests."""
        agents[3].stop()
        evil = MemoryClient(hub, 3)
        while not federation.server.finished:
            await evil.hello(wire.encode(wire.Hello(3, "evil", ("digits-mlp", "second"))))
            delivery = await evil.next(0.2)
            if delivery is not None:
                request = wire.decode(delivery.data, wire.Request)
                await evil.upload(f"{request.id}-{request.token}", spoilt(request))
                await delivery.done()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=attack))
    counts = audit(tmp_path / "run")
    assert counts["drop invalid"] == 1
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert '{"e":"quarantine","c":3' in log


def test_somebody_elses_request_and_made_up_ones_change_nothing(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)
    hub = Hub()

    async def attack(federation: Federation, agents: list[Agent]) -> None:
        while not hub.queues.get(0):
            await asyncio.sleep(0.01)
        request = wire.decode(next(iter(hub.queues[0].values())), wire.Request)
        vector = np.ones(request.size, np.float32)
        forged = wire.Update(request.id, request.token, request.task, 0.1, 0.1, 1, vector)
        await MemoryClient(hub, 2).upload(f"{request.id}-{request.token}", wire.encode(forged))
        unknown = wire.Update(999_999, "t", request.task, 0.1, 0.1, 1, vector)
        await MemoryClient(hub, 2).upload("999999-t", wire.encode(unknown))

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=attack))
    counts = audit(tmp_path / "run")
    assert counts["drop invalid"] == 0
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"superseded"') >= 2
    assert '"e":"strike"' not in log


def test_an_idle_clients_queue_is_made_anew_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that takes long to make would be made for ever."""
    config = two_tasks(tmp_path, clients=2)  # redeliver_after is 2
    hub, now = Hub(), [0.0]
    again: list[float] = []

    async def noted(_server: MemoryServer, client: int) -> None:
        if client == 0:
            again.append(now[0])

    monkeypatch.setattr(MemoryServer, "redeliver", noted)

    async def body() -> None:
        federation = Federation(config, MemoryServer(hub), tmp_path / "run", clock=lambda: now[0])
        running = asyncio.create_task(federation.run())
        tasks = ("digits-mlp", "second")
        while now[0] < 90 and not running.done():
            for client in (0, 1):  # there, but nothing comes through to them
                hello = wire.Hello(client, "test", tasks, idle=True)
                await MemoryClient(hub, client).hello(wire.encode(hello))
            await asyncio.sleep(0.01)
            now[0] += 0.5
        federation.server.stop()
        await running

    asyncio.run(body())
    gaps = [later - sooner for sooner, later in pairwise(again)]
    assert len(gaps) >= 4
    for gap, patience in zip(gaps, (4, 8, 16, 16), strict=False):
        assert patience < gap < patience + 3


def test_a_client_that_goes_silent_frees_its_requests(tmp_path: Path) -> None:
    """It hangs in a training and says nothing more: only its lease can tell that it is gone."""
    config = two_tasks(tmp_path, clients=3, lease=3.0)
    hub = Hub()
    hanging, gone, over = threading.Event(), threading.Event(), threading.Event()

    async def silence(federation: Federation, agents: list[Agent]) -> None:
        def hold(training: Training, until: threading.Event) -> None:
            train = training.train

            def held(*arguments: Any) -> tuple[wire.Vector, float, int]:
                if until is over:
                    hanging.set()
                until.wait(40)
                return train(*arguments)

            training.train = held  # type: ignore[method-assign, assignment]

        async def nothing(data: bytes) -> None:
            pass

        async def wait(condition: Callable[[], bool]) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while not condition():
                        await asyncio.sleep(0.01)

        # The others hold still meanwhile, so that nothing ends before the lease does.
        for number, one in enumerate(agents):
            hold(one._training, over if number == 1 else gone)
        await wait(hanging.is_set)
        agents[1]._transport.hello = nothing  # type: ignore[method-assign]
        await wait(lambda: 1 not in federation.server.state.pool)
        gone.set()
        await wait(lambda: federation.server.finished)
        over.set()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=silence))
    assert hanging.is_set()
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"leave"') == log.count('"e":"leave","c":1') == 1
    happened = events(tmp_path / "run")
    sent = {e["request"] for e in happened if e["event"] == "dispatch" and e["client"] == 1}
    lost = {e["request"] for e in happened if e["event"] == "drop" and e["reason"] == "lost"}
    assert lost == sent != set()


def test_an_idle_client_gets_what_its_queue_holds_back(tmp_path: Path) -> None:
    """As when NATS's clock was set back: what a dead process had counts as being in its hands."""

    class Jammed(Hub):
        """Client 1's first request is in dead hands before it can take it."""

        held: tuple[int, str] | None = None

        def stir(self) -> None:
            if self.held is None and self.queues.get(1):
                self.held = (1, next(iter(self.queues[1])))
                self.taken[self.held] = 1e12
            super().stir()

    hub = Jammed(patience=1e9)
    config = two_tasks(tmp_path, clients=2)
    asyncio.run(federate(config, tmp_path / "run", hub))
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    assert counts["drop lost"] == 0
    assert hub.held is not None
    assert hub.held not in hub.taken
    answered = [name for client, name in hub.names if client == 1]
    assert hub.held[1] in answered


@pytest.mark.parametrize("blame", [True, False])
def test_what_a_transport_knows_to_have_failed_is_lost(tmp_path: Path, blame: bool) -> None:
    """As Flower says when a ClientApp crashes (its own fault) or a node is gone (nobody's)."""
    config = two_tasks(tmp_path, clients=3, target=0.93)
    hub = Hub()
    failed: list[str] = []

    async def crash(federation: Federation, agents: list[Agent]) -> None:
        agents[1].stop()
        while not federation.server.finished:
            await asyncio.sleep(0.005)
            await MemoryClient(hub, 1).hello(agents[1]._hello())  # it is there, and crashes
            for name in [n for n in hub.queues.get(1, ()) if (1, n) not in hub.taken][:1]:
                failed.append(name)
                hub.fail(1, name, "it crashed", blame)

    federation = asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=crash))
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    assert counts["drop lost"] >= min(10, len(failed))
    assert len(failed) >= 10
    assert federation.server.state.membership.quarantined == ({1} if blame else set())


def test_a_client_that_is_gone_by_the_transports_word_loses_its_requests(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)
    hub = Hub()

    async def leave(federation: Federation, agents: list[Agent]) -> None:
        while len(hub.queues.get(2, ())) < 3 or federation.run_metrics.updates < 5:
            await asyncio.sleep(0)
        hub.told.put_nowait(Gone(2))
        hub.stir()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=leave))
    assert audit(tmp_path / "run")["finish"] == 2
    happened = events(tmp_path / "run")
    sent = {e["request"]: e["client"] for e in happened if e["event"] == "dispatch"}
    lost = [e["request"] for e in happened if e["event"] == "drop" and e["reason"] == "lost"]
    assert {sent[request] for request in lost} == {2}
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"leave","c":2') == 1
    assert log.count('"e":"join","c":2') == 2  # its next greeting lets it in again


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    first = Federation(config, MemoryServer(Hub()), tmp_path / "run")
    with pytest.raises(UnusableFolder, match="another server"):
        Federation(config, MemoryServer(Hub()), tmp_path / "run")
    first.close()
    Federation(config, MemoryServer(Hub()), tmp_path / "run").close()


def test_the_lock_of_a_killed_server_is_free(tmp_path: Path) -> None:
    """The lock file stays; an earlier version held it with flock, and so does this one."""
    folder = tmp_path / "run"
    folder.mkdir()
    hold = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(600)"
    )
    config = two_tasks(tmp_path)
    command = [sys.executable, "-c", hold, str(folder / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(UnusableFolder, match="another server"):
                Federation(config, MemoryServer(Hub()), folder)
        finally:
            holder.kill()
    assert (folder / "lock").exists()
    Federation(config, MemoryServer(Hub()), folder).close()


def test_another_configuration_does_not_touch_a_runs_records(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    folder = tmp_path / "run"
    asyncio.run(federate(config, folder, Hub()))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UnusableFolder, match="another than when"):
        Federation(two_tasks(tmp_path, target=0.9), MemoryServer(Hub()), folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_control_commands(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, target=0.9)
    hub = Hub()
    said: list[str] = []

    async def command(federation: Federation, agents: list[Agent]) -> None:
        async def say(verb: str, argument: str = "") -> str:
            data = await send_command(hub, wire.encode(wire.Control(verb, argument)))
            answer = wire.decode(data, wire.Control)
            said.append(answer.answer)
            return answer.answer

        while federation.run_metrics.updates < 5:
            await asyncio.sleep(0.01)
        await say("pause")
        await asyncio.sleep(0.5)
        updates = federation.run_metrics.updates
        await asyncio.sleep(0.5)
        assert federation.run_metrics.updates == updates
        status = json.loads(await say("status"))
        assert status["paused"] is True
        assert status["clients"] == [0, 1, 2, 3]
        assert status["requests"] == {}
        await say("resume")
        await say("stop", "second")
        await say("stop", "nothing")
        await say("dance")

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=command))
    assert said[-3] == "task second is stopped"
    assert said[-2].startswith("refused")
    assert said[-1].startswith("refused")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tasks"]["second"]["finish_reason"] == "removed"
    assert result["tasks"]["digits-mlp"]["finish_reason"] == "target"


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedast-s", "requests = 8\nratio = 2\nserver_rate = 0.5"), ("sync-st", "first_k = 2")],
)
def test_clients_can_evaluate(tmp_path: Path, algorithm: str, options: str) -> None:
    how = 'evaluate = "clients"\nevaluators = 3'
    config = two_tasks(tmp_path, algorithm=algorithm, options=options, federation=how)
    asyncio.run(federate(config, tmp_path / "run", Hub()))
    audit(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    measured = [e for e in events(tmp_path / "run") if e["event"] == "evaluate"]
    asked = {(e["task"], e["round"]) for e in measured}
    assert len(asked) == len(measured)
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"answer"') > len(measured), "each is asked of several clients"


def test_evaluations_that_come_to_nothing_are_left_out_or_asked_again(tmp_path: Path) -> None:
    """As over Flower, where a client that crashes is reported: one never answers, one does not
    the first few times."""
    how = 'evaluate = "clients"\nevaluators = 2'
    config = two_tasks(tmp_path, clients=3, federation=how)
    hub = Hub()
    failed: Counter[int] = Counter()

    async def crash(federation: Federation, agents: list[Agent]) -> None:
        take = MemoryClient._take

        def taking(self: MemoryClient, now: float) -> Delivery | None:
            for name in [n for n in hub.queues.get(self._client, ()) if n.startswith("e")]:
                if self._client == 0 or (self._client == 1 and failed[1] < 5):
                    failed[self._client] += 1
                    hub.fail(self._client, name, "it crashed", blame=False)
            return take(self, now)

        monkeypatch.setattr(MemoryClient, "_take", taking)

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=crash))
    audit(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    assert failed[0] > 3
    assert failed[1] >= 1
    measured = [e for e in events(tmp_path / "run") if e["event"] == "evaluate"]
    assert len({(e["task"], e["round"]) for e in measured}) == len(measured) > 3


def test_what_a_quarantined_client_sends_takes_no_room(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    hub = Hub()

    async def flood(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 5:
            await asyncio.sleep(0.01)
        await send_command(hub, wire.encode(wire.Control("pause")))
        while hub.uploads or any(hub.queues.values()):
            await asyncio.sleep(0.01)
        federation.server.state.membership.quarantined.add(77)
        for number in range(20):
            hub.keep(77, f"{number}-x", b"junk")
        while hub.uploads:  # though there is nothing to commit
            await asyncio.sleep(0.01)
        await send_command(hub, wire.encode(wire.Control("resume")))

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=flood))
    audit(tmp_path / "run")


def test_what_clients_hold_back_is_not_trained_on(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, federation='evaluate = "clients"\nholdout = 0.25')
    training = LocalTraining(config, 1)
    bench = training._device_tasks["digits-mlp"]
    held = set(training._held["digits-mlp"].tolist())
    kept = set(bench.task.partition[1].tolist())
    assert len(held) > 10
    assert not held & kept
    vector = bench.model.read().numpy()
    before, _, points = training.train("digits-mlp", 5, vector)
    assert points == len(kept)
    metric, loss, count = training.evaluate("digits-mlp", vector)
    assert 0.0 <= metric <= 1.0
    assert loss > 0
    assert count == len(training._held["digits-mlp"])
    assert isinstance(bench.train, Arrays)
    inputs = bench.train.inputs
    good = inputs.clone()
    try:
        inputs[training._held["digits-mlp"]] = float("nan")
        after, _, _ = training.train("digits-mlp", 5, vector)
    finally:
        inputs.copy_(good)  # other tests load the same array
    assert np.array_equal(before, after), "whatever is held back, training does not see it"


def test_a_client_uses_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\n"
        "def load(client):\n"
        "    rng = np.random.default_rng(client)\n"
        "    return rng.random((40, 64), np.float32), rng.integers(0, 10, 40)\n"
    )
    config = two_tasks(tmp_path, federation='data = { digits-mlp = "my_data:load" }')
    config = config.model_copy(update={"path": (str(tmp_path),)})
    with pytest.raises(ConfigError, match="none for client 77"):
        LocalTraining(config, 77)  # the other task has no data of this client
    misspelled = two_tasks(tmp_path, federation='data = { digits-mpl = "my_data:load" }')
    with pytest.raises(ConfigError, match=r"federation\.data\.digits-mpl: there is no such task"):
        LocalTraining(misspelled, 3)
    training = LocalTraining(config, 3)
    vector = training._device_tasks["digits-mlp"].model.read().numpy()
    delta, loss, count = training.train("digits-mlp", 5, vector)
    assert count == 40
    assert loss > 0
    assert np.isfinite(delta).all()


def test_a_client_that_can_train_nothing_is_let_in_no_more(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)

    async def spoil(federation: Federation, agents: list[Agent]) -> None:
        def broken(*arguments: object) -> None:
            raise RuntimeError("no data today")

        agents[2]._training.train = broken  # type: ignore[method-assign, assignment]

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=spoil))
    counts = audit(tmp_path / "run")
    assert 0 < counts["drop lost"] <= 20
    assert '{"e":"quarantine","c":2' in (tmp_path / "run" / "diary" / "diary.jsonl").read_text()


JUMPING = """
import asyncio, sys, time
from pathlib import Path

true, shift = time.time, [0.0]
time.time = lambda: true() + shift[0]  # before anything can keep hold of the real one

from fedast.federation.memory import Hub
from tests.federation.support import two_tasks
from tests.federation.test_federation import federate

async def jump(federation, agents):
    for updates, ahead in ((5, 86_400.0), (12, -86_400.0)):
        while federation.run_metrics.updates < updates:
            await asyncio.sleep(0.005)
        shift[0] = ahead

folder = Path(sys.argv[1])
config = two_tasks(folder, lease=5.0, target=0.85)
asyncio.run(federate(config, folder / "run", Hub(), meanwhile=jump))
assert abs(time.time() - true()) > 80_000
"""


def test_a_jump_of_the_wall_clock_changes_nothing(tmp_path: Path) -> None:
    """A day ahead, then a day back. In a process of its own: clocks are bound when imported."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", JUMPING, str(tmp_path)],
        cwd=root, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = audit(tmp_path / "run")
    assert counts["drop lost"] == 0
    assert counts["finish"] == 2
    happened = events(tmp_path / "run")
    assert happened[-1]["t"] < 90
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text().splitlines()
    work = [entry["w"] for entry in map(json.loads, log) if entry["e"] == "arrive"]
    assert len(work) > 12
    assert 0 <= min(work) <= max(work) < 90


def test_another_configuration_is_not_taken_up(tmp_path: Path) -> None:
    hub = Hub()
    config = two_tasks(tmp_path, target=0.9)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 5:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=stop_soon))
    other = two_tasks(tmp_path, target=0.7)
    with pytest.raises(UnusableFolder, match="another than when this federation began"):
        asyncio.run(federate(other, tmp_path / "run", Hub()))


def test_a_state_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    wal = WriteAheadLog(tmp_path / "diary")
    assert wal.open(print) is None
    wal.append(Entry(0.0, ClientJoined(1)))
    wal.commit(1.0, {"a": torch.zeros(3)}, [])
    wal.close()
    for file in (tmp_path / "diary" / "state").glob("*.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(UnusableFolder, match="no state in it can be read"):
        WriteAheadLog(tmp_path / "diary").open(print)
    assert (tmp_path / "diary" / "diary.jsonl").exists()


def test_entries_after_the_last_commit_are_cut_off(tmp_path: Path) -> None:
    wal = WriteAheadLog(tmp_path / "diary")
    wal.open(print)
    wal.append(Entry(0.0, UploadIgnored(7)))
    wal.commit(1.0, {"a": torch.ones(3)}, [0.5])
    assert not wal.dirty
    wal.close()
    with (tmp_path / "diary" / "diary.jsonl").open("a") as file:
        file.write('{"e":"half writt')
    again = WriteAheadLog(tmp_path / "diary")
    past = again.open(print)
    again.close()
    assert past is not None
    assert past.entries == [Entry(0.0, UploadIgnored(7))]
    assert (past.sequence, past.time, past.answers) == (7, 1.0, (0.5,))
    assert (tmp_path / "diary" / "diary.jsonl").read_text().count("\n") == 1


def test_prometheus_finds_the_metrics(tmp_path: Path) -> None:
    port = free_port()
    config = two_tasks(tmp_path, federation=f"metrics_port = {port}\nhalf_uploads = true")
    found: list[str] = []

    async def scrape(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 10:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{port}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text: str = answer.read().decode()
                return text

        found.append(await asyncio.to_thread(read))

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=scrape))
    (text,) = found
    assert 'fedast_updates_total{task="digits-mlp"}' in text
    assert "fedast_clients 4.0" in text
    assert 'fedast_round{task="second"}' in text
    audit(tmp_path / "run")


def normalised(clients: int, seed: int) -> Task:
    """A task with batch normalisation, for a configuration."""
    return make_task(rounds=15, server_lr=1.0, buffer=2)


@pytest.mark.parametrize("half", ["false", "true"])
def test_running_statistics_of_a_federation_stay_in_range(tmp_path: Path, half: str) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(
        'seed = 1\n[algorithm]\nname = "fedast-s"\n[simulation]\nclients = 12\n'
        f"[federation]\nmin_clients = 12\nhalf_uploads = {half}\n"
        '[[tasks]]\nuse = "tests.federation.test_federation:normalised"\nname = "t"\n'
    )
    config = resolve(load(path), tmp_path)
    federation = asyncio.run(federate(config, tmp_path / "run", Hub()))
    module, start = Normalised(), Normalised()
    FlatModel(module, torch.device("cpu")).write(federation.model("t"))
    assert module.norm.running_var is not None
    assert module.norm.running_var.min() >= 0
    assert not torch.equal(module.norm.running_var, torch.ones(6))
    assert torch.equal(module.table, start.table), "half precision would have rounded it"
    tasks = json.loads((tmp_path / "run" / "result.json").read_text())["tasks"]
    assert tasks["t"]["finish_reason"] == "rounds"


# --- a log that this server would not have written ----------------------------------------------


def begun(tmp_path: Path) -> tuple[RunConfig, Path]:
    """A federation that was stopped on its way."""
    config = two_tasks(tmp_path, target=0.99)

    async def stop_soon(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 20:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=stop_soon))
    return config, tmp_path / "run"


def refused(config: RunConfig, folder: Path) -> str:
    """What the server says; the records of the time before are not touched."""
    before = {name: (folder / name).read_bytes() for name in ("events.jsonl", "result.json")}
    with pytest.raises(UnusableFolder) as caught:
        asyncio.run(Federation(config, MemoryServer(Hub()), folder).run())
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not (folder / "events.jsonl.part").exists()
    return str(caught.value)


def change_state(folder: Path, **changes: Any) -> None:
    state = folder / "diary" / "state"
    found = newest(state, lambda text: None)
    assert found is not None
    save(state, replace(found, **changes))


def test_a_log_that_asks_for_other_answers_is_refused(tmp_path: Path) -> None:
    config, folder = begun(tmp_path)
    found = newest(folder / "diary" / "state", lambda text: None)
    assert found is not None
    assert found.answers
    for answers in (found.answers[:-1], (*found.answers, 0.5)):
        change_state(folder, answers=answers, schedule=None)
        assert "data plane" in refused(config, folder)
    change_state(folder, answers=found.answers, schedule="0" * 32, fedast="9.9")
    line = refused(config, folder)
    assert "other requests are sent" in line
    assert "fedast 9.9" in line
    path = folder / "diary" / "diary.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    place = next(i for i, text in enumerate(lines) if '"e":"arrive"' in text)
    change_state(folder, schedule=found.schedule)
    spoilt = lines[place].replace('"r":', '"s":')
    path.write_text("".join((*lines[:place], spoilt, *lines[place + 1 :])))
    assert re.search(rf"line {place + 1}: .*KeyError", refused(config, folder))
    path.write_text("".join(lines))
    federation = Federation(config, MemoryServer(Hub()), folder)
    federation.server.stop()
    asyncio.run(federation.run())
    assert federation.run_metrics.replayed == federation.run_metrics.updates >= 20


def test_a_log_of_other_requests_is_refused(tmp_path: Path) -> None:
    """As one of version 0.1.0 is, where an algorithm sends its requests otherwise now."""
    config, folder = begun(tmp_path)
    path = folder / "diary" / "diary.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    place = next(i for i, text in enumerate(lines) if '"e":"arrive"' in text)
    never = re.sub(r'"r":\d+', '"r":99999', lines[place])
    assert never != lines[place]
    path.write_text("".join((*lines[:place], never, *lines[place + 1 :])))
    change_state(folder, schedule=None, fedast=None)
    line = refused(config, folder)
    assert "99999 was never sent" in line
    assert "serve it with fedast 0.1.0" in line


def test_a_configuration_that_another_version_wrote_otherwise_is_taken_up(tmp_path: Path) -> None:
    """It had another hash for it, and did not know a key that has its default here."""
    config, folder = begun(tmp_path)
    path = folder / "diary" / "diary.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    entry = json.loads(first) | {"digest": "0" * 64}
    del entry["config"]["simulation"]["loss_rate"]
    path.write_text("".join((json.dumps(entry) + "\n", *rest)))
    Federation(config, MemoryServer(Hub()), folder).close()
    del entry["config"]  # as version 0.1.0
    path.write_text("".join((json.dumps(entry) + "\n", *rest)))
    Federation(config, MemoryServer(Hub()), folder).close()
    other = config.model_copy(update={"seed": 5})
    with pytest.raises(UnusableFolder, match=r"another than when .* \(seed is 5, was 1\)"):
        Federation(other, MemoryServer(Hub()), folder)
