"""The wire format: what is sent arrives, and whatever strangers send is an error, never worse."""

from __future__ import annotations

import json
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from fedast.federation import wire

TEXT = st.text(max_size=40)
COUNT = st.integers(0, 2**53)
NUMBER = st.floats(allow_nan=False, width=32)
VECTOR = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30).map(
    lambda values: np.array(values, np.float32)
)
MESSAGES = st.one_of(
    st.builds(wire.Model, TEXT, COUNT, VECTOR),
    st.builds(wire.Request, TEXT, COUNT, TEXT, TEXT, COUNT, TEXT, COUNT, st.booleans()),
    st.builds(
        wire.Update, COUNT, TEXT, TEXT, NUMBER, NUMBER, COUNT, st.none() | VECTOR,
        st.none() | NUMBER, st.none() | TEXT,
    ),
    st.builds(wire.Hello, COUNT, TEXT, st.lists(TEXT, max_size=4).map(tuple), st.booleans(),
              st.booleans()),
    st.builds(wire.Control, TEXT, TEXT, TEXT),
)  # fmt: skip
KINDS = (wire.Model, wire.Request, wire.Update, wire.Hello, wire.Control)


def same(a: wire.Message, b: wire.Message) -> bool:
    for name in a.__slots__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            if not np.array_equal(left, right):
                return False
        elif left != right:
            return False
    return type(a) is type(b)


@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: wire.Message) -> None:
    assert same(wire.decode(wire.encode(message), type(message)), message)


@given(st.binary(max_size=300), st.sampled_from(KINDS))
@settings(max_examples=300)
def test_any_bytes_are_an_error(data: bytes, kind: type[wire.Message]) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data, kind)


@given(MESSAGES, st.sampled_from(KINDS), st.data())
@settings(max_examples=400)
def test_damaged_messages_are_errors_or_messages(
    message: wire.Message, kind: type[wire.Message], data: st.DataObject
) -> None:
    raw = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    try:
        found = wire.decode(bytes(raw[:cut]), kind)
    except wire.WireError:
        return
    assert type(found) is kind


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    ),
    st.sampled_from(KINDS),
)
@settings(max_examples=300)
def test_any_header_is_an_error_or_a_message(value: object, kind: type[wire.Message]) -> None:
    text = json.dumps({"kind": "update", "fields": value}).encode()
    data = struct.pack(">4sBI", b"FAST", wire.PROTOCOL, len(text)) + text
    with pytest.raises(wire.WireError):
        wire.decode(data, kind)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'"client":3', b'"client":"3"', "fields.client: Input should be a valid integer"),
        (b'"client":3', b'"client":true', "fields.client: Input should be a valid integer"),
        (b'"client":3', b'"client":3.0', "fields.client: Input should be a valid integer"),
        (b'"client":3', b'"client":-3', "fields.client: Input should be greater than"),
        (b'"client":3', b'"client":9223372036854775808', "fields.client: Input should be less"),
        (b'"client":3,', b"", "fields.client: Field required"),
        (b'"idle":false', b'"idle":0', "fields.idle: Input should be a valid boolean"),
        (b',"idle":false', b"", "fields.idle: Field required"),
        (b'"client":3', b'"client":3,"more":1', "fields.more: Extra inputs"),
        (b'"tasks":["a"]', b'"tasks":["a",1]', "fields.tasks.1: Input should be a valid string"),
        (b'"hello"', b'"update"', "it is a 'update', not a 'hello'"),
        (b"{", b"[", "Invalid JSON"),
    ],
)
def test_a_header_that_is_not_valid_is_refused_with_what_is_wrong(
    before: bytes, after: bytes, said: str
) -> None:
    good = wire.encode(wire.Hello(3, "x", ("a",)))
    header = good[9:].replace(before, after, 1)
    assert header != good[9:]
    with pytest.raises(wire.WireError, match=said.replace(".", r"\.")):
        wire.decode(good[:5] + struct.pack(">I", len(header)) + header, wire.Hello)


def test_numbers_may_be_whole_or_not_finite_as_json_writes_them() -> None:
    update = wire.Update(1, "t", "a", float("nan"), float("inf"), 1, None, metric=1)
    found = wire.decode(wire.encode(update), wire.Update)
    assert np.isnan(found.loss)
    assert found.work_seconds == float("inf")
    assert found.metric == 1.0
    assert isinstance(found.metric, float)


def test_another_version_of_the_protocol_is_refused_with_a_clear_message() -> None:
    data = bytearray(wire.encode(wire.Control("status")))
    data[4] = wire.PROTOCOL + 1
    with pytest.raises(wire.OtherProtocol, match="same version of fedast on both sides"):
        wire.decode(bytes(data), wire.Control)


