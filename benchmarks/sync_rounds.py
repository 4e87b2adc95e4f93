"""How long a round of Sync-ST takes in the heterogeneous experiment, training switched off.

The rules that the paper leaves open (who is available, what becomes of stragglers) change the
time of a round, not what is learned in it; so their effect on times to target can be had without
training, from the number of rounds.
"""

from __future__ import annotations

import statistics

from fedast import ActiveCap, Always, Bernoulli, SyncST
from fedast.reproduce.load import find_studies
from fedast.run.theory import mean_sync_round
from fedast.sim.availability import AvailabilityOptions

PHASES = {
    "all four tasks": ("mnist", "fashion-mnist", "cifar10", "shakespeare"),
    "Fashion-MNIST and CIFAR-10": ("fashion-mnist", "cifar10"),
    "CIFAR-10 alone": ("cifar10",),
}
RULES: dict[str, tuple[AvailabilityOptions, SyncST]] = {
    "as decided: 300 clients, stragglers busy": (ActiveCap(cap=300), SyncST()),
    "each client with probability 0.3": (Bernoulli(p=0.3), SyncST()),
    "all 1,000 clients": (Always(), SyncST()),
    "stragglers free at once": (ActiveCap(cap=300), SyncST(stragglers="free")),
}


def main() -> None:
    (study,) = find_studies(["heterogeneous"])
    variant = next(v for v in study.variants() if v.key == ("Sync-ST",))
    print(f"{'rule':44}" + "".join(f"{phase:>30}" for phase in PHASES))
    for rule, (availability, algorithm) in RULES.items():
        line = f"{rule:44}"
        for names in PHASES.values():
            times = []
            for seed in (1, 2, 3):
                config = variant.config(seed, "full")
                simulation = config.simulation.model_copy(update={"availability": availability})
                tasks = tuple(task for task in config.tasks if task.use in names)
                config = config.model_copy(update={"simulation": simulation, "tasks": tasks})
                times.append(mean_sync_round(config, algorithm))
            line += f"{statistics.fmean(times):>30.2f}"
        print(line)


if __name__ == "__main__":
    main()
