"""From the plays to one client per speaking role.

The plays are plain texts. A *block* is a run of lines between blank lines. A
block whose first line is a speaker's name opens a speech; one that is a heading
or a stage direction is left out; any other continues the speech before it (a
direction came between). A name is alone on its line: in most plays in capitals
with a full stop, in one in capitals without, in three in mixed case, often
abbreviated ("Ham."). Which of these a play uses is inferred from the play.

A role's speeches are joined in text order, with white space collapsed, and
encoded in LEAF's 80 characters. The first four fifths are for training, the rest
for testing; a window of 80 characters and the next one never crosses the split.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedast.tasks.data.cache import DataError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare."""
WINDOW = 80
TRAIN_SHARE = 0.8
POEMS = ("lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle",
         "rape_of_lucrece", "sonnets")  # fmt: skip

_DIRECTION = re.compile(r"\[[^\[\]]{0,900}?\]", re.DOTALL)
_OWN_LINE = re.compile(r"^[ \t]*\[[^\[\]]{0,900}?\][ \t]*\n", re.DOTALL | re.MULTILINE)
"""A direction on lines of its own leaves no blank line: what follows is the same speech."""
_HEADING = re.compile(
    r"(act|scene|prologue|epilogue|induction|the end|finis|dramatis personae|"
    r"persons represented|sc(e|æ)ne)\b",
    re.IGNORECASE,
)
_STAGE = re.compile(
    r"(enter|re-enter|exit|exeunt|flourish|alarum|alarums|sennet|trumpets?|drums?|music|"
    r"thunder|dead march|excursions|retreat|hautboys|cornets|they fight|he dies|she dies|dies|"
    r"dumb show|a flourish|a sennet|a tucket|tucket|march|shout|horns|ordnance|the trumpets)\b"
)
_NAME = re.compile(r"(\d\.? ?)?[A-Z][A-Za-z'’&,. -]{0,38}")
_NO_NAME = re.compile(r"[IVX]+|SONG|THE SONG")
_SPOKEN = re.compile(r"(the )?(prologue|epilogue)\.?", re.IGNORECASE)
_BEGIN = re.compile(r"^\s*(the )?(act|induction|prologue)\b", re.IGNORECASE | re.MULTILINE)
_LEAVING = re.compile(r"(Exit|Exeunt|Re-enter|Manent?)\b")
_ORDINALS = (
    "",
    "FIRST",
    "SECOND",
    "THIRD",
    "FOURTH",
    "FIFTH",
    "SIXTH",
    "SEVENTH",
    "EIGHTH",
    "NINTH",
)


@dataclass(frozen=True, slots=True)
class Role:
    play: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """All roles that have enough text, their characters in one array."""

    codes: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    """Where each role's text begins; one entry more than there are roles."""
    names: tuple[str, ...]
    dropped_characters: int
    short_roles: int


def parse_play(play: str, text: str) -> list[Role]:
    """The roles of one play, in the order of their first speech."""
    body = text.replace("\r", "")
    start = _BEGIN.search(body)  # before it are the title and the list of persons
    body = _OWN_LINE.sub("", body[start.start() :] if start else body)
    body = _DIRECTION.sub("", body)
    body = re.sub(r"\[[^\]\n]*$|\]", "", body, flags=re.MULTILINE)  # directions left open
    blocks = list(_blocks(body.split("\n")))
    is_name, expand = _NameRule(blocks), _expander(text)
    speeches: dict[str, list[str]] = {}
    speaking: str | None = None
    for block in blocks:
        first = block[0]
        if _HEADING.match(first) and not (_SPOKEN.fullmatch(first) and len(block) > 1):
            speaking = None
        elif is_name(block):
            speaking = expand(_normalise(first))
            speeches.setdefault(speaking, []).extend(block[1:])
        elif _STAGE.match(first.lower()):
            continue
        elif speaking is not None:
            speeches[speaking].extend(block)
    if not speeches:
        raise DataError(f"{play}: no speeches found")
    return [
        Role(play, name, re.sub(r"\s+", " ", " ".join(said)).strip())
        for name, said in speeches.items()
    ]


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*lines, ""]:
        if _LEAVING.match(line.strip()):
            continue
        if line.strip():
            block.append(line.strip())
        elif block:
            yield block
            block = []


