"""Every algorithm of fedast under the public contract suite, built as a user builds them."""

from __future__ import annotations

import pytest

import fedast
from fedast.algorithms.allocation import Bound, Shares, Uniform
from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.algorithms.selection import Loss, Speed
from fedast.algorithms.staleness import Hinge, Polynomial
from fedast.testing import algorithm_contract
from fedast.testing.algorithms import Play

OFTEN = fedast.FedASTDynamic(period=0.3, variance_window=2)
VARIANTS: dict[str, AlgorithmOptions] = {
    "fedast-d": OFTEN,
    "fedast-d, bound": OFTEN.model_copy(update={"allocation_rule": Bound()}),
    "fedast-d, shares": OFTEN.model_copy(update={"allocation_rule": Shares()}),
    "fedast-d, uniform": OFTEN.model_copy(update={"allocation_rule": Uniform()}),
    "fedast-d, by loss": OFTEN.model_copy(update={"selection": Loss()}),
    "fedast-s": fedast.FedASTStatic(),
    "fedast-s, by speed": fedast.FedASTStatic(selection=Speed(candidates=3)),
    "fedast-s, fresh only": fedast.FedASTStatic(max_staleness=1),
    "fedast-s, polynomial": fedast.FedASTStatic(staleness_weight=Polynomial()),
    "fedast-s, hinge": fedast.FedASTStatic(staleness_weight=Hinge(grace=1)),
    "fedast-s, keep busy": fedast.FedASTStatic(cancel="keep-busy"),
    "fedast-nobuffer": fedast.FedASTNoBuffer(),
    "fedbuff": fedast.FedBuff(),
    "fedbuff, any client": fedast.FedBuff(idle=False),
    "fedbuff, by loss": fedast.FedBuff(selection=Loss()),
    "sync-st": fedast.SyncST(first_k=2),
    "sync-st, all": fedast.SyncST(first_k="all"),
    "sync-st, round robin": fedast.SyncST(first_k=2, split="round-robin"),
    "sync-st, by speed": fedast.SyncST(first_k=2, selection=Speed()),
    "sync-st, by loss": fedast.SyncST(first_k=2, selection=Loss(candidates=3)),
    "sync-bayes-st": fedast.SyncBayesST(first_k=2, candidates=5, history=4, extra=1),
    "sync-ucb-st": fedast.SyncUCBST(first_k=2, extra=1),
    "sequential-fedavg": fedast.SequentialFedAvg(first_k=2),
    "centralized": fedast.Centralized(),
}

for _variant, _options in VARIANTS.items():
    _name = f"Test_{_variant.translate(str.maketrans(' ,-', '___'))}"
    globals()[_name] = algorithm_contract(_options)


def test_no_algorithm_is_left_out() -> None:
    assert {options.name for options in VARIANTS.values()} == set(ALGORITHMS.builtin)


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_are_asked_for_where_they_decide(variant: str) -> None:
    """A driver that must give them has to train at once."""
    wanted = variant == "sync-ucb-st" or "by loss" in variant
    assert Play(VARIANTS[variant], 1).algorithm.wants_loss is wanted
