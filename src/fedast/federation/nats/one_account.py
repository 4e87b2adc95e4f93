"""Permissions of users who share one account, as earlier versions set federations up.

They keep a client to its own subjects, but not its reply subjects (``accounts``). Only for folders
that have not been upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedast.federation.keys import subject
from fedast.federation.nats.accounts import CONTROL, OBSERVER, SERVER
from fedast.federation.nats.names import (
    CONTROL_INBOX,
    CONTROL_SUBJECT,
    MODELS,
    OBSERVER_INBOX,
    REQUESTS,
    STATUS_SUBJECT,
    consumer,
    hello_subject,
    inbox,
)


def users_config(numbers: Mapping[str, int]) -> str:
    """The users of NATS, and what each may publish and subscribe to."""
    users = []
    for name, number in numbers.items():
        if name == SERVER:
            publish, subscribe = [">"], ">"
        elif name == CONTROL:
            publish, subscribe = [CONTROL_SUBJECT, STATUS_SUBJECT], f"{CONTROL_INBOX}.>"
        elif name == OBSERVER:
            publish, subscribe = [STATUS_SUBJECT], f"{OBSERVER_INBOX}.>"
        else:
            client = int(name.removeprefix("client-"))
            publish, subscribe = _client_may(client), f"{inbox(client)}.>"
        users.append(_user(subject(name, number), publish, subscribe))
    head = "# The users; written by `fedast federation init`, `admit`, `renew` and `expel`.\n"
    return f"{head}users: [\n{''.join(users)}]\n"


def _client_may(client: int) -> list[str]:
    return [
        f"fedast.upload.{client}.>",
        hello_subject(client),
        f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{consumer(client)}",
        f"$JS.ACK.{REQUESTS}.{consumer(client)}.>",
        f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.>",
    ]


def _user(whose: str, publish: Sequence[str], subscribe: str) -> str:
    allowed = ", ".join(f'"{subject}"' for subject in publish)
    return f"""  {{ user: "{whose}", permissions: {{
    publish: {{ allow: [{allowed}] }}
    subscribe: {{ allow: ["{subscribe}"] }}
  }} }}
"""
