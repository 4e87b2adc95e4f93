"""Names of earlier versions and parts of one's own, where they meet settings and other tables."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedast import Constant, FedASTDynamic, FedASTStatic, Median
from fedast.algorithms.options import ALGORITHMS
from fedast.algorithms.selection import Loss, Speed
from fedast.algorithms.staleness import Hinge
from fedast.config.identity import describe, differences
from fedast.config.load import load, parse
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError
from fedast.reproduce.expand import with_current_keys
from fedast.run.execute import execute
from fedast.sim.delays import ConstantDelay, Delay, DelayOptions
from fedast.training.options import TRAINERS

TASK = '\n[[tasks]]\nuse = "synthetic"\n'


class OwnOptions(FedASTStatic):
    """An algorithm whose options have names that fedast's once had."""

    candidates: int = 3
    assignment: str = "a"


class Tabled(DelayOptions):
    """A delay whose value is in a file."""

    files: ClassVar[tuple[str, ...]] = ("table",)
    table: str
    file: str = "just a word"

    def build(self, tasks: Any) -> Delay:
        return ConstantDelay(float(Path(self.table).read_text()))


def loaded(tmp_path: Path, text: str, *settings: str, **options: Any) -> Any:
    path = tmp_path / "file.toml"
    path.write_text(text + TASK)
    return load(path, settings, **options)


def test_an_algorithm_as_a_bare_name(tmp_path: Path) -> None:
    text = 'algorithm = "fedbuff"\n[algorithms.fedbuff]\nrequests = 7\n'
    assert loaded(tmp_path, text).algorithm.requests == 7
    assert loaded(tmp_path, text, algorithm="fedast-d").algorithm.name == "fedast-d"
    assert loaded(tmp_path, text, "algorithm=fedast-s").algorithm.name == "fedast-s"
    assert loaded(tmp_path, 'algorithm = "fedbuff"', "algorithm.requests=9").algorithm.requests == 9
    text = '[simulation]\ndelay = "constant"\n'
    assert loaded(tmp_path, text, "simulation.delay.value=2.0").simulation.delay.value == 2.0


def test_options_of_an_own_algorithm_keep_their_names(tmp_path: Path) -> None:
    text = f'[algorithm]\nname = "{__name__}:OwnOptions"\ncandidates = 9\nassignment = "b"\n'
    config = loaded(tmp_path, text)
    assert (config.algorithm.candidates, config.algorithm.assignment) == (9, "b")
    config = loaded(tmp_path, text, "algorithm.assignment=c", "algorithm.candidates=4")
    assert (config.algorithm.candidates, config.algorithm.assignment) == (4, "c")


@pytest.mark.parametrize(
    ("text", "setting", "expected"),
    [
        (
            'staleness_weight = "polynomial"\nstaleness_slope = 0.9\nstaleness_grace = 3',
            "algorithm.staleness_weight=hinge",
            {"staleness_weight": Hinge(slope=0.9, grace=3)},
        ),
        ("candidates = 6", "algorithm.selection=speed", {"selection": Speed(candidates=6)}),
        ('selection = "loss"', "algorithm.candidates=5", {"selection": Loss(candidates=5)}),
    ],
)
def test_old_options_meet_settings(
    tmp_path: Path, text: str, setting: str, expected: dict[str, Any]
) -> None:
    algorithm = loaded(tmp_path, f'[algorithm]\nname = "fedast-s"\n{text}\n', setting).algorithm
    assert {key: getattr(algorithm, key) for key in expected} == expected


def test_old_options_of_one_algorithm_in_two_tables(tmp_path: Path) -> None:
    text = '[algorithm]\nname = "fedast-d"\ncandidates = 5\n'
    text += '[algorithms.fedast-d]\nselection = "speed"\n'
    assert loaded(tmp_path, text).algorithm.selection == Speed(candidates=5)


def test_a_study_does_not_fold_what_it_does_not_know() -> None:
    axis = {"algorithm": {"candidates": 20, "weighting": "bound"}}
    assert with_current_keys(axis) == {"algorithm": {"candidates": 20, "allocation_rule": "bound"}}


