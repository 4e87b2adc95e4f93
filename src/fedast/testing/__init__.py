"""Contract suites: prove that a part of your own keeps the promises of its seam.

Each function returns a class of tests for pytest to collect:

    from fedast.testing import algorithm_contract

    TestMine = algorithm_contract(MyAlgorithm(option=3))

The suites need pytest and hypothesis (``pip install fedast[testing]``).
"""

from __future__ import annotations

from fedast.testing.algorithms import algorithm_contract
from fedast.testing.delays import delay_contract
from fedast.testing.executors import executor_contract
from fedast.testing.trainers import trainer_contract
from fedast.testing.transports import transport_contract

__all__ = [
    "algorithm_contract",
    "delay_contract",
    "executor_contract",
    "trainer_contract",
    "transport_contract",
]
