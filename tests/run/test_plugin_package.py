"""A plug-in package, built and installed into an environment of its own, is listed and runs."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import fedast

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "fedast-example-plugin"
version = "1.0"

[project.entry-points."fedast.algorithms"]
fedasync = "example_plugin:FedAsync"

[project.entry-points."fedast.delays"]
weibull = "example_plugin:Weibull"

[tool.setuptools]
py-modules = ["example_plugin"]
"""
RUN = """
seed = 1
[algorithm]
name = "fedasync"
exponent = 1.0
requests = 8
[simulation]
clients = 20
max_time = 10
[simulation.delay]
name = "weibull"
[[tasks]]
use = "synthetic"
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that sees what is installed here, and has the plug-in besides."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("plugin")
    source = place / "source"
    source.mkdir()
    examples = Path(__file__).parents[2] / "examples"
    modules = [(examples / f"own_{name}.py").read_text() for name in ("algorithm", "delay")]
    futures = "from __future__ import annotations\n"
    body = "\n".join(text.split("if __name__")[0].replace(futures, "") for text in modules)
    (source / "example_plugin.py").write_text(futures + body)
    (source / "pyproject.toml").write_text(PROJECT)
    environment = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    shared = [sysconfig.get_path("purelib"), str(Path(fedast.__file__).parents[1])]
    (Path(where.stdout.strip()) / "shared.pth").write_text("\n".join(shared) + "\n")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-build-isolation", "--no-index", source],
        check=True,
    )  # fmt: skip
    return python


def run(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "fedast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_is_listed_with_its_package_and_its_own_words(python: Path) -> None:
    for kind, name, option in (
        ("algorithms", "fedasync", "exponent"),
        ("delays", "weibull", "shape"),
    ):
        shown = run(python, "list", kind)
        assert shown.returncode == 0, shown.stderr
        assert name in shown.stdout
        assert option in shown.stdout
        assert "fedast-example-plugin" in shown.stdout


def test_it_runs_by_its_name(python: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    assert run(python, "validate", tmp_path / "run.toml").returncode == 0
    done = run(python, "run", tmp_path / "run.toml", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["tasks"]["synthetic"]["updates"] > 0
    assert result["algorithm"] == "fedasync"
