"""What pyproject.toml cannot say: the wheel has the examples, and the commit it was built from."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent


def commit() -> str:
    written = ROOT / "src" / "fedast" / "commit.txt"  # an sdist has it
    if written.is_file():
        return written.read_text(encoding="utf-8").strip()
    source = ROOT / "src" / "fedast" / "version.py"  # which needs nothing else
    spec = importlib.util.spec_from_file_location("fedast_version", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.commit())


class Build(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # found where they are
        package = Path(self.build_lib) / "fedast"
        shutil.rmtree(package / "examples", ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / "examples", package / "examples", ignore=ignored)
        if found := commit():
            (package / "commit.txt").write_text(found + "\n", encoding="utf-8")


class Source(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        if found := commit():
            place = Path(base_dir) / "src" / "fedast" / "commit.txt"
            place.write_text(found + "\n", encoding="utf-8")


setup(cmdclass={"build_py": Build, "sdist": Source})
