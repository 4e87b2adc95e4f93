"""From a command to the first update: what starting takes, with nothing left to compile.

    python benchmarks/first_update.py [--config FILE] [--times 5] [OPTIONS OF fedast run]

Each try is a process of its own, from its start until the first aggregated updates have changed a
model (on a GPU: until it has computed that). The first try may compile kernels and is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar, final

from fedast.core.protocol import Aggregate, ClientId, Command, Evaluated, Observer, RequestId
from fedast.records.observers import ObserverOptions, Watched

_STAMP = "FEDAST_FIRST_UPDATE"
"""The variable that names the file for the time."""


class FirstUpdate(ObserverOptions):
    """Writes down when the first aggregation was done, and ends the process."""

    name: ClassVar[str] = "first-update"

    def build(self, run: Watched) -> Observer:
        return _FirstUpdate()


@final
class _FirstUpdate:
    def __init__(self) -> None:
        self._aggregated = False

    def commanded(self, now: float, command: Command) -> None:
        self._look()  # a command is seen before it is carried out
        self._aggregated = isinstance(command, Aggregate)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        self._look()

    def evaluated(self, now: float, event: Evaluated) -> None:
        self._look()

    def _look(self) -> None:
        if not self._aggregated:
            return
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        Path(os.environ[_STAMP]).write_text(repr(time.time()))
        os._exit(0)


def seconds(config: str, options: list[str]) -> float:
    """From the start of a process to its first update."""
    with tempfile.TemporaryDirectory() as folder:
        stamp = Path(folder) / "stamp"
        environment = os.environ | {_STAMP: str(stamp)}
        here = str(Path(__file__).parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [here, os.environ.get("PYTHONPATH")])
        )
        run = [sys.executable, "-m", "fedast", "run", config, "--out", str(Path(folder) / "run")]
        began = time.time()
        subprocess.run(
            [*run, "--track", "first_update:FirstUpdate", *options], env=environment, check=True
        )
        return float(stamp.read_text()) - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", default="examples/heterogeneous.toml")
    parser.add_argument("--times", type=int, default=5)
    args, options = parser.parse_known_args()
    seconds(args.config, options)
    found = [seconds(args.config, options) for _ in range(args.times)]
    print(
        f"command to first update: {', '.join(f'{each:.2f}' for each in found)} s, "
        f"median {statistics.median(found):.2f} s"
    )


if __name__ == "__main__":
    main()
