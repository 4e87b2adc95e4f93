"""The keys of a federation and the configuration of its NATS server.

An authority of the federation's own signs one certificate for the NATS server, one for the FedAST
server, one for control commands, one for questions, and one per client. NATS takes the name in a
certificate as the user (``verify_and_map``), each in an account of its own (``accounts``). Nothing
sends keys anywhere: they stay in the folders that they are made in until somebody copies them.

The accounts are in one file, ``accounts.conf``, beside ``nats.conf``, with the subjects of their
users' certificates. A new key has a new subject, so that the old one becomes invalid. (Earlier
versions had all users in one account, with permissions, in ``users.conf``. Such a folder works as
it did, until ``upgrade`` gives it accounts.)

The nodes of a cluster trust one another completely, so a second authority signs the certificates
that they use among themselves: a client's key is of no use there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from filelock import FileLock

from fedast.core.protocol import ClientId
from fedast.federation.keys import Authority, hosts_of
from fedast.federation.nats.accounts import ACCOUNT, MESSAGE, accounts_config
from fedast.federation.nats.accounts import CONTROL as CONTROL
from fedast.federation.nats.accounts import OBSERVER as OBSERVER
from fedast.federation.nats.accounts import SERVER as SERVER
from fedast.federation.nats.one_account import users_config
from fedast.records.files import write_atomically

_LOOPBACK = ("localhost", "127.0.0.1")
ACCOUNTS_FILE = "accounts.conf"
_OLD_INCLUDE = """authorization {
  include "users.conf"
}
"""
ROUTES = 6222
"""The port on which the nodes of a cluster talk to one another."""


def client_name(client: ClientId) -> str:
    return f"client-{client}"


@dataclass(frozen=True)
class Layout:
    """The files in a federation's folder."""

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
        """The machines of a NATS cluster; empty if there is one server, with folder ``nats``."""
        return sorted(path.parent.name for path in self.nats.glob("*/nats.conf"))

    @property
    def nats_config(self) -> Path:
        """Of the NATS server, or of the first node."""
        return self.nats.joinpath(*self.nodes[:1], "nats.conf")

    @property
    def separated(self) -> bool:
        """Every key has an account of its own; not so in a folder of an earlier version."""
        return ACCOUNTS_FILE in self.nats_config.read_text()

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
    """Create the folder of a federation. ``hosts``: how clients reach NATS; on this machine it is
    always ``localhost``. ``nodes``: the hosts of a NATS cluster."""
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
        names = list(dict.fromkeys([*hosts, *_LOOPBACK]))
        authority.issue(layout.nats / "tls", "nats", names)
        listen = "0.0.0.0" if set(hosts) - {*_LOOPBACK, "::1"} else "127.0.0.1"
        layout.nats_config.write_text(nats_config(port=port, listen=listen))
    write_atomically(layout.register, json.dumps({"numbers": {}, "expelled": []}))
    with register_of(layout) as register:
        register.issue([SERVER, CONTROL, OBSERVER, *map(client_name, range(clients))])
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
        """The number of the valid key of each name: 1 for the first, 2 for the second."""
        self.expelled: list[str] = found["expelled"]

    def issue(self, names: Sequence[str]) -> None:
        """Make a new key for each name; an earlier one becomes invalid."""
        authority = Authority(self._layout.authority, self._layout.root.name)
        for name in names:
            number = self.numbers.get(name, 0) + 1
            authority.issue(self._layout.credentials(name), name, number=number)
            self.numbers[name] = number
        self._write()

    def admit(self, count: int) -> list[str]:
        """Make keys for further clients. The numbers of expelled clients are not used again."""
        known = [*self.numbers, *self.expelled]
        taken = [int(name.removeprefix("client-")) for name in known if name.startswith("client-")]
        first = max(taken, default=-1) + 1
        names = [client_name(number) for number in range(first, first + count)]
        self.issue(names)
        return names

    def expel(self, names: Sequence[str]) -> None:
        """Make their keys invalid; their folders are renamed, not deleted."""
        for name in names:
            if name in self.expelled:
                continue  # users.conf is written again all the same
            del self.numbers[name]
            self.expelled.append(name)
            folder = self._layout.credentials(name)
            if folder.exists():
                folder.rename(folder.with_name(f"expelled-{name}"))
        self._write()

    def renew_nats(self) -> None:
        """Make new certificates for the NATS servers, for the same hosts. (The old ones remain
        valid until they expire: there is no revocation list.)"""
        authority = Authority(self._layout.authority, self._layout.root.name)
        for folder in self._nodes():
            authority.issue(folder / "tls", "nats", hosts_of(folder / "tls"))
            if (folder / "routes").exists():
                routes = Authority(self._layout.authority / "routes", "routes")
                routes.issue(folder / "routes", folder.name, [folder.name])

    def upgrade(self) -> None:
        """Give every key an account of its own, in a folder of an earlier version. NATS must be
        down: what it has stored moves to the server's account."""
        for folder in self._nodes():
            config = folder / "nats.conf"
            text = config.read_text()
            if _OLD_INCLUDE not in text:
                raise ValueError(
                    f"{config}: was changed by hand; replace its block 'authorization' by "
                    f"include '{ACCOUNTS_FILE}'"
                )
            write_atomically(config, text.replace(_OLD_INCLUDE, f'include "{ACCOUNTS_FILE}"\n'))
            stored = folder / "data" / "jetstream"
            if (stored / "$G").exists():
                (stored / "$G").rename(stored / ACCOUNT)
        self._write()
        for folder in self._nodes():
            (folder / "users.conf").unlink(missing_ok=True)

    def _nodes(self) -> list[Path]:
        return [self._layout.nats / node for node in self._layout.nodes] or [self._layout.nats]

    def _write(self) -> None:
        text = json.dumps({"numbers": self.numbers, "expelled": self.expelled}, indent=1)
        write_atomically(self._layout.register, text + "\n")
        if self._layout.separated:
            name, text = ACCOUNTS_FILE, accounts_config(self.numbers)
        else:
            name, text = "users.conf", users_config(self.numbers)
        for folder in self._nodes():
            write_atomically(folder / name, text)


def nats_config(*, port: int, name: str = "fedast", listen: str = "0.0.0.0") -> str:
    """Its paths are relative to the folder that nats-server is started in."""
    tls = """tls {
  cert_file: "tls/cert.pem"
  key_file: "tls/key.pem"
  ca_file: "tls/ca.pem"
  min_version: "1.3"
  verify_and_map: true     # the subject of a client's certificate is its user
  timeout: 10              # for a handshake; thousands of clients may come at once
}"""
    return f"""# NATS server of a FedAST federation; written by `fedast federation init`.
server_name: "{name}"
host: "{listen}"
port: {port}
max_payload: {MESSAGE}
max_pending: 48MB          # what a connection may leave unread
write_deadline: "10s"
ping_interval: "20s"       # a broken link counts among its key's connections for a minute
ping_max: 2
log_file: "nats.log"
logfile_size_limit: 10MB
logfile_max_num: 5

jetstream {{
  store_dir: "data"
  # An upload is on the disk before it is confirmed. "2m", say, is faster, but then a loss of power
  # may cost what was confirmed within that time; it is trained again.
  sync_interval: always
}}

{tls}

include "{ACCOUNTS_FILE}"
"""


def cluster_config(node: str, nodes: Sequence[str], port: int) -> str:
    """What makes a node join its cluster. Host names must be those in the certificates."""
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
