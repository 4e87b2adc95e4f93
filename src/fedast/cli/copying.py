"""``fedast new`` and ``fedast examples``: files of the package, copied for the user."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fedast.parts.errors import ConfigError, nearest
from fedast.records.run import UnusableFolder

_PACKAGE = Path(__file__).parents[1]
_PROJECT = Path(__file__).parent / "project"
_IGNORED = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def examples_folder() -> Path:
    """Inside an installed package; in a checkout, beside its sources."""
    for place in (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples"):
        if (place / "quickstart.toml").is_file():
            return place
    raise UnusableFolder("the examples are missing; install fedast again")


# --- new ------------------------------------------------------------------------------------------


def new_project(folder: str) -> None:
    place = Path(folder)
    if not _NAME.fullmatch(place.name):
        raise ConfigError("", f"{folder!r}: name a folder with letters, digits and . _ -")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UnusableFolder(f"{folder}: exists already; choose another name")
    place.mkdir(parents=True, exist_ok=True)
    for source in sorted(_PROJECT.iterdir()):
        if source.is_file():
            text = source.read_text(encoding="utf-8").replace("# NAME", f"# {place.name}")
            (place / source.name).write_text(text, encoding="utf-8")
            click.echo(f"{place / source.name}: {about(source)}")
    click.echo(f"Now: cd {folder} && fedast run run.toml --out runs/first")


# --- examples -------------------------------------------------------------------------------------


def list_examples() -> None:
    folder = examples_folder()
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    wide = max(map(len, names))
    for name in names:
        click.echo(f"{name:{wide}}  {about(folder / name)}".rstrip())
    click.echo("Copy one, with what it needs: fedast examples NAME --to FOLDER (or all)")


def copy_examples(names: Sequence[str], to: str) -> None:
    folder, place = examples_folder(), Path(to)
    wanted: dict[Path, None] = {}
    for name in names:
        wanted |= dict.fromkeys(_with_needs(folder, _find(folder, name)))
    for path in wanted:
        target = place / path.relative_to(folder)
        if target.exists() and target.read_bytes() != path.read_bytes():
            raise UnusableFolder(f"{target}: exists already, with other contents; choose --to")
    for path in wanted:
        target = place / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        click.echo(str(target))


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(_IGNORED) & set(path.relative_to(folder).parts)
    ]


def _find(folder: Path, name: str) -> list[Path]:
    """The files of an example: by its name, with or without its ending, or a whole folder."""
    files = _files(folder)
    if name == "all":
        return files
    short = name.removeprefix("examples/").strip("/")
    known = {path.relative_to(folder).as_posix(): path for path in files}
    if short in known:
        return [known[short]]
    inside = [path for key, path in known.items() if key.startswith(f"{short}/")]
    for ending in (".toml", ".py"):
        if f"{short}{ending}" in known:
            return [known[f"{short}{ending}"]]
    if not inside:
        raise ConfigError("", f"there is no example {name!r}{nearest(name, known)}")
    return inside


def _with_needs(folder: Path, files: Sequence[Path]) -> Iterator[Path]:
    """With the files beside them that they name: modules, tables, configurations."""
    here = [path for path in folder.iterdir() if path.is_file()]
    left, seen = list(files), set(files)
    while left:
        path = left.pop(0)
        yield path
        if path.suffix not in (".toml", ".py"):
            continue
        text = path.read_text(encoding="utf-8")
        for other in here:
            named = other.suffix == ".py" and re.search(
                rf"(\"|^\s*from |^\s*import ){re.escape(other.stem)}\b", text, re.MULTILINE
            )
            if other not in seen and (named or f'"{other.name}"' in text):
                seen.add(other)
                left.append(other)


def about(path: Path) -> str:
    """The first line of a file's docstring or comment, if it begins with one."""
    if path.suffix == ".md":
        return "what is here, and the commands to begin with"
    if path.suffix not in (".py", ".toml", ".service", ".conf"):
        return ""
    first = path.read_text(encoding="utf-8").lstrip().partition("\n")[0]
    mark = '"""' if path.suffix == ".py" else "#"
    return first.strip(mark).strip() if first.startswith(mark) else ""
