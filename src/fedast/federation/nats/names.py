"""Names in NATS: streams, subjects, consumers and inboxes."""

from __future__ import annotations

from fedast.core.protocol import ClientId

CHUNK = 4 * 2**20
"""The longest message, in bytes; anything longer travels in chunks."""
CHUNKS_HEADER = "Fedast-Parts"
UPLOAD_HEADER = "Fedast-Upload"
"""The name of an upload, and which chunk of it this is."""
REQUESTS, UPDATES, MODELS = "FEDAST_REQUESTS", "FEDAST_UPDATES", "FEDAST_MODELS"
SERVING, SERVER_SUBJECT = "FEDAST_SERVER", "fedast.server"
"""Where the server writes down that it serves (``fence``)."""
HELLOS = "FEDAST_HELLOS"
SERVER_INBOX, CONTROL_INBOX = "_INBOX_server", "_INBOX_control"
OBSERVER_INBOX = "_INBOX_observer"
CONTROL_SUBJECT, STATUS_SUBJECT = "fedast.order", "fedast.status"
"""Commands, which only the control key may give, and questions, for which there is a key that may
do nothing else."""


def request_subject(client: ClientId, name: str) -> str:
    return f"fedast.request.{client}.{name}"


def upload_subject(client: ClientId | str) -> str:
    """One for all uploads of a client, so that NATS can limit how many of them are waiting."""
    return f"fedast.upload.{client}.chunk"


def model_subject(name: str, chunk: int | str | None = None) -> str:
    return f"fedast.model.{name}" + ("" if chunk is None else f".{chunk}")


def hello_subject(client: ClientId | str) -> str:
    return f"fedast.hello.{client}"


def inbox(client: ClientId) -> str:
    return f"_INBOX_client_{client}"


def consumer(client: ClientId) -> str:
    return f"client-{client}"
