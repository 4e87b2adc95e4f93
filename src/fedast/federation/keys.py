"""A federation's own certificate authority, and the certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS, _AUTHORITY_DAYS = 825, 3650


class Authority:
    """Signs certificates with a key in the federation's folder."""

    def __init__(self, folder: Path, organisation: str) -> None:
        key, cert = folder / "key.pem", folder / "ca.pem"
        if key.exists():
            loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            self._key = loaded
            self._cert = x509.load_pem_x509_certificate(cert.read_bytes())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            name = _name(f"{organisation} authority")
            self._cert = self._sign(name, self._key, authority=True, days=_AUTHORITY_DAYS)
            _write_key(key, self._key)
            cert.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        folder: Path,
        name: str,
        hosts: Sequence[str] = (),
        *,
        days: float = _DAYS,
        number: int = 1,
    ) -> None:
        """Write ``ca.pem``, ``cert.pem`` and ``key.pem`` to a folder. With ``hosts`` it is the
        certificate of a server. ``number``: 1 for the first key of this name, 2 for the second."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        # NATS finds the user of a certificate with such a name in a table. By its subject it would
        # compare it with every user, while nobody else can connect: too slow for thousands.
        user = x509.UniformResourceIdentifier(subject(name, number))
        names = [_host(host) for host in hosts] or [user]
        cert = self._sign(_name(name, number), key, names=names, server=bool(hosts), days=days)
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
        names: Sequence[x509.GeneralName] = (),
        server: bool = False,
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
            purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
            # (NATS routes of a cluster are clients of one another.)
            purposes = [purpose, ExtendedKeyUsageOID.CLIENT_AUTH] if server else [purpose]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
            builder = builder.add_extension(_usage(authority=False), True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str, number: int = 1) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if number > 1:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, str(number)))
    return x509.Name(parts)


def subject(common: str, number: int) -> str:
    """A certificate's subject as NATS writes it; each key of a name has its own."""
    return f"CN={common}" + (f",OU={number}" if number > 1 else "")


def name_of(folder: Path) -> str:
    """The name in the certificate in a folder."""
    cert = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    return str(cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def expiry(folder: Path) -> datetime.datetime:
    """When the certificate in a folder expires."""
    cert = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    return cert.not_valid_after_utc


def hosts_of(folder: Path) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    cert = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
    found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


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