def test_a_header_that_claims_to_be_huge_takes_no_memory() -> None:
    data = struct.pack(">4sBI", b"FAST", wire.PROTOCOL, 2**32 - 1) + b"{}"
    tracemalloc.start()
    with pytest.raises(wire.WireError):
        wire.decode(data, wire.Update)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_tensors_that_claim_to_be_huge_take_no_memory() -> None:
    good = wire.encode(wire.Update(1, "t", "a", 0.0, 0.0, 1, np.ones(4, np.float32)))
    header_end = 9 + struct.unpack(">I", good[5:9])[0]
    claim = json.dumps(
        {"vector": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    body = struct.pack("<Q", len(claim)) + claim
    with pytest.raises(wire.WireError, match="tensors"):
        wire.decode(good[:header_end] + body, wire.Update)


@pytest.mark.parametrize(
    "tensors",
    [
        {"vector": np.ones((2, 2), np.float32)},
        {"vector": np.ones(2, np.float64)},
        {"vector": np.ones(2, np.int32)},
        {"other": np.ones(2, np.float32)},
        {"vector": np.ones(2, np.float32), "more": np.ones(2, np.float32)},
    ],
)
def test_tensors_are_one_vector_of_floats(tensors: dict[str, np.ndarray]) -> None:
    good = wire.encode(wire.Update(1, "t", "a", 0.0, 0.0, 1, None))
    with pytest.raises(wire.WireError, match="vector"):
        wire.decode(good + save(tensors), wire.Update)


def test_half_precision_halves_the_upload_and_stays_close() -> None:
    vector = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    update = wire.Update(1, "t", "a", 0.0, 0.0, 1, vector)
    full, half = wire.encode(update), wire.encode(update, "half")
    assert len(half) < 0.52 * len(full)
    found = wire.decode(half, wire.Update).vector
    assert found is not None
    assert found.dtype == np.float32
    assert np.abs(found - vector).max() < 1e-2


@pytest.mark.parametrize(
    ("vector", "loss", "seconds", "said"),
    [
        (np.ones(3, np.float32), 0.1, 0.1, "3 entries"),
        (np.array([1, np.nan, 0, 0], np.float32), 0.1, 0.1, "not finite"),
        (np.array([1, np.inf, 0, 0], np.float32), 0.1, 0.1, "not finite"),
        (np.ones(4, np.float32), float("nan"), 0.1, "not finite"),
        (np.ones(4, np.float32), 0.1, -1.0, "work time is negative"),
        (np.full(4, 10, np.float32), 0.1, 0.1, "norm is 20"),
        (None, 0.1, 0.1, "could not train"),
    ],
)
def test_updates_are_checked(
    vector: np.ndarray | None, loss: float, seconds: float, said: str
) -> None:
    update = wire.Update(1, "t", "a", loss, seconds, 1, vector)
    assert said in (wire.problem(update, 4, 15.0) or "")
    assert (
        wire.problem(wire.Update(1, "t", "a", 0.1, 0.1, 1, np.ones(4, np.float32)), 4, 15.0) is None
    )


def test_a_token_stands_for_one_assignment() -> None:
    ours, theirs = b"secret", b"other"
    base = wire.token(ours, 2, 3, "0.1.abc")
    assert wire.token(ours, 2, 3, "0.1.abc") == base
    others = {
        wire.token(theirs, 2, 3, "0.1.abc"),
        wire.token(ours, 3, 3, "0.1.abc"),
        wire.token(ours, 2, 4, "0.1.abc"),
        wire.token(ours, 2, 3, "0.1.abd"),
    }
    assert len(others | {base}) == 5


def test_buffers_travel_in_single_precision_beside_the_update() -> None:
    buffers = np.array([1e6, 1e-9, 0.1], np.float32)
    update = wire.Update(1, "t", "a", 0.1, 0.1, 1, np.ones(4, np.float32), buffers=buffers)
    found = wire.decode(wire.encode(update, "half"), wire.Update)
    assert found.buffers is not None
    assert np.array_equal(found.buffers, buffers)
    assert wire.problem(found, 7, None, 3) is None
    old = wire.Update(1, "t", "a", 0.1, 0.1, 1, np.ones(7, np.float32))
    assert wire.problem(old, 7, None, 3) is None, "differences in their place, which nobody uses"
    assert "entries of buffers" in (wire.problem(found, 7, None, 2) or "")
    assert "entries" in (wire.problem(found, 8, None, 3) or "")
    assert "entries" in (
        wire.problem(replace(old, vector=np.ones(4, np.float32)), 7, None, 3) or ""
    )
    spoilt = replace(found, buffers=np.array([1, np.nan, 0], np.float32))
    assert "not finite" in (wire.problem(spoilt, 7, None, 3) or "")
    model = wire.encode(wire.Model("a", 0, np.ones(2, np.float32)))
    body = save({"vector": np.ones(2, np.float32), "buffers": buffers})
    end = 9 + struct.unpack(">I", model[5:9])[0]
    with pytest.raises(wire.WireError, match="nothing else"):
        wire.decode(model[:end] + body, wire.Model)


def test_fields_that_earlier_versions_do_not_know_may_be_missing() -> None:
    hello = wire.Hello(1, "fedast 0.1.0", ("a",))
    update = wire.Update(1, "t", "a", 0.5, 0.0, 9, None, metric=0.5)
    for message in (hello, update):
        data = wire.encode(message)
        assert b"means" not in data
        assert b"samples_of_tasks" not in data
        assert wire.decode(data, type(message)) == message
    said = wire.Hello(1, "fedast", ("a",), samples_of_tasks=(7,))
    measured = wire.Update(1, "t", "a", 0.5, 0.0, 9, None, metric=0.5, means=(0.25,))
    assert wire.decode(wire.encode(said), wire.Hello) == said
    assert wire.decode(wire.encode(measured), wire.Update) == measured


@pytest.mark.parametrize(
    ("loss", "work", "models_fault"),
    [(1e300, 0.1, True), (float("nan"), 0.1, True), (0.1, 1e9, False), (0.1, -1.0, False)],
)
def test_losses_and_times_are_in_range(loss: float, work: float, models_fault: bool) -> None:
    update = wire.Update(1, "t", "a", loss, work, 9, np.zeros(3, np.float32))
    assert wire.problem(update, 3, None) is not None
    assert wire.may_be_the_models_fault(update) is models_fault
