"""A client's own training: which data it uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedast.parts.errors import ConfigError
from fedast.run.local_training import LocalTraining
from fedast.tasks.dataset import Arrays
from tests.federation.support import two_tasks


def test_what_clients_hold_back_is_not_trained_on(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, federation='evaluate = "clients"\nholdout = 0.25')
    training = LocalTraining(config, 1)
    bench = training._device_tasks["digits-mlp"]
    held = set(training._held["digits-mlp"].tolist())
    kept = set(bench.task.partition[1].tolist())
    assert len(held) > 10
    assert not held & kept
    vector = bench.model.read().numpy()
    before, _, points = training.train("digits-mlp", 5, vector)
    assert points == len(kept)
    metric, loss, count = training.evaluate("digits-mlp", vector)
    assert 0.0 <= metric <= 1.0
    assert loss > 0
    assert count == len(training._held["digits-mlp"])
    assert isinstance(bench.train, Arrays)
    inputs = bench.train.inputs
    good = inputs.clone()
    try:
        inputs[training._held["digits-mlp"]] = float("nan")
        after, _, _ = training.train("digits-mlp", 5, vector)
    finally:
        inputs.copy_(good)  # other tests load the same array
    assert np.array_equal(before, after), "whatever is held back, training does not see it"


def test_a_client_uses_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\n"
        "def load(client):\n"
        "    rng = np.random.default_rng(client)\n"
        "    return rng.random((40, 64), np.float32), rng.integers(0, 10, 40)\n"
    )
    config = two_tasks(tmp_path, federation='data = { digits-mlp = "my_data:load" }')
    config = config.model_copy(update={"path": (str(tmp_path),)})
    with pytest.raises(ConfigError, match="none for client 77"):
        LocalTraining(config, 77)  # the other task has no data of this client
    misspelled = two_tasks(tmp_path, federation='data = { digits-mpl = "my_data:load" }')
    with pytest.raises(ConfigError, match=r"federation\.data\.digits-mpl: there is no such task"):
        LocalTraining(misspelled, 3)
    training = LocalTraining(config, 3)
    vector = training._device_tasks["digits-mlp"].model.read().numpy()
    delta, loss, count = training.train("digits-mlp", 5, vector)
    assert count == 40
    assert loss > 0
    assert np.isfinite(delta).all()
