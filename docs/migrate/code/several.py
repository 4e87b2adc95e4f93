"""The same clients, two models at once, asynchronously."""

from dataclasses import replace

from fedavg import CLIENTS, model, task
from torch import nn

from fedast import FedASTDynamic, Goal, Simulation, simulate

goal = Goal(target=0.85, max_time=2000.0)
small = replace(task, name="linear", model=lambda: nn.Linear(64, 10), goal=goal, step_cost=0.3)
large = replace(task, name="perceptron", model=model, goal=goal)

if __name__ == "__main__":
    algorithm = FedASTDynamic(requests=24, ratio=6, server_lr=0.5)
    outcome = simulate([small, large], algorithm, Simulation(clients=CLIENTS), seed=1)
    for name, result in outcome.result.tasks.items():
        print(f"{name}: {result.final:.3f} at simulated time {result.time_to_target:.1f}")
