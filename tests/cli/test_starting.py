"""The garbage collector while a command imports PyTorch, and after."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from fedast.cli.starting import importing

_PROGRAM = "import gc\nfrom fedast.cli.starting import enable, importing\nenable()\n"


def _program(code: str) -> str:
    """What a program of its own says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM + code], check=True, capture_output=True, text=True
    )
    return done.stderr


def test_what_is_imported_is_left_alone_by_the_garbage_collector() -> None:
    _program(
        "with importing():\n"
        "    assert not gc.isenabled()\n"
        "    import decimal\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 1000\n"
    )


def test_an_import_that_fails_leaves_the_garbage_collector_on() -> None:
    _program(
        "try:\n"
        "    with importing():\n"
        "        import a_module_that_is_not_there\n"
        "except ImportError:\n"
        "    assert gc.isenabled()\n"
    )


def test_triton_finds_no_leaks_at_the_end() -> None:
    pytest.importorskip("triton")
    assert _program("with importing():\n    import triton\n") == ""


def test_a_program_that_calls_a_command_keeps_its_garbage_collector() -> None:
    frozen = gc.get_freeze_count()
    with importing():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