class _NameRule:
    """Whether a block opens a speech, by the conventions of its play."""

    def __init__(self, blocks: Sequence[Sequence[str]]) -> None:
        firsts = [block[0] for block in blocks if len(block) > 1 and self._shape(block[0])]
        capitals = [first for first in firsts if first.upper() == first]
        dotted = [first for first in capitals if first.endswith(".")]
        self._capitals = len(capitals) > 0.5 * len(firsts)
        self._dotted = not self._capitals or len(dotted) > 0.5 * len(capitals)
        self._counts = Counter(_normalise(first) for first in firsts)

    @staticmethod
    def _shape(line: str) -> bool:
        named = _NAME.fullmatch(line) is not None and len(line.split()) <= 6
        return named and not _NO_NAME.fullmatch(_normalise(line))

    def __call__(self, block: Sequence[str]) -> bool:
        first = block[0]
        if not self._shape(first) or (self._dotted and not first.endswith(".")):
            return False
        if len(block) == 1:  # a name with no speech, or one cut off by a direction
            return first.upper() == first and self._counts[_normalise(first)] > 1
        if self._capitals:
            return first.upper() == first
        # In mixed case a short first line may be speech; names recur, or are a single word.
        return self._counts[_normalise(first)] > 1 or " " not in first


def _normalise(name: str) -> str:
    """'KING  HENRY.' and 'King Henry.' are one role, '1 CAR.' is 'FIRST CAR'."""
    number = re.match(r"(\d)\.? ?", name.strip())
    if number is not None:  # '1 Clown.' is the first clown
        name = f"{_ORDINALS[int(number[1])]} {name.strip()[number.end() :]}"
    return " ".join(re.sub(r"[.,’']+$", "", name.strip()).replace("’", "'").upper().split())


def _expander(text: str) -> Callable[[str], str]:
    """Expands a name if exactly one in the play's list of persons starts with it."""
    head = re.split(r"^\s*ACT\b", text, maxsplit=1, flags=re.MULTILINE | re.IGNORECASE)[0]
    persons = {word.upper() for word in re.findall(r"[A-Z][A-Za-z]+", head)}

    def expand(name: str) -> str:
        if len(name) < 3 or name in persons or not name.isalpha():
            return name
        fitting = [person for person in persons if person.startswith(name)]
        return fitting[0] if len(fitting) == 1 else name

    return expand


def encode(text: str) -> tuple[npt.NDArray[np.uint8], int]:
    """Codes in ``ALPHABET``, and how many characters are not in it."""
    text = text.translate(_TRANSLATION)
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
    raw = np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8)
    codes = _CODES[raw]
    known = codes < len(ALPHABET)
    return codes[known], len(text) - int(known.sum())


_TRANSLATION = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "–": "-", "æ": "ae", "Æ": "Ae",
     "œ": "oe", "Œ": "Oe", "{": "(", "|": " ", "`": "'", "_": None, "*": None}
)  # fmt: skip
_CODES = np.full(256, 255, dtype=np.uint8)
for _code, _character in enumerate(ALPHABET):
    _CODES[ord(_character)] = _code


def build_corpus(plays: Mapping[str, str]) -> Corpus:
    """The roles of all plays."""
    return corpus_of(
        {
            f"{play}: {role.name}": role.text
            for play in sorted(plays)
            for role in parse_play(play, plays[play])
        }
    )


def corpus_of(roles: Mapping[str, str]) -> Corpus:
    """Every role long enough for a window on both sides of its split."""
    texts, names, dropped = [], [], 0
    for name, text in roles.items():
        codes, unknown = encode(text)
        cut = split_at(len(codes))
        if min(cut, len(codes) - cut) > WINDOW:
            texts.append(codes)
            names.append(name)
            dropped += unknown
    if not texts:
        raise DataError("shakespeare: no role has enough text")
    starts = np.concatenate(([0], np.cumsum([len(text) for text in texts]))).astype(np.int64)
    return Corpus(np.concatenate(texts), starts, tuple(names), dropped, len(roles) - len(names))


def split_at(length: int) -> int:
    """Where a text of this length is split into training and test."""
    return int(TRAIN_SHARE * length)


def windows(
    starts: npt.NDArray[np.int64], role: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where a role's windows begin: (training, test). Stride 1, none across the split."""
    start, end = int(starts[role]), int(starts[role + 1])
    cut = start + split_at(end - start)
    return np.arange(start, cut - WINDOW), np.arange(cut, end - WINDOW)
