"""A federation from its operator's chair: what is down, what was started by hand, what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedast.cli.logfiles import readable
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.federation.keys import Authority
from fedast.federation.nats.setup import Layout
from tests.cli.command import fedast, fedast_process, refused
from tests.federation.nats_support import BINARY, free_port


def until(found: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 100
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def trail(folder: str) -> list[tuple[str, str, str]]:
    lines = (Path(folder) / "run" / "audit.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(line["command"], line["argument"], line["answer"]) for line in found]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    name = str(tmp_path / "fed")
    done = fedast("federation", "init", name, "--clients", "2", "--port", str(free_port()))
    assert "listen on this machine only" in done.stdout
    return name


def test_commands_end_with_one_line_when_it_is_down(folder: str) -> None:
    for verb in ("status", "pause"):
        done = fedast("ctl", folder, verb)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "is down (tls://localhost:" in line
        assert f"fedast federation up {folder}" in line
    done = fedast("federation", "status", folder)
    assert done.returncode == 0
    assert "up: nothing" in done.stdout
    assert "is down" in done.stdout
    assert "there are no logs yet" in fedast("federation", "logs", folder).stdout


def test_nats_listens_on_this_machine_unless_a_host_is_given(tmp_path: Path, folder: str) -> None:
    assert 'host: "127.0.0.1"' in Layout(Path(folder)).nats_config.read_text()
    other = Layout(tmp_path / "other")
    done = fedast("federation", "init", str(other.root), "--host", "fed.example.org")
    assert "this machine only" not in done.stdout
    assert 'host: "0.0.0.0"' in other.nats_config.read_text()


def test_what_was_started_by_hand_is_seen(folder: str) -> None:
    layout = Layout(Path(folder))
    (port,) = [line for line in layout.nats_config.read_text().splitlines()
               if line.startswith("port:")]  # fmt: skip
    url = f"tls://localhost:{port.partition(':')[2].strip()}"
    serve = [sys.executable, "-m", "fedast", "serve", "federation.toml", "--server", url,
             "--creds", "keys/server", "--out", "run"]  # fmt: skip
    started = [subprocess.Popen([BINARY, "-c", "nats.conf"], cwd=layout.nats, text=True)]
    try:
        until(lambda: "no FedAST server does" in fedast("ctl", folder, "status").stderr, "nats")
        started.append(subprocess.Popen(serve, cwd=layout.root, stdout=subprocess.PIPE, text=True))
        until(lambda: fedast("ctl", folder, "status").returncode == 0, "the server")
        done = fedast("federation", "status", folder)
        assert "started by hand: nats (process" in done.stdout
        assert "server (process" in done.stdout
        assert "0 of 2 clients here; training has not begun" in done.stdout
        assert f"records: {folder}/run" in done.stdout
        found = json.loads(fedast("federation", "status", folder, "--json").stdout)
        assert set(found["by_hand"]) == {"nats", "server"}
        assert "Server is ready" in fedast("federation", "logs", folder, "nats").stdout
        follow = [sys.executable, "-m", "fedast", "federation", "logs", folder, "server", "-f"]
        following = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)
        started.append(following)
        assert "paused" in fedast("ctl", folder, "pause").stdout
        assert following.stdout is not None
        for line in following.stdout:  # as soon as it is logged
            if "command 'pause'" in line:
                break
        assert "was started by hand" in refused("federation", "up", folder)
        assert "is still running: kill" in fedast("federation", "down", folder).stdout
        assert "the server commits" in fedast("ctl", folder, "halt").stdout
        said, _ = started[1].communicate(timeout=60)
        assert "waiting for clients: 0 of 2 here" in said
        assert [entry[0] for entry in trail(folder)] == ["pause", "halt"]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_what_is_done_in_a_shell_is_in_the_audit_trail(folder: str, tmp_path: Path) -> None:
    fedast("federation", "admit", folder)
    fedast("federation", "expel", folder, "client-0")
    refused("federation", "expel", folder, "server")
    fedast("federation", "renew", folder, "client-1")
    file = str(tmp_path / "b.tar.gz")
    assert "contains private keys" in fedast("federation", "backup", folder, file).stdout
    assert "exists already" in refused("federation", "backup", folder, file)
    again = str(tmp_path / "again")
    assert f"up {again}" in fedast("federation", "restore", file, again).stdout
    expected = [
        ("admit", "1 clients", "done"),
        ("expel", "client-0", "done"),
        ("expel", "server", "refused: server cannot be expelled; give it a new key: renew"),
        ("renew", "client-1", "done"),
    ]
    assert trail(folder)[:4] == expected
    assert [entry[0] for entry in trail(folder)[4:]] == ["backup", "backup"]
    assert trail(again) == [*expected, ("restore", file, "done")]


def test_what_expires_soon_is_said_and_renewed_together(folder: str) -> None:
    layout = Layout(Path(folder))
    authority = Authority(layout.authority, "fed")
    authority.issue(layout.credentials("client-1"), "client-1", days=12)
    authority.issue(layout.nats / "tls", "nats", ["localhost"], days=3)
    said = fedast("federation", "status", folder).stdout
    assert "the certificate of nats expires in 2 days" in said
    assert f"fedast federation renew {folder} nats" in said
    assert "the certificate of client-1 expires in 11 days" in said
    keys = fedast("federation", "keys", folder).stdout
    assert "2 expire within 30 days" in keys
    assert f"fedast federation renew {folder} --expiring" in keys
    done = fedast("federation", "renew", folder, "--expiring").stdout
    assert "nats: a new certificate" in done
    assert "client-1: a new key" in done
    assert "expires in" not in fedast("federation", "status", folder).stdout
    assert "nothing expires" in fedast("federation", "renew", folder, "--expiring").stdout


def test_lines_of_a_log_cannot_act_on_a_terminal() -> None:
    line = json.dumps({"time": 0, "level": "info", "from": "x", "message": "a\x1b[2Jb\nc", "trace":
                       "t\n\x07u"})  # fmt: skip
    shown = readable(line)
    assert "a\\x1b[2Jb\\nc\n    t\n    \\x07u" in shown
    assert readable("plain\x1b\n") == "plain\\x1b"


def test_logs_do_not_grow_without_end_whatever_is_printed(tmp_path: Path) -> None:
    """Prints of a user's own module, too, and a traceback at the end."""
    probe = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedast.cli import logfiles\n"
        "logfiles._BYTES = 5000\n"
        "logfiles.log_everything_to(Path(sys.argv[1]))\n"
        "for number in range(2000):\n"
        "    print('line', number)\n"
        "raise RuntimeError('the end')\n"
    )
    file = tmp_path / "logs" / "client-0.log"
    done = subprocess.run([sys.executable, "-c", probe, str(file)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    files = list(file.parent.iterdir())
    assert len(files) == 6
    assert sum(path.stat().st_size for path in files) < 6 * 5000
    assert "RuntimeError: the end" in readable(file.read_text().splitlines()[-1])


@pytest.mark.slow
def test_up_in_the_background_to_the_end(folder: str) -> None:
    """``up`` waits for the server and says so; ``logs``, ``status`` and ``down`` find it again; a
    restored backup goes on where it was."""
    done = fedast_process("federation", "up", folder, "--detach")
    try:
        assert done.returncode == 0, done.stderr
        for text in ("starting nats-server", "waiting for the server", "up in the background",
                     f"records: {folder}/run"):  # fmt: skip
            assert text in done.stdout
        assert "is up already" in refused("federation", "up", folder)
        until(lambda: (Path(folder) / "run" / "result.json").is_file(), "the end")
        until(lambda: "has ended" in fedast("federation", "status", folder).stdout, "the result")
    finally:
        ended = fedast("federation", "down", folder)
    assert "processes ended" in ended.stdout
    logs = Path(folder) / "logs"
    assert "answered request" in fedast("federation", "logs", folder, "client-0").stdout
    printed = [line for path in logs.glob("*.out") for line in path.read_text().splitlines()]
    assert all("loading PyTorch" in line for line in printed), "all else is in the logs"


@pytest.mark.parametrize(
    "path",
    ['path = ["modules"]  # mine', 'path = [\n  "modules",\n]', "", 'path = ["./modules", "x"]'],
)
def test_a_configuration_with_its_modules_elsewhere(tmp_path: Path, path: str) -> None:
    """It is copied into the federation's folder; its modules are not."""
    place = tmp_path / "mine" / ("modules" if path else "")
    place.mkdir(parents=True)
    (place / "some_data.py").write_text("def load(client):\n    raise ValueError\n")
    given = tmp_path / "mine" / "federation.toml"
    given.write_text(
        f"# a comment\n{path}\nseed = 3\n[simulation]\nclients = 2\n[federation]\n"
        'data = { digits-mlp = "some_data:load" }\n[[tasks]]\nuse = "digits-mlp"\n'
    )
    folder = str(tmp_path / "fed")
    done = fedast("federation", "init", folder, "--clients", "2", "--config", str(given))
    assert done.returncode == 0, done.stderr
    copy = Layout(Path(folder)).config
    assert copy.read_text().count("# a comment") == 1
    resolved = resolve(load(copy), copy.parent)
    assert resolved.path[0] == str(place)
    assert resolved.model_copy(update={"path": ()}) == resolve(
        load(given), given.parent
    ).model_copy(update={"path": ()})


def test_a_configuration_that_names_a_file_beside_it_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "delays.csv").write_text("client,task,seconds\n")
    given = tmp_path / "federation.toml"
    given.write_text(
        '[simulation]\nclients = 2\ndelay = { name = "measured", file = "delays.csv" }\n'
        '[[tasks]]\nuse = "digits-mlp"\n'
    )
    done = fedast("federation", "init", str(tmp_path / "fed"), "--config", str(given))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "give its full path" in line
