"""The parser on small plays in the three styles of the real ones."""

from __future__ import annotations

import numpy as np
import pytest

from fedast.tasks.data.cache import DataError
from fedast.tasks.data.shakespeare import (
    ALPHABET,
    WINDOW,
    build_corpus,
    encode,
    parse_play,
    windows,
)

CAPITALS = """THE PLAY

DRAMATIS PERSONAE

DUKE OF VENICE.
BRABANTIO, a Senator.
OTHELLO, a noble Moor in the service of the Venetian State.

ACT I. SCENE I. Venice. A street.

[Enter IAGO and RODERIGO,
 with torches.]

IAGO.
Despise me, if I do not. [Aside.] Three great ones
of the city.

Enter the DUKE, attended.

And then, he goes on after the direction.

RODERIGO.
Ay.

ACT II.

A room of no speaker.

  IAGO.
Again.

Exit

  1. CARRIER.
Heigh-ho! an it be not four by the day,
Exeunt all but the carrier
I'll be hanged. [an open direction

SONG.
Blow, blow, thou winter wind.

PROLOGUE.
If we offend, it is with our good will.

[Exeunt.]
"""

BARE = """ACT I

THESEUS
Now, fair Hippolyta, our nuptial hour
Draws on apace

HIPPOLYTA
Four days will quickly steep themselves in night.

THESEUS
Go, Philostrate,
"""

MIXED = """PERSONS REPRESENTED.

Hamlet, Prince of Denmark.
Horatio, Friend to Hamlet.

ACT I.

Scene I. Elsinore.

Ham.
A little more than kin.

Hor.
Hail to your lordship!

Farewell then, sir.
And this goes on with Horatio.

Ham.
I am glad to see you well.

1 Clown.
Is she to be buried?

1 Clown.
[Sings.]
A pickaxe.
"""


def roles(text: str) -> dict[str, str]:
    return {role.name: role.text for role in parse_play("p", text)}


def test_capitals_with_a_full_stop() -> None:
    assert roles(CAPITALS) == {
        "IAGO": "Despise me, if I do not. Three great ones of the city. "
        "And then, he goes on after the direction. Again.",
        "RODERIGO": "Ay.",
        "FIRST CARRIER": "Heigh-ho! an it be not four by the day, I'll be hanged. "
        "SONG. Blow, blow, thou winter wind.",
        "PROLOGUE": "If we offend, it is with our good will.",
    }


def test_capitals_without() -> None:
    assert roles(BARE) == {
        "THESEUS": "Now, fair Hippolyta, our nuptial hour Draws on apace Go, Philostrate,",
        "HIPPOLYTA": "Four days will quickly steep themselves in night.",
    }


def test_mixed_case_and_abbreviations() -> None:
    assert roles(MIXED) == {
        "HAMLET": "A little more than kin. I am glad to see you well.",
        "HORATIO": "Hail to your lordship! Farewell then, sir. And this goes on with Horatio.",
        "FIRST CLOWN": "Is she to be buried? A pickaxe.",
    }


def test_a_text_without_speeches_is_refused() -> None:
    with pytest.raises(DataError, match="sonnets: no speech"):
        parse_play("sonnets", "From fairest creatures we desire increase,\nThat thereby\n")


def test_the_alphabet_is_leafs() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80


def test_encoding_transliterates_then_drops_and_counts() -> None:
    codes, dropped = encode("Æneas’ café—50 % {x}")
    assert "".join(ALPHABET[c] for c in codes) == "Aeneas' cafe--50  (x}"
    assert dropped == 2, "the accent and the per cent sign"


def test_windows_never_cross_the_cut_or_the_role() -> None:
    long, other = "a" * 1000 + "b" * 250, "c" * 500
    plays = {"p": f"ACT I\n\nONE.\n{long}\n\nTWO.\n{other}\n\nTHREE.\nshort\n"}
    corpus = build_corpus(plays)
    assert corpus.names == ("p: ONE", "p: TWO")
    assert corpus.short_roles == 1
    train, test = windows(corpus.starts, 0)
    assert len(train) == 1000 - WINDOW
    assert len(test) == 250 - WINDOW
    letters = np.array(list(ALPHABET))[corpus.codes]
    spans = [set(letters[start : start + WINDOW + 1]) for start in train]
    assert all(span == {"a"} for span in spans), "training windows end before the cut"
    assert all(set(letters[start : start + WINDOW + 1]) == {"b"} for start in test)
    for start in np.concatenate(windows(corpus.starts, 1)):
        assert set(letters[start : start + WINDOW + 1]) == {"c"}
