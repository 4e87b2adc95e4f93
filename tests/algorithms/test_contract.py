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
    **{name: options() for name, options in ALGORITHMS.builtin.items()},
    "fedast-d, often": OFTEN,
    "fedast-d, bound": OFTEN.model_copy(update={"allocation_rule": Bound()}),
    "fedast-d, shares": OFTEN.model_copy(update={"allocation_rule": Shares()}),
    "fedast-d, uniform": OFTEN.model_copy(update={"allocation_rule": Uniform()}),
    "fedast-d, by loss": OFTEN.model_copy(update={"selection": Loss()}),
    "fedast-s, by speed": fedast.FedASTStatic(selection=Speed(candidates=3)),
    "fedast-s, fresh only": fedast.FedASTStatic(max_staleness=1),
    "fedast-s, polynomial": fedast.FedASTStatic(staleness_weight=Polynomial()),
    "fedast-s, hinge": fedast.FedASTStatic(staleness_weight=Hinge(grace=1)),
    "fedast-s, keep busy": fedast.FedASTStatic(cancel="keep-busy"),
    "fedast-plus, any client": fedast.FedASTPlus(idle=False),
    "fedast-plus, not fair": fedast.FedASTPlus(fair=False),
    "fedast-plus, by variance": fedast.FedASTPlus(
        allocation_rule=Bound(), period=0.3, variance_window=2
    ),
    "fedast-plus, by loss": fedast.FedASTPlus(selection=Loss()),
    "fedbuff, any client": fedast.FedBuff(idle=False),
    "fedbuff, by loss": fedast.FedBuff(selection=Loss()),
    "sync-st, first two": fedast.SyncST(first_k=2),
    "sync-st, all": fedast.SyncST(first_k="all"),
    "sync-st, round robin": fedast.SyncST(first_k=2, split="round-robin"),
    "sync-st, by speed": fedast.SyncST(first_k=2, selection=Speed()),
    "sync-st, by loss": fedast.SyncST(first_k=2, selection=Loss(candidates=3)),
    "sync-bayes-st, first two": fedast.SyncBayesST(first_k=2, candidates=5, history=4, extra=1),
    "sync-ucb-st, first two": fedast.SyncUCBST(first_k=2, extra=1),
    "sequential-fedavg, first two": fedast.SequentialFedAvg(first_k=2),
}

for _variant, _options in VARIANTS.items():
    _name = f"Test_{_variant.translate(str.maketrans(' ,-', '___'))}"
    globals()[_name] = algorithm_contract(_options)


LOSSES = {"sync-ucb-st", "sync-ucb-st, first two"} | {name for name in VARIANTS if "loss" in name}
NO_LOSSES = {
    "fedast-d",
    "fedast-s",
    "fedast-nobuffer",
    "fedast-plus",
    "fedbuff",
    "sync-st",
    "sync-bayes-st",
}


@pytest.mark.parametrize("variant", sorted(LOSSES | NO_LOSSES))
def test_losses_are_asked_for_where_they_decide(variant: str) -> None:
    """A driver that must give them has to train at once."""
    assert Play(VARIANTS[variant], 1).algorithm.wants_loss is (variant in LOSSES)
