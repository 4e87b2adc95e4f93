"""The step-by-step figures of "The method in ten minutes", drawn from the events of a real run.

``python docs/figures.py FOLDER`` makes the run (a few seconds) and draws it. A small run is enough:
six clients, two tasks, ten requests; what is seen in it is what happens in a large one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedast import simulate
from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.run.build import build_tasks

CLIENTS = 6
RUN: dict[str, Any] = {
    "seed": 2,
    "algorithm": {
        "name": "fedast-d",
        "requests": 10,
        "ratio": 2.5,
        "server_lr": 0.4,
        "evaluate_every": 1,
        "variance_window": 3,
        "period": 0.9,
    },
    "simulation": {
        "clients": CLIENTS,
        "max_time": 25.0,
        "availability": {"name": "always"},
        "speeds": {"factors": [1.8, 1.0, 0.7], "shares": [0.34, 0.33, 0.33]},
    },
    "compute": {"device": "cpu", "trainer": "serial"},
    "tasks": [
        {"use": "digits-mlp", "name": "A", "target": 0.6, "options": {"samples": 150}},
        {"use": "synthetic", "name": "B", "target": 0.99},
    ],
}
TASKS = [str(task["name"]) for task in RUN["tasks"]]
INK = {
    "light": {"text": "#1b1b1b", "faint": "#8a8f98", "grid": "#dfe2e6", "A": "#0072B2",
              "B": "#D55E00", "mark": "#111111"},
    "dark": {"text": "#e3e6ea", "faint": "#8d949e", "grid": "#3a3f45", "A": "#56B4E9",
             "B": "#F0A35E", "mark": "#ffffff"},
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A request at its client: it waits from ``sent``, is trained from ``begun`` to ``ended``."""

    request: int
    task: str
    client: int
    version: int
    sent: float
    begun: float | None
    ended: float | None
    staleness: int | None


@dataclass(frozen=True)
class Step:
    """One figure: the run up to ``time``."""

    name: str
    time: float
    said: str
    request: int | None = None
    """The one to mark."""


def events_of_a_run() -> list[dict[str, Any]]:
    config = resolve(parse(RUN))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        simulate(
            build_tasks(config),
            config.algorithm,
            config.simulation,
            seed=config.seed,
            compute=config.compute,
            events=file,
            noted=True,
        )
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def spans(events: Sequence[dict[str, Any]]) -> list[Span]:
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        match event["event"]:
            case "dispatch":
                found[event["request"]] = {**event, "begun": None, "ended": None, "staleness": None}
            case "start":
                found[event["request"]]["begun"] = event["t"]
            case "arrive":
                found[event["request"]] |= {"ended": event["t"], "staleness": event["staleness"]}
            case "drop" if found[event["request"]]["ended"] is None:
                found[event["request"]]["ended"] = event["t"]
    return [
        Span(one["request"], one["task"], one["client"], one["version"], one["t"], one["begun"],
             one["ended"], one["staleness"])
        for one in found.values()
    ]  # fmt: skip


def first(events: Sequence[dict[str, Any]], kind: str, **values: Any) -> dict[str, Any]:
    for event in events:
        if event["event"] == kind and all(event.get(key) == value for key, value in values.items()):
            return event
    raise LookupError(f"the run has no {kind} with {values}: choose another seed")


def steps(events: Sequence[dict[str, Any]]) -> Iterator[Step]:
    """What the page explains, in the order in which it happens."""
    arrived, full = first(events, "arrive"), first(events, "aggregate")
    stale = next(e for e in events if e["event"] == "arrive" and e["staleness"] >= 2)
    moved = next(
        e for e in events
        if e["event"] == "realloc" and e["cause"] == "period" and len({*e["targets"].values()}) > 1
    )  # fmt: skip
    ended = first(events, "realloc", cause="handover")
    total = RUN["algorithm"]["requests"]
    yield Step("send", 0.0, f"{total} requests go out, five for each model")
    yield Step(
        "arrive", arrived["t"], f"An update of {arrived['task']} arrives and goes into its buffer",
        arrived["request"],
    )  # fmt: skip
    yield Step(
        "aggregate", full["t"],
        f"The buffer of {full['task']} is full: model {full['task']}{full['round']}",
        full["requests"][-1],
    )  # fmt: skip
    yield Step(
        "stale", stale["t"],
        f"An update made from {stale['task']}{stale['version']} arrives when the model is "
        f"{stale['task']}{stale['version'] + stale['staleness']}: staleness {stale['staleness']}",
        stale["request"],
    )  # fmt: skip
    yield Step("move", moved["t"], f"Reallocation by variance: {_targets(moved)}")
    yield Step("end", ended["t"] + 4.0, f"A has reached its target: {_targets(ended)}")


def _targets(event: dict[str, Any]) -> str:
    return ", ".join(f"R of {task} = {number}" for task, number in event["targets"].items())


