"""A reproduction as one page that stands alone, and as tables for documents."""

from __future__ import annotations

import base64
import html
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedast.records.compact import CompactRun
from fedast.reproduce.figures.save import DPI
from fedast.reproduce.results import Key, StudyResults
from fedast.reproduce.rows import Row, rows_of

_MARKS = {
    "agrees": "✓ agrees",
    "cannot be told": "? cannot be told",
    "does not agree": "✗ does not agree",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.25rem; margin-top: 2.6rem; border-bottom: 1px solid #ddd; }
p.lead, td.note, p.where { color: #555; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid #e6e6e6;
         vertical-align: top; }
th { background: #f5f6f8; font-weight: 600; }
td.number { white-space: nowrap; }
.agrees { color: #00694b; } .does { color: #b03000; } .cannot { color: #7a5a00; }
.partly, .not { color: #777; }
img { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
code { background: #f5f6f8; padding: 0.1em 0.3em; border-radius: 3px; font-size: 12.5px; }
details { margin: 0.6rem 0; } summary { cursor: pointer; color: #0072B2; }
.warn { background: #fff6df; border: 1px solid #ecd9a0; padding: 0.5rem 0.8rem; }
"""


def write_page(
    path: Path,
    all_results: Sequence[StudyResults],
    figures: Mapping[str, Mapping[str, Path]],
    *,
    scale: str,
    settings: Sequence[str],
    folder: str,
) -> None:
    """``figures`` are PNG files by study and kind; they go into the page itself."""
    rows = {results.name: rows_of(results) for results in all_results}
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>FedAST, reproduced</title><style>{_STYLE}</style></head><body>",
        "<h1>FedAST, reproduced</h1>",
        f"<p class='lead'>{html.escape(summary(all_results))}</p>",
    ]
    if scale == "quick":
        parts.append(
            "<p class='warn'>Quick scale: few clients, small tasks and embedded data. This page "
            "shows that every experiment runs; its numbers say nothing about the paper's.</p>"
        )
    if settings:
        text = ", ".join(settings)
        parts.append(f"<p class='warn'>Settings of all runs: <code>{html.escape(text)}</code></p>")
    parts += ["<h2>Paper and ours</h2>", _table(all_results, rows), _verdict_rule()]
    for results in all_results:
        parts += _section(results, figures.get(results.name, {}), folder, scale)
    parts.append("</body></html>\n")
    path.write_text("\n".join(parts), encoding="utf-8")


def summary(all_results: Sequence[StudyResults]) -> str:
    there, wanted = (sum(results.count[i] for results in all_results) for i in (0, 1))
    if not all(results.comparable for results in all_results):
        return f"{there} of {wanted} runs, at quick scale."
    rows = [row for results in all_results for row in rows_of(results)]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in ("agrees", "cannot be told", "does not agree", "partly run", "not run")
    }
    return (
        f"{there} of {wanted} runs (some are in two experiments). Of {len(rows)} reported "
        f"numbers and claims {counts['agrees']} agree, {counts['does not agree']} do not, "
        f"{counts['cannot be told']} cannot be told by these seeds, "
        f"{counts['partly run']} have been run in part, {counts['not run']} not at all."
    )


def verdict_text(row: Row, results: StudyResults) -> str:
    if row.verdict == "partly run" and row.seeds:
        return f"{row.seeds} of {results.seeds} seeds"
    return _MARKS.get(row.verdict, row.verdict)


def _verdict_rule() -> str:
    return (
        "<p class='lead'>Ours: mean ± standard deviation over seeds. A number <i>agrees</i> if it "
        "differs from the paper's by no more than seeds explain, t s √(1/n + 1/k) with our "
        "deviation s over n seeds, the paper's k runs and Student's t for 95 %, and by no more "
        "than 10 % (gains: 4 points); it <i>cannot be told</i> if it is further off than that but "
        "inside what seeds explain; outside, it <i>does not agree</i>. A claim agrees or not if "
        "the differences between runs of the same seed say so at 95 %. "
        "Gain: (T<sub>baseline</sub> − T)/T<sub>baseline</sub>. Rows with fewer seeds than planned "
        "get no verdict.</p>"
    )


def _table(all_results: Sequence[StudyResults], rows: Mapping[str, Sequence[Row]]) -> str:
    lines = [
        "<table><thead><tr><th>experiment</th><th>quantity</th><th>paper</th><th>ours</th>"
        "<th>verdict</th><th>seeds</th><th>remark</th></tr></thead><tbody>"
    ]
    for results in all_results:
        for row in rows[results.name]:
            kind = row.verdict.partition(" ")[0]
            lines.append(
                f"<tr><td><a href='#{results.name}'>{html.escape(results.name)}</a></td>"
                f"<td title='{html.escape(row.where)}'>{html.escape(row.what)}</td>"
                f"<td class='number'>{html.escape(row.paper)}</td>"
                f"<td>{html.escape(row.ours)}</td>"
                f"<td class='number {kind}'>{verdict_text(row, results)}</td>"
                f"<td>{row.seeds}</td><td class='note'>{html.escape(row.note)}</td></tr>"
            )
    lines.append("</tbody></table>")
    return "\n".join(lines)


def _section(
    results: StudyResults, figures: Mapping[str, Path], folder: str, scale: str
) -> list[str]:
    there, wanted = results.count
    lines = [
        f"<h2 id='{results.name}'>{html.escape(results.title)}</h2>",
        f"<p class='where'>In the paper: {html.escape(results.where)}. "
        f"{html.escape(results.says)}</p>",
    ]
    for kind, path in figures.items():
        content = path.read_bytes()
        width = int.from_bytes(content[16:20], "big") * 96 // DPI  # of a PNG; as large as drawn
        data = base64.b64encode(content).decode()
        alt = html.escape(f"{results.title}: {kind}")
        lines.append(f"<img alt='{alt}' width='{width}' src='data:image/png;base64,{data}'>")
    lines.append(
        f"<details><summary>Runs: {there} of {wanted}</summary><table><thead><tr>"
        "<th>run</th><th>seeds</th><th>finish</th><th>seconds*</th><th>updates/s*</th>"
        "<th>on</th><th>repeat it</th></tr></thead><tbody>"
    )
    for key, place in results.folders.items():
        lines.append(_run_line(results, key, place, folder, scale))
    lines.append(
        "</tbody></table><p class='lead'>* of each run, beside the others that ran at the same time"
        "</p></details>"
    )
    return lines


def _run_line(results: StudyResults, key: Key, place: str, folder: str, scale: str) -> str:
    name = html.escape(", ".join(key))
    runs = results.runs.get(key, {})
    if not runs:
        command = html.escape(missing_command(results, key, folder, scale))
        return (
            f"<tr><td>{name}</td><td>0 of {results.seeds}</td><td colspan='4'>not run yet</td>"
            f"<td><code>{command}</code></td></tr>"
        )
    found: list[CompactRun] = list(runs.values())
    finish = statistics.fmean(run.finish_time for run in found)
    seconds = statistics.fmean(run.wall_seconds for run in found)
    speed = statistics.fmean(run.updates_per_second for run in found)
    machines = sorted(
        {
            f"{r.machine['device']}, torch {r.machine['torch']}, {r.machine['at_a_time']} at a time"
            for r in found
        }
    )
    command = f"fedast run {folder}/{place}/seed-{min(runs)}.toml"
    return (
        f"<tr><td>{name}</td><td>{', '.join(map(str, sorted(runs)))}</td><td>{finish:.1f}</td>"
        f"<td>{seconds:.0f}</td><td>{speed:.0f}</td><td>{html.escape('; '.join(machines))}</td>"
        f"<td><code>{html.escape(command)}</code></td></tr>"
    )


def missing_command(results: StudyResults, key: Key | None, folder: str, scale: str) -> str:
    """What runs a variant, or all that is missing of a study."""
    words = ["fedast reproduce", results.source]
    words += [f'--only "{label}"' for label in key or ()]
    words += ["--scale quick"] if scale == "quick" else []
    words += [f"--set {setting}" for setting in results.settings]
    return " ".join([*words, "--out", folder])


# --- documents ----------------------------------------------------------------------------------


def markdown_table(all_results: Sequence[StudyResults], *, short: bool, folder: str) -> str:
    """All rows with where their runs are, or only the headlines."""
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
                f"[{number}]({folder}/{place})" for number, place in enumerate(row.runs, 1)
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
