"""Base models: frozen, loaded once per process, and shared by every task that adapts them.

A ``Base`` gives out modules that are structures of their own over the same weights, so a task can
insert its adapters without touching another's. On each device there is one copy of the weights.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from fedast.tasks.adapters.options import Kind, Precision
from fedast.tasks.task import OutOfMemory

CPU = torch.device("cpu")


class BadBase(ValueError):
    """A base model, a tokenizer or adapters that cannot be used; the message says why."""


@final
class Base:
    """One base model in this process. ``base_of`` gives it; nobody else makes one."""

    def __init__(self, name: str, dtype: Precision) -> None:
        self.name = name
        self.dtype = dtype
        self.config: Any = None
        self.decoder = False
        """Whether it is a causal language model; otherwise it is an encoder."""
        with torch.random.fork_rng(devices=[]):  # whoever asks first must not draw differently
            self._model = self._load()
        self._weights: dict[torch.device, list[torch.Tensor]] = {CPU: _tensors(self._model)}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, tuple[str, Precision]]:
        """Pickled, and copied, by name: wherever it arrives there is one."""
        return base_of, (self.name, self.dtype)

    @property
    def bytes(self) -> int:
        """Of its weights, on one device."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._weights[CPU])

    @property
    def vocabulary(self) -> int:
        """Tokens that it has an embedding for."""
        model: Any = self._model
        return int(model.get_input_embeddings().num_embeddings)

    @property
    def origin(self) -> str:
        """What others call it: a folder, or an id on the hub."""
        if Path(self.name).expanduser().is_dir():
            return str(Path(self.name).expanduser().resolve())
        from fedast.tasks.data.bases import BASES

        return BASES[self.name].hub if self.name in BASES else self.name

    @property
    def padding(self) -> int:
        """The token that fills short texts up."""
        for token in (self.config.pad_token_id, self.config.eos_token_id, 0):
            if token is not None:
                return int(token[0] if isinstance(token, list) else token)
        raise AssertionError

    @property
    def longest(self) -> int | None:
        """The most tokens that it takes, if it says so."""
        found = getattr(self.config, "max_position_embeddings", None)
        return None if found is None else int(found)

    def weights(self, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        """Parameters and buffers on a device, where there is one copy of them."""
        with self._lock:
            if device not in self._weights:
                self._weights[device] = [tensor.to(device) for tensor in self._weights[CPU]]
            return self._weights[device]

    def module(self, kind: Kind, classes: int) -> nn.Module:
        """A structure of its own over the shared weights, on the CPU. A classifier's last layer is
        new and random."""
        if kind == "causal-lm":
            if not self.decoder:
                raise BadBase(
                    f"base model {self.name!r} is an encoder ({_architecture(self.config)}), which "
                    "cannot predict the next token; use one that is a causal language model"
                )
            return self.shared(self._model)
        return self._classifier(classes)

    def new_layers(self, model: nn.Module) -> list[str]:
        """The layers of a module of this base that are not the base's."""
        mine = {id(tensor) for tensor in self._weights[CPU]}
        return [
            name
            for name, layer in model.named_children()
            if any(id(parameter) not in mine for parameter in layer.parameters())
        ]

    def shared(self, structure: nn.Module, device: torch.device = CPU) -> nn.Module:
        """A copy of a structure in which the weights of the base are not copied, but those that are
        on a device."""
        memo = {
            id(here): there
            for here, there in zip(self.weights(), self.weights(device), strict=True)
        }
        return copy.deepcopy(structure, memo)

    def _classifier(self, classes: int) -> nn.Module:
        from transformers import AutoModelForSequenceClassification

        config = copy.deepcopy(self.config)
        config.num_labels = classes
        config.pad_token_id = self.padding
        try:
            with torch.device("meta"):
                model: Any = AutoModelForSequenceClassification.from_config(config)
        except ValueError as error:
            raise BadBase(
                f"base model {self.name!r}: transformers has no classifier for "
                f"{_architecture(self.config)} ({_line(error)})"
            ) from None
        prefix = model.base_model_prefix
        mine = getattr(self._model, prefix, self._model)
        setattr(model, prefix, self.shared(mine))
        spread = float(getattr(config, "initializer_range", None) or 0.02)
        for layer in model.modules():  # what is not of the base: as transformers begins new layers
            for name, parameter in list(layer.named_parameters(recurse=False)):
                if parameter.is_meta:
                    fresh = torch.zeros(parameter.shape)
                    if not name.endswith("bias"):
                        fresh.normal_(std=spread)
                    setattr(layer, name, nn.Parameter(fresh))
        return model  # type: ignore[no-any-return]

    def _load(self) -> nn.Module:
        from safetensors import SafetensorError
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

        where, options = _where(self.name), _options()
        try:
            with quiet():
                self.config = AutoConfig.from_pretrained(where, **options)
                if getattr(self.config, "is_encoder_decoder", False):
                    raise BadBase(
                        f"base model {self.name!r} is an encoder-decoder "
                        f"({_architecture(self.config)}), which is not supported"
                    )
                self.decoder = "CausalLM" in _architecture(self.config)
                kind = AutoModelForCausalLM if self.decoder else AutoModel
                model, report = kind.from_pretrained(
                    where, dtype=getattr(torch, self.dtype), output_loading_info=True, **options
                )
        except BadBase:
            raise
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, MemoryError,
                SafetensorError) as error:  # fmt: skip
            said = _line(error)
            if isinstance(error, MemoryError) or "allocate memory" in said:
                raise OutOfMemory(
                    f"base model {self.name!r} does not fit into this machine's memory ({said})"
                ) from None
            if "mismatched_sizes" in said:
                said = "its weights do not have the sizes that its config.json says"
            raise BadBase(f"base model {self.name!r} cannot be loaded: {said}") from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would go on with random ones
            raise BadBase(
                f"base model {self.name!r} cannot be loaded: its weights are incomplete, "
                f"{len(missing)} are missing, such as {missing[0]}"
            )
        self.config = model.config
        self.config.use_cache = False
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model.eval()  # type: ignore[no-any-return]


