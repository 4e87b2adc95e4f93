"""The wire format (docs/wire.md).

A message is ``FAST``, one byte for the version of the protocol, four bytes (big endian) for the
length of the header, the header as JSON, and tensors in the safetensors format, if there are any.
Nothing in it is ever executed. ``decode`` takes untrusted bytes: it returns a message or raises
``WireError``, and needs no more memory than a few times the length of the bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedast.federation.untrusted import printable

PROTOCOL = 1
_MAGIC = b"FAST"
_PREFIX = struct.Struct(">4sBI")
_MAX_HEADER = 64 * 1024
_MAX_ANSWER = 2**20
"""A control command's header has the server's answer in it, and a status of thousands of clients is
long. Only keys that the server trusts may send such messages."""
_MAX_LOSS = 1e15
_MAX_WORK = 31 * 86400.0
_MAX_TENSORS_HEADER = 1024
"""Bytes in which safetensors describes the tensors. We send two at most, in some 200 bytes; parsing
a longer description could cost hundreds of times its length."""
_TYPES = {"single": np.float32, "half": np.float16}
_TENSORS = ("vector", "buffers")
"""Fields that follow the header, as tensors."""
_OPTIONAL = ("means", "samples_of_tasks")
"""Fields that earlier versions do not know: they are left out if empty."""

Vector: TypeAlias = npt.NDArray[np.float32]


MAX_SAMPLES = 1_000_000
"""The most samples that a client is believed to have, if nothing is known about its data."""
MODEL_GONE = "its model is not there any more"
"""The beginning of ``Update.failed`` if the client is not to blame; part of the protocol."""


class WireError(Exception):
    """Bytes that are not a message of this protocol; the text says why, and is safe to show though
    it may quote the message."""

    def __init__(self, why: str) -> None:
        super().__init__(printable(why, 300))


class OtherProtocol(WireError):
    """A message of another version of the protocol."""


@dataclass(frozen=True, slots=True)
class Model:
    """A version of a task's model."""

    task: str
    version: int
    vector: Vector


@dataclass(frozen=True, slots=True)
class Request:
    """Train (or evaluate) a model version; ``token`` identifies this assignment."""

    kind: str
    id: int
    token: str
    task: str
    version: int
    model: str
    """The name under which the model was published; it contains a digest."""
    size: int
    """The length of the model's vector."""
    half: bool
    """Whether to send the update in half precision."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a client sends back. ``failed`` says why there is no vector."""

    request: int
    token: str
    task: str
    loss: float
    work_seconds: float
    samples: int
    vector: Vector | None
    metric: float | None = None
    failed: str | None = None
    buffers: Vector | None = None
    """The values of the model's floating-point buffers, if it has any; ``vector`` is then without
    them."""
    means: tuple[float, ...] | None = None
    """In an evaluation: what the metric was finished from (docs/wire.md). Optional."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's heartbeat, sent every few seconds. ``bye``: it leaves on purpose. ``idle``: it is
    not working on a request."""

    client: int
    software: str
    tasks: tuple[str, ...]
    bye: bool = False
    idle: bool = False
    samples_of_tasks: tuple[int, ...] | None = None
    """How many samples it has, in the order of ``tasks``. Optional."""


@dataclass(frozen=True, slots=True)
class Control:
    """A control command to the server, or its answer."""

    verb: str
    argument: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """What the server has to say to a client that it does not admit. Every version of the protocol
    has it in this form (``decode_notice``)."""

    text: str
    software: str
    protocol: int
    """The server's."""


Message: TypeAlias = Model | Request | Update | Hello | Control | Notice
M = TypeVar("M", bound=Message)
_KINDS: Mapping[str, type[Message]] = {
    "model": Model, "request": Request, "update": Update, "hello": Hello, "control": Control,
    "notice": Notice,
}  # fmt: skip
_NAMES: Mapping[type[object], str] = {kind: name for name, kind in _KINDS.items()}
_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)
_COUNT = Annotated[int, Field(ge=0, lt=2**63)]


