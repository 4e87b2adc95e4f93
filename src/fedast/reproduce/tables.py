"""A reproduction as tables for documents, and in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from fedast.reproduce.results import StudyResults
from fedast.reproduce.rows import Row, rows_of

_MARKS = {
    "agrees": "✓ agrees",
    "cannot be told": "? cannot be told",
    "does not agree": "✗ does not agree",
}


def summary(all_results: Sequence[StudyResults]) -> str:
    made, planned = (sum(results.count[i] for results in all_results) for i in (0, 1))
    if not all(results.comparable for results in all_results):
        return f"{made} of {planned} runs, at quick scale."
    rows = [row for results in all_results for row in rows_of(results)]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in ("agrees", "cannot be told", "does not agree", "partly run", "not run")
    }
    return (
        f"{made} of {planned} runs (some are in two experiments). Of {len(rows)} reported "
        f"numbers and claims {counts['agrees']} agree, {counts['does not agree']} do not, "
        f"{counts['cannot be told']} cannot be told by these seeds, "
        f"{counts['partly run']} have been run in part, {counts['not run']} not at all."
    )


def verdict_text(row: Row, results: StudyResults) -> str:
    if row.verdict == "partly run" and row.seeds:
        return f"{row.seeds} of {results.seeds} seeds"
    return _MARKS.get(row.verdict, row.verdict)


def markdown_table(all_results: Sequence[StudyResults], *, short: bool, folder: str) -> str:
    """All rows with links to their runs, or only the headlines."""
    lines = []
    if short:
        lines += [
            "| quantity | paper | ours | verdict |",
            "|---|---:|---:|---|",
        ]
    else:
        lines += [
            "| experiment | quantity | paper | ours | verdict | seeds | remark | runs |",
            "|---|---|---:|---:|---|---:|---|---|",
        ]
    for results in all_results:
        for row in rows_of(results):
            cells = [row.what, row.paper, row.ours, verdict_text(row, results)]
            if short:
                if row.headline:
                    lines.append(_line(cells))
                continue
            runs = " ".join(
                f"[{number}]({folder}/{path})" for number, path in enumerate(row.runs, 1)
            )
            if row.verdict in ("not run", "partly run"):
                runs += f" `fedast reproduce {results.source}`"
            lines.append(
                _line([results.name, *cells, str(row.seeds), f"{row.where}; {row.note}", runs])
            )
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").strip("; ") for cell in cells) + " |"


def between_markers(text: str, name: str, new: str) -> str:
    """The text with ``new`` between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    if not found:
        raise KeyError(name)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{begin} without {end}")
    return f"{head}{begin}\n{new}\n{end}{tail}"
