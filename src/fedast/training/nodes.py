"""What machines have installed, and whether runs on them would be the same."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedast.version import __version__


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run's result may depend on beside its configuration."""

    fedast: str
    torch: str
    python: str
    processor: str
    gpus: tuple[str, ...]


def my_facts() -> Facts:
    """Of this machine."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        installed = "none"
    gpus: tuple[str, ...] = ()
    if installed != "none" and Path("/dev/nvidiactl").exists():  # torch takes seconds to import
        import torch

        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            gpus = tuple(torch.cuda.get_device_name(number) for number in range(count))
    return Facts(
        __version__, installed.split("+")[0], platform.python_version(), _processor(), gpus
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def problems(
    mine: Facts, nodes: Mapping[str, Facts | str], *, allow_mixed: bool, gpus: bool
) -> list[str]:
    """A line for each reason not to use these nodes together."""
    found = []
    first: dict[str, tuple[str, str]] = {}
    for name, facts in nodes.items():
        if isinstance(facts, str):
            found.append(f"node {name}: {facts}; install fedast {mine.fedast} there")
            continue
        for package in ("fedast", "torch"):
            theirs, ours = getattr(facts, package), getattr(mine, package)
            if theirs != ours:
                found.append(
                    f"node {name}: has {package} {theirs}, this machine has {ours}; "
                    "install the same version everywhere"
                )
        kinds = {"processor": facts.processor}
        if gpus:
            kinds["GPU"] = ", ".join(sorted(set(facts.gpus)))
        for kind, what in kinds.items():
            other, theirs = first.setdefault(kind, (name, what))
            if theirs != what and not allow_mixed:
                found.append(
                    f"nodes {other} and {name}: have different {kind}s ({theirs}; {what}), which "
                    "round differently; use nodes of one kind, or --allow-mixed"
                )
    return found
