"""The version of fedast, where every layer can read it, and the commit it was built from."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"

_COMMIT = "commit.txt"
"""Written into the package when it is built from a checkout (setup.py)."""


def commit() -> str:
    """The commit that this is: of the checkout it is imported from, or was built from; else ""."""
    package = Path(__file__).parent
    written = package / _COMMIT
    if written.is_file():
        return written.read_text(encoding="utf-8").strip()
    root = package.parents[1]
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return ""
    import subprocess

    try:
        said = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def version_with_commit() -> str:
    found = commit()
    return f"{__version__} ({found})" if found else __version__
