"""Your own module and your own tensors, trained over simulated clients beside a second task.

python examples/own_model.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedast import FedASTDynamic, Goal, Simulation, Task, Training, dirichlet, simulate

CLIENTS = 40
generator = torch.Generator().manual_seed(0)


def rings(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three noisy rings in the plane: which ring is a point on?"""
    labels = torch.randint(0, 3, (samples,), generator=generator)
    angle = 6.2832 * torch.rand(samples, generator=generator)
    radius = 1.0 + labels + 0.25 * torch.randn(samples, generator=generator)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), labels


class RingNet(nn.Module):
    """Any module will do; it needs no knowledge of fedast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, width)
        self.out = nn.Linear(width, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.tanh(self.hidden(inputs))
        scores: torch.Tensor = self.out(hidden)
        return scores


def task(name: str, width: int) -> Task:
    train, test = rings(4000), rings(1000)
    parts = dirichlet(train[1].numpy(), CLIENTS, 100, alpha=0.3, rng=np.random.default_rng(0))
    return Task(
        name=name,
        model=lambda: RingNet(width),
        train=train,
        test=test,
        partition=parts,
        step_cost=width / 100,  # work of a local step, relative to other tasks
        training=Training(local_steps=10, batch_size=20, client_lr=0.3),
        goal=Goal(target=0.93, max_time=400.0),
    )


def main() -> None:
    outcome = simulate(
        [task("narrow", 16), task("wide", 64)],
        FedASTDynamic(requests=24, ratio=6.0, server_lr=0.5),
        Simulation(clients=CLIENTS),
        seed=1,
    )
    for name, result in outcome.result.tasks.items():
        print(f"{name}: {result.metric} {result.final:.3f}, at target {result.time_to_target}")
    last = outcome.curves["wide"][-1]
    print(f"last point of the curve: round {last.round}, loss {last.loss:.3f}")
    trained = outcome.models["wide"]  # an nn.Module, ready to use
    print("a point at radius 3 is on ring", int(trained(torch.tensor([[3.0, 0.0]])).argmax()))


if __name__ == "__main__":
    main()
