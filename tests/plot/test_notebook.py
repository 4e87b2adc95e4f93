"""The notebook of the examples, executed from its first cell to its last."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a shell in which the environment of fedast is active.
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shutil.copy(EXAMPLES / "quickstart.toml", tmp_path)
    text = (EXAMPLES / "analysis.ipynb").read_text(encoding="utf-8")
    notebook: Any = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is stored without outputs"
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        shown = [kind for output in cell.outputs for kind in output.get("data", {})]
        if cell.source.startswith("fedast.plot") and "savefig" not in cell.source:
            assert "image/png" in shown, cell.source
    assert (tmp_path / "runs" / "times.pdf").stat().st_size > 5000
    assert "%" in code[-1].outputs[0]["data"]["text/plain"]
    _run_the_page(tmp_path, monkeypatch)


def _run_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/analysis.md says the same of the same runs."""
    page = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 8
    (folder / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/analysis.md", "exec"), names)
    assert (folder / "curves.pdf").is_file()
