"""Two models of your own, trained at once over twenty simulated clients."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from torch import nn

from fedast import FedASTDynamic, Goal, Simulation, Task, Training, dirichlet, simulate


def task(name: str, table, model, clients: int, seed: int) -> Task:
    """A table of numbers and classes, split over the clients with unequal class shares."""
    inputs, labels = table(return_X_y=True)
    inputs = ((inputs - inputs.mean(axis=0)) / inputs.std(axis=0)).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[: len(order) // 4], order[len(order) // 4 :]
    return Task(
        name=name,
        model=model,
        train=(inputs[train], labels[train]),
        test=(inputs[test], labels[test]),
        partition=dirichlet(labels[train], clients, 20, 0.5, np.random.default_rng(seed)),
        training=Training(local_steps=5, batch_size=10, client_lr=0.1),
        goal=Goal(target=0.93, max_time=500.0),
    )


def wine(clients: int, seed: int, *, width: int = 16) -> Task:
    """Three kinds of wine from 13 measurements, with a small perceptron."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(13, width), nn.ReLU(), nn.Linear(width, 3))

    return task("wine", load_wine, model, clients, seed)


def cancer(clients: int, seed: int) -> Task:
    """Benign or malignant from 30 measurements, with a logistic regression."""
    return task("cancer", load_breast_cancer, lambda: nn.Linear(30, 2), clients, seed)


if __name__ == "__main__":
    tasks = [wine(20, seed=1), cancer(20, seed=1)]
    algorithm = FedASTDynamic(requests=12, ratio=3, server_lr=0.5)
    outcome = simulate(tasks, algorithm, Simulation(clients=20), seed=1)
    for name, done in outcome.result.tasks.items():
        print(f"{name}: {done.metric} {done.final:.3f} at time {done.time_to_target:.1f}")
    average = torch.zeros(1, 13)  # inputs are standardised
    print("the average wine is of class", outcome.models["wine"](average).argmax().item())
