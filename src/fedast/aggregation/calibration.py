"""Cached calibration: each client's latest update stands in for it while it is absent.

Wang, Cao, Wang, Chen: "Tackling the Data Heterogeneity in Asynchronous
Federated Learning with Cached Update Calibration" (CA2FL), ICLR 2024.

The server keeps each client's latest update h_i (zero at first) and their mean
over all clients, h. A round's direction is h + mean over the buffer of
(Delta_i - h_i): if clients are chosen uniformly its expectation is that of the
plain mean, and it varies less if what a client sends resembles what it sent
before more than it resembles what others send.

That is also the measure of heterogeneity by which ``auto`` chooses, round by
round: for two updates in a row the squared distance |Delta_i - Delta_j|^2 is
compared with |(Delta_i - h_i) - (Delta_j - h_j)|^2, each averaged over the
latest rounds. Half of either expectation is the variance of a single
contribution, with and without calibration; the smaller one is used.

Memory: clients x parameters, in single or half precision (bfloat16), on the
training device, in main memory, or in a file without a name that goes with the
process. ``auto`` needs it too, since it measures with the cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, final

import torch

from fedast.aggregation.aggregators import Aggregator
from fedast.aggregation.settings import Calibration
from fedast.core.protocol import ClientId

Place: TypeAlias = Literal["auto", "device", "host", "disk"]

_MEMORY_PART = 0.25
"""The part of free memory that a cache may take before ``auto`` tries the next place."""
_FORGET = 1 / 32
"""How fast the averages of ``auto`` follow: the weight of the newest pair."""
_PAIRS = 8
"""Pairs of updates that ``auto`` wants to have seen before it calibrates."""


class NoRoom(ValueError):
    """The cache fits nowhere; the message says what it needs."""


@final
class Cache:
    """Each client's latest update, and their mean over all clients."""

    def __init__(self, settings: Calibration, clients: int, initial: torch.Tensor) -> None:
        parameters, device = len(initial), initial.device
        need = settings.memory(clients, parameters)
        self.place = _find_place(settings.place, need, device)
        self._dtype = torch.float32 if settings.precision == "single" else torch.bfloat16
        self._device = device if self.place == "device" else torch.device("cpu")
        self.mean = torch.zeros_like(initial)
        self._rows = self._zeros(clients, parameters)
        self._first = clients
        """Those of the beginning have the row of their own number."""
        self._late: dict[ClientId, int] = {}
        """The rows of clients that were admitted later."""

    def _zeros(self, rows: int, parameters: int) -> torch.Tensor:
        if self.place == "disk":
            return _on_disk(rows * parameters, self._dtype).view(rows, parameters)
        return torch.zeros(rows, parameters, dtype=self._dtype, device=self._device)

    def latest(self, clients: Sequence[ClientId]) -> torch.Tensor:
        self._admit(clients)
        rows = [self._row(client) for client in clients]
        return self._rows[torch.tensor(rows, device=self._rows.device)].to(self.mean)

    def remember(self, clients: Sequence[ClientId], updates: torch.Tensor) -> None:
        """Of a client that is there twice, the later update."""
        last = {client: place for place, client in enumerate(clients)}
        before = self.latest(list(last))
        rows = [self._row(client) for client in last]
        new = updates[list(last.values())].to(self._rows.device, self._rows.dtype)
        self._rows[torch.tensor(rows, device=self._rows.device)] = new
        change = new.to(self.mean) - before  # as it was rounded
        self.mean = self.mean + change.sum(dim=0) / len(self._rows)

    def _admit(self, clients: Iterable[ClientId]) -> None:
        """Rows of zeros for clients that are new; the mean is over one more for each."""
        count = len(self._rows)
        for client in clients:
            if client >= self._first and client not in self._late:
                self._late[client] = self._first + len(self._late)
        wanted = self._first + len(self._late)
        if wanted > count:
            rows = self._zeros(wanted, self._rows.shape[1])
            rows[:count] = self._rows
            self._rows = rows
            self.mean = self.mean * (count / wanted)

    def _row(self, client: ClientId) -> int:
        return client if client < self._first else self._late[client]

    def forget(self, clients: Collection[ClientId]) -> None:
        """As if these had never sent anything. The mean is recomputed, because it may not be
        finite."""
        known = [client for client in clients if client < self._first or client in self._late]
        if known:
            rows = sorted(self._row(client) for client in known)
            self._rows[torch.tensor(rows, device=self._rows.device)] = 0
        total = torch.zeros_like(self.mean)
        for some in torch.split(self._rows, 64):
            total += some.to(total).sum(dim=0)
        self.mean = total / len(self._rows)

    def state(self) -> dict[str, torch.Tensor]:
        state = {"rows": self._rows, "mean": self.mean}
        return state | {"late": torch.tensor(list(self._late))} if self._late else state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        # (Older checkpoints have running statistics behind the parameters.)
        parameters = len(self.mean)
        if "late" in state:
            self._admit(state["late"].tolist())
        self._rows.copy_(state["rows"][:, :parameters])
        self.mean = state["mean"][:parameters].to(self.mean)


