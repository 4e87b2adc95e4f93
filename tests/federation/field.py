"""A federation of real processes that can be hurt: nats-server, server and clients."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedast.federation import wire
from fedast.federation.nats.client import send_command
from fedast.federation.nats.setup import CONTROL, SERVER, client_name
from tests.federation.nats_support import NatsBed
from tests.federation.support import audit, two_tasks

FEDAST = [sys.executable, "-m", "fedast"]


class Running(Protocol):
    """A process of a federation; ``subprocess.Popen`` is one."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | Any: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def launch(arguments: Sequence[str], log: Path) -> Running:
    with log.open("ab") as file:
        return subprocess.Popen([*FEDAST, *arguments], stdout=file, stderr=file)


class Field:
    def __init__(
        self,
        folder: Path,
        *,
        clients: int = 4,
        rounds: int = 60,
        steps: int = 40,
        nats_on: Path | None = None,
        server_on: Path | None = None,
        **config: Any,
    ) -> None:
        """``nats_on``, ``server_on``: disks of NATS and of the server, if not ``folder``."""
        self.bed = NatsBed(nats_on or folder, clients=clients, patience=2.0)
        self._apart = nats_on is not None
        self.folder = folder
        self.run = (server_on or folder) / "run"
        self.clients = clients
        self._steps, self._rounds = steps, rounds
        text = two_tasks(folder, clients=clients, target=1.0, **config)
        assert text.tasks
        path = folder / "federation.toml"
        limits = f"max_rounds = {rounds}\nlocal_steps = {steps}\n"
        path.write_text(
            path.read_text().replace("target = 1.0\n", f"target = 1.0\n{limits}")
            .replace("target = 0.8\n", f"target = 1.0\n{limits}")
        )  # fmt: skip
        self.config = path
        self.processes: dict[str, Running] = {}
        self.launch: Callable[[Sequence[str], Path], Running] = launch
        self.faults: Counter[str] = Counter()
        self.through: dict[str, int] = {}
        """Ports of proxies, by the name of who goes through one."""

    def __enter__(self) -> Field:
        self.bed.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        self.bed.kill()

    # --- processes ------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str) -> None:
        port = self.through.get(name, self.bed.port)
        where = ("--server", f"tls://localhost:{port}")
        self.processes[name] = self.launch([*arguments, *where], self.folder / f"{name}.log")

    def _credentials(self, name: str) -> str:
        """Where a process has its keys: on its own machine, also if NATS is on another disk (in a
        federation's folder it would write a log too, which keeps that disk busy)."""
        keys = self.bed.layout.credentials(name)
        if self._apart:
            own = self.folder / "own" / name
            if not own.exists():
                shutil.copytree(keys, own)
            keys = own
        return str(keys)

    def start_server(self, out: Path | None = None) -> None:
        creds = self._credentials(SERVER)
        where = str(out or self.run)
        self._start("server", "serve", str(self.config), "--creds", creds, "--out", where)

    def start_client(self, number: int) -> None:
        name = client_name(number)
        creds = self._credentials(name)
        self._start(name, "client", str(self.config), "--creds", creds)

    def start_all(self) -> None:
        for number in range(self.clients):
            self.start_client(number)
        self.start_server()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.faults[f"{name.partition('-')[0]} {number.name}"] += 1
        process = self.processes[name]
        process.send_signal(number)
        if number is signal.SIGKILL:
            process.wait()

    # --- looking on -----------------------------------------------------------------------------

    def command(self, verb: str, argument: str = "") -> str:
        async def ask() -> str:
            data = wire.encode(wire.Control(verb, argument))
            keys = self.bed.keys(CONTROL)
            answer = await send_command([self.bed.url], keys, data)
            found = wire.decode(answer, wire.Control)
            return found.answer

        return asyncio.run(ask())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.command("status"))
        return found

    def entries(self) -> int:
        path = self.run / "diary" / "diary.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def wait(self, condition: Callable[[], bool], seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.tails()
            time.sleep(0.05)

    def wait_for_entries(self, count: int, seconds: float = 240.0) -> None:
        self.wait(lambda: self.entries() >= count or self.ended, seconds)

    @property
    def ended(self) -> bool:
        return self.processes["server"].poll() is not None

    def finish(self, seconds: float = 300.0, to_the_end: bool = True) -> Counter[str]:
        """Wait until the server has ended by itself, and check its books. Not ``to_the_end``:
        some may reach a target before their last round."""
        self.wait(lambda: self.ended, seconds)
        assert self.processes["server"].returncode == 0, self.tails()
        result = json.loads((self.run / "result.json").read_text())
        reasons = {task["finish_reason"] for task in result["tasks"].values()}
        if to_the_end:
            assert reasons == {"rounds"}
            assert {task["rounds"] for task in result["tasks"].values()} == {self._rounds}
        assert reasons <= {"rounds", "target"}
        counts = audit(self.run)
        assert counts["open"] == 0
        answered = self.answered()
        counts["answered"] = len(answered)
        known = self.known()
        assert set(answered) <= known, sorted(set(answered) - known)[:10]
        print(
            f"\n{dict(self.faults)}: {counts['dispatch']} requests sent, {counts['arrive']} "
            f"updates counted, {counts['drop lost']} lost, {counts['drop invalid']} invalid, "
            f"{counts['ignored']} late or twice, aggregated twice 0, missing 0"
        )
        return counts

    def answered(self) -> list[int]:
        """Requests whose updates clients uploaded and NATS confirmed, from their logs."""
        found = []
        for number in range(self.clients):
            log = self.folder / f"{client_name(number)}.log"
            if log.exists():
                found += [int(m) for m in re.findall(r"answered request (\d+)", log.read_text())]
        return found

    def known(self) -> set[int]:
        """Requests that the records account for."""
        known = set()
        for line in (self.run / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] in ("arrive", "drop", "ignored"):
                known.add(event["request"])
        return known

    def tails(self) -> str:
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            tail = "\n".join(path.read_text(errors="replace").splitlines()[-8:])
            parts.append(f"== {path.name}\n{tail}")
        return "\n".join(parts)


class Proxy:
    """A link that can be cut and healed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._cut = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self.port = 0
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(5)

    def _run(self) -> None:
        async def go() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await server.serve_forever()

        self._loop.run_until_complete(go())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut.is_set():
            writer.close()
            return
        there, out = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, out}

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, out), pump(there, writer))

    def cut(self) -> None:
        self._cut.set()

        def hang_up() -> None:
            for writer in self._writers:
                writer.close()
            self._writers.clear()

        self._loop.call_soon_threadsafe(hang_up)

    def heal(self) -> None:
        self._cut.clear()
