"""A federation of real processes with some keys in hostile hands.

Honest clients have small data of their own, so that members can come and go. Models learn slowly,
so that a run has its full number of rounds and no honest evaluation reaches the target: a task that
ends at its target was lied to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, final

import psutil

from fedast.federation import wire
from fedast.federation.nats.connection import TROUBLE, Connection, close, connect
from fedast.federation.nats.names import CONTROL_INBOX, CONTROL_SUBJECT
from fedast.federation.nats.setup import CONTROL, client_name, register_of
from fedast.federation.transport import TransportError
from tests.federation.disks import small_disk
from tests.federation.field import Field, Proxy
from tests.federation.power import LossyDisk, NoSuchDisk
from tests.soak.forked import Forked
from tests.soak.hostile import Hostile

TASKS = ("digits-mlp", "second")
_DATA = """
from sklearn.datasets import load_digits

def load(client):
    digits = load_digits()
    return (digits.data[client % 20::20] / 16).astype("float32"), digits.target[client % 20::20]
"""
BROKEN = "broken"
"""A file: while it is there, a function of the operator's raises."""
_RULES = """
from pathlib import Path
from fedast.algorithms.staleness import StalenessOptions

class Weight(StalenessOptions):
    def build(self):
        return weight

def weight(staleness):
    return 1 / (0 if Path(__file__).with_name("{broken}").exists() else 1)
"""
_CONFIG = """
seed = {seed}
path = ["{folder}"]

[algorithm]
name = "{algorithm}"
requests = {requests}
ratio = 2
staleness_weight = "soak_rules:Weight"

[simulation]
clients = {clients}

[federation]
min_clients = {clients}
lease = 5
redeliver_after = 2
request_timeout = 15
commit_every = 0.2
data = {{ digits-mlp = "soak_data:load", second = "soak_data:load" }}
{federation}
"""
_TASK = """
[[tasks]]
use = "digits-mlp"
name = "{name}"
target = 1.0
max_rounds = {rounds}
local_steps = 5
client_lr = 0.002
evaluate_every = 10
options = {{ samples = 200 }}
"""
_RUN_DISK, _NATS_DISK = 96, 1536
"""Megabytes, where small disks can be mounted."""


