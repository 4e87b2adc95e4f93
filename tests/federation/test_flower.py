"""FedAST as a Flower app: what the transport makes of Flower's errors, and a real federation."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedast.federation import wire
from tests.federation.nats_support import free_port
from tests.federation.support import audit

pytestmark = pytest.mark.flower
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
HELLO = wire.encode(wire.Hello(0, "test", ("a", "b")))


# --- the transport --------------------------------------------------------------------------------


def within(folder: Path, body: Callable[[Any], Any]) -> None:
    from tests.federation.flower_support import FlowerBed

    async def go() -> None:
        async with asyncio.timeout(30):
            await body(FlowerBed(folder))

    asyncio.run(go())


async def until(server: Any, wanted: Callable[[Any], bool]) -> Any:
    while True:
        found = await server.receive(1.0)
        if found is not None and wanted(found):
            return found


def request_at(bed: Any, node: int) -> Any:
    """The next request in a node's queue (questions before it are left unanswered)."""
    while True:
        (message,) = bed.state.get_message_ins(node, limit=1)
        if message.metadata.message_type == "train":
            return message


def test_a_node_that_is_gone_is_no_ones_fault(tmp_path: Path) -> None:
    from fedast.federation.transport import Gone, Uploaded

    async def body(bed: Any) -> None:
        server, node = await bed.server(), await bed.client(0)
        await node.hello(HELLO)
        await until(server, lambda found: getattr(found, "data", b"") == HELLO)
        await server.send(0, "7-token", b"work", "0.0.none")
        assert await node.next(5.0) is not None  # it takes the request, and dies
        assert bed.state.deactivate_node(bed.nodes[0])
        seen: list[Any] = []
        while Gone(0) not in seen or not any(isinstance(found, Uploaded) for found in seen):
            seen.append(await server.receive(1.0))
        (lost,) = [found for found in seen if isinstance(found, Uploaded)]
        assert lost.name == "7-token"
        assert lost.failed is not None
        assert "error 5" in lost.failed
        assert not lost.blame
        assert seen.count(Gone(0)) == 1

    within(tmp_path, body)


def test_a_node_that_was_started_again_has_nothing_in_its_hands(tmp_path: Path) -> None:
    from fedast.federation.transport import Uploaded

    async def body(bed: Any) -> None:
        server, node = await bed.server(), await bed.client(0)
        await node.hello(HELLO)
        await until(server, lambda found: getattr(found, "data", b"") == HELLO)
        await server.send(0, "7-token", b"work", "0.0.none")
        assert await node.next(5.0) is not None
        bed.state.deactivate_node(bed.nodes[0])
        bed.state.activate_node(bed.nodes[0], 60.0)  # faster than anybody has looked
        lost = await until(server, lambda found: isinstance(found, Uploaded))
        assert (lost.name, lost.failed, lost.blame) == (
            "7-token", "its node was restarted", False,
        )  # fmt: skip
        again = await bed.client(0)
        await again.hello(HELLO)  # and it is asked again
        await until(server, lambda found: getattr(found, "data", b"") == HELLO)

    within(tmp_path, body)


def test_no_such_node(tmp_path: Path) -> None:
    from fedast.federation.transport import Gone

    async def body(bed: Any) -> None:
        server = await bed.server()
        bed.state.delete_node("<id:none>", bed.nodes[2])
        await server.send(2, "8-token", b"more", "0.0.none")
        assert await until(server, lambda found: isinstance(found, Gone)) == Gone(2)

    within(tmp_path, body)


