"""What an executor is given and told in a sweep: asks the sampler, prunes, writes trials down."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, final

from fedast.config.schema import Compute, RunConfig
from fedast.parts.errors import ConfigError
from fedast.records.run import RunResult
from fedast.records.sweeps import State, Trial, append_trial
from fedast.run.batch import BatchRun, Pulse, alone
from fedast.run.continuing import found_again, made_ready
from fedast.sweeps.objective import Objective
from fedast.sweeps.pruning import cannot_win, falls_behind
from fedast.sweeps.space import Point, inline
from fedast.sweeps.sweep import Checked, Sweep


class Watcher(Protocol):
    """Sees a sweep go by."""

    def began(self, trial: Trial) -> None: ...

    def pulse(self, trial: int, seed: int, pulse: Pulse) -> None: ...

    def ended(self, trial: Trial) -> None: ...


@final
class Unwatched:
    def began(self, trial: Trial) -> None:
        pass

    def pulse(self, trial: int, seed: int, pulse: Pulse) -> None:
        pass

    def ended(self, trial: Trial) -> None:
        pass


@dataclass
class _Live:
    """A trial whose runs are under way."""

    trial: Trial
    configs: Mapping[int, RunConfig]
    objective: Objective
    results: dict[int, RunResult] = field(default_factory=dict)
    pulses: dict[int, Pulse] = field(default_factory=dict)
    under_way: set[int] = field(default_factory=set)
    pruned: bool = False
    bound: float | None = None
    reason: str | None = None
    """Why a run failed."""

    def values(self) -> dict[int, float | None]:
        return {
            seed: None if result.interrupted else self.objective.measure(result)
            for seed, result in sorted(self.results.items())
        }

    def bounds(self) -> list[float]:
        """For each seed, what its number is at least (see ``pruning``)."""
        known = self.values()
        found = []
        for seed in self.configs:
            pulse = self.pulses.get(seed)
            if seed in known:
                value = known[seed]
                found.append(float("inf") if value is None else value)
            else:
                found.append(0.0 if pulse is None else self.objective.least(pulse) or 0.0)
        return found


@final
class Conduct:
    """What an executor is given and told; keeps ``trials.jsonl``."""

    def __init__(
        self,
        wanted: Sweep,
        checked: Checked,
        folder: Path,
        found: Mapping[int, Trial],
        jobs: int,
        events: bool,
        every: str | None,
        watcher: Watcher,
        say: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self._sweep = wanted
        self._objective = checked.objective
        self._prune = wanted.prune(checked.objective)
        self._folder = folder
        self._trials = dict(found)
        self._jobs = jobs
        self._events = events
        self._every = every
        self._watcher = watcher
        self._say = say
        self._stop = stop
        self._sampler = wanted.sampler.build(wanted.space, checked.objective.direction)
        self._live: dict[int, _Live] = {}
        self._begun: list[tuple[int, int]] = []
        """Trial and seed of each run that the executor was given."""
        self._points: dict[str, int] = {}
        """The first trial with each point."""
        self._waiting_for: dict[int, list[Trial]] = {}
        """Trials with the point of one that is under way."""
        self._complete: dict[int, dict[int, RunResult]] = {}
        """Results of complete trials by seed, for the median rule."""
        self._best: float | None = None
        for trial in self._trials.values():
            self._points.setdefault(inline(dict(trial.parameters)), trial.number)
            self._note(trial)

    def trials(self) -> list[Trial]:
        return [self._trials[number] for number in sorted(self._trials)]

    def runs(self) -> Iterator[BatchRun]:
        """Every run that is left to do, one by one, as the executor asks for them."""
        earlier = list(self._trials.values())
        for trial in earlier:  # in their order, as they were asked for
            known = trial if trial.ended else replace(trial, state="running")
            self._sampler.tell(known)
        for trial in earlier:
            if not trial.ended:
                yield from self._begin(trial.number, dict(trial.parameters))
        number = max(self._trials, default=-1) + 1
        while (point := self._sampler.ask(number)) is not None:
            yield from self._begin(number, point)
            number += 1

    def _begin(self, number: int, point: Point) -> Iterator[BatchRun]:
        trial = Trial(number, "running", point)
        text = inline(point)
        first = self._points.setdefault(text, number)
        if first != number:
            self._repeat(trial, first)
            return
        try:
            configs = {seed: self._sweep.config(point, seed) for seed in self._sweep.seeds}
        except ConfigError as error:
            self._record(replace(trial, state="invalid", reason=str(error)))
            return
        runs = tuple(f"trial-{number:04d}/seed-{seed}" for seed in configs)
        trial = self._record(replace(trial, runs=runs))
        objective = self._sweep.objective(next(iter(configs.values())))
        live = self._live[number] = _Live(trial, configs, objective)
        for (seed, config), place in zip(configs.items(), runs, strict=True):
            if live.pruned or live.reason is not None:
                break  # in the meantime
            label = f"trial {number}" + (f", seed {seed}" if len(configs) > 1 else "")
            out = self._folder / place
            run = BatchRun(label, alone(config, self._jobs), out, self._every)
            result = found_again(run, events=self._events, any_version=True)
            if result is not None:
                live.results[seed] = result
                continue
            live.under_way.add(seed)
            self._begun.append((number, seed))
            yield made_ready(run, events=self._events, resume=True)
        self._end_if_over(live)

    def _repeat(self, trial: Trial, first: int) -> None:
        """A point that was tried before: its runs are not made again."""
        earlier = self._trials[first]
        if earlier.ended:
            self._record(_same(trial, earlier))
        else:
            self._waiting_for.setdefault(first, []).append(trial)
            self._record(replace(trial, runs=earlier.runs, same_as=first))

    def progress(self, pulse: Pulse) -> None:
        number, seed = self._begun[pulse.run]
        if number in self._live:
            self._live[number].pulses[seed] = pulse
            self._watcher.pulse(number, seed, pulse)

    def prune(self, run: int) -> bool:
        """Whether a run is to end, because its trial cannot win."""
        number, seed = self._begun[run]
        live = self._live.get(number)
        if live is None or live.pruned:
            return live is not None
        if self._prune.rule == "exact":
            bounds = live.bounds()
            if cannot_win(bounds, self._best):
                live.pruned, live.bound = True, statistics.fmean(bounds)
        elif self._prune.rule == "median" and seed in live.pulses:
            others = {other: found[seed] for other, found in self._complete.items()}
            live.bound = falls_behind(self._prune, live.objective, live.pulses[seed], others)
            live.pruned = live.bound is not None
        return live.pruned

    def done(self, run: int, result: RunResult, compute: Compute) -> None:
        number, seed = self._begun[run]
        live = self._live[number]
        if result.interrupted and self._stop() and not live.pruned:
            return  # it is gone on with by the next command
        live.under_way.discard(seed)
        live.results[seed] = result
        self._end_if_over(live)

    def failed(self, run: int, error: Exception) -> None:
        number, seed = self._begun[run]
        live = self._live[number]
        live.under_way.discard(seed)
        live.reason = f"{type(error).__name__}: {error}"
        self._say(f"failed: trial {number}, seed {seed}: {error}")
        self._end_if_over(live)

    def _end_if_over(self, live: _Live) -> None:
        all_there = len(live.results) == len(live.configs)
        stopped = live.pruned or live.reason is not None
        if live.under_way or not (all_there or stopped):
            return
        number = live.trial.number
        if self._live.pop(number, None) is None:
            return
        values = live.values()
        known = [value for value in values.values() if value is not None]
        cut = live.pruned and any(result.interrupted for result in live.results.values())
        state: State
        if live.reason is not None:
            state = "failed"
        elif all_there and len(known) == len(values):
            state = "complete"
        elif cut or not all_there:
            state = "pruned"
        else:
            state = "missed"
        if state == "complete":
            self._complete[number] = live.results
        finite = live.bound is not None and live.bound != float("inf")
        ended = self._record(
            replace(
                live.trial,
                state=state,
                value=statistics.fmean(known) if state == "complete" else None,
                values={str(seed): value for seed, value in values.items()},
                bound=live.bound if state == "pruned" and finite else None,
                wall_seconds=round(sum(r.wall_seconds for r in live.results.values()), 3),
                reason=live.reason,
            )
        )
        for waiting in self._waiting_for.pop(number, []):
            self._record(_same(waiting, ended))

    def _record(self, trial: Trial) -> Trial:
        trial = replace(trial, time=round(time.time(), 3))
        append_trial(self._folder, trial)
        self._trials[trial.number] = trial
        self._sampler.tell(trial)
        self._note(trial)
        (self._watcher.began if trial.state == "running" else self._watcher.ended)(trial)
        return trial

    def _note(self, trial: Trial) -> None:
        """Whether it is the best so far."""
        if trial.state != "complete" or trial.value is None:
            return
        if self._best is None or self._objective.better(trial.value, self._best):
            self._best = trial.value


def _same(trial: Trial, earlier: Trial) -> Trial:
    return replace(earlier, number=trial.number, same_as=earlier.number, wall_seconds=0.0)
