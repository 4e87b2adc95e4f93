"""What the documents say is so: snippets run, files exist, keys are the schema's."""

from __future__ import annotations

import doctest
import re
import sys
import tomllib
import types
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import fedast
from fedast import Goal, Task, Training
from fedast.algorithms.renamed import RENAMED_OPTIONS
from fedast.config.load import load, parse
from fedast.config.renamed import _KEYS, renamed
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig, TaskConfig
from fedast.parts.options import Section
from fedast.parts.registry import load_object
from fedast.run.build import build_tasks
from fedast.run.simulate import simulate
from fedast.testing import algorithm_contract

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = (DOCS / "generated", DOCS / "_build")  # by make docs
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"))
    if not any(page.is_relative_to(place) for place in MADE)
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def file_name(block: str) -> str | None:
    """Blocks that begin with a comment such as ``# blobs.py`` are files."""
    found = re.match(r"# ([\w.-]+\.(?:py|toml))\n", block)
    return None if found is None else found[1]


def check(suite: type) -> None:
    """Run a contract suite here instead of in a pytest of its own."""
    for name in (name for name in dir(suite) if name.startswith("test_")):
        getattr(suite(), name)()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files of docs/extending.md."""
    for block in (*blocks("docs/extending.md", "python"), *blocks("docs/extending.md", "toml")):
        name = file_name(block)
        if name is not None:
            (tmp_path / name).write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_python_of_extending_runs_like_a_notebook(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    cells = [b for b in blocks("docs/extending.md", "python") if file_name(b) is None]
    assert len(cells) >= 9
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), vars(notebook))


@pytest.mark.parametrize("name", ["task.toml", "algorithm.toml"])
def test_the_configurations_of_extending_run(folder: Path, name: str) -> None:
    config = resolve(load(folder / name), folder)
    outcome = simulate(
        build_tasks(config), config.algorithm, config.simulation, seed=config.seed, noted=True
    )
    assert outcome.result.tasks["blobs"].rounds > 0


def test_the_contract_suites_of_extending_pass(folder: Path) -> None:
    suites = [v for k, v in vars(import_module("test_mine")).items() if k.startswith("Test")]
    assert len(suites) == 2
    for suite in suites:
        check(suite)


def test_the_entry_points_of_extending_name_what_is_there(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for parts in project["project"]["entry-points"].values():
        for address in parts.values():
            assert load_object(address, "entry point") is not None


def test_the_algorithm_of_contributing_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (diff,) = blocks("CONTRIBUTING.md", "diff")
    _, _, added = diff.partition("+++ b/src/fedast/algorithms/fedfair.py\n")
    lines = [line.removeprefix("+") for line in added.splitlines() if line.startswith("+")]
    (tmp_path / "fedfair.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    check(algorithm_contract(import_module("fedfair").FedFair(first_k=2)))


def test_the_configuration_of_the_readme_is_the_quickstart() -> None:
    (shown,) = blocks("README.md", "toml")
    example = load(ROOT / "examples" / "quickstart.toml")
    assert parse(tomllib.loads(shown)) == example


def test_the_python_of_the_readme_runs() -> None:
    (snippet,) = blocks("README.md", "python")
    x, y = torch.randn(800, 8), torch.randint(3, (800,))
    names = {
        "MyModule": lambda: torch.nn.Linear(8, 3),
        "x": x,
        "y": y,
        "test_x": x,
        "test_y": y,
        "indices_per_client": np.array_split(np.arange(800), 40),
        "another": Task(
            name="another",
            model=lambda: torch.nn.Linear(8, 3),
            train=(x, y),
            test=(x, y),
            partition=np.array_split(np.arange(800), 40),
            training=Training(local_steps=2, batch_size=5),
            goal=Goal(max_rounds=2),
        ),
    }
    exec(snippet.replace("Goal(target=0.93)", "Goal(target=0.93, max_rounds=2)"), names)
    point = names["outcome"].curves["mine"][-1]  # type: ignore[attr-defined]
    assert (point.round, point.model) == (2, "raw")


def linked(page: Path) -> list[str]:
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in linked(page):
        target, _, heading = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), link
        if heading and place.suffix == ".md" and "{include}" not in place.read_text("utf-8"):
            titles = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles]
            assert heading in anchors, link


def test_every_page_has_its_place_in_the_site() -> None:
    index = text_of("docs/index.md")
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", index, re.DOTALL | re.MULTILINE)
    lines = [line for tree in trees for line in tree.splitlines() if not line.startswith(":")]
    places = [re.sub(r"^.*<(.+)>$", r"\1", line) for line in lines]  # Title <page>
    pages = [
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in PAGES
        if page.is_relative_to(DOCS) and page != DOCS / "index.md"
    ]
    left_out = [page for page in pages if not any(fnmatch(page, place) for place in places)]
    assert not left_out, f"not in a toctree of docs/index.md: {left_out}"


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = text_of("docs/reference/api.md")
    shown = re.findall(r"^\.\. auto\w+:: fedast\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(fedast.__all__)


@pytest.mark.parametrize(
    "module", ["fedast.analysis.runs", "fedast.run.simulate", "fedast.tasks.partitions"]
)
def test_the_examples_in_docstrings_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = doctest.testmod(import_module(module))
    assert done.attempted > 0
    assert done.failed == 0


@pytest.mark.parametrize("page", ["docs/design.md", "docs/extending.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|toml|jinja|csv|md))`", prose)
    folders = re.findall(r"`((?:[\w-]+/)+)`", prose)
    own = {file_name(b) for kind in ("python", "toml") for b in blocks(page, kind)}
    own.add("config.toml")  # of a run's folder
    assert named or folders
    for name in [*named, *folders]:
        places = (ROOT / name, ROOT / "src" / "fedast" / name)
        assert name in own or any(place.exists() for place in places), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configurations_use_the_names_of_today(page: Path) -> None:
    for block in blocks(str(page.relative_to(ROOT)), "toml"):
        assert renamed(tomllib.loads(block)) == []


CONFIGURATION = "docs/configuration.md"


def keys_of(heading: str, after: str) -> list[str]:
    """The keys in the first column of a table, from the words ``after`` to the next gap."""
    text = text_of(CONFIGURATION).partition(heading)[2].partition(after)[2]
    rows = [line for line in text.strip().split("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])]


def paths(section: type[Section], prefix: str = "") -> set[str]:
    """Every key of a section; those of parts and of other tables are not followed."""
    found = set()
    for name, field in section.model_fields.items():
        kind = field.annotation
        if name in ("simulation", "compute", "speeds"):
            assert isinstance(kind, type)
            found |= paths(kind, f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def test_the_configuration_page_has_every_key_of_a_run_and_no_other() -> None:
    shown = {
        re.sub(r"(\.\*|\.NAME|\.TASK|\.name)+$", "", key) for key in keys_of("## Keys", "\n\n|")
    }
    assert shown == paths(RunConfig) - {"tasks"} | {"track"}  # short for observers


def test_the_configuration_page_has_every_key_of_a_task_and_no_other() -> None:
    assert set(keys_of("## Keys", "`[[tasks]]`:\n")) - {"task"} == set(TaskConfig.model_fields)


def test_the_configuration_page_has_every_old_name() -> None:
    table = text_of(CONFIGURATION).partition("## Names of earlier versions")[2]
    then = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    folded = {"candidates", "staleness_slope", "staleness_grace", "points", "max_points"}
    for name in {path.rpartition(".")[2] for path in _KEYS} | {*RENAMED_OPTIONS} | folded:
        assert any(f"`{name}`" in row for row in then), name


def test_the_example_of_the_configuration_page_is_a_configuration() -> None:
    (example,) = blocks(CONFIGURATION, "toml")
    resolve(parse(tomllib.loads(example), Path()))
