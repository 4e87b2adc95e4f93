"""sdist and wheel: built, installed into an empty environment, and used from an empty folder.

    make package                                   # with the Python that make uses
    make package PYTHON=python3.13                 # with another

``FEDAST_PACKAGE_ENV`` names a folder for the environment, which is then kept, and
``FEDAST_PACKAGE_PYTHON`` the Python that it is made with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedast.version import __version__

pytestmark = pytest.mark.package

REPOSITORY = Path(__file__).parents[1]


def ran(*command: str | Path, cwd: Path, timeout: float = 1500.0) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=timeout, env=clean
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def built(source: Path, kind: str, to: Path) -> Path:
    """What an installer would build; its name is the hook's last word."""
    hook = f"from setuptools.build_meta import build_{kind}; print(build_{kind}({str(to)!r}))"
    name = ran(sys.executable, "-W", "ignore", "-c", hook, cwd=source).split()[-1]
    return to / name


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of a clean copy of what git has, and the wheel made from that sdist."""
    place = tmp_path_factory.mktemp("dist")
    copy = place / "checkout"
    ran("git", "clone", "-q", "--depth", "1", f"file://{REPOSITORY}", copy, cwd=place)
    sdist = built(copy, "sdist", place)
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "source", filter="data")
    (source,) = (place / "source").iterdir()
    return sdist, built(source, "wheel", place)


def test_they_have_everything(dist: tuple[Path, Path]) -> None:
    sdist, wheel = dist
    assert wheel.name == f"fedast-{__version__}-py3-none-any.whl"
    with tarfile.open(sdist) as archive:
        of_sdist = {name.partition("/")[2] for name in archive.getnames()}
    of_wheel = set(zipfile.ZipFile(wheel).namelist())
    tracked = ran("git", "ls-files", "src/fedast", "examples", cwd=REPOSITORY).split()
    for name in tracked:
        assert name in of_sdist, f"{name} is not in the sdist"
        inside = name.removeprefix("src/") if name.startswith("src/") else f"fedast/{name}"
        assert inside in of_wheel, f"{name} is not in the wheel"
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"} <= of_sdist
    assert "fedast/commit.txt" in of_wheel
    assert not [name for name in of_wheel if "__pycache__" in name or name.startswith("tests")]


@pytest.fixture(scope="module")
def fedast(dist: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel and what the wheel asks for."""
    kept = os.environ.get("FEDAST_PACKAGE_ENV")
    place = Path(kept).absolute() if kept else tmp_path_factory.mktemp("environment") / "venv"
    base = os.environ.get("FEDAST_PACKAGE_PYTHON", sys.executable)
    if not (place / "bin" / "python").exists():
        ran(base, "-m", "venv", place, cwd=REPOSITORY)
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    ran(*pip, "-c", REPOSITORY / "constraints.txt", dist[1], cwd=place)
    ran(*pip, "--no-deps", "--force-reinstall", dist[1], cwd=place)  # if another was there
    ran(python, "-m", "pip", "check", cwd=place)
    return place / "bin" / "fedast"


def test_version_and_doctor(fedast: Path, tmp_path: Path) -> None:
    said = ran(fedast, "--version", cwd=tmp_path)
    head = ran("git", "rev-parse", "--short=7", "HEAD", cwd=REPOSITORY).strip()
    assert f"{__version__} ({head}" in said
    assert "fedast works here" in ran(fedast, "doctor", cwd=tmp_path)


def test_the_demo_and_its_report(fedast: Path, tmp_path: Path) -> None:
    ran(fedast, "demo", "--seeds", "1", "--jobs", "1", "--quiet", "--out", "demo", cwd=tmp_path)
    assert (tmp_path / "demo" / "curves.png").stat().st_size > 10_000
    ran(fedast, "report", "demo", cwd=tmp_path)
    assert (tmp_path / "demo" / "report.html").is_file()
    assert "heterogeneous" in ran(fedast, "reproduce", "--list", cwd=tmp_path)


def test_the_examples(fedast: Path, tmp_path: Path) -> None:
    ran(fedast, "examples", "all", "--to", "examples", cwd=tmp_path)
    for file in sorted((tmp_path / "examples").glob("*.toml")):
        ran(fedast, "validate", file, cwd=tmp_path)
    ran(fedast, "run", "examples/quickstart.toml", "--quiet", "--out", "quick", cwd=tmp_path)


def test_a_new_project(fedast: Path, tmp_path: Path) -> None:
    ran(fedast, "new", "mine", cwd=tmp_path)
    ran(fedast, "run", "run.toml", "--quiet", "--out", "runs/first", cwd=tmp_path / "mine")
    ran(fedast, "report", "runs/first", cwd=tmp_path / "mine")