def encode(message: Message, precision: str = "single") -> bytes:
    header: dict[str, Any] = {"kind": _NAMES[type(message)]}
    tensors: dict[str, npt.NDArray[Any]] = {}
    fields = {name: getattr(message, name) for name in message.__slots__}
    vector, buffers = (fields.pop(name, None) for name in _TENSORS)
    fields = {k: v for k, v in fields.items() if v is not None or k not in _OPTIONAL}
    if vector is not None:
        tensors["vector"] = np.ascontiguousarray(vector, dtype=_TYPES[precision])
    if buffers is not None:  # half precision could be too coarse or too small for them
        tensors["buffers"] = np.ascontiguousarray(buffers, dtype=np.float32)
    header["fields"] = fields
    text = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    body = save(tensors) if tensors else b""
    return _PREFIX.pack(_MAGIC, PROTOCOL, len(text)) + text + body


def decode(data: bytes, kind: type[M]) -> M:
    """A message of this kind; ``WireError`` if it is not one."""
    if len(data) < _PREFIX.size:
        raise WireError(f"{len(data)} bytes are too short to be a message")
    magic, protocol, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise WireError("not a fedast message")
    if protocol != PROTOCOL:
        raise OtherProtocol(
            f"it uses version {protocol} of the protocol, this is version {PROTOCOL}; "
            "use the same version of fedast on both sides"
        )
    most = _MAX_ANSWER if kind is Control else _MAX_HEADER
    if length > most or _PREFIX.size + length > len(data):
        raise WireError(f"its header claims {length} bytes, more than there are or may be")
    end = _PREFIX.size + length
    fields = _header(kind, data[_PREFIX.size : end])
    if "vector" in kind.__slots__:
        fields |= _vectors(data[end:], [name for name in _TENSORS if name in kind.__slots__])
        if fields["vector"] is None and kind is Model:
            raise WireError("a model without its vector")
    elif end != len(data):
        raise WireError(f"{len(data) - end} bytes follow the end of the message")
    return kind(**fields)


def protocol_of(data: bytes) -> int | None:
    """The protocol version of a message; None if it is not a message of any version."""
    if len(data) < _PREFIX.size:
        return None
    magic, protocol, _ = _PREFIX.unpack_from(data)
    return int(protocol) if magic == _MAGIC else None


def decode_notice(data: bytes) -> Notice | None:
    """A notice of any version of the protocol; None if it is something else."""
    if protocol_of(data) is None:
        return None
    try:
        return decode(_PREFIX.pack(_MAGIC, PROTOCOL, len(data) - _PREFIX.size)
                      + data[_PREFIX.size :], Notice)  # fmt: skip
    except WireError:
        return None


def decode_upload(data: bytes, oversized: bool) -> Update:
    if oversized:
        raise WireError("it is longer than an update of the largest model")
    try:
        return decode(data, Update)
    except WireError:
        raise
    except Exception as error:  # whatever bytes make a decoder do is their sender's doing
        raise WireError(f"it cannot be decoded ({type(error).__name__})") from error


def _header_model(kind: type[Message]) -> type[BaseModel]:
    """A strict model of a message's header: all of its fields and nothing else. Tensors are not in
    the header."""
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {
        name: (_COUNT if hints[name] is int else hints[name], None if name in _OPTIONAL else ...)
        for name in kind.__slots__
        if name not in _TENSORS
    }
    name = _NAMES[kind]
    literal: Any = Literal[name]
    inner = create_model(f"{name} fields", __config__=_STRICT, **fields)
    return create_model(
        f"{name} header", __config__=_STRICT, kind=(literal, ...), fields=(inner, ...)
    )


_HEADERS: Mapping[type[object], type[BaseModel]] = {
    kind: _header_model(kind) for kind in _KINDS.values()
}


