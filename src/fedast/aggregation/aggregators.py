"""From the updates of a round to one direction: the mean, or something that resists bad ones.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett:
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018. Both are the mean of what is left of each coordinate's sorted values
when as many are cut off at either end; the median cuts off all but the middle.
"""

from __future__ import annotations

import torch

from fedast.aggregation.settings import Combining


def clipped(how: Combining, updates: torch.Tensor) -> torch.Tensor:
    """The updates, one per row, none longer than allowed."""
    if how.clip is None:
        return updates
    norms = updates.norm(dim=1)
    limit = norms.median() if how.clip == "median" else norms.new_tensor(how.clip)
    shrink: torch.Tensor = (limit / norms.clamp_min(1e-30)).clamp_max(1.0)
    return updates * shrink[:, None]


def combined(how: Combining, updates: torch.Tensor) -> torch.Tensor:
    cut = how.trimmed(len(updates))
    if cut == 0:
        return updates.mean(dim=0)
    return updates.sort(dim=0).values[cut : len(updates) - cut].mean(dim=0)
