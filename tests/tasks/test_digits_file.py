"""The digits are read without importing scikit-learn, and are the same."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedast.tasks.data import embedded


def test_the_table_is_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    bunch = load_digits()
    table = embedded._digits_table()
    np.testing.assert_array_equal(table[:, :-1], bunch.data)
    np.testing.assert_array_equal(table[:, -1], bunch.target)
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    np.testing.assert_array_equal(embedded._digits_table(), table)


def test_reading_them_imports_neither_scikit_learn_nor_scipy() -> None:
    code = (
        "import sys; from fedast.tasks.data.embedded import digits; digits(); "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'sklearn', 'scipy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
