"""What the options of every algorithm have in common, and how to add an algorithm.

An algorithm's options class stands in the algorithm's own file, derives from ``AsyncOptions``
(``BufferedOptions`` if it is built on ``Asynchronous``) or ``SyncOptions``, has a ``name`` and
builds the algorithm. That is all: configuration files, the
command line and ``fedast.simulate`` find it. Another package offers one as an entry point in the
group ``fedast.algorithms``; a configuration can also name ``package.module:Class``. A plain
callable ``(tasks, pool, stream) -> Algorithm`` will do instead of an options class; its keyword
arguments are its options.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import (
    Field,
    PydanticSchemaGenerationError,
    SerializeAsAny,
    TypeAdapter,
    create_model,
    model_validator,
)

from fedast.algorithms.allocation import AllocationRule, sqrt_variance
from fedast.algorithms.asynchronous import Asynchronous, Weigh
from fedast.algorithms.renamed import modernize
from fedast.algorithms.rounds import Assignment, Rounds
from fedast.algorithms.selection import SELECTIONS, Selection, SelectionOptions, Uniform
from fedast.algorithms.staleness import STALENESS_WEIGHTS, Constant, StalenessOptions
from fedast.core.protocol import Algorithm, Pool, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.errors import ConfigError
from fedast.parts.options import Options
from fedast.parts.registry import Part, Registry

USUAL_RATIO = 32.0
"""The paper's R/b."""
REQUESTS_PER_ACTIVE_CLIENT = 1.28
"""The paper's 384 requests over 300 clients."""

LearningRate: TypeAlias = Annotated[float, Field(gt=0, le=1e6)]