_bases: dict[tuple[str, Precision], Base] = {}
_lock = threading.Lock()


def base_of(name: str, dtype: Precision = "float32") -> Base:
    """The base model of a name: one that fedast can fetch, a folder, or an id on the hub."""
    with _lock:
        if (name, dtype) not in _bases:
            _bases[name, dtype] = Base(name, dtype)
        return _bases[name, dtype]


def _where(name: str) -> str:
    """What transformers is to load: a folder, or an id on the hub."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    from fedast.tasks.data.bases import BASES, base_folder

    if name in BASES:
        return str(base_folder(name))
    owner, _, model = name.partition("/")
    if not owner or not model or "/" in model or owner.startswith((".", "~")):
        raise BadBase(
            f"base model {name!r} is not there: it is not a folder, not one that fedast can fetch "
            f"({', '.join(BASES)}), and not an id on the Hugging Face hub (owner/name)"
        )
    return name


def _options() -> dict[str, Any]:
    return {"local_files_only": True} if os.environ.get("FEDAST_OFFLINE") else {}


def tokenizer_of(name: str, base: Base) -> Any:
    """The tokenizer in a folder or under an id, checked to fit a base model."""
    from transformers import AutoTokenizer

    where = _where(name)
    try:
        with quiet():
            tokenizer: Any = AutoTokenizer.from_pretrained(where, **_options())
    except Exception as error:  # a missing or damaged file raises almost anything here
        raise BadBase(f"{name!r} has no tokenizer that can be loaded: {_line(error)}") from error
    if len(tokenizer) > base.vocabulary:
        raise BadBase(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens, but base model {base.name!r} "
            f"has embeddings for {base.vocabulary}: they do not belong together"
        )
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, reports and warnings about its own insides."""
    from transformers.utils import logging

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are forked later
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _architecture(config: Any) -> str:
    return ", ".join(getattr(config, "architectures", None) or ()) or type(config).__name__


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
