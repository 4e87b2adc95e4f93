"""All records under the folders that are shown, kept up to date by a thread that looks at sizes and
times of files. Whoever asks gets what was on the disk a second ago.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from fedast.records.run import UnusableFolder
from fedast.report.ui.find import Found, Kind, find
from fedast.report.ui.history import Curve, History
from fedast.report.ui.record import Record, leaves

log = logging.getLogger("fedast.ui")
_EVERY = 0.7
"""Seconds between two looks at the folders, unless a look takes long."""
_SHARE = 10
"""Looking takes at most this fraction of a core."""
_KEPT = 250
"""Histories in memory."""
_BATCH = 25
"""Records after which the page is told, while many are read."""


@final
class Library:
    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise UnusableFolder(f"{root}: there is no such folder")
        self.roots = tuple(roots)
        self._titles = _titles(roots)
        self._records: dict[str, Record] = {}
        self._places: dict[str, Found] = {}
        """Federations and sweeps."""
        self._changed: dict[str, int] = {}
        """When each record last changed, as a number of ``version``."""
        self._gone: dict[str, int] = {}
        self._used: OrderedDict[str, None] = OrderedDict()
        self.version = 0
        self._keys: tuple[int, dict[str, int]] = (-1, {})
        self._lock = threading.RLock()
        self._news = threading.Condition()
        self._end = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None

    # --- following the folders -------------------------------------------------------------------

    def __enter__(self) -> Library:
        self._thread = threading.Thread(target=self._watch, name="fedast-ui-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        with self._news:
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(10)

    def _watch(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            try:
                self.look()
            except Exception:  # the page goes on with what it has
                log.exception("the folders cannot be looked at")
            self._looked.set()
            self._end.wait(max(_EVERY, _SHARE * (time.monotonic() - began)))

    def look(self) -> None:
        """Look at the folders once."""
        seen: set[str] = set()
        held = _held_locks()
        touched = 0
        for root, title in zip(self.roots, self._titles, strict=True):
            for found in find(root, title):
                if found.id in seen:
                    continue  # one of the folders is inside another
                seen.add(found.id)
                touched += self._take(found, held)
                if touched >= _BATCH:
                    touched = 0
                    self._publish()
                if self._end.is_set():
                    return
        with self._lock:
            for missing in [name for name in self._records if name not in seen]:
                del self._records[missing]
                self._used.pop(missing, None)
                self._changed.pop(missing, None)
                self._gone[missing] = self.version + 1
                touched += 1
            self._places = {key: p for key, p in self._places.items() if key in seen}
        if touched:
            self._publish()

    def _take(self, found: Found, held: Callable[[int], bool]) -> bool:
        """Whether something has changed."""
        with self._lock:
            if found.kind in ("federation", "sweep"):
                before = self._places.get(found.id)
                self._places[found.id] = found
                return before != found
            record = self._records.get(found.id)
            if record is None:
                self._records[found.id] = Record(found, held)
                self._gone.pop(found.id, None)
            elif record.found.stamp != found.stamp:
                record.refresh(found, held)
            elif record.summary["status"] in ("finished", "broken"):
                return False
            else:
                old = record.summary
                record.update_status(held)
                if record.summary == old:
                    return False
            self._changed[found.id] = self.version + 1
            return True

    def _publish(self) -> None:
        with self._news:
            self.version += 1
            self._news.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """The present version, as soon as it is another one or the time is over."""
        with self._news:
            self._news.wait_for(lambda: self.version != version or self._end.is_set(), seconds)
            return self.version

    def wait_for_first_look(self, seconds: float) -> bool:
        return self._looked.wait(seconds)

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    @property
    def empty(self) -> bool:
        return not self._records and not self._places

    @property
    def ready(self) -> bool:
        """Whether every folder has been looked at once."""
        return self._looked.is_set()

    # --- asking -----------------------------------------------------------------------------------

    def summaries(self, since: int = -1) -> tuple[int, list[dict[str, Any]], list[str]]:
        """The version, what has changed since an earlier one, and what has gone."""
        with self._lock:
            rows = [
                record.summary
                for key, record in self._records.items()
                if self._changed[key] > since
            ]
            return self.version, rows, [key for key, at in self._gone.items() if at > since]

    def federations(self) -> list[Found]:
        with self._lock:
            return [place for place in self._places.values() if place.kind == "federation"]

    def federation(self, number: str) -> Found:
        return self._place(number, "federation")

    def sweeps(self) -> list[Found]:
        with self._lock:
            return [place for place in self._places.values() if place.kind == "sweep"]

    def sweep(self, number: str) -> Found:
        return self._place(number, "sweep")

    def _place(self, number: str, kind: Kind) -> Found:
        found = self._places[number]
        if found.kind != kind:
            raise KeyError(number)
        return found

    def ids(self) -> dict[Path, str]:
        """Numbers of records by their paths."""
        with self._lock:
            return {record.found.path: number for number, record in self._records.items()}

    @contextmanager
    def record(self, number: str) -> Iterator[tuple[Record, History]]:
        """A record with its history; nobody changes it meanwhile. ``KeyError``: there is none."""
        with self._lock:
            record = self._records[number]
            yield record, record.history()
            self._use(number)

    @contextmanager
    def curves(self, number: str, axis: str) -> Iterator[tuple[Record, Mapping[str, Curve]]]:
        """A record with its evaluations by task; else as ``record``."""
        with self._lock:
            record = self._records[number]
            yield record, record.curves(axis)
            self._use(number)

    def _use(self, number: str) -> None:
        """Forget the histories that nobody has asked for of late."""
        self._used[number] = None
        self._used.move_to_end(number)
        while len(self._used) > _KEPT:
            oldest, _ = self._used.popitem(last=False)
            if oldest in self._records:
                self._records[oldest].forget()

    def config(self, number: str) -> dict[str, Any]:
        with self._lock:
            return dict(leaves(self._records[number]))

    def keys(self) -> dict[str, int]:
        """The keys of the configurations in which runs differ, and how many values each has."""
        with self._lock:
            if self._keys[0] != self.version:
                found: dict[str, dict[Any, int]] = {}
                for record in self._records.values():
                    for name, value in leaves(record):
                        counts = found.setdefault(name, {})
                        counts[value] = counts.get(value, 0) + 1
                whole = sum(1 for record in self._records.values() if record.config)
                table = {
                    name: len(counts)
                    for name, counts in found.items()
                    if len(counts) > 1 or sum(counts.values()) < whole
                }
                self._keys = self.version, table
            return self._keys[1]

    def column(self, key: str) -> dict[str, Any]:
        """The value of a key for each run that has it."""
        with self._lock:
            return {
                number: value
                for number, record in self._records.items()
                for name, value in leaves(record)
                if name == key
            }


def _titles(roots: Sequence[Path]) -> list[str]:
    """What goes before names: nothing if there is one folder, else the folders' own names."""
    if len(roots) == 1:
        return [""]
    names = [root.resolve().name for root in roots]
    twice = {name for name in names if names.count(name) > 1}
    return [str(root) if name in twice else name for root, name in zip(roots, names, strict=True)]


def _held_locks() -> Callable[[int], bool]:
    """Linux says who holds which lock; elsewhere the page goes by whether files still change."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return lambda number: False
    numbers = {fields[5].rpartition(":")[2] for line in lines if len(fields := line.split()) > 5}
    return lambda number: str(number) in numbers