def draw(events: Sequence[dict[str, Any]], step: Step, theme: str) -> Any:
    from matplotlib.figure import Figure

    ink, rows = INK[theme], spans(events)
    until = step.time
    since = max(0.0, until - 14.0)
    window = (since, until + max(1.0, 0.12 * (until - since)))
    figure = Figure(figsize=(7.4, 3.5), layout="constrained")
    figure.patch.set_alpha(0)
    clients, server = figure.subplots(2, 1, sharex=True, height_ratios=(CLIENTS, 2.6))
    for panel in (clients, server):
        panel.patch.set_alpha(0)
        panel.set_xlim(*window)
        panel.tick_params(colors=ink["faint"], labelsize=8, length=0)
        for side in panel.spines.values():
            side.set_visible(False)
        panel.axvline(until, color=ink["mark"], linewidth=0.8, linestyle=(0, (2, 2)))
    _draw_clients(clients, rows, step, window, ink)
    _draw_server(server, events, step, window, ink)
    clients.set_title(step.said, loc="left", fontsize=9.5, color=ink["text"])
    server.set_xlabel("simulated time", color=ink["faint"], fontsize=8)
    return figure


def _draw_clients(
    panel: Any, rows: Sequence[Span], step: Step, window: tuple[float, float], ink: dict[str, str]
) -> None:
    panel.set_ylim(CLIENTS - 0.4, -0.6)
    panel.set_yticks(range(CLIENTS), [f"client {number}" for number in range(CLIENTS)])
    for row in panel.get_yticklabels():
        row.set_color(ink["text"])
    waiting = dict.fromkeys(range(CLIENTS), 0)
    for span in rows:
        if span.sent > step.time or (span.ended is not None and span.ended < window[0]):
            continue
        begun = span.begun is not None and span.begun <= step.time
        if begun:
            end = step.time if span.ended is None else min(span.ended, step.time)
            marked = span.request == step.request
            gap = 0.004 * (window[1] - window[0])
            panel.barh(
                span.client, max(gap, end - span.begun - gap), left=span.begun, height=0.62,
                color=ink[span.task],
                alpha=0.95 if marked or step.request is None else 0.55,
                edgecolor=ink["mark"] if marked else "none", linewidth=1.4,
            )  # fmt: skip
            if end - max(span.begun, window[0]) > 0.05 * (window[1] - window[0]):
                panel.text(
                    max(span.begun, window[0]) + 2 * gap, span.client, f"{span.task}{span.version}",
                    va="center", ha="left", fontsize=7.5, color="#ffffff",
                )  # fmt: skip
        if not begun and (span.ended is None or span.ended > step.time):
            place = waiting[span.client] = waiting[span.client] + 1
            panel.plot(
                step.time + 0.016 * place * (window[1] - window[0]), span.client, marker="s",
                markersize=5, color=ink[span.task], clip_on=False,
            )  # fmt: skip


def _draw_server(
    panel: Any, events: Sequence[dict[str, Any]], step: Step, window: tuple[float, float],
    ink: dict[str, str],
) -> None:  # fmt: skip
    names = TASKS
    panel.set_ylim(len(names) - 0.2, -0.65)
    panel.set_yticks(range(len(names)), [f"model {name}" for name in names])
    for label, name in zip(panel.get_yticklabels(), names, strict=True):
        label.set_color(ink[name])
    for number in range(len(names)):
        panel.axhline(number, color=ink["grid"], linewidth=1, zorder=0)
    for event in events:
        if event["t"] > step.time or event["t"] < window[0]:
            continue
        if event["event"] == "arrive":
            row = names.index(event["task"])
            panel.plot(event["t"], row, marker="o", markersize=4.5, color=ink[event["task"]])
            if event["request"] == step.request:
                panel.plot(
                    event["t"], row, marker="o", markersize=10, color="none",
                    markeredgecolor=ink["mark"],
                )  # fmt: skip
        elif event["event"] == "aggregate":
            row = names.index(event["task"])
            panel.axvline(
                event["t"], ymin=0.62 - 0.41 * row, ymax=0.9 - 0.41 * row,
                color=ink[event["task"]], linewidth=1.6,
            )  # fmt: skip
            panel.annotate(
                f"{event['task']}{event['round']}", (event["t"], row), xytext=(0, -17),
                textcoords="offset points", ha="center", fontsize=7, color=ink[event["task"]],
            )  # fmt: skip
        elif event["event"] == "finish":
            row = names.index(event["task"])
            panel.plot(event["t"], row, marker="*", markersize=12, color=ink[event["task"]])
        elif event["event"] == "realloc" and step.request is None:
            panel.plot(event["t"], 0.5, marker="D", markersize=5, color=ink["mark"])


def everything(folder: Path) -> None:
    """Every step, for the light and the dark theme."""
    folder.mkdir(parents=True, exist_ok=True)
    events = events_of_a_run()
    for step in steps(events):
        for theme in INK:
            figure = draw(events, step, theme)
            figure.savefig(folder / f"method-{step.name}-{theme}.svg", metadata={"Date": None})


if __name__ == "__main__":
    everything(Path(sys.argv[1]))