def test_old_options_that_had_no_effect_are_told(tmp_path: Path) -> None:
    notes: list[str] = []
    text = '[algorithm]\nname = "fedast-s"\ncandidates = 5\nstaleness_slope = 0.5\n'
    loaded(tmp_path, text, note=notes.append)
    assert notes == ["algorithm.candidates: has no effect here"], "a default says nothing"
    notes.clear()
    old = parse({"tasks": [{"use": "synthetic", "combining": {"rule": "median", "trim": 0.3}}]})
    assert old.tasks[0].aggregator == Median()
    with pytest.raises(ConfigError, match=r"mean has no such option \(trimmed-mean: yes\)"):
        loaded(tmp_path, "", 'tasks.0.aggregator={name="mean", trim=0.3}')


@pytest.mark.parametrize(
    "algorithm",
    [
        'name = "fedast-s"\nstaleness_weight = {slope = 0.4}\nstaleness_slope = 0.5',
        'name = "fedast-s"\nstaleness_weight = [1]\nstaleness_slope = 0.5',
        'name = "fedast.algorithms.options:SyncOptions"',
    ],
)
def test_nonsense_is_refused_in_one_line(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(ConfigError):
        loaded(tmp_path, f"[algorithm]\n{algorithm}\n")


def test_files_of_an_own_part_are_kept_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "value.txt").write_text("0.25")
    text = "[simulation]\nclients = 10\nmax_time = 1.0\n[compute]\ndevice = 'cpu'\n"
    text += f'trainer = "serial"\n[simulation.delay]\nname = "{__name__}:Tabled"\n'
    text += 'table = "value.txt"\n[algorithm]\nname = "fedast-s"\nrequests = 4\n'
    config = resolve(loaded(tmp_path, text), tmp_path)
    execute(config, tmp_path / "run")
    assert (tmp_path / "run" / "delay-table.txt").read_text() == "0.25"
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert kept["simulation"]["delay"]["table"] == "delay-table.txt"
    before = describe(config)
    (tmp_path / "value.txt").write_text("0.5")
    (told,) = differences(before, config, tmp_path)
    assert told == "simulation.delay.table has other content"


def test_what_an_older_version_kept_of_a_file_is_compared_by_content(tmp_path: Path) -> None:
    """A federation's folder has no copy of it."""
    (tmp_path / "delays.csv").write_text("task,seconds\nsynthetic,0.3\n")
    text = '[simulation.delay]\nname = "measured"\nfile = "delays.csv"\n'
    config = resolve(loaded(tmp_path, text), tmp_path)
    kept = describe(config)
    kept["simulation"]["delay"]["model"] = kept["simulation"]["delay"].pop("name")
    assert differences(kept, config, tmp_path / "elsewhere") == []


class Factory:
    """Makes algorithms; not hashable."""

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __call__(self, tasks: Any, pool: Any, stream: Any, *, requests_each: int = 2) -> Any:
        return FedASTStatic().build(tasks, pool, stream)


made = Factory()


def trainer(device_tasks: Any, seed: int) -> Any:
    raise NotImplementedError


def named(tasks: Any, pool: Any, stream: Any, *, name: str = "x") -> Any:
    raise NotImplementedError


def test_callables() -> None:
    factory = Factory()
    assert ALGORITHMS.parse(factory, "algorithm") == ALGORITHMS.parse(factory, "algorithm")
    assert TRAINERS.parse(trainer, "trainer") == TRAINERS.parse(trainer, "trainer")
    with pytest.raises(ConfigError, match=r"algorithm\.requests_each: input should be a valid int"):
        ALGORITHMS.parse({"name": f"{__name__}:made", "requests_each": "many"}, "algorithm")
    with pytest.raises(ConfigError, match="parameter called name"):
        ALGORITHMS.parse(named, "algorithm")


def test_a_class_takes_its_own_name() -> None:
    assert FedASTDynamic(name="fedast-d") == FedASTDynamic()  # type: ignore[call-arg]
    assert Constant(model="constant") == Constant()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="name"):
        FedASTDynamic(name="fedast-s")  # type: ignore[call-arg]


def test_an_own_algorithm_among_the_others_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text(
        "from fedast import FedASTStatic\nclass Mine(FedASTStatic):\n    speed: float = 1.0\n"
    )
    text = '[algorithms."beside_the_file:Mine"]\nspeed = 2.0\n'
    assert loaded(tmp_path, text).algorithm.name == "fedast-d"
    mine = loaded(tmp_path, text, algorithm="beside_the_file:Mine").algorithm
    assert mine.speed == 2.0
    assert parse({"tasks": [{"use": "synthetic"}]}).algorithm.name == "fedast-d"
