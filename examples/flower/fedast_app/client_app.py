"""The ClientApp: local training with this SuperNode's own data."""

from pathlib import Path

from fedast.run.flower import client_app

app = client_app(Path(__file__).with_name("federation.toml"))