class AlgorithmOptions(Options, ABC):
    """An algorithm's options: what a run asks of every algorithm before it begins."""

    display_name: ClassVar[str] = ""
    """How text and figures write it, such as FedAST(D); default: its name."""
    colour: ClassVar[str] = ""
    """Its colour in every figure, as #rrggbb; default: one that its name decides."""
    synchronous: ClassVar[bool] = False
    """Whether it trains in rounds; tasks often have other learning rates then."""
    pools_data: ClassVar[bool] = False
    """Whether it trains one pseudo-client on the data of all."""

    server_lr: LearningRate = 0.1
    """Server learning rate eta_s of tasks that set none (and have no adaptive server optimizer)."""
    evaluate_every: int = Field(4, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        # A class derived from another algorithm's is an algorithm of its own.
        if "display_name" not in cls.__dict__:
            cls.display_name = cls.name.rpartition(":")[2]
        if "colour" not in cls.__dict__:
            cls.colour = ""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        """Keyword arguments of earlier versions, which still work for one minor version."""
        if not isinstance(given, dict) or set(given) <= set(cls.model_fields):
            return given
        options = dict(given)
        modernize(options, cls.name, _warn)
        return options

    @abstractmethod
    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        """The algorithm, ready for its first event."""

    def evaluation_period(self, hint: int | None, requests: int) -> int:
        """Rounds between a task's evaluations; ``hint`` is the task's own habit."""
        return self.evaluate_every

    def updates_per_round(self, buffer_size: int) -> int | None:
        """The fewest updates that are aggregated in a round, as far as that can be known."""
        return None

    def server_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Options of the server side (``averaging``, ``rate_control`` ...) of tasks that do not
        set their own."""
        return {}

    def check(self, *, active_cap: int | None, until: str) -> None:
        """Raise ``ConfigError`` if the options do not go with the rest of the configuration."""


class AsyncOptions(AlgorithmOptions):
    """Options of asynchronous algorithms, which keep R requests out and fill buffers of b."""

    buffered: ClassVar[bool] = True
    """Whether tasks have buffers; if not, every update steps the model."""

    requests: int | None = Field(None, ge=1)
    """Active requests of all tasks together (sum of R); default 1.28 per client of the cap (with
    FedBuff one, since it asks idle clients only)."""
    ratio: float | None = Field(None, ge=1, le=1e6)
    """Active requests per buffer slot (R/b) of tasks that do not set their own buffer; default 32,
    the paper's, or less, so that each of them has a buffer of at least 2."""
    initial: Literal["uniform", "shares"] = "uniform"
    """How requests are split at the start over tasks that do not set their own."""

    def usual_requests(self, active_cap: int | None, clients: int) -> int:
        """The default sum of R."""
        active = active_cap if active_cap is not None else 0.3 * clients
        return round(REQUESTS_PER_ACTIVE_CLIENT * active)

    def ratio_for(self, requests: int) -> float:
        """R/b of a task with so many requests and no buffer of its own.

        By default the paper's, but small enough for a buffer of at least 2: Realloc leaves every
        task R/b requests, so with b = 1 everywhere it could not move a single one.
        """
        if self.ratio is not None:
            return self.ratio
        return max(1.0, min(USUAL_RATIO, requests / 2))

    def evaluation_period(self, hint: int | None, requests: int) -> int:
        return hint or self.evaluate_every

    def updates_per_round(self, buffer_size: int) -> int | None:
        return buffer_size


class BufferedOptions(AsyncOptions):
    """Options of the asynchronous algorithms that are built on ``Asynchronous``."""

    selection: Annotated[SerializeAsAny[SelectionOptions], Part(SELECTIONS)] = Uniform()
    """Which of a few random candidates is asked (fedast list selections)."""
    max_staleness: int | None = Field(None, ge=0)
    """Updates staler than this many rounds are dropped and sent again; default: none is."""
    staleness_weight: Annotated[SerializeAsAny[StalenessOptions], Part(STALENESS_WEIGHTS)] = (
        Constant()
    )
    """How much an update counts by its staleness (fedast list staleness)."""
    cancel: Literal["free", "keep-busy"] = "free"
    """Whether a cancelled request frees its client at once or occupies it to the end."""

    def buffers(
        self,
        tasks: Sequence[TaskSpec],
        pool: Pool,
        stream: Stream,
        *,
        allocation_rule: AllocationRule | None = None,
        variance_window: int = 8,
        period: float = 0.75,
        capped_start: bool = False,
        weigh: Weigh | None = None,
        selection: Selection | None = None,
    ) -> Asynchronous:
        """The algorithm with these options; with an ``allocation_rule`` it moves requests.

        ``selection`` takes the place of the uniform choice.
        """
        return Asynchronous(
            tasks,
            pool,
            stream,
            dynamic=allocation_rule is not None,
            buffered=self.buffered,
            allocation_rule=allocation_rule or sqrt_variance,
            variance_window=variance_window,
            period=period,
            weight=self.staleness_weight.build(),
            weigh=weigh,
            selection=self.selection.build() or selection,
            max_staleness=self.max_staleness,
            free_on_cancel=self.cancel == "free",
            capped_start=capped_start,
        )


class SyncOptions(AlgorithmOptions):
    """Options of synchronous algorithms: rounds, in which an ``Assignment`` gives clients tasks."""

    synchronous = True

    server_lr: LearningRate = 1.0
    """Server learning rate eta_s of tasks that set none (and have no adaptive server optimizer)."""
    evaluate_every: int = Field(1, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""
    first_k: Annotated[int, Field(ge=1)] | Literal["all"] = 30
    """Updates per task and round that count; "all" waits for every client."""
    cancel: Literal["free", "keep-busy"] = "free"
    """Whether a request of a task that ended frees its client at once."""
    stragglers: Literal["keep-busy", "free"] = "keep-busy"
    """Whether a client that came too late for its round works on to the end or is free at once."""

    @abstractmethod
    def assignment(self) -> Assignment:
        """Who trains what in a round."""

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return Rounds(
            tasks,
            pool,
            stream,
            self.assignment(),
            first_k=None if self.first_k == "all" else self.first_k,
            free_on_cancel=self.cancel == "free",
            free_stragglers=self.stragglers == "free",
        )

    def updates_per_round(self, buffer_size: int) -> int | None:
        return None if self.first_k == "all" else self.first_k


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=4)


def _from_callable(name: str, target: Callable[..., Any]) -> type[AlgorithmOptions]:
    """Options of a callable ``(tasks, pool, stream, *, ...) -> Algorithm``.

    With an attribute ``synchronous = True`` it gets what synchronous algorithms get: the tasks'
    synchronous training settings and shares instead of requests and buffers.
    """
    base = _SyncCallable if getattr(target, "synchronous", False) else _AsyncCallable
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(_signature(target).parameters.values()):
        if number < 3 or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name == "name":
            raise ConfigError(name, "has a parameter called name, which is the algorithm's own")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_checkable(parameter.annotation), default)
    options = cast("Any", create_model)(
        getattr(target, "__name__", type(target).__name__),
        __base__=base,
        __doc__=target.__doc__,
        __module__=getattr(target, "__module__", __name__),
        **fields,
    )
    options.name = name
    options.display_name = getattr(target, "display_name", name.rpartition(":")[2])
    options.colour = getattr(target, "colour", "")
    options._target = staticmethod(target)
    options._arguments = tuple(fields)
    return cast("type[AlgorithmOptions]", options)


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    """With annotations as types, where they can be found."""
    try:
        return inspect.signature(target, eval_str=True)
    except NameError:  # a type that is imported for type checkers only
        return inspect.signature(target)


def _checkable(annotation: Any) -> Any:
    """The annotation if values can be checked against it, otherwise anything."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return Any
    try:
        TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        return Any
    return annotation


def _call(
    options: _AsyncCallable | _SyncCallable, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
) -> Algorithm:
    arguments = {name: getattr(options, name) for name in options._arguments}
    return options._target(tasks, pool, stream, **arguments)


class _AsyncCallable(AsyncOptions):
    _target: ClassVar[Callable[..., Algorithm]]
    _arguments: ClassVar[tuple[str, ...]] = ()

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return _call(self, tasks, pool, stream)


class _SyncCallable(AlgorithmOptions):
    synchronous = True
    server_lr: LearningRate = 1.0
    evaluate_every: int = Field(1, ge=1)
    _target: ClassVar[Callable[..., Algorithm]]
    _arguments: ClassVar[tuple[str, ...]] = ()

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        return _call(self, tasks, pool, stream)


ALGORITHMS: Registry[AlgorithmOptions] = Registry(
    "algorithms",
    AlgorithmOptions,  # type: ignore[type-abstract]
    ["fedast.algorithms.fedast", "fedast.algorithms"],  # the paper's first
    adapt=_from_callable,
    hint="; under algorithms.NAME it holds for an algorithm that has it",
)
