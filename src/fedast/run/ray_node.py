"""What happens on a node of Ray: one run, its mailbox, its files on the way."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fedast.config.schema import Compute
from fedast.records.files import write_atomically
from fedast.records.run import CONFIG, RESULT, SERIES, RunResult
from fedast.run.batch import Pulse, Work
from fedast.training.nodes import Facts, my_facts, problems

LOOK = 0.2
"""Seconds between two looks at the mailbox."""
_CHECKPOINTS = "checkpoints"
_MOST = 2**20
"""Bytes of a time series that are sent at a time."""


Collected: TypeAlias = tuple[
    list[Pulse], list[tuple[int, dict[str, bytes]]], list[tuple[int, str, int, bytes]]
]
"""Progress, files that a run can go on from, and what files have grown by."""


class Post:
    """The mailbox: what runs report, and which of them are to end."""

    def __init__(self) -> None:
        self._pulses: dict[int, Pulse] = {}
        self._files: list[tuple[int, dict[str, bytes]]] = []
        self._grown: list[tuple[int, str, int, bytes]] = []
        self._halted: set[int] = set()

    def report(self, pulse: Pulse) -> None:
        self._pulses[pulse.run] = pulse

    def deliver(self, number: int, files: dict[str, bytes]) -> None:
        self._files.append((number, files))

    def grow(self, number: int, name: str, offset: int, data: bytes) -> None:
        """A file that others may be reading has got longer."""
        self._grown.append((number, name, offset, data))

    def collect(self) -> Collected:
        found = list(self._pulses.values()), self._files, self._grown
        self._pulses, self._files, self._grown = {}, [], []
        return found

    def halt(self, number: int, wanted: bool) -> None:
        (self._halted.add if wanted else self._halted.discard)(number)

    def halted(self, number: int) -> bool:
        return number in self._halted


def place_token(out: Path) -> tuple[str, str]:
    """A file by which a node can tell that it sees the same folder."""
    token = uuid.uuid4().hex
    out.mkdir(parents=True, exist_ok=True)
    (out / ".seen-from").write_text(token, encoding="utf-8")
    return str((out / ".seen-from").resolve()), token


def _sees(token: tuple[str, str] | None) -> bool:
    if token is None:
        return False
    try:
        return Path(token[0]).read_text(encoding="utf-8") == token[1]
    except OSError:
        return False


def remote_run(
    work: Work,
    token: tuple[str, str] | None,
    shared: bool | None,
    given: list[Any],
    post: Any,
    facts: Facts,
) -> tuple[RunResult, Compute, dict[str, bytes] | None]:
    """On the node: one run."""
    import ray

    from fedast.run.work import carried_out

    wrong = problems(facts, {"its node": my_facts()}, allow_mixed=True, gpus=False)
    if wrong:
        raise RuntimeError(wrong[0])
    halted = threading.Event()
    over = threading.Event()

    def ask() -> None:
        while not over.wait(LOOK):
            if ray.get(post.halted.remote(work.number)):
                halted.set()

    def report(pulse: Pulse) -> None:
        post.report.remote(pulse)

    def deliver(files: dict[str, bytes]) -> None:
        ray.get(post.deliver.remote(work.number, files))

    def grow(name: str, offset: int, data: bytes) -> None:
        ray.get(post.grow.remote(work.number, name, offset, data))

    threading.Thread(target=ask, daemon=True).start()
    try:
        if work.out is None:
            return *carried_out(work, report, halted.is_set), None
        if shared or _sees(token):
            out = Path(token[0]).parent if token is not None else work.out
            Path(out / ".seen-from").unlink(missing_ok=True)
            return *carried_out(replace(work, out=out), report, halted.is_set), None
        with tempfile.TemporaryDirectory(prefix="fedast-run-") as place:
            out = Path(place) / "run"
            out.mkdir()
            write_files(out, ray.get(given[0]))
            mirror = threading.Thread(target=_mirror, args=(out, deliver, grow, over), daemon=True)
            mirror.start()
            result, compute = carried_out(replace(work, out=out), report, halted.is_set)
            over.set()
            mirror.join()
            return result, compute, read_files(out)
    finally:
        over.set()


def _mirror(
    out: Path,
    deliver: Callable[[dict[str, bytes]], None],
    grow: Callable[[str, int, bytes], None],
    over: threading.Event,
) -> None:
    """Send what a run could go on from as it is written (its configuration and checkpoints), and
    its time series, for the page."""
    sent: set[str] = set()
    there = 0
    while not over.wait(LOOK):
        names = {path.name for path in (out / _CHECKPOINTS).glob("*.json")} - sent
        if names:
            try:
                files = read_files(out, only_checkpoints=True)
            except OSError:  # an older one was just removed
                continue
            deliver(files)
            sent |= names
        try:
            if there == 0 and (out / CONFIG).exists():
                grow(CONFIG, 0, (out / CONFIG).read_bytes())
            with (out / SERIES).open("rb") as file:
                if file.seek(0, 2) < there:  # a resumed run has cut it
                    there = 0
                file.seek(there)
                more = file.read(_MOST)
        except OSError:  # not there yet
            continue
        if more:
            grow(SERIES, there, more)
            there += len(more)


def grow_file(out: Path, name: str, offset: int, data: bytes) -> None:
    """Where others read it: a file has these bytes at this place, and ends there."""
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(offset)
        file.truncate()
        file.write(data)


def read_files(out: Path, *, only_checkpoints: bool = False) -> dict[str, bytes]:
    """The files of a run by their path below its folder."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        hidden = path.name.startswith(".") or path.name.endswith(".part")
        needed = name.startswith(f"{_CHECKPOINTS}/") or "/" not in name
        large = only_checkpoints and path.suffix in (".jsonl", ".csv")
        if path.is_file() and not hidden and (needed or not only_checkpoints) and not large:
            found[name] = path.read_bytes()
    return found


def write_files(out: Path, files: Mapping[str, bytes]) -> None:
    """Put files into a run's folder; of its checkpoints only these stay, and the result is last."""
    for name in sorted(files, key=lambda name: (name == RESULT, name.endswith(".json"), name)):
        path = out / name
        if not path.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"{name}: is outside of the run's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, files[name])
    if any(name.startswith(f"{_CHECKPOINTS}/") for name in files):
        for path in (out / _CHECKPOINTS).iterdir():
            if f"{_CHECKPOINTS}/{path.name}" not in files:
                path.unlink()
