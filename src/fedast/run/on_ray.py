"""Runs over a Ray cluster (``pip install 'fedast[cluster]'``).

Each run is a Ray task with the resources it asks for. Where the nodes see the folder that records
go to (a shared file system, or one machine), a run writes there itself. Elsewhere it writes to a
folder of its own, and its files travel: checkpoints as they are taken, everything when it ends.
Progress, requests to end, and files go through one small actor beside the driver.

A run whose node or worker dies is begun again from its newest checkpoint. Nothing is computed twice
into a result: a run is what its folder holds, and the folder has one writer at a time.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from pydantic import Field

from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError
from fedast.records.files import write_atomically
from fedast.records.run import RESULT, RunResult
from fedast.run.batch import ClusterLost, Ended, Pulse, Work, WorkerLost, carry_out
from fedast.run.executors import Executor, ExecutorOptions
from fedast.run.nodes import Facts, my_facts, problems

if TYPE_CHECKING:
    from fedast.run.batch import BatchRun

_LOOK = 0.2
"""Seconds between two looks at the mailbox."""
_ENDING = 120.0
"""Seconds that runs which were asked to end have for it."""
_CHECKPOINTS = "checkpoints"


class Ray(ExecutorOptions):
    """A Ray cluster, or a Ray on this machine if no address is given."""

    name: ClassVar[str] = "ray"
    cluster: str | None = None
    """HOST:PORT of the cluster, or ray://HOST:PORT from outside of it; default: RAY_ADDRESS, a Ray
    that runs on this machine, or one of its own."""
    cores: float = Field(1.0, gt=0, strict=False)
    """Of each run."""
    gpus: float = Field(0.0, ge=0, strict=False)
    """Of each run; 0.25 lets four share a GPU."""
    allow_mixed: bool = False
    """Use nodes with different processors or GPUs, although they round differently."""
    shared: bool | None = None
    """Whether all nodes see this machine's folders; default: found out."""

    def build(self) -> Executor:
        require_ray()

        def executor(runs: Any, **options: Any) -> list[RunResult]:
            return carry_out(RayWorkers(self), _forkless(runs), **options)

        return executor

    def jobs(self) -> int:
        connect(self.cluster)
        check_nodes(self.allow_mixed, gpus=self.gpus > 0)
        return places(self.cores, self.gpus)


def require_ray() -> None:
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("--on", "ray is not installed; pip install 'fedast[cluster]'") from None


def connect(address: str | None) -> None:
    """Connect to a cluster, or start a Ray here; once is enough."""
    import os

    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            "--address" if address else "--on",
            f"no Ray answers at {address or 'this machine'} ({first}); start one with: "
            "ray start --head",
        ) from None


