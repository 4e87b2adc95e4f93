"""The ServerApp: the algorithm, the models and the records."""

from pathlib import Path

from fedast.run.flower import server_app

app = server_app(Path(__file__).with_name("federation.toml"))
