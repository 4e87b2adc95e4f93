"""Adapters over a frozen base model, as a module that has nothing but the adapters.

Parameters, state and copies of an ``AdapterModel`` are those of its adapters alone, under the names
that PEFT's own files use. So model versions, updates, checkpoints and what a federation sends are
as small as the adapters, and clients that are trained side by side have one base between them. The
base is called with the adapters in place of the tensors that PEFT put into it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import nn
from torch.func import functional_call

from fedast.tasks.adapters.base import CPU, BadBase, Base, quiet
from fedast.tasks.adapters.options import Kind


@dataclass(frozen=True, slots=True)
class Design:
    """What an ``AdapterModel`` is made of."""

    base: Base
    kind: Kind
    peft: Mapping[str, Any]
    """PEFT's configuration as a table, with its ``peft_type``."""
    classes: int = 2
    frozen: tuple[str, ...] = ()
    """Adapters that are not trained, by a part of their names such as ``lora_A``."""

    def config(self) -> Any:
        """PEFT's own object."""
        from peft import get_peft_config

        task_type = "CAUSAL_LM" if self.kind == "causal-lm" else "SEQ_CLS"
        try:
            return get_peft_config({**self.peft, "task_type": task_type})
        except (TypeError, ValueError, KeyError) as error:
            raise BadBase(f"PEFT does not accept this configuration: {_line(error)}") from error


