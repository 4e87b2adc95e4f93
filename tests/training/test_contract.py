"""The contract of trainers, for those of fedast."""

from __future__ import annotations

from fedast.testing import trainer_contract

TestSerial = trainer_contract("serial")
TestProcesses = trainer_contract("processes")
TestBatched = trainer_contract("batched")
