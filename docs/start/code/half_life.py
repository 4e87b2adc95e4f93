"""FedAST(S) in which an update's weight halves with every few rounds of staleness."""

from fedast.algorithms.asynchronous import Asynchronous


def half_life(tasks, pool, stream, *, rounds: float = 4.0):
    """FedAST(S) in which an update's weight halves with every few rounds of staleness."""

    def weight(staleness):
        return 0.5 ** (staleness / rounds)

    return Asynchronous(tasks, pool, stream, dynamic=False, weight=weight)