def test_a_reply_that_flower_cannot_read_harms_nobody_else(tmp_path: Path) -> None:
    from fedast.federation.transport import Uploaded

    async def body(bed: Any) -> None:
        server = await bed.server()
        for client in (0, 1):
            await server.send(client, f"{client}-token", b"work", "0.0.none")
        broken = request_at(bed, bed.nodes[0])
        pull = bed.grid.pull_messages

        def poisoned(ids: Any) -> Any:  # as when what a node sent cannot be inflated
            if broken.metadata.message_id in set(ids):
                raise AttributeError("'ConfigRecord' object has no attribute 'metadata'")
            return pull(ids)

        bed.grid.pull_messages = poisoned
        node = await bed.client(1)
        assert await node.next(5.0) is not None
        await node.upload("1-token", b"good")
        node.finish()
        found = [await until(server, lambda found: isinstance(found, Uploaded)) for _ in range(2)]
        byname = {upload.name: upload for upload in found}
        assert byname["0-token"].blame
        assert byname["1-token"].data == b"good"

    within(tmp_path, body)


def test_a_client_app_that_raises_is_the_clients_fault(tmp_path: Path) -> None:
    from flwr.app import Error, Message

    from fedast.federation.transport import Uploaded

    async def body(bed: Any) -> None:
        server = await bed.server()
        await server.send(1, "7-token", b"work", "0.0.none")
        message = request_at(bed, bed.nodes[1])
        answer = Message(Error(2, "ValueError: no"), reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        assert bed.state.store_message_res(answer) is not None
        failed = await until(server, lambda found: isinstance(found, Uploaded))
        assert (failed.client, failed.name, failed.blame) == (1, "7-token", True)
        assert "ValueError: no" in failed.failed

    within(tmp_path, body)


def test_a_reply_that_is_not_ours_is_the_clients_fault(tmp_path: Path) -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    from fedast.federation.transport import Uploaded

    async def body(bed: Any) -> None:
        server = await bed.server()
        for number, record in enumerate([ConfigRecord(), ConfigRecord({"data": "text"})]):
            await server.send(1, f"{number}-token", b"work", "0.0.none")
            message = request_at(bed, bed.nodes[1])
            answer = Message(RecordDict({"fedast": record}), reply_to=message)
            answer.metadata.__dict__["_message_id"] = answer.object_id
            assert bed.state.store_message_res(answer) is not None
            failed = await until(server, lambda found: isinstance(found, Uploaded))
            assert failed.blame
            assert failed.failed == "its reply has no record of fedast"

    within(tmp_path, body)


# --- a real federation ----------------------------------------------------------------------------


class Superlink:
    """A SuperLink (TLS, node authentication, database) and SuperNodes, on loopback."""

    def __init__(self, folder: Path, nodes: int, apart: bool = False) -> None:
        """``apart``: ServerApps are not children of the SuperLink but of a SuperExec."""
        from fedast.federation.keys import Authority

        self.folder = folder
        self._apart = apart
        self.nodes = nodes
        self.port = self.entrance = free_port()
        """Of the SuperLink itself, and where SuperNodes come in: nginx, if there is one here."""
        self.out = folder / "run"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        authority = Authority(folder / "authority", "flower")
        authority.issue(folder / "tls", "superlink", ["127.0.0.1", "localhost"])
        for number in range(nodes + 1):
            self._make_key(number)
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "tls" / "ca.pem"}"\n'
        )
        if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"):
            self.entrance = free_port()
            text = (EXAMPLE / "nginx.conf").read_text()
            text = text.replace("listen 8443", f"listen {self.entrance}")
            text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
            (folder / "nginx.conf").write_text(text)
            with (home / "config.toml").open("a") as file:
                file.write(
                    f'[superlink.outside]\naddress = "127.0.0.1:{self.entrance}"\n'
                    f'root-certificates = "{folder / "tls" / "ca.pem"}"\n'
                )
        self._env = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin",
        }

    def _make_key(self, number: int) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP384R1())
        path = self.folder / f"node-{number}"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path.with_suffix(".pub").write_bytes(public + b"\n")

    def __enter__(self) -> Superlink:
        self.start_superlink()
        if self._apart:
            self._start("superexec", "flower-superexec", "--runtime-api-address",
                        f"127.0.0.1:{self.port}", "--root-certificates",
                        str(self.folder / "tls" / "ca.pem"), *self._secret)  # fmt: skip
        if self.entrance != self.port:
            self._start("nginx", shutil.which("nginx", path=self._env["PATH"]) or "", "-p", ".",
                        "-c", "nginx.conf", "-g", "daemon off;")  # fmt: skip
        end = time.monotonic() + 60
        while self.flwr("supernode", "list", "test", check=False).returncode != 0:
            assert time.monotonic() < end, self.tails()
            time.sleep(0.5)
        for number in range(self.nodes):
            self.flwr("supernode", "register", str(self.folder / f"node-{number}.pub"), "test")
            self.start_node(number)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._running):
            self.kill(name)

    @property
    def _secret(self) -> list[str]:
        path = self.folder / "superexec-secret"
        if not path.exists():
            path.write_bytes(os.urandom(32).hex().encode())
            path.chmod(0o600)
        return ["--superexec-auth-secret-file", str(path)]

    def start_superlink(self) -> None:
        tls = self.folder / "tls"
        how = ["--isolation", "process", *self._secret] if self._apart else []
        self._start("superlink", "flower-superlink", "--port", str(self.port),
                    "--ssl-ca-certfile", str(tls / "ca.pem"),
                    "--ssl-certfile", str(tls / "cert.pem"),
                    "--ssl-keyfile", str(tls / "key.pem"),
                    "--database", str(self.folder / "state.db"), "--enable-supernode-auth",
                    "--disable-runtime-dependency-installation", *how)  # fmt: skip

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(BIN / program), *arguments], stdout=log, stderr=log, env=self._env,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def start_node(self, number: int) -> None:
        self._start(f"node-{number}", "flower-supernode", "--superlink",
                    f"127.0.0.1:{self.entrance}",
                    "--root-certificates", str(self.folder / "tls" / "ca.pem"),
                    "--auth-supernode-private-key", str(self.folder / f"node-{number}"),
                    "--port", str(free_port()),
                    "--node-config", f"partition-id={number}")  # fmt: skip

    def kill(self, name: str) -> None:
        """The program and whatever it has started."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_server_app(self, with_spool: bool = False) -> None:
        """``with_spool``: when replies have been pulled, are in no commit, and nowhere else."""
        found = self._server_app()
        assert found, self.tails()
        end = time.monotonic() + 120
        while with_spool:
            for pid in found:
                os.kill(pid, signal.SIGSTOP)
            if [place for place in self.spooled() if place > self.place()]:
                break
            for pid in found:
                os.kill(pid, signal.SIGCONT)
            assert time.monotonic() < end, self.tails()
            time.sleep(0.2)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def _server_app(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                environment = (path.parent / "environ").read_bytes()
            except OSError:
                continue
            mine = str(self.folder).encode() in environment
            if mine and any(word.endswith(b"flwr-serverapp") for word in words):
                found.append(int(path.parent.name))
        return found

    def flwr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments], env=self._env, capture_output=True, text=True,
            check=False, timeout=60, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stdout + done.stderr + self.tails()
        return done

    def run(self, app: Path) -> None:
        self.flwr("run", str(app), "test", "--run-config", f'out="{self.out}"')

    def entries(self, kind: str = "") -> int:
        path = self.out / "diary" / "diary.jsonl"
        text = path.read_text() if path.exists() else ""
        return text.count(f'"e":"{kind}"') if kind else text.count("\n")

    def spooled(self) -> list[int]:
        """Places of replies that the ServerApp has pulled and not acknowledged."""
        folder = self.out / "flower" / "uploads"
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]

    def place(self) -> int:
        """Of the last reply in the write-ahead log's last commit."""
        lines = (self.out / "diary" / "diary.jsonl").read_text().splitlines()
        return max((json.loads(line).get("place", 0) for line in lines), default=0)

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.tails()
            time.sleep(0.2)

    def tails(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


def app_in(folder: Path, *changes: tuple[str, str]) -> Path:
    app = folder / "app"
    shutil.copytree(EXAMPLE, app)
    path = app / "fedast_app" / "federation.toml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return app


def test_a_federation_survives_a_node_and_its_server_app(tmp_path: Path) -> None:
    app = app_in(
        tmp_path,
        ("server_lr = 0.5", "server_lr = 0.05"),
        ("target = 0.85", "target = 0.9"),
        ("alpha = 0.5", "alpha = 5.0"),  # so that it can be reached without one client's data
        ("[federation]\n", "[federation]\ncommit_every = 5\n"),
    )
    with Superlink(tmp_path, nodes=4) as superlink:
        superlink.start_node(4)  # its key is not registered
        superlink.run(app)
        if superlink.entrance != superlink.port:  # through the proxy, nobody registers a key
            key = str(tmp_path / "node-4.pub")
            outside = superlink.flwr("supernode", "register", key, "outside", check=False)
            assert outside.returncode != 0
            access = (tmp_path / "nginx-access.log").read_text()
            assert re.search(r'"POST /v1/control[^"]*" 403', access)
        superlink.wait(lambda: superlink.entries("arrive") >= 6, 180)
        superlink.kill("node-2")  # with whatever it is working on
        superlink.wait(lambda: superlink.entries("leave") == 1, 180)
        superlink.start_node(2)  # it comes back, as the same client
        superlink.wait(lambda: superlink.entries("join") == 5, 120)
        superlink.kill_server_app(with_spool=True)
        time.sleep(2)
        before = superlink.entries("arrive")
        superlink.run(app)
        result = superlink.out / "result.json"
        superlink.wait(result.exists, 800)
        assert superlink.entries("arrive") > before
        refused = (tmp_path / "superlink.log").read_text()
        assert "No SuperNode found with the given public key" in refused
    tasks = json.loads(result.read_text())["tasks"]
    assert {task["finish_reason"] for task in tasks.values()} == {"target"}
    counts = audit(superlink.out)
    assert counts["finish"] == 2
    assert counts["drop lost"] > 0
    assert counts["open"] == 0
    assert not [place for place in superlink.spooled() if place <= superlink.place()]
    assert len(json.loads((superlink.out / "flower" / "nodes.json").read_text())) == 4
    print(f"\n{counts['dispatch']} requests sent, {counts['arrive']} updates counted, "
          f"{counts['drop lost']} lost, {counts['ignored']} late")  # fmt: skip


def test_a_federation_survives_a_restart_of_the_superlink(tmp_path: Path) -> None:
    """Killed and started again while a run goes on, which must not even end."""
    app = app_in(tmp_path, ("alpha = 0.5", "alpha = 5.0"))
    with Superlink(tmp_path, nodes=4, apart=True) as superlink:
        superlink.run(app)
        superlink.wait(lambda: superlink.entries("arrive") >= 5, 240)
        for seconds in (5.0, 1.0):
            before = superlink.entries("arrive")
            superlink.kill("superlink")
            time.sleep(seconds)
            superlink.start_superlink()
            superlink.wait(lambda n=before: superlink.entries("arrive") >= n + 5, 240)  # type: ignore[misc]
        result = superlink.out / "result.json"
        superlink.wait(result.exists, 800)
        log = json.loads(superlink.flwr("list", "test", "--format", "json").stdout)
    tasks = json.loads(result.read_text())["tasks"]
    assert {task["finish_reason"] for task in tasks.values()} == {"target"}
    assert len(log["runs"]) == 1
    counts = audit(superlink.out)
    assert counts["open"] == 0
    print(f"\n{counts['dispatch']} requests sent, {counts['arrive']} updates counted, "
          f"{counts['drop lost']} lost, {counts['ignored']} late")  # fmt: skip
