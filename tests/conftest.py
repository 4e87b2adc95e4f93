"""Settings for all tests: machines may be slow, properties are not timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedast", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fedast")


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside tests do not time trainers or fork unless a test asks for workers."""
    monkeypatch.setattr("fedast.run.compute.available_cores", lambda: 1)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a command sets for its worker processes, such as ``--offline``, ends with the test."""
    with patch.dict(os.environ):
        yield