def places(cores: float, gpus: float) -> int:
    """How many such runs fit into the cluster at once."""
    import ray

    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = has.get("CPU", 0) // cores
            count += int(min(fits, has.get("GPU", 0) // gpus) if gpus else fits)
    if count == 0:
        wants = f"{cores:g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        raise ConfigError("--cores", f"no node of the cluster has {wants} for a run")
    return count


def node_facts(timeout: float = 60.0) -> dict[str, Facts | str]:
    """What each node that is alive has installed, by its name; or why it cannot be said."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0)(my_facts)
            name = f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"
            asked[name] = task.options(scheduling_strategy=pinned).remote()
    found: dict[str, Facts | str] = {}
    for name, reference in asked.items():
        try:
            found[name] = ray.get(reference, timeout=timeout)
        except Exception as error:
            text = str(error).strip().splitlines()
            found[name] = f"cannot run fedast ({text[-1] if text else type(error).__name__})"
    return found


def check_nodes(allow_mixed: bool, *, gpus: bool) -> None:
    """Refuse a cluster whose nodes would not give what this machine's fedast gives."""
    wrong = problems(my_facts(), node_facts(), allow_mixed=allow_mixed, gpus=gpus)
    if wrong:
        more = f" (and {len(wrong) - 1} more: fedast cluster check)" if len(wrong) > 1 else ""
        raise ConfigError("--on", wrong[0] + more)


def _forkless(runs: Any) -> Any:
    """Ray forbids forking in its workers, so a run has one worker of its own."""

    def prepared(run: BatchRun) -> BatchRun:
        from dataclasses import replace

        compute = run.config.compute
        for trainer in (compute.trainer, *compute.trainers.values()):
            if not isinstance(trainer, str) and trainer.forks:
                raise ConfigError(
                    "compute.trainer", f"{trainer.name} forks, which Ray forbids; use auto"
                )
        config = run.config.model_copy(
            update={"compute": compute.model_copy(update={"workers": 1})}
        )
        return replace(run, config=config)

    if isinstance(runs, list | tuple):
        return [prepared(run) for run in runs]
    return map(prepared, runs)


class _Post:
    """The mailbox: what runs report, and which of them are to end."""

    def __init__(self) -> None:
        self._pulses: dict[int, Pulse] = {}
        self._files: list[tuple[int, dict[str, bytes]]] = []
        self._halted: set[int] = set()

    def report(self, pulse: Pulse) -> None:
        self._pulses[pulse.run] = pulse

    def deliver(self, number: int, files: dict[str, bytes]) -> None:
        self._files.append((number, files))

    def collect(self) -> tuple[list[Pulse], list[tuple[int, dict[str, bytes]]]]:
        found = list(self._pulses.values()), self._files
        self._pulses, self._files = {}, []
        return found

    def halt(self, number: int, wanted: bool) -> None:
        (self._halted.add if wanted else self._halted.discard)(number)

    def halted(self, number: int) -> bool:
        return number in self._halted


@final
class RayWorkers:
    def __init__(self, options: Ray) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        connect(options.cluster)
        check_nodes(options.allow_mixed, gpus=options.gpus > 0)
        places(options.cores, options.gpus)
        self._ray = ray
        self._options = options
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._post = ray.remote(num_cpus=0)(_Post).options(scheduling_strategy=here).remote()
        self._run = ray.remote(
            num_cpus=options.cores, num_gpus=options.gpus, max_retries=0
        )(_remote_run)  # fmt: skip
        self._facts = ray.put(my_facts())
        self._running: dict[Any, int] = {}
        self._out: dict[int, Path | None] = {}
        self._halted: set[int] = set()
        self._kept: list[Pulse] = []
        self._due = 0.0

    def begin(self, work: Work) -> None:
        self._out[work.number] = work.out
        self._halted.discard(work.number)
        self._ask(self._post.halt.remote(work.number, False))
        token, files = None, {}
        if work.out is not None:
            if self._options.shared is not False:
                token = _place_token(work.out)
            if work.resume and not self._options.shared:
                files = read_files(work.out)
        given = self._ray.put(files)
        reference = self._run.remote(
            work, token, self._options.shared, [given], self._post, self._facts
        )
        self._running[reference] = work.number

    def halt(self, number: int) -> None:
        if number not in self._halted:
            self._halted.add(number)
            self._post.halt.remote(number, True)

    def pulses(self) -> Iterator[Pulse]:
        if time.monotonic() < self._due or not self._ray.is_initialized():
            return
        self._collect()
        kept, self._kept = self._kept, []
        yield from kept

    def _collect(self) -> None:
        self._due = time.monotonic() + _LOOK
        pulses, deliveries = self._ask(self._post.collect.remote())
        self._kept += pulses
        for number, files in deliveries:
            out = self._out[number]
            if out is not None and number in self._running.values():
                write_files(out, files)

    def ended(self) -> Iterator[Ended]:
        if not self._running:
            return
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if ready:
            self._collect()  # what they sent before they ended, and not after their last files
        for reference in ready:
            number = self._running.pop(reference)
            yield number, self._outcome(number, reference)

    def _outcome(self, number: int, reference: Any) -> tuple[RunResult, Compute] | Exception:
        errors = self._ray.exceptions
        try:
            result, compute, files = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            return cause if isinstance(cause, Exception) else RuntimeError(str(cause))
        except errors.OutOfMemoryError:
            return WorkerLost("Ray ended its worker, since its node ran out of memory")
        except errors.RayError as error:
            return WorkerLost(f"its worker is gone ({type(error).__name__})")
        out = self._out[number]
        if out is not None and files is not None:
            write_files(out, files)
        return result, compute

    def _ask(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterLost(
                f"Ray does not answer any more ({type(error).__name__}); finished runs are kept: "
                "start Ray again and repeat the command"
            ) from None

    def rest(self) -> None:
        pass

    def close(self) -> None:
        """The connection stays; a later batch uses it again."""
        if not self._ray.is_initialized():
            return
        limit = time.monotonic() + _ENDING
        while self._running and time.monotonic() < limit:
            for _ in self.ended():
                pass
            time.sleep(0.05)
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._due = 0.0


def _place_token(out: Path) -> tuple[str, str]:
    """A file by which a node can tell that it sees the same folder."""
    import uuid

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


def _remote_run(
    work: Work,
    token: tuple[str, str] | None,
    shared: bool | None,
    given: list[Any],
    post: Any,
    facts: Facts,
) -> tuple[RunResult, Compute, dict[str, bytes] | None]:
    """On the node: one run."""
    from dataclasses import replace

    import ray

    from fedast.run.work import carried_out

    wrong = problems(facts, {"its node": my_facts()}, allow_mixed=True, gpus=False)
    if wrong:
        raise RuntimeError(wrong[0])
    halted = threading.Event()
    over = threading.Event()

    def ask() -> None:
        while not over.wait(_LOOK):
            if ray.get(post.halted.remote(work.number)):
                halted.set()

    def report(pulse: Pulse) -> None:
        post.report.remote(pulse)

    def deliver(files: dict[str, bytes]) -> None:
        ray.get(post.deliver.remote(work.number, files))

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
            mirror = threading.Thread(target=_mirror, args=(out, deliver, over), daemon=True)
            mirror.start()
            result, compute = carried_out(replace(work, out=out), report, halted.is_set)
            over.set()
            mirror.join()
            return result, compute, read_files(out)
    finally:
        over.set()


def _mirror(out: Path, deliver: Callable[[dict[str, bytes]], None], over: threading.Event) -> None:
    """Send what a run could go on from as it is written: its configuration and checkpoints."""
    sent: set[str] = set()
    while not over.wait(_LOOK):
        names = {path.name for path in (out / _CHECKPOINTS).glob("*.json")} - sent
        if names:
            try:
                files = read_files(out, only_checkpoints=True)
            except OSError:  # an older one was just removed
                continue
            deliver(files)
            sent |= names


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
