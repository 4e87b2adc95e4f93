"""The server's metrics, for Prometheus and for ``fedast federation status``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric

from fedast.core.protocol import Algorithm, ClientId, Version
from fedast.federation.driver import Driver, LivePool
from fedast.federation.membership import Membership
from fedast.federation.state import ServerState
from fedast.records.metrics import RunMetrics

_LISTED = 1000
"""The most clients that a status lists."""
_SNAPSHOT_EVERY = 1.0
_REASONS_LISTED = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server's state at a moment between two events, for threads that must not touch it."""

    taken: float
    """By ``time.monotonic``."""
    now: float
    """Seconds since the federation began."""
    status: str
    """As JSON, the answer to ``status``."""
    clients: int
    training: bool
    paused: bool
    quarantined: int
    last_seen: Mapping[ClientId, float]
    strikes: Mapping[ClientId, int]
    failures: Mapping[ClientId, int]


@final
class ServerMetrics:
    def __init__(self, algorithm: Algorithm, run_metrics: RunMetrics, min_clients: int = 1) -> None:
        """``min_clients``: how many should be connected."""
        self._min_clients = min_clients
        self._algorithm = algorithm
        self._run_metrics = run_metrics
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"fedast_{name}", text, labels, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> CounterMetric:
            return CounterMetric(f"fedast_{name}", text, labels, registry=self.registry)

        self.updates = counter("updates", "Updates that counted.", "task")
        self.invalid = counter("invalid_updates", "Updates that were refused.")
        self.ignored = counter("ignored_updates", "Updates that came late, twice or unasked for.")
        self.roll_backs = counter("roll_backs", "Times that a bad model was rolled back.", "task")
        self.commit_failures = counter("commit_failures", "Commits that failed.")
        self._commits = Histogram(
            "fedast_commit_seconds", "Time of a commit.", registry=self.registry
        )
        self.last_commit = time.monotonic()
        """When the last commit ended, or the server began."""
        self.storage_losses = counter(
            "storage_losses", "Times that the transport came back with less than it had stored."
        )
        self.snapshot: Snapshot | None = None
        self._last_seen: Mapping[ClientId, float] = {}
        self._clients = gauge("clients", "Clients that have joined.")
        self._flight = gauge("requests_in_flight", "Requests in flight.", "task")
        self._rounds = gauge("round", "Rounds of a task.", "task")
        self._metric = gauge("metric", "A task's latest test metric.", "task")

    def committed(self, seconds: float) -> None:
        """A commit has ended; it took so long."""
        self._commits.observe(seconds)
        self.last_commit = time.monotonic()

    def take_snapshot(
        self, state: ServerState, last_seen: Mapping[ClientId, float], now: float
    ) -> None:
        """Call this often, between events; about one call a second does something."""
        moment = time.monotonic()
        if self.snapshot is not None and moment - self.snapshot.taken < _SNAPSHOT_EVERY:
            return
        membership = state.membership
        self._last_seen = dict(last_seen)  # which the status shows too
        self.snapshot = Snapshot(
            taken=moment,
            now=now,
            status=self.status(state.driver, state.pool, membership, now),
            clients=len(state.pool),
            training=state.training,
            paused=state.pool.paused,
            quarantined=len(membership.quarantined),
            last_seen=self._last_seen,
            strikes=dict(membership.strikes),
            failures=dict(membership.failures),
        )

    def update(self, pool: LivePool) -> None:
        """Set the gauges, after an event."""
        self._clients.set(len(pool))
        for status in self._algorithm.status():
            self._flight.labels(status.name).set(status.in_flight)
            self._rounds.labels(status.name).set(status.round)
            curve = self._run_metrics.tasks[status.name].curve
            if curve:
                self._metric.labels(status.name).set(curve[-1].value)

    def status(self, driver: Driver, pool: LivePool, membership: Membership, now: float) -> str:
        quarantined = sorted(membership.quarantined)[:_LISTED]
        held = Counter(send.client for send in driver.open.values())
        work: dict[str, list[dict[str, object]]] = {}
        versions: dict[str, Counter[Version]] = {}
        for request, send in driver.open.items():
            versions.setdefault(send.task, Counter())[send.version] += 1
            if len(work) < _LISTED or str(send.client) in work:
                doing = {"task": send.task, "version": send.version, "request": request}
                work.setdefault(str(send.client), []).append(doing)
        seen = self._last_seen
        table = {
            "seconds": round(now, 1),
            "began": driver.sent > 0,
            "client_count": len(pool),
            "min_clients": self._min_clients,
            "clients": pool.here[:_LISTED],
            "paused": pool.paused,
            "resting": sorted(pool.resting)[:_LISTED],
            "quarantined": quarantined,
            "reasons": {
                str(client): [
                    {"t": round(r.time, 1), "why": r.why} for r in membership.reasons(client)
                ]
                for client in sorted({*quarantined, *membership.strikes})[:_REASONS_LISTED]
            },
            "requests": {str(client): held[client] for client in sorted(held)[:_LISTED]},
            "work": work,
            "versions": versions,
            "strikes": _first(membership.strikes),
            "failures": _first(membership.failures),
            "counted": _first(self._run_metrics.counted),
            "last_seen": {
                str(client): round(max(0.0, now - seen[client]), 1)
                for client in sorted(seen)[:_LISTED]
            },
            "commit_age": round(time.monotonic() - self.last_commit, 1),
            "tasks": {
                status.name: {
                    "round": status.round,
                    "in_flight": status.in_flight,
                    "requests": status.active_requests,
                    "buffered": status.buffered,
                    "buffer": status.buffer_size,
                    "updates": self._run_metrics.tasks[status.name].updates,
                    "metric": self._latest(status.name),
                    "finished": None if status.finished is None else status.finished.value,
                }
                for status in self._algorithm.status()
            },
        }
        return json.dumps(table)

    def _latest(self, task: str) -> float | None:
        curve = self._run_metrics.tasks[task].curve
        return round(curve[-1].value, 4) if curve else None


def _first(counts: Mapping[ClientId, int]) -> dict[str, int]:
    """Of as many clients as a status lists, those that have any."""
    found = sorted(client for client, count in counts.items() if count)
    return {str(client): counts[client] for client in found[:_LISTED]}
