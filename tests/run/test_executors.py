"""Every executor keeps to the contract: processes here, and Ray and submitit where installed."""

from __future__ import annotations

from fedast.testing import executor_contract

TestLocal = executor_contract("local", survives=False)
