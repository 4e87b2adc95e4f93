"""The accounts of NATS: every participant has one of its own.

NATS does not check the subject on which a client asks to be answered. If all were in one account,
a client could have NATS's answers sent to any subject: to another's uploads, to the published
models, or to JetStream's administration, where an empty answer to ``$JS.API.STREAM.DELETE...`` is a
valid command. So the streams belong to the account of the FedAST server, and the account of a
client imports the client's own few subjects from there, and nothing else. Between accounts NATS
replaces the reply subject by one of its own, and an answer ends up in the account of whoever asked.

There is one exception in nats-server: a reply subject that begins with ``$JS.ACK.`` is left as it
is, because pull consumers in other accounts need that. This one nats-server (2.15) does check, like
a subject to publish to; so users have permissions too, and no client can acknowledge the requests
of another.

Whatever NATS remembers on a client's behalf is limited: connections, subscriptions, bytes of a
message, and for how long it waits for an answer to a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedast.federation.keys import subject
from fedast.federation.nats.names import (
    CHUNK,
    CONTROL_INBOX,
    CONTROL_SUBJECT,
    MODELS,
    OBSERVER_INBOX,
    REQUESTS,
    STATUS_SUBJECT,
    consumer,
    hello_subject,
    inbox,
    model_subject,
    upload_subject,
)

SERVER, CONTROL, OBSERVER = "server", "control", "observer"
ACCOUNT = "FEDAST"
"""The account of the FedAST server, which has the streams."""
MESSAGE = CHUNK + 65536
"""The longest message, with its headers."""
_CONNECTIONS = 3
"""Of one key at a time. One is in use; the others are for links that broke, until NATS notices."""
_OPERATOR_CONNECTIONS = 32
_SUBSCRIPTIONS = 16
_CONSUMERS = 1_000_000
"""More than there will be clients. (Without a number nats-server 2.15 stops at 1,000.)"""
_OPERATORS = {
    CONTROL: ((CONTROL_SUBJECT, STATUS_SUBJECT), CONTROL_INBOX),
    OBSERVER: ((STATUS_SUBJECT,), OBSERVER_INBOX),
}
"""Keys of people: the subjects that each may send to, and its inbox."""
_NEXT, _ACK = f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}", f"$JS.ACK.{REQUESTS}"
_FETCH = f"$JS.API.DIRECT.GET.{MODELS}.{model_subject('>')}"
_SERVICES = {
    upload_subject("*"): "10s",
    hello_subject("*"): "1s",
    f"{_NEXT}.*": "2m",
    f"{_ACK}.>": "10s",
    _FETCH: "20s",
}
"""What clients may use, and for how long NATS remembers where the answer to a request must go."""


def accounts_config(numbers: Mapping[str, int]) -> str:
    """Everybody who has a key, as accounts. ``numbers``: the number of each name's valid key."""
    head = (
        "# The accounts of NATS, one per key; written by `fedast federation init`, `admit`,\n"
        "# `renew`, `expel` and `upgrade`.\n"
    )
    found = [_account(name, subject(name, number)) for name, number in numbers.items()]
    return f"{head}accounts {{\n{''.join(found)}}}\n"


def _account(name: str, user: str) -> str:
    if name == SERVER:
        return _server_account(user)
    if name in _OPERATORS:
        sends_to, its_inbox = _OPERATORS[name]
        return _small_account(name, user, sends_to, its_inbox, _OPERATOR_CONNECTIONS)
    client = int(name.removeprefix("client-"))
    services = [
        upload_subject(client),
        hello_subject(client),
        f"{_NEXT}.{consumer(client)}",
        f"{_ACK}.{consumer(client)}.>",
        _FETCH,
    ]
    return _small_account(name, user, services, inbox(client), _CONNECTIONS)


def _server_account(user: str) -> str:
    services = dict(_SERVICES)
    services.update({name: "1m" for sends_to, _ in _OPERATORS.values() for name in sends_to})
    exports = "".join(
        f'    {{ service: "{name}", response_threshold: "{seconds}" }}\n'
        for name, seconds in services.items()
    )
    return f"""  {ACCOUNT}: {{
  jetstream: {{ max_consumers: {_CONSUMERS} }}
  users: [ {{ user: "{user}" }} ]
  exports: [
{exports}  ] }}
"""


def _small_account(
    name: str, user: str, services: Sequence[str], its_inbox: str, connections: int
) -> str:
    publish = ", ".join(f'"{service}"' for service in services)
    imports = "".join(
        f'    {{ service: {{ account: {ACCOUNT}, subject: "{service}" }} }}\n'
        for service in services
    )
    return f"""  {name}: {{
  users: [ {{ user: "{user}", permissions: {{
    publish: {{ allow: [{publish}] }}
    subscribe: {{ allow: ["{its_inbox}.>"] }}
  }} }} ]
  limits: {{ max_connections: {connections}, max_subscriptions: {_SUBSCRIPTIONS} }}
  imports: [
{imports}  ] }}
"""