@final
class Calibrator:
    """One task's calibration at work."""

    def __init__(self, settings: Calibration, clients: int, initial: torch.Tensor) -> None:
        self._always = settings.use == "always"
        self.cache = Cache(settings, clients, initial)
        self.rounds = 0
        """Rounds whose direction was calibrated."""
        self._pairs = 0
        self._plain = 0.0
        self._calibrated = 0.0
        self._last: torch.Tensor | None = None
        """The latest update and its difference from what its client had sent before."""

    def direction(
        self,
        clients: Sequence[ClientId],
        updates: torch.Tensor,
        weights: torch.Tensor | None,
        aggregate: Aggregator,
    ) -> torch.Tensor:
        differences = updates - self.cache.latest(clients)
        self._measure(updates, differences)
        calibrated = self._always or (self._pairs >= _PAIRS and self._calibrated < self._plain)
        parts = differences if calibrated else updates
        if weights is not None:
            parts = parts * weights[:, None]
        direction = aggregate(parts)
        if calibrated:
            direction = self.cache.mean + direction
            self.rounds += 1
        self.cache.remember(clients, updates)
        return direction

    def forget(self, clients: Collection[ClientId]) -> None:
        """What these clients sent, and what was measured of it, was bad."""
        self.cache.forget(clients)
        self._pairs, self._plain, self._calibrated, self._last = 0, 0.0, 0.0, None

    def _measure(self, updates: torch.Tensor, differences: torch.Tensor) -> None:
        both = torch.stack([updates, differences], dim=1)
        chain = both if self._last is None else torch.cat([self._last[None], both])
        self._last = both[-1]
        for plain, calibrated in (chain[1:] - chain[:-1]).square().sum(dim=2).tolist():
            self._pairs += 1
            weight = max(_FORGET, 1 / self._pairs)
            self._plain += weight * (plain - self._plain)
            self._calibrated += weight * (calibrated - self._calibrated)

    def state(self) -> dict[str, torch.Tensor]:
        numbers = [float(self.rounds), float(self._pairs), self._plain, self._calibrated]
        state = self.cache.state() | {"measured": torch.tensor(numbers, dtype=torch.float64)}
        return state if self._last is None else state | {"last": self._last}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self.cache.restore(state)
        rounds, pairs, self._plain, self._calibrated = state["measured"].tolist()
        self.rounds, self._pairs = int(rounds), int(pairs)
        self._last = None
        if "last" in state:
            self._last = state["last"][:, : len(self.cache.mean)].to(self.cache.mean)


def _find_place(wanted: Place, need: int, device: torch.device) -> Place:
    """The first place with room; a place that the user chose is used if it has room."""
    free = {"host": _free_memory(), "disk": shutil.disk_usage(tempfile.gettempdir()).free}
    if device.type == "cuda":
        free["device"] = torch.cuda.mem_get_info(device)[0]
    else:
        free["device"] = free["host"]
    if wanted != "auto":
        if need > free[wanted]:
            raise NoRoom(
                f"cached calibration needs {size_text(need)}, but {wanted} has "
                f"{size_text(free[wanted])} free; take another place, half precision or fewer "
                "clients"
            )
        return wanted
    places: tuple[Place, ...] = ("device", "host", "disk")
    for place in places:
        part = 0.9 if place == "disk" else _MEMORY_PART
        if need <= part * free[place]:
            return place
    raise NoRoom(
        f"cached calibration needs {size_text(need)}, more than there is on the device, in main "
        'memory or on disk; take half precision, fewer clients, or calibration = "never"'
    )


def _free_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(ln for ln in lines if ln.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _on_disk(entries: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in a sparse file that has no name any more, so nothing is left behind."""
    handle, name = tempfile.mkstemp(prefix="fedast-")
    os.close(handle)
    try:
        return torch.from_file(name, shared=True, size=entries, dtype=dtype)
    finally:
        os.unlink(name)


def size_text(size: float) -> str:
    """A number of bytes for people."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.0f} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"
