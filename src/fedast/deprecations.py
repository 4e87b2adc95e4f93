"""Keywords of earlier versions, still accepted under the names that they have now."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
