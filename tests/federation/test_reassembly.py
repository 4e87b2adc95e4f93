"""Uploads in chunks: they come together, and nothing that is needed after a crash is let go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedast.federation.reassembly import ChunkReassembly, chunk_count

CHUNK, LIMIT = 4, 40


class Stream:
    """What JetStream keeps: messages by place, from some place on."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[tuple[int, str], int, int, bytes]] = {}
        self.last = 0

    def put(self, key: tuple[int, str], number: int, count: int, data: bytes) -> None:
        self.last += 1
        self.messages[self.last] = (key, number, count, data)

    def purge(self, upto: int) -> None:
        self.messages = {place: m for place, m in self.messages.items() if place >= upto}


def test_chunk_count() -> None:
    assert [chunk_count(size, 4) for size in (0, 1, 4, 5, 8, 9)] == [1, 1, 1, 2, 2, 3]


@given(st.data())
def test_every_upload_comes_once_and_again_until_it_is_acknowledged(data: st.DataObject) -> None:
    """Clients upload in chunks, interleaved and with junk between; the server reads,
    acknowledges and crashes whenever it likes. What was acknowledged never comes again, all else
    comes at last."""
    stream = Stream()
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))
    texts = {(client, "u"): bytes([client]) * size for client, size in enumerate(sizes)}
    pending = {key: list(range(chunk_count(len(text), CHUNK))) for key, text in texts.items()}
    reassembly, after, read = ChunkReassembly(CHUNK, LIMIT), 0, 0
    acknowledged: dict[tuple[int, str], int] = {}
    came: dict[int, tuple[int, str]] = {}

    def read_on() -> None:
        nonlocal read
        for place in sorted(stream.messages):
            if place > read:
                key, number, count, part = stream.messages[place]
                whole = reassembly.take(place, key, number, count, part, 0.0)
                if whole is not None:
                    assert whole == texts[key]
                    assert key not in acknowledged
                    came[place] = key
                read = place

    while any(pending.values()):
        match data.draw(
            st.sampled_from(["upload", "upload", "junk", "read", "acknowledge", "crash"])
        ):
            case "upload":
                key = data.draw(st.sampled_from([key for key, left in pending.items() if left]))
                number = pending[key].pop(0)
                text = texts[key][number * CHUNK : (number + 1) * CHUNK]
                stream.put(key, number, chunk_count(len(texts[key]), CHUNK), text)
            case "junk":
                stream.put((9, "junk"), 7, 3, b"xx")
            case "read":
                read_on()
            case "acknowledge" if came:
                after = data.draw(st.sampled_from(sorted(came)))
                for place in [place for place in came if place <= after]:
                    acknowledged[came.pop(place)] = place
                reassembly.acknowledge(after)
                stream.purge(reassembly.needed_from(0.0))
            case "crash":
                reassembly, read = ChunkReassembly(CHUNK, LIMIT, after=after), 0
                came.clear()
            case _:
                pass
    read_on()
    assert set(came.values()) | set(acknowledged) == set(texts)
    reassembly.acknowledge(stream.last)
    stream.purge(reassembly.needed_from(0.0))
    assert stream.messages == {}


def test_junk_and_chunks_that_do_not_fit_are_needed_by_nobody() -> None:
    reassembly = ChunkReassembly(CHUNK, LIMIT)
    for place, (number, count, data) in enumerate(
        [(3, 2, b""), (0, 99, b"abcd"), (0, 2, b"ab"), (0, 0, b""), (-1, 2, b"abcd")], start=1
    ):
        assert reassembly.take(place, (0, f"{place}"), number, count, data, 0.0) is None
    reassembly.pass_over(6, 100)
    assert reassembly.needed_from(0.0) == 7


def test_what_is_begun_is_kept_for_a_while_and_while_there_is_room() -> None:
    reassembly = ChunkReassembly(CHUNK, LIMIT, room=100)
    reassembly.take(1, (0, "a"), 0, 2, b"abcd", 0.0)
    reassembly.take(2, (1, "b"), 0, 1, b"x" * 40, 0.0)
    reassembly.acknowledge(2)
    assert reassembly.needed_from(599.0) == 1
    assert reassembly.needed_from(601.0) == 3
    reassembly.take(3, (0, "c"), 0, 2, b"abcd", 700.0)
    reassembly.take(4, (1, "d"), 0, 1, b"x" * 60, 700.0)
    reassembly.acknowledge(4)
    assert reassembly.needed_from(700.0) == 3
    reassembly.take(5, (1, "e"), 0, 1, b"x" * 20, 700.0)
    reassembly.acknowledge(5)
    assert reassembly.needed_from(700.0) == 6  # or it would keep everybody else out


def test_a_client_begins_only_so_many() -> None:
    reassembly = ChunkReassembly(CHUNK, LIMIT)
    for place in range(1, 7):
        reassembly.take(place, (0, f"{place}"), 0, 2, b"abcd", 0.0)
    reassembly.take(7, (1, "other"), 0, 2, b"abcd", 0.0)
    assert reassembly.needed_from(0.0) == 3
