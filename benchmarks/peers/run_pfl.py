"""pfl (pfl-research) on the workload; started twice by peers.py, once per process.

python run_pfl.py MODEL ROUNDS
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from workload import BATCH, CLIENTS, RATE, WORKLOADS


class WithLoss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.inner(inputs)
        return scores

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = True) -> Any:
        return {}


class Clock(TrainingProcessCallback):
    """When each central iteration was over."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]
        self.cpu = [time.process_time()]

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        self.cpu.append(time.process_time())
        return False, Metrics()


def main() -> None:
    work, rounds = WORKLOADS[sys.argv[1]], int(sys.argv[2])
    cohort, points = work.cohort, work.points
    from pfl.internal.ops import pytorch_ops

    set_framework_module(pytorch_ops)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, labels = work.data()

    def user(number: int) -> Dataset:
        part = slice(number * points, (number + 1) * points)
        return Dataset(raw_data=[inputs[part], labels[part]], user_id=str(number))

    sampler = get_user_sampler("random", list(range(CLIENTS)))
    users = FederatedDataset(user, sampler)
    net = WithLoss(work.model())
    clock = Clock()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=users, val_data=None),
        model=PyTorchModel(
            net, torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0)
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**6,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=RATE, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[clock],
    )
    # The first round warms up.
    seconds = clock.times[-1] - clock.times[1]
    speed = cohort * (rounds - 1) / seconds
    # This process's, of all updates: the other one prints the rest.
    cpu = (clock.cpu[-1] - clock.cpu[1]) / (cohort * (rounds - 1))
    found = {"peer": f"pfl {version('pfl')}", "updates_per_s": speed, "cpu_s_per_update": cpu}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