@final
class Scene:
    def __init__(self, folder: Path, seed: int, *, rounds: int, honest: int = 5) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.chance = random.Random(seed)
        self.rounds = rounds
        self.field = Field(folder, clients=honest)
        self.field.launch = Forked
        self.bed = self.field.bed
        self.honest = set(range(honest))
        self._free: list[int] = []
        """Keys in hostile hands that nobody uses at the moment."""
        self.hostile: set[int] = set()
        self.held: set[str] = set()
        """Processes that are down on purpose."""
        self.expected: set[str] = set()
        """... and those that may end by themselves, such as an expelled client."""
        self.went_back = False
        """The server's records were once put back to an earlier state."""
        self.punished: set[tuple[str, int]] = set()
        """Strikes and quarantines of honest clients."""
        self.lock_ups = 0
        """How often nats-server locked up and was started again."""
        self._control: Connection | None = None
        self.peaks: dict[str, int] = {}
        """The most megabytes that server and nats-server were seen to use."""
        self.evaluated_by_clients = self.chance.random() < 0.4
        how = 'evaluate = "clients"\nevaluators = 3\n' if self.evaluated_by_clients else ""
        algorithm = self.chance.choice(["fedast-d", "fedast-d", "fedast-s"])
        self.requests = 12
        (folder / "soak_data.py").write_text(_DATA)
        (folder / "soak_rules.py").write_text(_RULES.format(broken=BROKEN))
        self.field.config.write_text(
            _CONFIG.format(
                seed=seed, folder=folder, algorithm=algorithm, clients=honest,
                requests=self.requests, federation=how,
            )
            + "".join(_TASK.format(name=name, rounds=rounds) for name in TASKS)
        )  # fmt: skip
        self._disks = contextlib.ExitStack()
        self.power: LossyDisk | None = None
        """The disk of server and nats-server, if it can lose power."""
        self.small_disks = True
        """Whether a disk can be filled without filling this machine's own."""
        self._run_disk, self._nats_disk = folder / "disk", self.bed.layout.nats / "data"
        if self.chance.random() < 0.4:
            self._lossy()
        if self.power is None:
            for disk, size in ((self._run_disk, _RUN_DISK), (self._nats_disk, _NATS_DISK)):
                self.small_disks = self._mount(disk, size) and self.small_disks
        self.field.run = self._run_disk / "run"
        self.proxies: dict[str, Proxy] = {}
        for name in ("server", *map(client_name, self.honest)):
            self.proxies[name] = proxy = Proxy(self.bed.port)
            self.field.through[name] = proxy.port
        self.take_keys(6, reload=False)

    def _lossy(self) -> None:
        """One disk for server and nats-server that can lose power."""
        disk = LossyDisk(self.folder / "lossy", _NATS_DISK)
        try:
            self.power = self._disks.enter_context(disk)
        except NoSuchDisk:
            return
        for place, name in ((self._run_disk, "server"), (self._nats_disk, "nats")):
            (disk.path / name).mkdir()
            place.symlink_to(disk.path / name)
        disk.sync()

    def _mount(self, folder: Path, megabytes: int) -> bool:
        try:
            self._disks.enter_context(small_disk(folder, megabytes))
        except NoSuchDisk:
            return False
        return True

    def disk_of(self, who: str) -> Path:
        """The folder on whose disk the server or nats-server keeps its files."""
        return self._run_disk if who == "server" else self._nats_disk

    def __enter__(self) -> Scene:
        self.field.__enter__()
        self.field.start_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.field.__exit__(*exception)
        with suppress(OSError, shutil.Error):  # the records outlive their disk
            shutil.copytree(self.field.run, self.folder / "run-kept")
        self._disks.close()

    # --- members --------------------------------------------------------------------------------

    def take_keys(self, count: int, reload: bool = True) -> None:
        """Admit clients that will be hostile."""
        with register_of(self.bed.layout) as register:
            names = register.admit(count)
        numbers = [int(name.removeprefix("client-")) for name in names]
        self.hostile |= set(numbers)
        self._free += numbers
        if reload:
            self.bed.reload()

    def admit_honest(self) -> int:
        with register_of(self.bed.layout) as register:
            (name,) = register.admit(1)
        self.bed.reload()
        number = int(name.removeprefix("client-"))
        self.honest.add(number)
        self.field.clients = max(self.field.clients, number + 1)
        self.field.start_client(number)
        return number

    @asynccontextmanager
    async def attacker(self) -> AsyncIterator[Hostile]:
        """A hostile client with a valid key that is not quarantined."""
        found = await self.status(10.0)
        out = set(found["quarantined"]) if found else set()
        self._free = [number for number in self._free if number not in out]
        if not self._free:
            self.take_keys(4)
        number = self._free.pop(self.chance.randrange(len(self._free)))
        async with Hostile.connected(self.bed, number, TASKS) as one:
            try:
                yield one
            finally:
                self._free.append(number)

    # --- looking on -----------------------------------------------------------------------------

    async def ask(self, verb: str, argument: str = "") -> str | None:
        """The server's answer to a control command; None if it does not answer. One connection
        for all: a new one each time costs more than everything else here."""
        data = wire.encode(wire.Control(verb, argument))
        try:
            async with asyncio.timeout(6):
                if self._control is None:
                    self._control = await connect(
                        [self.bed.url], self.bed.keys(CONTROL), name=CONTROL,
                        inbox_prefix=CONTROL_INBOX, patience=2,
                    )  # fmt: skip
                found = await self._control.request(CONTROL_SUBJECT, data, timeout=4)
            return wire.decode(found.data, wire.Control).answer
        except (*TROUBLE, TransportError):
            await self.hang_up()
            return None

    async def hang_up(self) -> None:
        connection, self._control = self._control, None
        if connection is not None:
            await close(connection)

    async def status(self, patience: float = 0.0) -> dict[str, Any] | None:
        end = time.monotonic() + patience
        while True:
            answer = await self.ask("status")
            if answer is not None:
                found: dict[str, Any] = json.loads(answer)
                out = self.honest & set(found["quarantined"])
                self.punished |= {("quarantine", client) for client in out}
                return found
            if time.monotonic() >= end or self.ended:
                return None
            await asyncio.sleep(0.2)

    @property
    def ended(self) -> bool:
        """The server has ended, and nobody made it."""
        return "server" not in self.held and self.field.ended

    @contextmanager
    def down(self, *names: str) -> Iterator[None]:
        """While these are down on purpose."""
        self.held |= set(names)
        try:
            yield
        finally:
            self.held -= set(names)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        if self.field.processes[name].poll() is None:
            self.field.kill(name, number)

    def start(self, name: str) -> None:
        if name == "server":
            self.field.start_server()
        else:
            self.field.start_client(int(name.removeprefix("client-")))

    def some_client(self) -> str:
        return client_name(self.chance.choice(sorted(self.honest)))

    def events(self) -> list[dict[str, Any]]:
        """What events.jsonl has so far; its last line may be half written."""
        path = self.field.run / "events.jsonl"
        try:
            lines = path.read_text(errors="replace").split("\n")[:-1]
            return [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return []

    def relieve(self) -> None:
        """Do what the server's log asks its operator for: start a nats-server again that has locked
        up, which is a defect of nats-server's own."""
        log = self.folder / "server.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        if said.count("nats-server may have locked up") > self.lock_ups:
            self.lock_ups += 1
            self.bed.kill()
            self.bed.start()

    def weigh(self) -> None:
        """Note how much memory server and nats-server use."""
        process = self.bed._process
        found = {"nats-server": None if process is None else process.pid}
        found["server"] = self.field.processes["server"].pid
        for name, pid in found.items():
            with suppress(psutil.Error, TypeError):
                size = psutil.Process(pid).memory_info().rss // 2**20
                self.peaks[name] = max(size, self.peaks.get(name, 0))
