"""The keys of a federation and the configuration of its NATS server.

An authority of the federation's own signs one certificate for the NATS server, one for the FedAST
server, one for whoever gives orders, and one per client. NATS takes the name in a certificate as
the user (``verify_and_map``), and each user has its own permissions. Keys never leave the folders
that they are made in unless somebody carries them.

The nodes of a cluster trust one another without bounds, so a second authority signs what they show
one another: no client's key opens that door.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedast.core.protocol import ClientId
from fedast.deploy.nats import CONTROL_INBOX, PART, client_permissions

SERVER, CONTROL = "server", "control"
ROUTES = 6222
"""The port on which the nodes of a cluster find one another."""
_DAYS = 825


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


class Authority:
    """Signs certificates; its key is in the federation's folder."""

    def __init__(self, folder: Path, organisation: str) -> None:
        key, cert = folder / "key.pem", folder / "ca.pem"
        if key.exists():
            loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            self._key = loaded
            self._cert = x509.load_pem_x509_certificate(cert.read_bytes())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._cert = self._sign(_name(f"{organisation} authority"), self._key, authority=True)
            _write_key(key, self._key)
            cert.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, folder: Path, name: str, hosts: Sequence[str] = (), days: float = _DAYS
    ) -> None:
        """``ca.pem``, ``cert.pem`` and ``key.pem`` in a folder; ``hosts`` make it a server's."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._sign(_name(name), key, hosts=hosts, days=days)
        _write_key(folder / "key.pem", key)
        (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        ca = self._cert.public_bytes(serialization.Encoding.PEM)
        (folder / "ca.pem").write_bytes(ca)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool = False,
        hosts: Sequence[str] = (),
        days: float = _DAYS,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = subject if authority else self._cert.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(
                x509.BasicConstraints(ca=authority, path_length=0 if authority else None), True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )
        if authority:
            builder = builder.add_extension(_usage(authority=True), True)
        else:
            purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
            # (NATS routes of a cluster are clients of one another.)
            purposes = [purpose, ExtendedKeyUsageOID.CLIENT_AUTH] if hosts else [purpose]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
            builder = builder.add_extension(_usage(authority=False), True)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=authority,
        crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


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
            text = nats_config(range(clients), port=port, name=node)
            text += cluster_config(node, nodes, port)
            (folder / "nats.conf").write_text(text)
    else:
        authority.issue(layout.nats / "tls", "nats", hosts)
        layout.nats_config.write_text(nats_config(range(clients), port=port))
    for name in (SERVER, CONTROL, *map(client_name, range(clients))):
        authority.issue(layout.credentials(name), name)
    layout.config.write_text(config)


def nats_config(clients: Sequence[ClientId], *, port: int, name: str = "fedast") -> str:
    """Paths in it are relative to the folder that nats-server is started in."""
    users = [
        _user(SERVER, [">"], [">"]),
        _user(CONTROL, ["fedast.order"], [f"{CONTROL_INBOX}.>"]),
        *(_user(client_name(client), *client_permissions(client)) for client in clients),
    ]
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
  users: [
{"".join(users)}  ]
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


def _user(name: str, publish: Sequence[str], subscribe: Sequence[str]) -> str:
    def listed(subjects: Sequence[str]) -> str:
        return ", ".join(f'"{subject}"' for subject in subjects)

    return f"""    {{ user: "CN={name}", permissions: {{
      publish: {{ allow: [{listed(publish)}] }}
      subscribe: {{ allow: [{listed(subscribe)}] }}
    }} }}
"""
