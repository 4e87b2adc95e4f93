"""Who belongs to a federation, from the command line; what NATS makes of it: test_security.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedast.federation.nats.setup import Layout
from tests.cli.command import fedast, refused
from tests.federation.nats_support import put_in_one_account


@pytest.fixture
def folder(tmp_path: Path) -> str:
    name = str(tmp_path / "fed")
    assert fedast("federation", "init", name, "--clients", "2").returncode == 0
    return name


def keys(folder: str) -> dict[str, int]:
    found = json.loads(fedast("federation", "keys", folder, "--json").stdout)
    return {name: entry["key"] for name, entry in found.items()}


def test_admit_renew_and_expel(folder: str) -> None:
    first = {"server": 1, "control": 1, "observer": 1, "client-0": 1, "client-1": 1, "nats": 1}
    assert keys(folder) == first
    admitted = fedast("federation", "admit", folder, "--clients", "2").stdout
    assert "client-2 to client-3" in admitted
    assert "nats-server --signal reload" in admitted
    fedast("federation", "renew", folder, "client-1", "nats", "client-1")
    fedast("federation", "expel", folder, "client-3")
    assert keys(folder) == first | {"client-1": 2, "client-2": 1}
    assert "client-4" in fedast("federation", "admit", folder).stdout  # 3 was somebody else
    users = (Path(folder) / "nats" / "accounts.conf").read_text()
    assert '"CN=client-1,OU=2"' in users
    assert '"CN=client-1"' not in users
    assert "client-3" not in users
    assert "valid until" in fedast("federation", "keys", folder).stdout


def test_what_cannot_be_done_is_said(folder: str) -> None:
    assert "has no key here" in refused("federation", "expel", folder, "client-9")
    assert "cannot be expelled" in refused("federation", "expel", folder, "server")
    assert "has no key here" in refused("federation", "renew", folder, "nobody")
    authority = Path(folder) / "authority"
    (authority / "key.pem").unlink()
    assert "key of the authority" in refused("federation", "admit", folder)
    fedast("federation", "expel", folder, "client-1")  # needs none
    assert "client-1" not in keys(folder)
    (authority / "issued.json").unlink()
    assert "who has which key" in refused("federation", "expel", folder, "client-0")


def test_expelling_twice_is_expelling(folder: str) -> None:
    """As after a crash between the register and what NATS reads."""
    users = Path(folder) / "nats" / "accounts.conf"
    before = users.read_text()
    fedast("federation", "expel", folder, "client-1")
    users.write_text(before)
    assert fedast("federation", "expel", folder, "client-1").returncode == 0
    assert "client-1" not in users.read_text()


def test_a_folder_of_an_earlier_version_is_upgraded(folder: str) -> None:
    layout = Layout(Path(folder))
    put_in_one_account(layout)
    fedast("federation", "admit", folder)  # works as it did
    assert '"CN=client-2"' in (layout.nats / "users.conf").read_text()
    stored = layout.nats / "data" / "jetstream" / "$G" / "streams"
    stored.mkdir(parents=True)
    before = keys(folder)
    assert "account of its own" in fedast("federation", "upgrade", folder).stdout
    assert layout.separated
    assert '"CN=client-2"' in (layout.nats / "accounts.conf").read_text()
    assert not (layout.nats / "users.conf").exists()
    assert (stored.parents[1] / "FEDAST" / "streams").is_dir()
    assert keys(folder) == before
    assert "already" in fedast("federation", "upgrade", folder).stdout


def test_an_upgrade_does_not_guess(folder: str) -> None:
    layout = Layout(Path(folder))
    put_in_one_account(layout)
    text = layout.nats_config.read_text()
    layout.nats_config.write_text(text.replace("authorization {", "authorization: {"))
    assert "changed by hand" in refused("federation", "upgrade", folder)


def test_keys_that_were_carried_away_are_listed(folder: str) -> None:
    (Path(folder) / "clients" / "client-0").rename(Path(folder) / "elsewhere")
    assert keys(folder)["client-0"] == 1
    assert "no certificate here" in fedast("federation", "keys", folder).stdout