@final
class AdapterModel(nn.Module):
    """Adapters over a base model. It takes tokens, or a dict of ``input_ids`` and
    ``attention_mask`` (true where there is a token), and gives logits."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        first = _Structure.of(_with_adapters(design))
        self._structures = _Structures(design, {CPU: first})
        self._places: list[tuple[str, _Node, str]] = []
        """Each adapter's name inside PEFT's module, and where it is here."""
        for inside, name, value in _adapters(first.module):
            fixed = any(part in name for part in design.frozen)
            node, leaf = self._node(name)
            node.put(leaf, value.detach().clone(), fixed=fixed)
            self._places.append((inside, node, leaf))
        if not any(True for _ in self.parameters()):
            raise BadBase(f"no adapter is left to train: {', '.join(design.frozen)} are frozen")

    def _node(self, name: str) -> tuple[_Node, str]:
        *path, leaf = name.split(".")
        node: nn.Module = self
        for step in path:
            if step not in dict(node.named_children()):
                node.add_module(step, _Node())
            node = node.get_submodule(step)
        assert isinstance(node, _Node)
        return node, leaf

    def structure(self, device: torch.device = CPU) -> nn.Module:
        """PEFT's module, whose base is shared; its adapters are not these."""
        return self._structures.on(device).module

    def save_pretrained(self, folder: Path) -> None:
        """Write a folder for ``PeftModel.from_pretrained``."""
        from peft import PeftModel
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        adapted: Any = self.structure()
        assert isinstance(adapted, PeftModel)
        config = copy.deepcopy(adapted.active_peft_config)
        config.base_model_name_or_path = self.design.base.origin
        config.inference_mode = True
        config.save_pretrained(str(folder))
        state = {name: value.cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(state, str(folder / "adapter_model.safetensors"), {"format": "pt"})

    def forward(self, inputs: Any) -> torch.Tensor:
        ids, tokens = inputs, None
        if isinstance(inputs, dict):
            ids, tokens = inputs["input_ids"], inputs["attention_mask"]
        adapters = {inside: node.get(leaf) for inside, node, leaf in self._places}
        structure = self._structures.on(ids.device)
        structure.drop_out(self.training)
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": self._mask(ids, tokens)}
        if self.design.base.decoder:
            arguments["use_cache"] = False
        logits: torch.Tensor = functional_call(structure.module, adapters, (), arguments).logits
        return logits.float()

    def _mask(self, ids: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
        """Additive and with an axis of heads: what transformers makes of a mask of two axes cannot
        be mapped over clients."""
        samples, length = ids.shape
        seen = torch.ones(length, length, dtype=torch.bool, device=ids.device)
        if self.design.base.decoder:
            seen = seen.tril()
        seen = seen[None, None]
        if tokens is not None:
            seen = seen & tokens.bool()[:, None, None, :]
        dtype = getattr(torch, self.design.base.dtype)
        hidden = torch.finfo(dtype).min
        mask = torch.zeros((), dtype=dtype, device=ids.device).where(seen, hidden)
        return mask.expand(samples, 1, length, length)


@final
class _Node(nn.Module):
    """A place in the tree of names. Fixed tensors are part of its state, but are not parameters:
    they are the same on every machine, so nobody sends them."""

    def __init__(self) -> None:
        super().__init__()
        self._fixed: dict[str, torch.Tensor] = {}

    def put(self, name: str, value: torch.Tensor, *, fixed: bool) -> None:
        if fixed:
            self._fixed[name] = value
        else:
            self.register_parameter(name, nn.Parameter(value))

    def get(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._fixed[name] if name in self._fixed else getattr(self, name)
        return found

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._fixed = {name: fn(value) for name, value in self._fixed.items()}
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self._fixed.items():
            destination[prefix + name] = value

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        metadata: Any,
        strict: bool,
        missing_keys: Any,
        *rest: Any,
    ) -> None:
        for name, value in self._fixed.items():
            given = state_dict.pop(prefix + name, None)
            if given is None:
                missing_keys.append(prefix + name)
            else:
                value.copy_(given)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing_keys, *rest)


@dataclass(frozen=True, slots=True)
class _Structure:
    """PEFT's module over the base's weights on one device."""

    module: nn.Module
    dropouts: tuple[nn.Module, ...]
    """Of the adapters. The base is frozen, so its own are off."""

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        return cls(
            module,
            tuple(
                layer
                for name, layer in module.named_modules()
                if "lora_dropout" in name and isinstance(layer, nn.Dropout)
            ),
        )

    def drop_out(self, on: bool) -> None:
        for layer in self.dropouts:
            layer.training = on


@final
class _Structures:
    """PEFT's module on each device. Nothing registers it, and a copy makes its own: while it is
    called, its tensors are replaced, so two threads must not share it."""

    def __init__(self, design: Design, found: dict[torch.device, _Structure] | None = None) -> None:
        self._design = design
        self._found = {} if found is None else found

    def __reduce__(self) -> tuple[type[Self], tuple[Design]]:
        return type(self), (self._design,)

    def on(self, device: torch.device) -> _Structure:
        if device not in self._found:
            if device == CPU:
                with torch.random.fork_rng(devices=[]):  # its values are not used
                    module = _with_adapters(self._design)
            else:
                module = self._design.base.shared(self.on(CPU).module, device)
            self._found[device] = _Structure.of(module)
        return self._found[device]


def _with_adapters(design: Design) -> nn.Module:
    from peft import get_peft_model

    model, config = design.base.module(design.kind, design.classes), design.config()
    _check_targets(model, config, design.base)
    heads = design.base.new_layers(model)
    if heads:  # they are trained and exported with the adapters
        config.modules_to_save = sorted({*heads, *(config.modules_to_save or ())})
    try:
        with quiet():
            adapted: nn.Module = get_peft_model(model, config)
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise BadBase(
            f"PEFT cannot adapt base model {design.base.name!r}: {_line(error)}"
        ) from error
    return adapted.eval()


def _check_targets(model: nn.Module, config: Any, base: Base) -> None:
    """PEFT itself is content if one of several targets exists."""
    targets = getattr(config, "target_modules", None)
    if targets is None or isinstance(targets, str):  # PEFT's own choice, or a pattern
        return
    layers = {name: layer for name, layer in model.named_modules() if name}
    for target in sorted(targets):
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            known = sorted(
                {name.rpartition(".")[2] for name, layer in layers.items()
                 if isinstance(layer, nn.Linear)}
            )  # fmt: skip
            raise BadBase(
                f"base model {base.name!r} has no module {target!r} for adapters; its linear "
                f"layers are {', '.join(known)}"
            )


def _adapters(adapted: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name inside the module, name in PEFT's files, and value of everything that is trained."""
    from peft import get_peft_model_state_dict

    names = {
        value.data_ptr(): name
        for name, value in get_peft_model_state_dict(adapted, save_embedding_layers=False).items()
    }
    for inside, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            yield inside, names[parameter.data_ptr()], parameter


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
