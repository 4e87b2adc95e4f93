"""A dataset as stacked copies on a GPU take it: transformed once for all samples, not in every
batch."""

from __future__ import annotations

import logging
import math

import torch

from fedast.tasks.dataset import Arrays, Dataset

_log = logging.getLogger(__name__)

_SHARE = 8
"""At most one part in so many of a GPU's free memory is used for a dataset."""
_ROWS = 4096
"""Samples that are transformed at a time."""


def prepared(dataset: Dataset, takes: torch.dtype | None) -> Dataset:
    """The same samples without a transform and, unless it is None, in the type ``takes``; the
    dataset itself if that would not be the same, would not fit or gain nothing."""
    if not isinstance(dataset, Arrays) or not isinstance(dataset.inputs, torch.Tensor):
        return dataset
    plain = dataset.transform is None and takes in (None, dataset.inputs.dtype)
    if plain or not dataset.inputs.is_cuda or not one_by_one(dataset):
        return dataset
    rows = torch.arange(len(dataset), device=dataset.inputs.device)
    first, _ = dataset.batch(rows[:1])
    stored = first.dtype if takes is None else takes
    size = len(dataset) * math.prod(first.shape) * stored.itemsize
    if size > torch.cuda.mem_get_info(first.device)[0] // _SHARE:
        return dataset
    inputs = torch.empty((len(dataset), *first.shape[1:]), dtype=stored, device=first.device)
    for some in torch.split(rows, _ROWS):
        inputs[some] = dataset.batch(some)[0].to(stored)
    return Arrays(inputs, dataset.labels)


def one_by_one(dataset: Dataset) -> bool:
    """Whether samples are the same whichever others are in their batch: a transform may draw random
    numbers, or go by the batch."""
    some = torch.arange(min(4, len(dataset)))
    if isinstance(dataset, Arrays) and isinstance(dataset.inputs, torch.Tensor):
        some = some.to(dataset.inputs.device)
    try:
        together, _ = dataset.batch(some)
        alone = [dataset.batch(some[n : n + 1])[0] for n in range(len(some))]
        return torch.equal(torch.cat(alone), together)
    except Exception as error:  # whatever a user's transform raises for a single sample
        _log.info("samples are transformed batch by batch: %s", error)
        return False
