"""Python names and keywords of the version before, which still work for one minor version."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar


def _plain() -> Any:
    from fedast.aggregation.server_optimizers import SGD

    return SGD()


def _adaptive(rule: str = "adam", patience: int | None = None, **options: Any) -> Any:
    from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS

    if patience is not None and rule == "fadas":
        options["patience"] = patience
    return SERVER_OPTIMIZERS.parse({"name": rule, **options}, "Adaptive")


def _combining(rule: str = "mean", trim: float | None = None, **options: Any) -> Any:
    from fedast.aggregation.aggregators import AGGREGATORS

    if trim is not None and rule == "trimmed-mean":
        options["trim"] = trim
    return AGGREGATORS.parse({"name": rule, **options}, "Combining")


DEPRECATED: dict[str, tuple[str, Callable[..., Any]]] = {
    "Plain": ("fedast.SGD", _plain),
    "Adaptive": ("fedast.Adam, fedast.Yogi or fedast.Fadas", _adaptive),
    "Combining": ("fedast.Mean, fedast.Median or fedast.TrimmedMean", _combining),
}
"""Old names, what to write instead, and what they make."""


def deprecated(name: str) -> Callable[..., Any]:
    new, make = DEPRECATED[name]
    warnings.warn(f"fedast.{name} is now {new}", DeprecationWarning, stacklevel=3)
    return make


P = ParamSpec("P")
T = TypeVar("T")


def renamed_keywords(**renamed: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function take keywords by their old names (``old="new"``), with a warning."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> T:
            for old, new in renamed.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{old} is now called {new}, which is given too")
                    warnings.warn(
                        f"{old} is now called {new}; the old name will go with the next version",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accept

    return decorate
