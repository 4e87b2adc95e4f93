"""Fine-tuning tasks: adapters over a frozen base model. (Torch and transformers are imported when
one is built.)"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field, SerializeAsAny

from fedast.core.streams import Stream
from fedast.parts.options import Section
from fedast.parts.registry import Part
from fedast.tasks.adapters.texts import TEXTS, TextOptions, Texts
from fedast.tasks.client_optimizers import AdamW
from fedast.tasks.options import TaskOptions
from fedast.tasks.task import BadTask, Task, Training

if TYPE_CHECKING:
    import torch

    from fedast.tasks.adapters.base import Base
    from fedast.tasks.dataset import Arrays

# Hu et al. fine-tune with AdamW and rates of 2e-4 to 5e-4; clients take few steps from moments of
# zero, so theirs is at the upper end.
_TRAINING = Training(local_steps=8, batch_size=8, client_lr=5e-4, client_optimizer=AdamW())
Kind: TypeAlias = Literal["causal-lm", "classification"]
Precision: TypeAlias = Literal["float32", "bfloat16"]
_TEST_NUMBERS = 1 << 26
"""Outputs of an evaluation at once: a quarter of a GiB."""


class Lora(Section):
    """Low-rank adapters: every adapted weight W becomes W + (alpha / r) B A. (Hu et al.: "LoRA:
    Low-Rank Adaptation of Large Language Models", ICLR 2022.)"""

    r: int = Field(8, ge=1)
    """The rank of the adapters."""
    alpha: float = Field(16.0, gt=0)
    """Adapters are multiplied by alpha / r."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of what goes into an adapter, while training."""
    targets: tuple[str, ...] | None = None
    """Which layers are adapted, by the last part of their names; default: PEFT's choice for the
    base's architecture, usually query and value."""
    train: Literal["both", "B"] = "both"
    """both: A and B are trained, and each is averaged on its own, though the mean of B A is not
    the product of the means. B: A stays as it was drawn, so that averaging is exact, an update is
    half as large, and an adapter can do a little less."""

    def table(self) -> dict[str, Any]:
        """PEFT's configuration."""
        return {
            "peft_type": "LORA",
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": None if self.targets is None else list(self.targets),
        }


class LoraTask(TaskOptions, ABC):
    """What fine-tuning tasks have in common."""

    base: str
    """The base model: one that fedast can fetch (minilm-l6, smollm2-135m-instruct), a folder that
    transformers can load, or an id on the Hugging Face hub."""
    tokenizer: str | None = None
    """Where its tokenizer is; default: with the base model."""
    texts: Annotated[SerializeAsAny[TextOptions], Part(TEXTS)]
    """What it is trained on (fedast list texts)."""
    length: int = Field(128, ge=2)
    """Tokens of a sample."""
    lora: Lora = Lora()
    """The adapters."""
    dtype: Precision = "float32"
    """The precision of the base model; adapters are in single precision."""

    kind: ClassVar[Kind]

    @abstractmethod
    def samples(self, texts: Texts, tokenizer: Any, base: Base) -> tuple[Arrays, Arrays, Any]:
        """(train, test, partition) as tokens."""

    def outputs(self, texts: Texts, base: Base) -> int:
        """Numbers that the model gives for a sample."""
        return texts.classes

    def build(self, clients: int, seed: int, name: str) -> Task:
        _need_extra(name)
        from fedast.tasks.adapters.base import BadBase, base_of, tokenizer_of

        assert self.defaults is not None
        rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
        try:
            base = base_of(self.base, self.dtype)
            if base.longest is not None and self.length > base.longest:
                raise BadBase(
                    f"options.length is {self.length}, but base model {self.base!r} takes "
                    f"{base.longest} tokens at most"
                )
            tokenizer = tokenizer_of(self.tokenizer or self.base, base)
            texts = self.texts.build(clients, rng)
            train, test, partition = self.samples(texts, tokenizer, base)
        except (BadBase, ValueError) as error:
            raise BadTask(f"task {name!r}: {error}") from error
        return replace(
            self.defaults,
            name=name,
            model=self._model(texts.classes),
            train=train,
            test=test,
            partition=partition,
            test_batch=max(1, min(512, _TEST_NUMBERS // self.outputs(texts, base))),
        )

    def _model(self, classes: int) -> Callable[[], torch.nn.Module]:
        return partial(
            adapter_model,
            self.base,
            self.kind,
            self.lora.table(),
            dtype=self.dtype,
            classes=classes,
            frozen=("lora_A",) if self.lora.train == "B" else (),
        )


class LoraCausalLM(LoraTask):
    """Fine-tuning to predict the next token: LoRA adapters over a frozen causal language model."""

    name: ClassVar[str] = "lora-causal-lm"
    kind = "causal-lm"
    defaults: ClassVar[Task] = Task(name=name, metric="perplexity", training=_TRAINING)

    def samples(self, texts: Texts, tokenizer: Any, base: Base) -> tuple[Arrays, Arrays, Any]:
        from fedast.tasks.adapters.text import blocks

        return blocks(texts, tokenizer, base, self.length)

    def outputs(self, texts: Texts, base: Base) -> int:
        return self.length * base.vocabulary

    def build(self, clients: int, seed: int, name: str) -> Task:
        return replace(super().build(clients, seed, name), loss=next_token_loss)

    def model(self) -> Callable[[], torch.nn.Module]:
        return self._model(0)


class LoraClassifier(LoraTask):
    """Fine-tuning to classify texts: LoRA adapters and a new last layer over a frozen encoder or
    decoder."""

    name: ClassVar[str] = "lora-classifier"
    kind = "classification"
    defaults: ClassVar[Task] = Task(name=name, training=_TRAINING)

    def samples(self, texts: Texts, tokenizer: Any, base: Base) -> tuple[Arrays, Arrays, Any]:
        from fedast.tasks.adapters.text import labelled

        return labelled(texts, tokenizer, base, self.length)


def adapter_model(
    base: str,
    kind: Kind,
    peft: dict[str, Any],
    *,
    dtype: Precision = "float32",
    classes: int = 0,
    frozen: tuple[str, ...] = (),
) -> torch.nn.Module:
    """Fresh adapters of a PEFT configuration (``LoraConfig(...).to_dict()``) over a base model,
    for a ``Task`` of your own: ``partial(adapter_model, "minilm-l6", "classification", ...)``.

    ``frozen``: adapters that are not trained, by a part of their names."""
    from fedast.tasks.adapters.base import base_of
    from fedast.tasks.adapters.module import AdapterModel, Design

    return AdapterModel(Design(base_of(base, dtype), kind, peft, classes, frozen))


def next_token_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of every token of every sample."""
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten().long())


def _need_extra(name: str) -> None:
    from importlib.util import find_spec

    missing = [package for package in ("transformers", "peft") if find_spec(package) is None]
    if missing:
        raise BadTask(f"task {name!r}: needs {' and '.join(missing)}; pip install 'fedast[llm]'")
