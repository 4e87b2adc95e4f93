from half_life import half_life

from fedast.testing import algorithm_contract

TestHalfLife = algorithm_contract(half_life)
