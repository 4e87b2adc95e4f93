"""Optuna as a sampler (``pip install 'fedast[sweep]'``).

Its study is rebuilt from ``trials.jsonl``, so a sweep that was interrupted goes on with what was
learned, and needs no database. Each trial has a sampler with a seed of its own: with one run at a
time, a sweep that was interrupted and one that was not try the same points.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from pydantic import Field

from fedast.core.streams import Stream
from fedast.parts.errors import ConfigError
from fedast.sweeps.samplers import Sampler, SamplerOptions
from fedast.sweeps.space import Choice, Parameter, Point, inline

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as Asked

    from fedast.records.sweeps import Trial


class Optuna(SamplerOptions):
    """Optuna's tree-structured Parzen estimator, which learns from the trials so far."""

    name: ClassVar[str] = "optuna"
    foreseeable: ClassVar[bool] = False
    trials: int = Field(20, ge=1)
    seed: int = Field(0, ge=0)
    startup: int = Field(10, ge=1)
    """So many trials are random before it begins to learn."""

    def build(
        self, space: Sequence[Parameter], direction: Literal["minimize", "maximize"]
    ) -> Sampler:
        try:
            import optuna
        except ModuleNotFoundError:
            raise ConfigError(
                "sampler", "optuna is not installed; pip install 'fedast[sweep]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return _Optuna(space, direction, self)

    def count(self, space: Sequence[Parameter]) -> int:
        return self.trials


@final
class _Optuna:
    def __init__(
        self,
        space: Sequence[Parameter],
        direction: Literal["minimize", "maximize"],
        options: Optuna,
    ) -> None:
        import optuna

        self._space = space
        self._options = options
        self._study = optuna.create_study(direction=direction)
        self._asked: dict[int, Asked] = {}
        self._distributions = {parameter.name: _distribution(parameter) for parameter in space}

    def ask(self, number: int) -> Point | None:
        if number >= self._options.trials:
            return None
        import optuna

        seed = Stream.of(self._options.seed, "optuna", number).below(1 << 31)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental options
            self._study.sampler = optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=self._options.startup,
                multivariate=True,
                constant_liar=True,  # does not try again what is being tried
            )
        asked = self._asked[number] = self._study.ask(self._distributions)
        return {
            parameter.name: _value(parameter, asked.params[parameter.name])
            for parameter in self._space
        }

    def tell(self, trial: Trial) -> None:
        import optuna

        asked = self._asked.get(trial.number)
        if asked is None:  # from before an interruption
            if trial.state == "running":
                self._asked[trial.number] = self._ask_again(trial.parameters)
            else:
                self._study.add_trial(self._finished(trial))
            return
        if trial.state == "running":
            return
        if trial.state == "complete":
            self._study.tell(asked, trial.value)
            return
        known = optuna.trial.TrialState.FAIL
        if trial.state in ("missed", "pruned"):  # worse than whatever has a value
            known = optuna.trial.TrialState.PRUNED
            if trial.bound is not None:
                asked.report(trial.bound, 0)
        self._study.tell(asked, state=known)

    def _ask_again(self, point: Mapping[str, Any]) -> Asked:
        self._study.enqueue_trial(self._stored(point))
        return self._study.ask(self._distributions)

    def _finished(self, trial: Trial) -> Any:
        import optuna

        state = {
            "complete": optuna.trial.TrialState.COMPLETE,
            "missed": optuna.trial.TrialState.PRUNED,
            "pruned": optuna.trial.TrialState.PRUNED,
        }.get(trial.state, optuna.trial.TrialState.FAIL)
        bound = {} if trial.bound is None else {0: trial.bound}
        return optuna.trial.create_trial(
            state=state,
            value=trial.value if trial.state == "complete" else None,
            params=self._stored(trial.parameters),
            distributions=self._distributions,
            intermediate_values=bound if trial.state == "pruned" else {},
        )

    def _stored(self, point: Mapping[str, Any]) -> dict[str, Any]:
        return {p.name: _stored(p, point[p.name]) for p in self._space}


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna import distributions

    if isinstance(parameter, Choice):
        # By number, since a value may be a table, which Optuna does not take.
        return distributions.CategoricalDistribution(range(len(parameter.values)))
    if parameter.whole:
        step = 1 if parameter.step is None else int(parameter.step)
        return distributions.IntDistribution(
            int(parameter.low), int(parameter.high), log=parameter.log, step=step
        )
    return distributions.FloatDistribution(
        parameter.low, parameter.high, log=parameter.log, step=parameter.step
    )


def _value(parameter: Parameter, stored: Any) -> Any:
    return parameter.values[stored] if isinstance(parameter, Choice) else stored


def _stored(parameter: Parameter, value: Any) -> Any:
    if not isinstance(parameter, Choice):
        return value
    return [inline(known) for known in parameter.values].index(inline(value))
