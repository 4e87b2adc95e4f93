"""What is fuzzed without a network: each target takes any bytes and must not raise.

A decoder of untrusted bytes gives a message or its own error. Anything else that comes out of a
target, an endless loop or a gigabyte of memory is a finding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedast.federation import log_codec, wire
from fedast.federation.log_events import (
    ClientJoined,
    Entry,
    LogEvent,
    ModelPublished,
    UpdateReceived,
    UploadIgnored,
)
from fedast.federation.reassembly import ChunkReassembly

_CHUNK, _LIMIT = 16, 60
_PREFIX = struct.Struct(">4sBI")


class Finding(AssertionError):
    """A promise that these bytes break."""


def _framed(data: bytes) -> bytes:
    """Bytes as the header and tensors of a message: its prefix is right, so that a fuzzer need not
    guess it. The first two bytes say how long the header is."""
    if len(data) < 2:
        return data
    length = int.from_bytes(data[:2], "big") % (len(data) - 1)
    return _PREFIX.pack(b"FAST", wire.PROTOCOL, length) + data[2:]


def _decodes(kind: type[wire.M]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        for form in (data, _framed(data)):
            try:
                message = wire.decode(form, kind)
            except wire.WireError as error:
                if len(str(error)) > 2000:
                    raise Finding("an error that is as long as its sender likes") from error
                continue
            if type(message) is not kind:
                raise Finding(f"a {type(message).__name__} instead of a {kind.__name__}")
            if wire.encode(wire.decode(wire.encode(message), kind)) != wire.encode(message):
                raise Finding("it is another message when it is sent on")

    return target


def upload(data: bytes) -> None:
    for form in (data, _framed(data)):
        try:
            update = wire.decode_upload(form, oversized=len(data) % 7 == 6)
        except wire.WireError:
            continue
        for size, buffers in ((4, 0), (4, 2), (0, 0)):
            said = wire.problem(update, size, 10.0, buffers)
            if said is None:
                whole = [v for v in (update.vector, update.buffers) if v is not None]
                if not all(np.isfinite(v).all() for v in whole) or not np.isfinite(update.loss):
                    raise Finding("an update that is not finite is called sound")


def chunks(data: bytes) -> None:
    """Chunks of uploads, as the bytes say: any numbers, any order, acknowledged or not."""
    reassembly = ChunkReassembly(_CHUNK, _LIMIT, room=4096)
    now, sequence, whole = 0.0, 0, 0
    for start in range(0, len(data) - 3, 4):
        a, b, c, d = data[start : start + 4]
        sequence += 1 + (d >> 6)
        now += (d & 15) * 10.0
        size = _CHUNK if c & 1 else c >> 3
        found = reassembly.take(
            sequence, (a & 3, str(a >> 4)), (b & 15) - 1, (b >> 4) - 1, bytes(size), now
        )
        if found is not None:
            whole += 1
            if len(found) > _LIMIT + 2 * _CHUNK:
                raise Finding(f"an upload of {len(found)} bytes where {_LIMIT} are allowed")
        needed = reassembly.needed_from(now)
        if needed > sequence + 1:
            raise Finding("more is deleted than was read")
        if d & 32:
            reassembly.acknowledge(sequence)
    reassembly.acknowledge(sequence)
    if reassembly.needed_from(now + 1e6) != sequence + 1:
        raise Finding("something is never deleted")


def log_entry(data: bytes) -> None:
    line = data.decode("utf-8", "surrogateescape")
    try:
        entry = log_codec.decode(line)
    except log_codec.BadEntry:
        return
    again = log_codec.decode(log_codec.encode(entry).rstrip("\n"))
    if log_codec.encode(again) != log_codec.encode(entry):
        raise Finding("an entry that is another when it is written again")


def model_names(data: bytes) -> None:
    name = data[:64].decode("latin-1")
    if wire.is_model(name, data) and len(data) > 64:
        raise Finding("a digest that anybody can guess")


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "update": upload,
    "hello": _decodes(wire.Hello),
    "request": _decodes(wire.Request),
    "model": _decodes(wire.Model),
    "control": _decodes(wire.Control),
    "chunks": chunks,
    "log entry": log_entry,
    "model name": model_names,
}


def _headers(message: wire.Message) -> list[bytes]:
    """A sound message, whole and in the form that ``_framed`` completes."""
    whole = wire.encode(message)
    (_, _, length) = _PREFIX.unpack_from(whole)
    return [whole, struct.pack(">H", length % 65536) + whole[_PREFIX.size :]]


def examples() -> Mapping[str, Sequence[bytes]]:
    """Sound inputs of each target, for a fuzzer to start from."""
    vector = np.ones(4, np.float32)
    updates = [
        wire.Update(1, "t", "a", 0.1, 0.1, 1, vector),
        wire.Update(1, "t", "a", 0.1, 0.1, 1, vector[:2], buffers=vector[:2]),
        wire.Update(1, "t", "a", 0.1, 0.1, 1, None, failed="no data"),
        wire.Update(1, "t", "a", 0.1, 0.1, 1, None, metric=0.5),
    ]
    many = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50)}
    text = json.dumps(many).encode()
    bomb = wire.encode(updates[2]) + struct.pack("<Q", len(text)) + text
    events: list[LogEvent] = [
        ClientJoined(3),
        UpdateReceived(1, 0.5, 0.25, 7),
        UploadIgnored(2),
        ModelPublished("a", 3, "0.3.abc"),
    ]
    return {
        "update": [form for update in updates for form in _headers(update)] + [bomb],
        "hello": _headers(wire.Hello(3, "fedast", ("a", "b"), idle=True)),
        "request": _headers(wire.Request("train", 1, "t", "a", 2, "0.2.ab", 4, False)),
        "model": _headers(wire.Model("a", 2, vector)),
        "control": _headers(wire.Control("stop", "a")),
        "chunks": [bytes([0, 0x21, 1, 1, 0, 0x22, 16, 33]), bytes(range(64))],
        "log entry": [log_codec.encode(Entry(1.5, event)).encode() for event in events],
        "model name": [b"0.0." + b"a" * 24],
    }
