"""A tiny random transformer with a tokenizer of its own, in a folder that transformers can load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

WORDS = (
    "the", "a", "king", "queen", "ship", "storm", "night", "day", "love", "hate", "good", "bad",
    "great", "awful", "sword", "crown", "sea", "land", "speak", "go", "come", "see", "hear",
    "weep", "laugh", "and", "but", "or", "not", "so", "then", "when", "where", "who", "what", "why",
)  # fmt: skip
GOOD, BAD = ("good", "great", "love", "laugh"), ("bad", "awful", "hate", "weep")


def sentence(rng: np.random.Generator, words: int = 12, of: tuple[str, ...] = ()) -> str:
    """Random words; with ``of``, some of these among them."""
    chosen = [str(word) for word in rng.choice(WORDS, words)]
    for place in rng.choice(words, words // 3, replace=False) if of else ():
        chosen[int(place)] = str(rng.choice(of))
    return " ".join(chosen)


def write_tokenizer(folder: Path, *, more: tuple[str, ...] = ()) -> int:
    """A tokenizer of whole words; its size."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: n for n, word in enumerate(("<pad>", "<end>", "<unk>", *WORDS, *more))}
    raw = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


def write_decoder(folder: Path, *, width: int = 32, layers: int = 2) -> Path:
    """A Llama of a few thousand parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=write_tokenizer(folder),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    _save(LlamaForCausalLM(config), folder)
    return folder


def write_encoder(folder: Path, *, width: int = 32, layers: int = 2) -> Path:
    """A BERT of a few thousand parameters."""
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    config = BertConfig(
        vocab_size=write_tokenizer(folder),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        initializer_range=0.2,
    )
    _save(BertModel(config), folder)
    return folder


def _save(model: torch.nn.Module, folder: Path) -> None:
    from fedast.tasks.adapters.base import quiet

    with quiet():
        model.save_pretrained(folder)  # type: ignore[operator]


def write_texts(path: Path, *, clients: int = 6, each: int = 20, labels: bool = True) -> Path:
    """Texts of clients, good and bad, as JSON lines."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as lines:
        for client in range(clients):
            for number in range(each):
                good = number % 2
                row = {"client": client, "text": sentence(rng, of=GOOD if good else BAD)}
                if labels:
                    row["label"] = "good" if good else "bad"
                lines.write(json.dumps(row) + "\n")
    return path
