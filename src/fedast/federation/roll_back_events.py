"""Reports of bad models that were rolled back, for the log and the records."""

from __future__ import annotations

from fedast.federation.log_events import ModelRolledBack
from fedast.federation.roll_back import RollBacks
from fedast.federation.state import ServerLearner

_NAMED = 20


def roll_back_events(learner: ServerLearner, roll_backs: RollBacks) -> list[ModelRolledBack]:
    """What has happened since this was last asked."""
    steps = [
        ModelRolledBack(
            step.task,
            step.version,
            step.version - 1,
            "a step would have made it not finite",
            tuple(zip(step.requests, step.clients, strict=True)),
        )
        for step in learner.take_undone()
    ]
    return steps + [
        ModelRolledBack(past.task, past.version, past.back_to, past.why, past.suspects)
        for past in roll_backs.take_notices()
    ]


def described(event: ModelRolledBack) -> str:
    clients = sorted({client for _, client in event.suspects})
    named = ", ".join(map(str, clients[:_NAMED])) + (", ..." if len(clients) > _NAMED else "")
    return (
        f"{event.task} went bad ({event.why}) and is back at version {event.back_to}, as version "
        f"{event.version}; the {len(event.suspects)} updates since then are from clients "
        f'{named or "(none)"}; if it goes bad again, set aggregator = "median" for this task'
    )
