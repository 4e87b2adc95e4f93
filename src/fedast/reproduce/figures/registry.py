"""The figures that a study's file can name.

Those of fedast are functions marked with ``@study_figure`` in the modules beside this one. Other
packages offer theirs as entry points in the group ``fedast.figures``, and a file can name any
function as ``package.module:function``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StudyFigure(Protocol):
    """Draws the results of a study of which at least one run has been made.

    Other runs may be missing: their place stays empty. It returns a new figure and neither shows
    nor saves it; the same results give the same figure.
    """

    def __call__(self, results: StudyResults, /) -> Figure: ...


class FigureOptions(Options, ABC):
    """A kind of figure."""

    roles: ClassVar[tuple[str, ...]] = ()
    """Roles that the study's axes must have."""

    @abstractmethod
    def build(self) -> StudyFigure: ...


class _Function(FigureOptions):
    """A figure drawn by a plain function."""

    target: ClassVar[StudyFigure]

    def build(self) -> StudyFigure:
        return type(self).target


def _from_function(
    name: str, target: Callable[..., Any], roles: tuple[str, ...] = ()
) -> type[FigureOptions]:
    attributes = {
        "__doc__": target.__doc__,
        "__module__": getattr(target, "__module__", __name__),
        "name": name,
        "roles": roles,
        "target": staticmethod(target),
    }
    return type(getattr(target, "__name__", type(target).__name__), (_Function,), attributes)


def study_figure(name: str, *, roles: tuple[str, ...] = ()) -> Callable[[StudyFigure], Any]:
    """Make a function the figure of this name."""
    return lambda function: _from_function(name, function, roles)


FIGURES: Registry[FigureOptions] = Registry(
    "figures",
    FigureOptions,  # type: ignore[type-abstract]
    [__package__],
    adapt=_from_function,
)


def find_figure(name: str) -> StudyFigure:
    """What draws the figure that a study's file names."""
    return FIGURES.parse(name, "figures").build()
