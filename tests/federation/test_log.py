"""The write-ahead log's format on disk, which does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from fedast.core.protocol import StopReason
from fedast.federation import log_events as le
from fedast.federation.log_codec import BadEntry, decode, encode
from fedast.federation.write_ahead_log import ENTRIES, FOLDER, configuration
from fedast.records.run import UnusableFolder

LINES = {
    '{"e":"config","digest":"d","config":{"seed":1},"t":0.0}': le.Configured("d", {"seed": 1}),
    '{"e":"config","digest":"d","t":0.0}': le.Configured("d"),
    '{"e":"join","c":1,"t":0.0}': le.ClientJoined(1),
    '{"e":"leave","c":1,"t":0.0}': le.ClientLeft(1),
    '{"e":"quarantine","c":1,"t":0.0}': le.ClientQuarantined(1),
    '{"e":"start","t":0.0}': le.TrainingBegan(),
    '{"e":"arrive","r":3,"w":0.5,"l":1.5,"place":7,"t":0.0}': le.UpdateReceived(3, 0.5, 1.5, 7),
    '{"e":"lost","r":3,"invalid":true,"place":7,"t":0.0}': le.RequestFailed(3, True, 7),
    '{"e":"lost","r":3,"invalid":false,"t":0.0}': le.RequestFailed(3, False),
    '{"e":"evaluated","task":"a","round":2,"metric":0.5,"loss":1.5,"t":0.0}': le.ModelEvaluated(
        "a", 2, 0.5, 1.5
    ),
    '{"e":"answer","place":7,"t":0.0}': le.EvaluationReceived(7),
    '{"e":"add","task":"a","t":0.0}': le.TaskStarted("a"),
    '{"e":"stop","tasks":["a","b"],"reason":"time","t":0.0}': le.TasksEnded(
        ("a", "b"), StopReason.TIME
    ),
    '{"e":"pause","t":0.0}': le.Paused(),
    '{"e":"resume","t":0.0}': le.Resumed(),
    '{"e":"model","task":"a","version":2,"name":"0.2.x","t":0.0}': le.ModelPublished(
        "a", 2, "0.2.x"
    ),
    '{"e":"retire","task":"a","version":2,"t":0.0}': le.ModelRetired("a", 2),
    '{"e":"failure","c":1,"t":0.0}': le.TrainingFailed(1),
    '{"e":"strike","c":1,"place":7,"t":0.0}': le.StrikeRecorded(1, 7),
    '{"e":"superseded","place":7,"t":0.0}': le.UploadIgnored(7),
    '{"e":"arrive","r":1,"w":0.5,"l":0.25,"place":7,"norm":2.5,"t":0.0}': le.UpdateReceived(
        1, 0.5, 0.25, 7, 2.5
    ),
    '{"e":"lost","r":1,"invalid":true,"place":7,"norm":9.0,"doubted":true,"t":0.0}': (
        le.RequestFailed(1, True, 7, 9.0, None, True)
    ),
    '{"e":"guard","t":0.0}': le.ModelsGuarded(),
    '{"e":"rollback","task":"a","version":5,"back_to":3,"why":"w","suspects":[[1,2]],"t":0.0}': (
        le.ModelRolledBack("a", 5, 3, "w", ((1, 2),))
    ),
    '{"e":"limit","requests_per_client":4,"t":0.0}': le.LimitSet(4),
    '{"e":"rest","c":1,"why":"w","t":0.0}': le.ClientRested(1, "w"),
    '{"e":"ready","c":1,"t":0.0}': le.ClientReady(1),
    '{"e":"pardon","c":1,"t":0.0}': le.ClientPardoned(1),
}


@pytest.mark.parametrize(("line", "event"), LINES.items())
def test_an_event_is_this_line(line: str, event: le.LogEvent) -> None:
    assert encode(le.Entry(0.0, event)) == line + "\n"
    assert decode(line) == le.Entry(0.0, event)
    assert decode(line).sequence == json.loads(line).get("place")


def test_every_event_is_listed_above() -> None:
    assert {type(event) for event in LINES.values()} == set(get_args(le.LogEvent))


def test_a_log_of_version_0_1_0_is_read_and_written_byte_for_byte() -> None:
    path = Path(__file__).parents[1] / "fixtures/v0.1.0/federation/run" / FOLDER / ENTRIES
    for line in path.read_text().splitlines(keepends=True):
        assert encode(decode(line)) == line


@pytest.mark.parametrize(
    "line", ['{"e":"dance","t":0}', '{"e":"join","t":0}', '{"e":"join","c":1}', "[]", "", "{"]
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadEntry):
        decode(line)
    if line:
        (tmp_path / ENTRIES).write_text(line + "\n")
        with pytest.raises(UnusableFolder, match="line 1: is not an entry of a write-ahead log"):
            configuration(tmp_path)
