"""When certificates expire, and what to do about it in time."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WARN = datetime.timedelta(days=30)
"""How long before a certificate expires everybody who can see it begins to warn."""
_AUTHORITY, _NATS = "authority", "nats"


@dataclass(frozen=True, slots=True)
class Certificate:
    name: str
    """As for ``fedast federation renew``; ``authority`` cannot be renewed."""
    until: datetime.datetime

    @property
    def seconds(self) -> float:
        """Until it expires; negative if it has."""
        return (self.until - datetime.datetime.now(datetime.UTC)).total_seconds()

    @property
    def soon(self) -> bool:
        return self.seconds < WARN.total_seconds()

    def warning(self, folder: Path | None = None) -> str:
        """What happens when, and what to type. ``folder``: the federation's, if it is known."""
        days = int(self.seconds // 86400)
        when = f"expires in {days} days" if days > 0 else "expires within a day"
        if self.seconds <= 0:
            when = "has expired"
        return f"the certificate of {self.name} {when} ({self.until:%Y-%m-%d}): {self._do(folder)}"

    def _do(self, folder: Path | None) -> str:
        if self.name == _AUTHORITY:
            return "nobody can be renewed beyond that day; make a new federation before it"
        where = "FOLDER" if folder is None else str(folder)
        text = f"fedast federation renew {where} {self.name.partition(' ')[0]}"
        if self.name.startswith("client-"):
            return f"{text}, copy the new key to the client, and start it again"
        return text if self.name.startswith(_NATS) else f"{text}, and start it again"


def federation_of(credentials: Path) -> Path | None:
    """The folder that ``fedast federation init`` made, if these credentials are in one."""
    root = credentials.absolute().parent.parent
    return root if (root / "federation.toml").is_file() and (root / "nats").is_dir() else None


def visible(credentials: Path) -> list[Certificate]:
    """Every certificate that can be seen from here, those that expire first first: the one in
    ``credentials`` and its authority's, and if they are in a federation's folder, all in it."""
    found: dict[str, Certificate] = {}
    for name, path in _places(credentials):
        for certificate in _read(name, path):
            found[certificate.name] = certificate
    return sorted(found.values(), key=lambda certificate: certificate.until)


def _places(credentials: Path) -> Iterator[tuple[str | None, Path]]:
    yield None, credentials / "cert.pem"
    yield _AUTHORITY, credentials / "ca.pem"
    root = federation_of(credentials)
    if root is None:
        return
    for path in [*root.glob("keys/*/cert.pem"), *root.glob("clients/client-*/cert.pem")]:
        yield None, path
    yield _NATS, root / "nats" / "tls" / "cert.pem"
    for path in root.glob("nats/*/tls/cert.pem"):
        yield f"{_NATS} {path.parent.parent.name}", path


def _read(name: str | None, path: Path) -> Sequence[Certificate]:
    """None or one: another transport's credentials need not be certificates."""
    try:
        from cryptography import x509
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError:  # a transport that needs no certificates
        return []
    try:
        cert = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return []
    if name is None:
        names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        name = str(names[0].value) if names else path.parent.name
    return [Certificate(name, cert.not_valid_after_utc)]
