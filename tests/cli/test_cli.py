"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedast.cli.catalogue import KINDS
from fedast.cli.main import cli
from tests.cli.command import fedast, fedast_process, refused

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = str(EXAMPLES / "quickstart.toml")
SHORT = ("--set", "simulation.max_time=6", "--set", "simulation.clients=30")


def test_help_is_light() -> None:
    """Of the whole command and of every subcommand: the modules of the commands load only click."""
    probe = (
        "import sys\n"
        "from click import Group\n"
        "from click.testing import CliRunner\n"
        "from fedast.cli.main import cli\n"
        "def helps(command, *path):\n"
        "    found = CliRunner().invoke(cli, [*path, '--help'])\n"
        "    assert found.exit_code == 0 and 'Usage' in found.output, found.output\n"
        "    for name in command.commands if isinstance(command, Group) else ():\n"
        "        helps(command.commands[name], *path, name)\n"
        "helps(cli)\n"
        "heavy = {'torch', 'sklearn', 'matplotlib', 'pydantic', 'numpy', 'nats', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
    probe = "import fedast, sys; assert 'torch' not in sys.modules; fedast.simulate"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def light(*arguments: str) -> str:
    """What a command prints, in a process in which it must import neither torch nor nats."""
    probe = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fedast.cli.main import cli\n"
        f"found = CliRunner().invoke(cli, {list(arguments)!r})\n"
        "assert found.exit_code == 0, found.output\n"
        "print(found.output)\n"
        "assert not {'torch', 'nats'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], timeout=60, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("what", [*KINDS, "server"])
def test_list_is_light(what: str) -> None:
    entries = json.loads(light("list", what, "--json"))
    assert entries
    assert all(entry["summary"] for entry in entries.values())


def test_list_names_the_kinds_and_helps_with_a_misspelled_one() -> None:
    assert fedast("list").stdout.split() == [*KINDS]
    wrong = fedast("list", "algoritms")
    assert wrong.returncode == 2
    assert "did you mean 'algorithms'?" in wrong.stderr


def test_validate_is_light() -> None:
    assert "valid: fedast-d, 100 clients, 2 tasks" in light("validate", QUICK)


def test_every_algorithm_option_is_explained() -> None:
    entries = json.loads(fedast("list", "algorithms", "--json").stdout)
    assert set(entries) >= {"fedast-d", "fedast-s", "fedast-nobuffer", "sync-st"}
    assert {"requests", "period"} <= set(entries["fedast-d"]["options"])
    for name, entry in entries.items():
        for option, said in entry["options"].items():
            assert said["help"], f"{name}.{option} has no explanation"


def test_the_reference_page_is_current() -> None:
    """`make reference` writes it."""
    page = (EXAMPLES.parent / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert fedast("list", "algorithms", "--markdown").stdout == page
    for name in json.loads(fedast("list", "algorithms", "--json").stdout):
        assert f"\n## {name}\n" in page


def test_run_writes_its_records(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = fedast_process("run", QUICK, *SHORT, "--out", str(out), "--events", "--seed", "5")
    assert done.returncode == 0, done.stderr
    assert "digits-mlp" in done.stdout
    assert f"Records: {out}" in done.stdout
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "result.json", "curves.csv", "events.jsonl", "series.jsonl", "models",
    }  # fmt: skip
    assert json.loads((out / "result.json").read_text())["seed"] == 5
    again = fedast("run", str(out / "config.toml"), "--out", str(tmp_path / "b"), "--events")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "b/events.jsonl").read_bytes() == (out / "events.jsonl").read_bytes()
    assert "holds another run" in refused("run", QUICK, "--out", str(out))


def test_json_is_json_and_quiet_is_quiet() -> None:
    done = fedast("run", QUICK, *SHORT, "--json")
    assert set(json.loads(done.stdout)["tasks"]) == {"digits-mlp", "synthetic"}
    assert "finished:" in fedast("run", QUICK, *SHORT).stdout
    quiet = fedast("run", QUICK, *SHORT, "--quiet")
    assert quiet.returncode == 0, quiet.stderr
    assert "finished:" not in quiet.stdout
    assert "digits-mlp" in quiet.stdout


def test_compare_gives_a_table_and_a_figure(tmp_path: Path) -> None:
    out = tmp_path / "both"
    done = fedast(
        "compare", QUICK, "--algorithm", "fedast-s", "--algorithm", "sync-st", "--seeds", "2",
        "--set", "simulation.clients=30", "--set", "tasks.digits-mlp.target=0.5",
        "--set", "tasks.synthetic.target=0.2", "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "±" in done.stdout
    assert "gain" in done.stdout
    assert (out / "curves.png").stat().st_size > 10_000
    assert (out / "curves.svg").exists()
    table = json.loads((out / "comparison.json").read_text())
    assert table["baseline"] == "sync-st"
    ours = [
        json.loads((out / f"fedast-s/seed-{seed}/result.json").read_text())["tasks"]["synthetic"]
        for seed in (1, 2)
    ]
    mean = sum(task["time_to_target"] for task in ours) / 2
    assert table["times"]["fedast-s"]["synthetic"]["mean"] == pytest.approx(mean)


def test_settings_without_effect_are_told(tmp_path: Path) -> None:
    idle = (
        *("--set", "algorithm.selection={name='speed', candidates=1}"),
        *("--set", "tasks.synthetic.calibration={place='host'}"),
    )
    for command in (("validate", QUICK), ("run", QUICK, *SHORT)):
        done = fedast(*command, *idle)
        assert done.returncode == 0
        assert [line.split(": has no effect: ")[0] for line in done.stderr.splitlines()] == [
            "warning: algorithm.selection", "warning: tasks.synthetic.calibration.place"
        ]  # fmt: skip
    assert fedast("run", QUICK, *SHORT, *idle, "--quiet").stderr == ""
    own = ("--set", "algorithms.sync-st.first_k=2")
    assert "sync-st does not run here" in refused("run", QUICK, *own)
    both = fedast(
        "compare", QUICK, "--algorithm", "fedast-s", "--algorithm", "sync-st", "--seeds", "1",
        *SHORT, *own, "--set", "tasks.0.share=2.0", "--out", str(tmp_path / "both"),
    )  # fmt: skip
    assert both.returncode == 0, both.stderr
    assert both.stderr == ""  # the share is of use to one of them
    config = tomllib.loads((tmp_path / "both/sync-st/seed-1/config.toml").read_text())
    assert config["algorithm"]["first_k"] == 2


def test_renamed_keys_are_noted_once(tmp_path: Path) -> None:
    old = tmp_path / "old.toml"
    text = Path(QUICK).read_text()
    old.write_text(text.replace("max_time = 300", "max_time = 6"))
    rate = ("--set", "tasks.synthetic.client_rate=0.05")
    note = (
        "warning: tasks.synthetic.client_rate is now called client_lr; the old name is still read\n"
    )
    out = tmp_path / "out"
    both = ("--algorithm", "fedast-s", "--algorithm", "sync-st", "--seeds", "1", "--json")
    for command in (("validate",), ("run", "--json"), ("compare", *both, "--out", str(out))):
        done = fedast(command[0], str(old), *rate, *command[1:])
        assert done.returncode == 0, done.stderr
        assert done.stderr == note, command
    assert fedast("run", str(old), *rate, "--quiet").stderr == ""
    # A run folder of an earlier version is read again without a word.
    run = out / "fedast-s" / "seed-1"
    config = run / "config.toml"
    config.write_text(config.read_text().replace("client_lr", "client_rate"))
    (run / "result.json").unlink()
    resumed = fedast("run", "--resume", str(run), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert "client_rate" not in resumed.stderr


def test_validate(tmp_path: Path) -> None:
    done = fedast("validate", QUICK)
    assert done.returncode == 0
    assert "valid: fedast-d, 100 clients, 2 tasks" in done.stdout
    whole = fedast("validate", QUICK, "--resolved")
    path = tmp_path / "resolved.toml"
    path.write_text(whole.stdout)
    assert fedast("validate", str(path), "--resolved").stdout == whole.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.toml"), "error: nowhere.toml: cannot be read"),
        (("run", QUICK, "--set", "simulation.clints=3"), "did you mean 'clients'?"),
        (("run", QUICK, "--set", "tasks.synthetic.target=7"), "a fraction between 0 and 1"),
        (("run", QUICK, "--set", "algorithm.requests=1"), "2 tasks need at least one each"),
        (("run", QUICK, "--device", "cuda"), "no CUDA device"),
        (("run", QUICK, "--events"), "--events needs --out"),
        (("run", QUICK, "--algorithm", "fedavg"), "algorithm.name: unknown value 'fedavg'"),
        (("validate", QUICK, "--set", "simulation.clients=0"), "greater than or equal to 1"),
        (("compare", QUICK, QUICK), "two configurations are called 'quickstart'"),
        (("compare", QUICK, "--baseline", "x"), "no label 'x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert message in refused(*arguments)


def test_bad_files_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "delays.csv").write_text("task,seconds\ndigits-mlp,quick\n")
    delay = 'simulation.delay={name="measured", file="%s"}'
    out = tmp_path / "out"
    bad = delay % (tmp_path / "delays.csv")
    line = refused("run", QUICK, "--set", bad, "--out", str(out))
    assert "delays.csv, line 2: seconds is not a number: 'quick'" in line
    missing = delay % (tmp_path / "none.csv")
    assert "there is no file" in refused("run", QUICK, "--set", missing, "--out", str(out))
    assert "there is no file" in refused("compare", QUICK, "--set", missing, "--out", str(out))
    assert not out.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("run", QUICK, "--out", str(tmp_path / "file" / "run"))
    assert "cannot be written" in line
    assert "--out" in line


@pytest.mark.parametrize("command", ["run", "compare"])
def test_ctrl_c_leaves_complete_records(tmp_path: Path, command: str) -> None:
    out = tmp_path / "run"
    never = ("--set", "simulation.max_time=1e6", "--set", "tasks.digits-mlp.target=1.0",
             "--set", "tasks.synthetic.target=1.0")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "fedast", command, QUICK, *never, "--out", str(out), "--events"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder = out if command == "run" else out / "quickstart" / "seed-1"
    deadline = time.monotonic() + 60
    log = folder / "events.jsonl"
    while not (log.exists() and log.stat().st_size > 20_000):
        assert time.monotonic() < deadline, "the run never got going"
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    result = json.loads((folder / "result.json").read_text())
    assert {t["finish_reason"] for t in result["tasks"].values()} == {"interrupted"}
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events].count("finish") == 2


@pytest.mark.slow
def test_demo_is_packaged_and_runs(tmp_path: Path) -> None:
    done = fedast("demo", "--seeds", "1", "--out", str(tmp_path / "demo"), "--json")
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)["times"]
    assert set(times) == {"fedast-d", "fedast-s", "fedast-nobuffer", "sync-st"}
    assert times["fedast-d"]["all tasks"]["gain"] > 0
    assert (tmp_path / "demo/curves.png").exists()


def test_resume_takes_no_other_options(tmp_path: Path) -> None:
    for extra in (["--seed", "0"], ["--set", "seed=3"], ["--overwrite"], ["--trainer", "serial"]):
        done = CliRunner().invoke(cli, ["run", "--resume", str(tmp_path), *extra])
        assert done.exit_code == 2
        assert f"leave out {extra[0]}" in done.output
