"""Names in NATS: streams, subjects, consumers and inboxes, and what each client may use of them."""

from __future__ import annotations

from fedast.core.protocol import ClientId

CHUNK = 4 * 2**20
"""The longest message, in bytes; anything longer travels in chunks."""
CHUNKS_HEADER = "Fedast-Parts"
REQUESTS, UPDATES, MODELS = "FEDAST_REQUESTS", "FEDAST_UPDATES", "FEDAST_MODELS"
HELLOS = "FEDAST_HELLOS"
SERVER_INBOX, CONTROL_INBOX = "_INBOX_server", "_INBOX_control"
CONTROL_SUBJECT = "fedast.order"


def request_subject(client: ClientId, name: str) -> str:
    return f"fedast.request.{client}.{name}"


def upload_subject(client: ClientId | str, rest: str) -> str:
    return f"fedast.upload.{client}.{rest}"


def model_subject(name: str, chunk: int | str) -> str:
    return f"fedast.model.{name}.{chunk}"


def hello_subject(client: ClientId | str) -> str:
    return f"fedast.hello.{client}"


def inbox(client: ClientId) -> str:
    return f"_INBOX_client_{client}"


def consumer(client: ClientId) -> str:
    return f"client-{client}"


def client_permissions(client: ClientId) -> tuple[list[str], list[str]]:
    """What a client may publish to and subscribe to."""
    return (
        [
            upload_subject(client, ">"),
            hello_subject(client),
            f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{consumer(client)}",
            f"$JS.ACK.{REQUESTS}.{consumer(client)}.>",
            f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.>",
        ],
        [f"{inbox(client)}.>"],
    )
