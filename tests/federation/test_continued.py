"""What a restarted or upgraded server takes from its configuration: limits, defaults, ``path``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedast.algorithms.fedast import FedASTDynamic
from fedast.config.identity import said
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.federation.memory import Hub, MemoryServer
from fedast.federation.write_ahead_log import configuration
from fedast.records.run import UnusableFolder
from fedast.run.federate import Federation
from tests.federation.scripted import CLIENTS, Scripted, play, scripted_config

CONFIG = """
seed = 3
algorithm = { name = "fedast-d", requests = 8, ratio = 2 }
simulation = { clients = 3 }

[[tasks]]
use = "synthetic"
target = 0.999
"""


async def begun(scripted: Scripted) -> None:
    await scripted.start()
    for client in range(CLIENTS):
        await scripted.join(client)
    await scripted.begin()
    await scripted.commit()


@pytest.mark.parametrize(
    ("limit", "reason"), [("max_time", "time"), ("leave_time", "removed")], ids=str
)
@pytest.mark.parametrize("evaluate", ["server", "clients"])
def test_a_tasks_own_limit_of_time_holds(
    tmp_path: Path, limit: str, reason: str, evaluate: str
) -> None:
    """In seconds, for that task alone, across restarts; and it is recorded once."""
    config = scripted_config("fedast-d", federation={"evaluate": evaluate})
    first, second = config.tasks
    config = config.model_copy(update={"tasks": (first.model_copy(update={limit: 1.0}), second)})

    async def body() -> None:
        scripted = Scripted(config, tmp_path)
        await begun(scripted)
        await play(scripted, [0, 1, 2])
        scripted.crash()
        await scripted.start()
        while scripted.time < 0.9:
            await scripted.answer(0)
        server = scripted.running.server
        await server._tick()
        assert set(server.state.driver.unfinished) == {"first", "second"}
        scripted.time = 1.01
        for _ in range(3):
            await server._tick()
        lines = (tmp_path / "diary" / "diary.jsonl").read_text().splitlines()
        log = [json.loads(line) for line in lines]
        ended = [(e["tasks"], e["reason"]) for e in log if e["e"] == "stop"]
        assert ended == [(["first"], reason)]
        if evaluate == "server" or limit == "leave_time":
            assert server.state.driver.unfinished == ("second",)
            assert str(scripted.running.run_metrics.tasks["first"].finish_reason) == reason
        scripted.end()

    asyncio.run(body())


def test_another_default_is_not_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version has another default: the federation goes on with the one it began with."""
    path, folder = tmp_path / "federation.toml", tmp_path / "run"
    path.write_text(CONFIG)

    def serve(settings: tuple[str, ...] = (), out: Path = folder) -> Federation:
        config = load(path, settings)
        federation = Federation(
            resolve(config, tmp_path), MemoryServer(Hub()), out, said=said(config)
        )
        federation.server.stop()
        return federation

    asyncio.run(serve().run())
    kept = configuration(folder / "diary")
    assert kept is not None
    assert kept.said == {
        "seed": 3,
        "algorithm": {"name": "fedast-d", "requests": 8, "ratio": 2.0},
        "simulation": {"clients": 3},
        "tasks": [{"use": "synthetic", "target": 0.999}],
    }
    was = FedASTDynamic.model_fields["period"].default
    with monkeypatch.context() as patch:
        patch.setattr(FedASTDynamic.model_fields["period"], "default", 0.125)
        FedASTDynamic.model_rebuild(force=True)
        fresh = serve(out=tmp_path / "other")
        assert period(fresh) == 0.125
        fresh.close()
        continued = serve()
        assert period(continued) == was
        asyncio.run(continued.run())
        with pytest.raises(UnusableFolder, match=r"\(algorithm.requests is 9, was 8\)"):
            serve(("algorithm.requests=9",))
    FedASTDynamic.model_rebuild(force=True)
    serve(("algorithm.period=0.75",)).close()  # said now, and no other


def period(federation: Federation) -> Any:
    options = federation._config.algorithm
    assert isinstance(options, FedASTDynamic)
    return options.period


RULE = """
def rule(variance, task):
    return 1.0
"""
SERVE = """
import sys
from pathlib import Path
from fedast.cli.loading import load_resolved
from fedast.federation.memory import Hub, MemoryServer
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
config = load_resolved(sys.argv[1], ())
if sys.argv[3] == "server":
    Federation(config, MemoryServer(Hub()), Path(sys.argv[2])).close()
else:
    LocalTraining(config, 0)
import my_rules
print(my_rules.__file__)
"""


@pytest.mark.parametrize("who", ["server", "client"])
def test_path_says_where_modules_are(tmp_path: Path, who: str) -> None:
    """Wherever the program is started, and even if a module of that name is there, too."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lib" / "my_rules.py").write_text(RULE)
    (tmp_path / "elsewhere" / "my_rules.py").write_text("raise SystemExit('the wrong one')\n")
    (tmp_path / "serve.py").write_text(SERVE)
    path = tmp_path / "federation.toml"
    text = CONFIG.replace("ratio = 2", 'ratio = 2, allocation_rule = "my_rules:rule"')
    path.write_text('path = ["lib"]\n' + text)
    command = [sys.executable, "-c", SERVE, str(path), str(tmp_path / "run"), who]
    done = subprocess.run(
        command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{tmp_path / 'lib' / 'my_rules.py'}\n", done.stderr
