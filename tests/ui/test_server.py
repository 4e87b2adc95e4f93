"""What the page is told, by a real server over HTTP."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from fedast.records.run import CONFIG, EVENTS, RESULT, SERIES
from fedast.report.ui.app import page_files
from fedast.report.ui.columns import extremes
from fedast.report.ui.find import Found
from fedast.report.ui.library import Library
from fedast.report.ui.server import serving
from fedast.run.execute import execute
from tests.ui.samples import write_run, write_sample_sweep

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0


class Visitor:
    """Who asks the server, with the token or without."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.token = parts.netloc, parts.query.removeprefix("token=")

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = None, **headers: str
    ) -> Any:
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.putheader("Authorization", f"Bearer {self.token if token is None else token}")
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def get(self, path: str) -> Any:
        answer, body = self.ask(f"/api/{path}")
        assert answer.status == 200, body
        return json.loads(body)

    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["name"]: run for run in self.get("runs")["runs"]}

    def run(self, name: str) -> dict[str, Any]:
        return dict(self.get(f"run/{self.runs()[name]['id']}"))


@contextmanager
def visiting(
    *folders: Path, ask: Callable[[Found], Mapping[str, Any]] | None = None
) -> Iterator[Visitor]:
    library = Library(folders)
    with serving(library, 0, ask) as (address, _):
        assert library.wait_for_first_look(PATIENCE)
        yield Visitor(address)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_only_who_has_the_token_gets_in(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with visiting(tmp_path) as visitor:
        for path in ("/", "/api/runs", "/static/main.js", "/api/news"):
            assert visitor.ask(path, token="")[0].status == 403
            assert visitor.ask(path, token="wrong")[0].status == 403
        assert visitor.ask("/?token=wrong", token="")[0].status == 403
        door, _ = visitor.ask(f"/?token={visitor.token}", token="")
        assert (door.status, door.headers["location"]) == (303, "/")
        cookie = door.headers["set-cookie"]
        assert "HttpOnly" in cookie
        page, body = visitor.ask("/", token="", cookie=cookie.partition(";")[0])
        assert page.status == 200
        assert b"<title>fedast</title>" in body
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        # A page of somebody else that has made its own name lead to this machine.
        assert visitor.ask("/api/runs", host="evil.example")[0].status == 403
        assert visitor.ask("/api/runs", host="localhost:1")[0].status == 200
        assert visitor.ask("/api/runs", sec_fetch_site="cross-site")[0].status == 403
        assert visitor.ask("/api/runs", method="POST")[0].status == 405


def test_nothing_outside_the_folders_is_read(tmp_path: Path) -> None:
    secret = write_run(tmp_path / "elsewhere" / "secret")
    shown = tmp_path / "shown"
    write_run(shown / "run")
    (shown / "linked").symlink_to(secret, target_is_directory=True)
    (shown / "half").mkdir()
    for name in (CONFIG, RESULT, SERIES):
        (shown / "half" / name).symlink_to(secret / name)
    with visiting(shown) as visitor:
        assert [name for name, run in visitor.runs().items() if run["status"] != "broken"] == [
            "run"
        ]
        for path in (
            "/static/../../../../../etc/passwd", "/static/%2e%2e%2f%2e%2e%2fapp.py", "/../app.py",
            "/static/..%2fapp.py", "/api/run/..%2f..%2felsewhere%2fsecret", f"/api/run/{secret}",
            "/api/federation/..", "/static//etc/passwd", "/api/config?runs=../secret",
        ):  # fmt: skip
            answer, body = visitor.ask(path)
            assert answer.status == 404, path
            assert b"root:" not in body


def test_broken_records_say_what_is_wrong(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    for name in ("half", "newer", "no-curves", "half-config", "newer-series"):
        shutil.copytree(good, tmp_path / name)
    text = (good / RESULT).read_text()
    (tmp_path / "half" / RESULT).write_text(text[: len(text) // 2])
    (tmp_path / "newer" / RESULT).write_text(text.replace('"schema": 2', '"schema": 9'))
    (tmp_path / "no-curves" / "curves.csv").unlink()
    (tmp_path / "half-config" / CONFIG).write_text("seed = 1\n[algorithm\n")
    (tmp_path / "newer-series" / SERIES).write_text('{"series": 7}\n["s", 1, 1, "?"]\n')
    (tmp_path / "compact.toml").write_text("seed = 1\n")
    (tmp_path / "compact.json").write_text('{"schema": 1}')
    with visiting(tmp_path) as visitor:
        runs = visitor.runs()
        assert runs["good"]["status"] == "finished"
        for name, why in (
            ("half", "JSONDecodeError"), ("newer", "has schema 9; this version of fedast reads"),
            ("no-curves", "holds no finished run"), ("half-config", "is not valid TOML"),
            ("compact", "holds no compact run"),
        ):  # fmt: skip
            assert runs[name]["status"] == "broken", name
            assert why in runs[name]["why"], name
        found = visitor.run("newer-series")  # the rest of it is as it should be
        assert "is of version 7" in found["note"]
        assert found["curves"]["digits"]["value"]
        assert visitor.run("half")["why"] == runs["half"]["why"]


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False, evaluations=5, samples=5)
    with visiting(tmp_path) as visitor:
        before = visitor.run("run")
        assert before["status"] == "running"
        assert len(before["curves"]["digits"]["t"]) == 5
        version = visitor.get("runs")["version"]
        with (folder / SERIES).open("a") as file:
            file.write('["e", 11, 110.0, "digits", 24, "raw", 0.97, 0.1]\n["e", 12, 120.0, "dig')
        until(lambda: bool(visitor.get(f"runs?since={version}")["runs"]))
        after = visitor.run("run")
        assert after["curves"]["digits"]["value"][-1] == 0.97
        assert after["tasks"][0]["value"] == 0.97  # without a result
        assert after["tasks"][0]["reached"] is not None
        lines = (folder / SERIES).read_text().splitlines(keepends=True)
        (folder / SERIES).write_text("".join(lines[:3]))  # resumed: what came later is cut off
        until(lambda: len(visitor.run("run")["curves"]["digits"]["t"]) <= 2)
        shutil.rmtree(folder)
        until(lambda: not visitor.runs())
        assert visitor.get(f"runs?since={version}")["gone"] == [before["id"]]


def test_records_of_earlier_versions_are_shown() -> None:
    with visiting(FIXTURES / "v0.1.0") as visitor:
        runs = visitor.runs()
        assert all(run["status"] != "broken" for run in runs.values()), runs
        run = visitor.run("run")
        assert run["samples"]["t"]  # from its events
        assert sum(run["load"]["shown"]["counted"]) == run["samples"]["updates"][-1]
        compact = next(name for name, found in runs.items() if found["kind"] == "compact")
        assert visitor.run(compact)["curves"]


def test_series_and_events_tell_the_same(tmp_path: Path) -> None:
    from fedast.cli.loading import load_resolved

    settings = ("simulation.max_time=12", "simulation.clients=30")
    config = load_resolved(str(EXAMPLES / "quickstart.toml"), settings)
    execute(config, tmp_path / "both", events=True)
    shutil.copytree(tmp_path / "both", tmp_path / "events")
    (tmp_path / "events" / SERIES).unlink()
    (tmp_path / "both" / EVENTS).unlink()
    with visiting(tmp_path) as visitor:
        series, events = visitor.run("both"), visitor.run("events")
        for key in ("staleness", "requests"):
            assert {name: {**row, "w": 0} for name, row in series[key].items()} == {
                name: {**row, "w": 0} for name, row in events[key].items()
            }
        assert series["load"]["shown"]["counted"]
        assert series["load"]["all"] == events["load"]["all"]
        for name in series["curves"]:
            assert series["curves"][name]["value"] == events["curves"][name]["value"]
        assert [g["clients"] for g in series["load"]["groups"]] == [8, 14, 8] or series["load"][
            "groups"
        ]
        assert sum(series["spent"].values()) > 0


def test_groups_have_means_and_bands(tmp_path: Path) -> None:
    for algorithm in ("fedast-d", "sync-st"):
        for seed in (1, 2, 3):
            write_run(tmp_path / algorithm / f"seed-{seed}", algorithm=algorithm, seed=seed)
    write_run(tmp_path / "fedast-d" / "other", server_lr=0.8)
    with visiting(tmp_path) as visitor:
        runs = visitor.runs()
        ids = ",".join(run["id"] for run in runs.values())
        found = visitor.get(f"compare?runs={ids}&by=algorithm")
        assert [(g["label"], len(g["runs"])) for g in found["groups"]] == [
            ("fedast-d", 4),
            ("sync-st", 3),
        ]
        task = found["tasks"][0]
        curves = [visitor.run(f"sync-st/seed-{seed}")["curves"]["digits"] for seed in (1, 2, 3)]
        at = 100
        values = [np.interp(task["x"][at], curve["t"], curve["value"]) for curve in curves]
        band = task["groups"][1]
        assert band["mean"][at] == pytest.approx(np.mean(values), abs=1e-4)
        assert band["low"][at] == pytest.approx(min(values), abs=1e-4)
        assert band["high"][at] == pytest.approx(max(values), abs=1e-4)
        times = [runs[f"sync-st/seed-{seed}"]["tasks"][0]["reached"] for seed in (1, 2, 3)]
        assert task["times"][1]["mean"] == pytest.approx(np.mean(times), abs=1e-2)
        split = visitor.get(f"compare?runs={ids}&by=algorithm,algorithm.server_lr")
        assert [g["label"] for g in split["groups"]] == [
            "fedast-d · algorithm.server_lr = 0.8",
            "fedast-d · algorithm.server_lr = 0.4",
            "sync-st · algorithm.server_lr = 0.4",
        ]
        assert split["differences"]["algorithm.server_lr"] == [0.8, 0.4, 0.4]
        assert visitor.get("keys")["algorithm.server_lr"] == 2
        assert "simulation.clients" not in visitor.get("keys")


def test_long_runs_are_thinned_without_losing_spikes(tmp_path: Path) -> None:
    values = np.zeros(100_000)
    values[77_777] = 9.0
    kept = extremes(values)
    assert len(kept) <= 602
    assert 77_777 in kept
    write_run(tmp_path / "long", evaluations=20_000, samples=5000)
    with visiting(tmp_path) as visitor:
        run = visitor.run("long")
        assert len(json.dumps(run)) < 400_000
        assert len(run["curves"]["digits"]["t"]) <= 602
        assert run["curves"]["digits"]["t"][-1] == 100


def test_a_federation_is_asked_through_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "fed" / "nats").mkdir(parents=True)
    (tmp_path / "fed" / "federation.toml").write_text("seed = 1\n")
    (tmp_path / "fed" / "keys").mkdir()
    write_run(tmp_path / "fed" / "keys" / "never-looked-into")
    write_run(tmp_path / "fed" / "run")
    with visiting(tmp_path, ask=lambda found: {"status": {"seconds": 7}}) as visitor:
        (federation,) = visitor.get("runs")["federations"]
        assert visitor.get(f"federation/{federation['id']}")["status"] == {"seconds": 7}
        assert list(visitor.runs()) == ["fed/run"]


def test_a_sweep_has_its_trials_and_their_runs(tmp_path: Path) -> None:
    write_sample_sweep(tmp_path / "rates")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sweep.json").write_text('{"schema": 1}')
    with visiting(tmp_path) as visitor:
        ids = {found["name"]: found["id"] for found in visitor.get("runs")["sweeps"]}
        found = visitor.get(f"sweep/{ids['rates']}")
        complete = [trial["value"] for trial in found["trials"] if trial["state"] == "complete"]
        assert found["best"] == min(complete)
        first = found["trials"][0]
        assert first["runs"] == [visitor.runs()["rates/trial-0000/seed-1"]["id"]]
        assert set(first["parameters"]) == {parameter["name"] for parameter in found["parameters"]}
        assert "is not as it should be" in visitor.get(f"sweep/{ids['bad']}")["broken"]


def test_the_page_is_small_and_needs_nobody_else() -> None:
    files = page_files()
    assert "uPlot.LICENSE" in files
    assert sum(map(len, files.values())) < 500_000
    for name, content in files.items():
        if name.endswith((".js", ".html", ".css")) and not name.startswith("uPlot"):
            assert b"https://" not in content, name
            assert b"innerHTML" not in content, name


# --- the commands -------------------------------------------------------------------------------


def fedast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    done = fedast("ui", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'nowhere'}: there is no such folder\n"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = fedast("ui", str(tmp_path), "--port", port)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: {port} cannot be used (Address already in use)")
    assert done.stderr.count("\n") == 1


def test_a_run_is_shown_while_it_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "fedast", "run", str(EXAMPLES / "quickstart.toml"), "--ui", "-q",
        "--out", str(tmp_path / "run"), "--set", "simulation.max_time=1e6",
        "--set", "tasks.digits-mlp.target=1.0", "--set", "tasks.synthetic.target=1.0",
    ]  # fmt: skip
    seen: set[str] = set()

    def shown() -> bool:
        seen.update(run["status"] for run in visitor.runs().values())
        return bool(seen)

    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert first.startswith("watch it: http://127.0.0.1:"), first
            visitor = Visitor(first.removeprefix("watch it: ").strip())
            until(shown)
            process.send_signal(signal.SIGINT)  # it ends when it has been seen
            _, rest = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, rest
    assert f"see it again: fedast ui {tmp_path / 'run'}" in rest
    assert seen == {"running"}
    with pytest.raises(OSError, match="refused"):  # nobody is at a terminal: it ends with the run
        visitor.runs()
