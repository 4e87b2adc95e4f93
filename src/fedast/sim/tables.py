"""CSV files that users bring: read with errors that name the file, the line and the column."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from fedast.core.protocol import ClientId


class BadInputFile(ValueError):
    """A file of the user's that cannot be used; the message names it and the line."""


def read_rows(
    path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV with their line numbers.

    All required columns are there and filled; optional ones are there, filled or not.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or ()
            for column in (*required, *optional):
                if column not in header:
                    raise BadInputFile(f"{path}: no column {column!r} in the header")
            rows = []
            for row in reader:
                if None in row or any(row[column] in (None, "") for column in required):
                    raise BadInputFile(
                        f"{path}, line {reader.line_num}: expected {','.join(header)}"
                    )
                rows.append((reader.line_num, row))
    except OSError as error:
        raise BadInputFile(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputFile(f"{path}: is not a CSV text file ({error})") from error
    if not rows:
        raise BadInputFile(f"{path}: has no rows")
    return rows


def to_number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInputFile(f"{path}, line {line}: {column} is not a number: {text!r}")
    return value


def to_client(path: Path, line: int, text: str) -> ClientId:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise BadInputFile(f"{path}, line {line}: client is not a whole number from 0: {text!r}")
    return value
