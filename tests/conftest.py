"""Settings for all tests: machines may be slow, properties are not timed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedast", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fedast")
