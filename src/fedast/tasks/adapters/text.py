"""From texts to the tokens that models are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedast.tasks.adapters.base import BadBase, Base
from fedast.tasks.adapters.texts import Texts
from fedast.tasks.dataset import Arrays
from fedast.tasks.task import Indices


def labelled(
    texts: Texts, tokenizer: Any, base: Base, length: int
) -> tuple[Arrays, Arrays, list[Indices]]:
    """(train, test, partition): a sample for each text, cut off after ``length`` tokens or
    filled up."""
    if texts.train_labels is None or texts.test_labels is None:
        raise BadBase("its texts have no labels, so there is nothing to classify")
    used = np.unique(np.concatenate(list(texts.partition)))
    place = np.full(len(texts.train), -1)
    place[used] = np.arange(len(used))
    train = _padded([texts.train[n] for n in used], tokenizer, base, length)
    test = _padded(texts.test, tokenizer, base, length)
    return (
        Arrays(train, torch.from_numpy(texts.train_labels[used])),
        Arrays(test, torch.from_numpy(np.asarray(texts.test_labels))),
        [place[part] for part in texts.partition],
    )


def blocks(
    texts: Texts, tokenizer: Any, base: Base, length: int
) -> tuple[Arrays, Arrays, list[Indices]]:
    """(train, test, partition): each client's texts one after another, cut into blocks of
    ``length`` tokens, each token's label being the next one. What is left over is not used."""
    parts, cut = [], []
    count = 0
    for client, documents in enumerate(texts.partition):
        stream = _stream([texts.train[n] for n in documents], tokenizer, base)
        mine = _cut(stream, length)
        if len(mine) == 0:
            raise BadBase(
                f"client {client} has too little text: {len(stream)} tokens, and a block takes "
                f"{length + 1}; lower options.length, or choose clients with more text"
            )
        parts.append(np.arange(count, count + len(mine)))
        count += len(mine)
        cut.append(mine)
    held = _cut(_stream(texts.test, tokenizer, base), length)
    if len(held) == 0:
        raise BadBase(f"there is too little text to test on; a block takes {length + 1} tokens")
    return _shifted(torch.cat(cut)), _shifted(held), parts


def _encode(texts: Sequence[str], tokenizer: Any, base: Base, **options: Any) -> list[list[int]]:
    found: list[list[int]] = tokenizer(list(texts), verbose=False, **options)["input_ids"]
    most = max((max(tokens) for tokens in found if tokens), default=0)
    if most >= base.vocabulary:
        raise BadBase(
            f"the tokenizer gives token {most}, but base model {base.name!r} has embeddings for "
            f"{base.vocabulary}: they do not belong together"
        )
    return found


def _padded(
    texts: Sequence[str], tokenizer: Any, base: Base, length: int
) -> dict[str, torch.Tensor]:
    if not texts:
        raise BadBase("there are no texts to test on")
    found = _encode(texts, tokenizer, base, truncation=True, max_length=length)
    ids = torch.full((len(found), length), base.padding, dtype=torch.int32)
    mask = torch.zeros(len(found), length, dtype=torch.bool)
    for row, tokens in enumerate(found):
        tokens = tokens or [base.padding]  # an empty text still has a place to look at
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        mask[row, : len(tokens)] = True
    return {"input_ids": ids, "attention_mask": mask}


def _stream(texts: Sequence[str], tokenizer: Any, base: Base) -> torch.Tensor:
    """Texts one after another, with the end token between them if there is one."""
    found = _encode(texts, tokenizer, base, add_special_tokens=False) if texts else []
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    joined = [token for tokens in found for token in (*tokens, *end)]
    return torch.tensor(joined, dtype=torch.int32)


def _cut(stream: torch.Tensor, length: int) -> torch.Tensor:
    """Blocks of ``length`` + 1 tokens; the last of one is the first of the next."""
    if len(stream) <= length:
        return stream.new_zeros(0, length + 1)
    return stream.unfold(0, length + 1, length).contiguous()


def _shifted(blocks: torch.Tensor) -> Arrays:
    return Arrays(blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous())
