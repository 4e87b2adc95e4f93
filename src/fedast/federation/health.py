"""A server's health as seen from outside: metrics for Prometheus, and checks.

The checks (``/healthz``): the event loop runs, events are handled and committed, the transport has
a connection, the disk has room. ``/readyz`` also checks whether the log has been recovered and
enough clients are connected. All of it is read by threads of a web server (``http``), so it works
from a snapshot that the server takes between two events.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedast.core.protocol import ClientId
from fedast.federation.certificates import Certificate, federation_of, visible
from fedast.federation.metrics import ServerMetrics, Snapshot
from fedast.federation.transport import Monitored, ServerTransport
from fedast.federation.write_ahead_log import FOLDER, WriteAheadLog
from fedast.version import __version__

log = logging.getLogger("fedast.server")
_BEAT = 1.0
_LOOP_LIMIT = 10.0
"""Seconds without the event loop having run."""
_WORK_LIMIT = 600.0
"""Seconds that handling one event may take: an evaluation on a large test set is one."""
_COMMIT_LIMIT = 30.0
"""Seconds that something may wait to be committed."""
_CONNECTION_LIMIT = 30.0
"""Seconds without a connection."""
_LEAST_ROOM = 100 * 2**20
_MOST_CLIENTS = 50
"""How many clients and certificates have metrics of their own: the worst ones."""
_CERTIFICATES_EVERY = 3600.0
_WARN_EVERY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    good: bool
    says: str


@final
class Monitor(Collector):
    def __init__(
        self,
        *,
        metrics: ServerMetrics,
        transport: ServerTransport,
        wal: WriteAheadLog,
        folder: Path,
        min_clients: int,
        credentials: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``folder``: of the records and the log; ``credentials``: the server's own."""
        self._metrics = metrics
        self._transport = transport
        self._wal = wal
        self._folder = folder
        self._min_clients = min_clients
        self._credentials = credentials
        self._clock = clock
        self._beat = self._clean = self._connected = clock()
        """When the event loop last ran, nothing was uncommitted, the transport was connected."""
        self._certificates: Sequence[Certificate] = ()
        self._disk_free = shutil.disk_usage(folder).free
        self._log_bytes = 0
        metrics.registry.register(self)

    async def run(self) -> None:
        """Watch the server until cancelled."""
        looked = warned = -1e9
        while True:
            now = self._beat = self._clock()
            if not self._wal.dirty:
                self._clean = now
            if self._is_connected:
                self._connected = now
            if now - looked >= _CERTIFICATES_EVERY:
                looked = now
                await asyncio.to_thread(self._look_at_certificates)
            if now - warned >= _WARN_EVERY:
                warned = now
                self._warn()
            await asyncio.to_thread(self._look_at_disk)
            await asyncio.sleep(_BEAT)

    @property
    def _is_connected(self) -> bool:
        return not isinstance(self._transport, Monitored) or self._transport.connected

    def _look_at_certificates(self) -> None:
        if self._credentials is not None:
            self._certificates = visible(self._credentials)

    def _look_at_disk(self) -> None:
        with suppress(OSError):  # a file that has just gone: next time
            self._disk_free = shutil.disk_usage(self._folder).free
            log = self._folder / FOLDER
            self._log_bytes = sum(p.stat().st_size for p in log.glob("*") if p.is_file())

    def _warn(self) -> None:
        soon = [certificate for certificate in self._certificates if certificate.soon]
        root = None if self._credentials is None else federation_of(self._credentials)
        for certificate in soon[:_MOST_CLIENTS]:
            log.warning("%s", certificate.warning(root))
        if len(soon) > _MOST_CLIENTS:
            log.warning("%d more certificates expire soon", len(soon) - _MOST_CLIENTS)

    # --- checks ---------------------------------------------------------------------------------

    @property
    def _uncommitted(self) -> float:
        """Seconds that something has been waiting to be committed."""
        if not self._wal.dirty:
            return 0.0
        return max(0.0, self._clock() - max(self._clean, self._metrics.last_commit))

    def health(self) -> list[Check]:
        now, snapshot = self._clock(), self._metrics.snapshot
        silent, cut = now - self._beat, now - self._connected
        busy = 0.0 if snapshot is None else now - snapshot.taken
        waiting = self._uncommitted
        return [
            Check("event_loop", silent < _LOOP_LIMIT, f"ran {silent:.0f} s ago"),
            Check("work", busy < _WORK_LIMIT, f"the last event was handled {busy:.0f} s ago"),
            Check("commits", waiting < _COMMIT_LIMIT, f"uncommitted for {waiting:.0f} s"),
            Check("transport", cut < _CONNECTION_LIMIT,
                  "connected" if self._is_connected else f"no connection for {cut:.0f} s"),
            Check("disk", self._disk_free >= _LEAST_ROOM,
                  f"{self._disk_free >> 20} MB free in {self._folder}"),
        ]  # fmt: skip

    def readiness(self) -> list[Check]:
        snapshot, wanted = self._metrics.snapshot, self._min_clients
        here = 0 if snapshot is None else snapshot.clients
        return [
            *self.health(),
            Check("recovered", snapshot is not None,
                  "serving" if snapshot is not None else "the log is being recovered"),
            Check("clients", here >= wanted, f"{here} clients here, {wanted} wanted"),
        ]  # fmt: skip

    def status(self) -> str:
        """As JSON: what ``fedast ctl status`` answers, or null while the log is recovered."""
        snapshot = self._metrics.snapshot
        return "null" if snapshot is None else snapshot.status

    # --- meters ---------------------------------------------------------------------------------

    def collect(self) -> Iterator[GaugeMetricFamily]:
        def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"fedast_{name}", text, value=value)

        now = self._clock()
        info = GaugeMetricFamily("fedast_info", "The server's version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield gauge("healthy", "1 if every check of /healthz is good.", _all(self.health()))
        yield gauge("ready", "1 if every check of /readyz is good.", _all(self.readiness()))
        yield gauge("connected", "1 if the transport has a connection.", self._is_connected)
        yield gauge("event_loop_age_seconds", "Since the event loop ran.", now - self._beat)
        age = now - self._metrics.last_commit
        yield gauge("commit_age_seconds", "Since the last commit of the log.", age)
        yield gauge(
            "uncommitted_seconds", "For which an event waits to be committed.", self._uncommitted
        )
        yield gauge("log_bytes", "Size of the write-ahead log, without tensors.", self._log_bytes)
        yield gauge("log_entries", "Entries of the write-ahead log.", self._wal.count)
        yield gauge("disk_free_bytes", "Room on the disk of the records.", self._disk_free)
        yield gauge("min_clients", "Clients that should be here.", self._min_clients)
        expiry = GaugeMetricFamily(
            "fedast_certificate_expiry_seconds",
            "Until a certificate expires: the first to do so, of those that the server can see.",
            labels=["name"],
        )
        for certificate in _shown(self._certificates):
            expiry.add_metric([certificate.name], certificate.seconds)
        yield expiry
        yield from _of_clients(self._metrics.snapshot)


def _all(checks: Sequence[Check]) -> bool:
    return all(check.good for check in checks)


def _shown(certificates: Sequence[Certificate]) -> Iterator[Certificate]:
    """All but clients', and the first of theirs to expire."""
    clients = [c for c in certificates if c.name.startswith("client-")]
    yield from (c for c in certificates if not c.name.startswith("client-"))
    yield from clients[:_MOST_CLIENTS]


def _of_clients(snapshot: Snapshot | None) -> Iterator[GaugeMetricFamily]:
    def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"fedast_{name}", text, value=value)

    def per_client(name: str, text: str, values: Mapping[ClientId, float]) -> GaugeMetricFamily:
        found = GaugeMetricFamily(f"fedast_client_{name}", text, labels=["client"])
        for client, value in heapq.nlargest(_MOST_CLIENTS, values.items(), key=lambda x: x[1]):
            found.add_metric([str(client)], value)
        return found

    paused = snapshot is not None and snapshot.paused
    quarantined = 0 if snapshot is None else snapshot.quarantined
    strikes = {} if snapshot is None else {c: n for c, n in snapshot.strikes.items() if n > 0}
    failures = {} if snapshot is None else {c: n for c, n in snapshot.failures.items() if n > 0}
    silence: dict[ClientId, float] = {}
    if snapshot is not None:
        silence = {c: max(0.0, snapshot.now - t) for c, t in snapshot.last_seen.items()}
    yield gauge("paused", "1 while no new requests go out.", paused)
    yield gauge("quarantined_clients", "Clients in quarantine.", quarantined)
    yield gauge("strikes", "Strikes of all clients together.", sum(strikes.values()))
    yield per_client(
        "last_seen_seconds", "Since a client's last sign of life; the longest.", silence
    )
    yield per_client("strikes", "Strikes of a client; the most.", strikes)
    yield per_client("failures", "Failures of a client in a row; the most.", failures)


def as_json(checks: Sequence[Check]) -> str:
    table = {check.name: {"good": check.good, "says": check.says} for check in checks}
    return json.dumps({"good": _all(checks), "checks": table}, indent=2) + "\n"
