"""Errors that are the server's own: in fedast, or in code that its configuration names.

Only decoding and validation may blame a client. Whatever else goes wrong while an event is applied
is an error on this side: the server stops before any of it is committed, so that it can be started
again once the code is fixed.
"""

from __future__ import annotations

from typing import final

from fedast.parts.blame import described, where


@final
class ServerFault(Exception):
    """The server's own code failed; none of what it was doing is in its write-ahead log."""

    def __init__(self, doing: str, error: Exception) -> None:
        super().__init__(
            f"{doing}: {described(error)}, {where(error)}. No client is to blame, and nothing of "
            "it was committed. Repair that code and start the server again: it goes on from its "
            "last commit"
        )