def _header(kind: type[object], data: bytes) -> dict[str, Any]:
    try:
        header: Any = _HEADERS[kind].model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "literal_error":
            found = str(first["input"])[:20]
            raise WireError(f"it is a {found!r}, not a {_NAMES[kind]!r}") from None
        where = ".".join(map(str, first["loc"]))[:100] or "header"
        raise WireError(f"its header is not valid: {where}: {first['msg'][:100]}") from None
    return dict(vars(header.fields))


def _vectors(body: bytes, names: Sequence[str]) -> dict[str, Vector | None]:
    """The tensors of these names; None for those that are missing, which ``vector`` may be only if
    all are."""
    if not body:
        return dict.fromkeys(names)
    described = int.from_bytes(body[:8], "little")
    if described > _MAX_TENSORS_HEADER:
        raise WireError(f"its tensors are described in {described} bytes, more than there may be")
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise WireError(f"its tensors cannot be read ({type(error).__name__})") from None
    if "vector" not in tensors or not tensors.keys() <= set(names):
        raise WireError("it should have one vector and nothing else")
    for name, tensor in tensors.items():
        if tensor.ndim != 1:
            raise WireError(f"its {name} has {tensor.ndim} dimensions, not one")
        if tensor.dtype not in (np.float32, np.float16):
            raise WireError(f"its {name} is of type {tensor.dtype}, not float32 or float16")
    return {name: tensors[name].astype(np.float32) if name in tensors else None for name in names}


def model_name(model: bytes, task_number: int, version: int) -> str:
    """The name to publish a model under: task, version and a digest of the message."""
    digest = hashlib.blake2b(model, digest_size=12).hexdigest()
    return f"{task_number}.{version}.{digest}"


def is_model(name: str, data: bytes) -> bool:
    """Whether the message matches the digest in the name."""
    return name.rpartition(".")[2] == hashlib.blake2b(data, digest_size=12).hexdigest()


def token(secret: bytes, request: int, client: int, model: str) -> str:
    """Identifies an assignment: equal for equal assignments, different for others.

    Only the server, which has the secret, can compute it.
    """
    text = f"{request}/{client}/{model}"
    return hashlib.blake2b(text.encode(), digest_size=12, key=secret).hexdigest()


def may_be_the_models_fault(update: Update) -> bool:
    """Whether numbers in an update are not finite, or its loss is not possible, as happens to any
    client that was given a bad model."""
    tensors = [t for t in (update.vector, update.buffers) if t is not None]
    possible = math.isfinite(update.loss) and abs(update.loss) <= _MAX_LOSS
    return not possible or not all(bool(np.isfinite(tensor).all()) for tensor in tensors)


def problem(update: Update, size: int, norm_bound: float | None, buffers: int = 0) -> str | None:
    """What is wrong with an update, or None. ``size``: length of the model, of which ``buffers``
    entries are buffers. In an update without buffers, ``vector`` has entries for them too."""
    if update.vector is None:
        return f"the client could not train: {(update.failed or 'no reason given')[:200]}"
    wanted = size
    if update.buffers is not None:
        wanted = size - buffers
        if update.buffers.shape != (buffers,):
            return f"it has {update.buffers.size} entries of buffers, the model has {buffers}"
        if not np.isfinite(update.buffers).all():
            return "its buffers are not finite"
    if update.vector.shape != (wanted,):
        return f"its vector has {update.vector.size} entries, the model has {wanted}"
    if not np.isfinite(update.vector).all() or not math.isfinite(update.loss):
        return "its vector or loss is not finite"
    if abs(update.loss) > _MAX_LOSS:
        return f"its loss of {update.loss:g} is not possible"
    if not math.isfinite(update.work_seconds) or not 0 <= update.work_seconds <= _MAX_WORK:
        return "its work time is negative, not finite or longer than a month"
    if norm_bound is not None:
        norm = float(np.linalg.norm(update.vector.astype(np.float64)))
        if norm > norm_bound:
            return f"its norm is {norm:.3g}, more than {norm_bound:g}"
    return None
