"""FedAvg: 100 clients, ten of them in each round."""

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from fedast import ActiveCap, Goal, Simulation, SyncST, Task, Training, simulate

CLIENTS = 100


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


inputs, labels = load_digits(return_X_y=True)
inputs = (inputs / 16).astype(np.float32)

task = Task(
    name="digits",
    model=model,
    train=(inputs[:1500], labels[:1500]),
    test=(inputs[1500:], labels[1500:]),
    partition=np.array_split(np.arange(1500), CLIENTS),  # indices of each client's samples
    training=Training(local_steps=9, batch_size=5, client_lr=0.1),
    goal=Goal(max_rounds=50),
)

fedavg = SyncST(first_k="all")  # one task and no stragglers dropped: FedAvg
world = Simulation(clients=CLIENTS, availability=ActiveCap(cap=10))

if __name__ == "__main__":
    outcome = simulate([task], fedavg, world, seed=1)
    print(f"accuracy {outcome.result.tasks['digits'].final:.3f} after 50 rounds")
