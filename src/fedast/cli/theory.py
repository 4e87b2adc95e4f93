"""``fedast theory``: print what the paper's analysis says about a configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from fedast.algorithms.sync_st import SyncST
from fedast.algorithms.theory import Problem
from fedast.cli.loading import load_noted
from fedast.cli.starting import over
from fedast.cli.tables import new_table
from fedast.config.load import load
from fedast.run.theory import Theory, theory


def run_theory(
    path: str, *, settings: Sequence[str], rounds: int, problem: Problem, as_json: bool
) -> None:
    config, _ = load_noted(path, settings, beside=("sync-st",))  # whose rounds are shown too
    given = load(Path(path), settings, beside=("sync-st",)).algorithms
    sync = SyncST.model_validate(given.get("sync-st", {}))
    found = theory(config, problem, rounds, sync=sync)
    over()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    _print(Console(highlight=False), found, problem, rounds)


def _print(console: Console, found: Theory, problem: Problem, rounds: int) -> None:
    dynamic = any(task.moving is not None for task in found.tasks)
    theorem = "The theorem of option D (appendix)" if dynamic else "Theorem 1 (option S)"
    limits = new_table(
        f"{theorem}: conditions on the rates, for smoothness L = {problem.smoothness:g}",
        ("task", "η_s", f"≤ {'κ^-1.5 ' if dynamic else ''}√(τb)", "η_c", "at most", "holds if L ≤"),
        "γ, the largest staleness, is that of the simulated run",
    )
    about = (
        f"gap {problem.gap:g}, σ_l² {problem.local_variance:g}, σ_g² {problem.heterogeneity:g}, "
        f"L {problem.smoothness:g}"
    )
    if dynamic:
        about += "; with b at its smallest, R at its largest and κ = b_max/b_min"
    terms = new_table(
        f"{theorem}: the terms of the bound, up to constants, after T = {rounds:,} rounds",
        ("task", "τ", "R", "b", *(["κ"] if dynamic else []), "γ", "FedAvg I", "FedAvg II",
         "asynchrony"),
        about,
    )  # fmt: skip
    rates = new_table("Corollary 1: rates for O(1/√T)", ("task", "η_c", "η_s", "from T ="), "")
    times = new_table(
        "Time of a round: the paper's model and the simulator (training switched off)",
        ("task", "mean work", "b/(Rλ)", "simulated", "mean staleness"),
        f"synchronous round: H_ΣR/λ = {found.model_sync:.1f}, simulated {found.simulated_sync:.1f} "
        f"waiting for all, {found.simulated_sync_first_k:.1f} as configured for sync-st (first_k = "
        f"{found.first_k})",
    )
    for task in found.tasks:
        setting, limit = task.setting, task.conditions
        limits.add_row(
            task.name,
            f"{setting.server_lr:g}",
            f"{limit.server_limit:.3g} {_mark(setting.server_lr <= limit.server_limit)}",
            f"{setting.client_lr:g}",
            f"{limit.client_limit:.3g} {_mark(setting.client_lr <= limit.client_limit)}",
            f"{limit.smoothness_limit:.3g}",
        )
        moving = task.moving
        if moving is None:
            allocated = [str(setting.active_requests), str(setting.buffer_size)]
        else:
            buffers = f"{moving.min_buffer}–{moving.max_buffer}"
            allocated = [f"≤ {moving.max_requests}", buffers, f"{moving.skew:g}"]
        terms.add_row(
            task.name,
            str(setting.local_steps),
            *allocated,
            f"{setting.staleness:.0f}",
            f"{task.terms.optimisation:.3g}",
            f"{task.terms.averaging:.3g}",
            f"{task.terms.asynchrony:.3g}",
        )
        if task.corollary is not None:
            rates.add_row(
                task.name,
                f"{task.corollary.client_lr:.3g}",
                f"{task.corollary.server_lr:.3g}",
                f"{task.corollary.least_rounds:,}",
            )
        times.add_row(
            task.name,
            f"{task.mean_work:.2f}",
            f"{task.model_round:.3f}",
            f"{task.simulated_round:.3f}",
            f"{task.simulated_staleness:.1f}",
        )
    for table in (limits, terms, *([] if dynamic else [rates]), times):
        console.print(table)
    if dynamic:
        console.print("Corollary 1's rates are for a fixed allocation: see them with fedast-s.")


def _mark(holds: bool) -> str:
    return "✓" if holds else "✗"
