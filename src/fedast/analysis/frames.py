"""Tables: pandas data frames where pandas is installed, plain columns otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias, final

Row: TypeAlias = Mapping[str, Any]


@final
class Columns(Mapping[str, list[Any]]):
    """A table as lists by column: ``table["value"]``; ``rows`` is the number of rows."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = dict(columns)
        self.rows = len(next(iter(self._columns.values()), []))

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Columns({', '.join(self._columns)}; {self.rows} rows)"


Frame: TypeAlias = Any
"""A ``pandas.DataFrame``, or ``Columns`` without pandas."""


def frame(rows: Iterable[Row], first: Sequence[str]) -> Frame:
    """A table of these rows. Its columns are ``first``, then others as they come; what a row does
    not have is None (NaN in a column of numbers)."""
    given = list(rows)
    names = list(dict.fromkeys([*first, *(name for row in given for name in row)]))
    columns = {name: [row.get(name) for row in given] for name in names}
    if find_spec("pandas") is None:
        return Columns(columns)
    import pandas

    return pandas.DataFrame(columns, columns=names)
