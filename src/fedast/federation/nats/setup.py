"""The keys of a federation and the configuration of its NATS server.

An authority of the federation's own signs one certificate for the NATS server, one for the FedAST
server, one for control commands, and one per client. NATS takes the name in a certificate as the
user (``verify_and_map``), and each user has its own permissions. Nothing sends keys anywhere: they
stay in the folders that they are made in until somebody copies them.

Who is let in stands in one file, ``users.conf``, beside ``nats.conf``. It names subjects of
certificates; a new key has a new subject, so that the old one opens nothing any more.

The nodes of a cluster trust one another without bounds, so a second authority signs what they show
one another: no client's key opens that door.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from filelock import FileLock

from fedast.core.protocol import ClientId
from fedast.federation.keys import Authority, hosts_of, subject
from fedast.federation.nats.names import (
    CONTROL_INBOX,
    CONTROL_SUBJECT,
    PART,
    client_permissions,
)
from fedast.records.files import write_atomically

SERVER, CONTROL = "server", "control"
ROUTES = 6222
"""The port on which the nodes of a cluster find one another."""


def client_name(client: ClientId) -> str:
    return f"client-{client}"


@dataclass(frozen=True)
class Layout:
    """Where things are in a federation's folder."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "federation.toml"

    @property
    def authority(self) -> Path:
        return self.root / "authority"

    @property
    def register(self) -> Path:
        return self.authority / "issued.json"

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def nodes(self) -> list[str]:
        """The machines of a NATS cluster; none if there is one server, whose folder is ``nats``."""
        return sorted(path.parent.name for path in self.nats.glob("*/nats.conf"))

    @property
    def nats_config(self) -> Path:
        """Of the NATS server, or of the first node."""
        return self.nats.joinpath(*self.nodes[:1], "nats.conf")

    def credentials(self, name: str) -> Path:
        return self.root / ("clients" if name.startswith("client-") else "keys") / name

    @property
    def clients(self) -> list[ClientId]:
        folder = self.root / "clients"
        numbers = [path.name.removeprefix("client-") for path in folder.glob("client-*")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def initialise(
    layout: Layout,
    clients: int,
    *,
    hosts: Sequence[str],
    port: int,
    config: str,
    nodes: Sequence[str] = (),
) -> None:
    """Everything that a federation needs, in a new folder; ``nodes`` are the hosts of a cluster."""
    layout.root.mkdir(parents=True)
    for folder in (layout.nats, layout.logs):
        folder.mkdir()
    authority = Authority(layout.authority, layout.root.name)
    if nodes:
        routes = Authority(layout.authority / "routes", f"{layout.root.name} routes")
        for node in nodes:
            folder = layout.nats / node
            authority.issue(folder / "tls", "nats", [node, "localhost", "127.0.0.1"])
            routes.issue(folder / "routes", node, [node])
            text = nats_config(port=port, name=node) + cluster_config(node, nodes, port)
            (folder / "nats.conf").write_text(text)
    else:
        authority.issue(layout.nats / "tls", "nats", hosts)
        layout.nats_config.write_text(nats_config(port=port))
    write_atomically(layout.register, json.dumps({"numbers": {}, "expelled": []}))
    with register_of(layout) as register:
        register.issue([SERVER, CONTROL, *map(client_name, range(clients))])
    layout.config.write_text(config)


@contextmanager
def register_of(layout: Layout) -> Iterator[Register]:
    """The register, for one process at a time; others wait."""
    with FileLock(layout.register.with_name("lock")):
        yield Register(layout)


@final
class Register:
    """Who has which key: ``authority/issued.json``."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        found = json.loads(layout.register.read_text())
        self.numbers: dict[str, int] = found["numbers"]
        """The number of the key that opens, by name: 1 for the first, 2 for the second."""
        self.expelled: list[str] = found["expelled"]

    def issue(self, names: Sequence[str]) -> None:
        """A key for each; the one before, if there was one, opens nothing any more."""
        authority = Authority(self._layout.authority, self._layout.root.name)
        for name in names:
            number = self.numbers.get(name, 0) + 1
            authority.issue(self._layout.credentials(name), name, number=number)
            self.numbers[name] = number
        self._write()

    def admit(self, count: int) -> list[str]:
        """Further clients; a number that was given once is not given to another."""
        known = [*self.numbers, *self.expelled]
        taken = [int(name.removeprefix("client-")) for name in known if name.startswith("client-")]
        first = max(taken, default=-1) + 1
        names = [client_name(number) for number in range(first, first + count)]
        self.issue(names)
        return names

    def expel(self, names: Sequence[str]) -> None:
        """They are let in no more; their folders are kept, out of the way."""
        for name in names:
            if name in self.expelled:
                continue  # and what NATS reads is written again
            del self.numbers[name]
            self.expelled.append(name)
            folder = self._layout.credentials(name)
            if folder.exists():
                folder.rename(folder.with_name(f"expelled-{name}"))
        self._write()

    def renew_nats(self) -> None:
        """New certificates for the NATS servers, for the same hosts. (The old ones remain valid:
        nobody keeps a list of them.)"""
        authority = Authority(self._layout.authority, self._layout.root.name)
        for folder in self._nodes():
            authority.issue(folder / "tls", "nats", hosts_of(folder / "tls"))
            if (folder / "routes").exists():
                routes = Authority(self._layout.authority / "routes", "routes")
                routes.issue(folder / "routes", folder.name, [folder.name])

    def _nodes(self) -> list[Path]:
        return [self._layout.nats / node for node in self._layout.nodes] or [self._layout.nats]

    def _write(self) -> None:
        text = json.dumps({"numbers": self.numbers, "expelled": self.expelled}, indent=1)
        write_atomically(self._layout.register, text + "\n")
        for folder in self._nodes():
            write_atomically(folder / "users.conf", users_config(self.numbers))


def users_config(numbers: Mapping[str, int]) -> str:
    """Who is let in, and what each may publish and subscribe to."""
    users = []
    for name, number in numbers.items():
        if name == SERVER:
            allowed = [">"], [">"]
        elif name == CONTROL:
            allowed = [CONTROL_SUBJECT], [f"{CONTROL_INBOX}.>"]
        else:
            allowed = client_permissions(int(name.removeprefix("client-")))
        users.append(_user(subject(name, number), *allowed))
    head = "# Who is let in; made by `fedast federation init`, `admit`, `renew` and `expel`.\n"
    return f"{head}users: [\n{''.join(users)}]\n"


def nats_config(*, port: int, name: str = "fedast") -> str:
    """Paths in it are relative to the folder that nats-server is started in."""
    tls = """tls {
  cert_file: "tls/cert.pem"
  key_file: "tls/key.pem"
  ca_file: "tls/ca.pem"
  min_version: "1.3"
  verify_and_map: true     # the name in a client's certificate is its user
  timeout: 5
}"""
    return f"""# NATS server of a FedAST federation; made by `fedast federation init`.
server_name: "{name}"
host: "0.0.0.0"
port: {port}
max_payload: {PART + 65536}
max_pending: 256MB
write_deadline: "10s"

jetstream {{
  store_dir: "data"
}}

{tls}

authorization {{
  include "users.conf"
}}
"""


def cluster_config(node: str, nodes: Sequence[str], port: int) -> str:
    """What makes a server one of several. Its names are those that certificates have."""
    routes = ", ".join(f'"nats://{_address(other, ROUTES)}"' for other in nodes)
    return f"""
client_advertise: "{_address(node, port)}"
cluster {{
  name: fedast
  listen: "0.0.0.0:{ROUTES}"
  advertise: "{_address(node, ROUTES)}"
  routes: [{routes}]
  tls {{
    cert_file: "routes/cert.pem"
    key_file: "routes/key.pem"
    ca_file: "routes/ca.pem"
    min_version: "1.3"
    verify: true
    timeout: 5
  }}
}}
"""


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _user(whose: str, publish: Sequence[str], subscribe: Sequence[str]) -> str:
    def listed(subjects: Sequence[str]) -> str:
        return ", ".join(f'"{subject}"' for subject in subjects)

    return f"""  {{ user: "{whose}", permissions: {{
    publish: {{ allow: [{listed(publish)}] }}
    subscribe: {{ allow: [{listed(subscribe)}] }}
  }} }}
"""
