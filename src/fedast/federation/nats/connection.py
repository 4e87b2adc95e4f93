"""Connecting to NATS with a certificate; an error says why the connection was refused."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import uniform

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from fedast.federation.backoff import retry
from fedast.federation.transport import Refused, TransportError

log = logging.getLogger("fedast.nats")
TROUBLE = (NatsError, JetStreamError, TimeoutError, OSError)
"""Errors of NATS that are worth another try."""
_REPEAT = 60.0
"""Seconds after which the same trouble is logged again."""
_REFUSALS, _REFUSED_FOR = 5, 10.0
"""A key that was valid must be refused so often in a row, and for so many seconds, to count as
revoked."""
_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds between attempts to connect again, the first time and at most. They are randomised:
otherwise thousands of clients that lost NATS at the same moment would all return at once, again and
again."""
_TIMEOUT, _AT_ONCE, _CLOSE = 20.0, 2.0, 1.0
"""Seconds for one attempt, which may take long if thousands try; in which a refusal comes; and for
closing what has failed."""


@dataclass(frozen=True)
class Credentials:
    """A folder with ``ca.pem``, ``cert.pem`` and ``key.pem``."""

    folder: Path

    def context(self) -> ssl.SSLContext:
        files = [self.folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
        for file in files:
            if not file.is_file():
                raise Refused(f"{file}: there is no such file; copy the whole credentials folder")
        try:
            context = ssl.create_default_context(cafile=str(files[0]))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(files[1], files[2])
        except (ssl.SSLError, OSError) as error:
            raise Refused(f"{self.folder}: its keys cannot be used ({error})") from error
        return context


_QUOTE = "'"


class NobodyThere(TransportError):
    """Nobody answers at the address."""


class Connection(Client):
    """Connects again after whatever happened to it. (nats-py itself closes for good after most
    errors that NATS tells it, such as a limit that is exceeded for a moment.)"""

    thrown_out = False
    """It was connected before, and is now refused repeatedly."""
    _pause = _PAUSE

    @property
    def process(self) -> str:
        """Identifies the process of the NATS server: another after it was started again."""
        return str(self._server_info.get("server_id", ""))

    def pace(self, pause: float) -> None:
        """Let about so many seconds pass between attempts to connect again."""
        self._pause = pause
        self.options["reconnect_time_wait"] = pause * uniform(0.5, 1.5)

    def slow_down(self) -> None:
        self.pace(min(_LONGEST_PAUSE, 2 * self._pause))

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower():
            await super()._process_err(err_msg)
            return
        error = NatsError(f"nats: {err_msg.strip(_QUOTE)}")
        await self._error_cb(error)
        await self._process_op_err(error)

    def check(self) -> None:
        """Raise if waiting for the connection is pointless."""
        if self.is_closed:
            raise TransportError(f"the connection to NATS is closed for good ({self.last_error})")
        if self.thrown_out:
            raise Refused("NATS refuses our key: it was renewed, or this client was expelled")


async def connect(
    servers: Sequence[str],
    credentials: Credentials,
    *,
    name: str,
    inbox_prefix: str = "_INBOX",
    patience: float | None = None,
) -> Connection:
    """Connect, trying for ``patience`` seconds (None: forever) while nobody answers."""
    context = credentials.context()
    loop = asyncio.get_running_loop()
    began = tried_at = loop.time()
    dropped = 0
    errors: list[str] = []
    refusals, refused_since = 0, 0.0
    said = "", 0.0
    connection = Connection()

    async def failed(error: Exception) -> None:
        nonlocal refusals, refused_since, said
        text = str(error) or type(error).__name__
        errors.append(text)
        del errors[:-10]
        if text != said[0] or loop.time() - said[1] > _REPEAT:  # each time is too often
            said = text, loop.time()
            log.warning("%s: %s", name, text)
        refusals = refusals + 1 if "authorization" in text.lower() else 0
        if refusals == 1:
            refused_since = loop.time()
        connection.thrown_out = refusals >= _REFUSALS and loop.time() - refused_since > _REFUSED_FOR
        if not connection.is_connected:
            connection.slow_down()

    async def let_in() -> None:
        nonlocal refusals
        refusals = 0
        connection.pace(_PAUSE)

    async def lost() -> None:
        if connection.is_reconnecting:
            await asyncio.sleep(uniform(0.0, _PAUSE))

    async def attempt() -> Connection:
        nonlocal connection, tried_at
        tried_at = loop.time()
        errors.clear()
        connection = Connection()
        try:
            # A lasting connection would silently try again forever when it is refused, so it
            # becomes one only when we are in.
            await connection.connect(
                list(servers),
                tls=context,
                name=name,
                inbox_prefix=inbox_prefix.encode(),
                allow_reconnect=False,
                max_reconnect_attempts=1,  # with 0, nats-py tries forever
                reconnect_time_wait=_PAUSE,  # type: ignore[arg-type]  # any number, in fact
                connect_timeout=_TIMEOUT,  # type: ignore[arg-type]
                error_cb=failed,
                disconnected_cb=lost,
                reconnected_cb=let_in,
                ping_interval=10,
                max_outstanding_pings=2,
            )
            await connection.flush(5)
        except BaseException:  # cancelled: somebody takes connections and says nothing
            with suppress(*TROUBLE, AttributeError):  # closing may wait for the other side
                await asyncio.wait_for(connection.close(), _CLOSE)
            raise
        connection.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        connection.pace(_PAUSE)
        return connection

    def give_up_or_wait(error: Exception) -> None:
        nonlocal dropped
        if isinstance(error, ssl.SSLError):
            raise Refused(f"{servers[0]}: {_tls_text(error)}") from error
        said = " ".join([str(error), *errors])
        if any(word in said.lower() for word in ("authorization", "certificate", "ssl")):
            raise Refused(f"{servers[0]}: does not let {name} in ({said})") from error
        # Somebody is there but hangs up right after the TLS handshake. Several times in a row, that
        # is a refusal of our certificate (with TLS 1.3 the reason comes too late for us to see it).
        at_once = loop.time() - tried_at < _AT_ONCE  # else it may have too many to connect
        dropped = dropped + 1 if at_once and "connection lost" in said.lower() else 0
        if dropped >= 5:
            raise Refused(f"{servers[0]}: does not let {name} in (it hangs up)") from error
        if patience is not None and loop.time() - began > patience:
            why = errors[-1] if errors else str(error) or type(error).__name__
            raise NobodyThere(f"{servers[0]}: nobody answers ({why})") from error
        log.info("%s: %s does not answer yet (%s)", name, servers[0], error)

    # (ssl.SSLError is an OSError.)
    return await retry(attempt, give_up_or_wait, on=(NatsError, OSError, TimeoutError), longest=5.0)


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not signed by our authority ({error.verify_message})"
    return f"the TLS handshake failed ({error.reason or error})"


async def close(connection: Client) -> None:
    with suppress(*TROUBLE):
        await asyncio.wait_for(connection.flush(2), 3)
    # nats-py writes what is left, and fails if the other side has closed TLS already.
    with suppress(*TROUBLE, AttributeError):
        await connection.close()
