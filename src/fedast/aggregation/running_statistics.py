"""Running statistics (floating-point buffers) are averaged; they are never stepped.

The mean and variance that a normalisation layer counts are values, not
directions. A step along the difference of an old model, however small, can take
a variance below zero, and the model is lost. So an update brings the client's
values v_i, and with the server's present ones p the next are

    p + share * mean(w_i (v_i - p)),    share = min(1, eta_s), 0 <= w_i <= 1:

a convex combination, whatever the delay. ``w_i`` are the algorithm's weights, if
it has any; median and trimmed mean take the place of the mean. With eta_s = 1
these are the clients' mean, as in FedAvg; a smaller rate, with which the model
goes part of the clients' way, averages over more rounds. The rate of an adaptive
step is not a fraction, so its share is one. Momentum, moments, clipping and
calibration do not touch statistics.

The result is kept between the least and the greatest of p and v_i, where only
rounding could take it out. So what no client changed stays as it is, bit by bit.
"""

from __future__ import annotations

import torch

from fedast.aggregation.aggregators import Aggregator
from fedast.aggregation.server_optimizers import ServerOptimizerOptions


def share_of(optimizer: ServerOptimizerOptions, lr: float) -> float:
    return 1.0 if optimizer.adaptive else min(1.0, lr)


def mixed(
    aggregate: Aggregator,
    share: float,
    present: torch.Tensor,
    sent: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """The next statistics from those that clients sent, one client per row."""
    parts = sent - present
    if weights is not None:
        parts = parts * weights.clamp(0.0, 1.0)[:, None]
    moved = present + share * aggregate(parts)
    low = torch.minimum(present, sent.amin(dim=0))
    high = torch.maximum(present, sent.amax(dim=0))
    return moved.clamp(low, high)
