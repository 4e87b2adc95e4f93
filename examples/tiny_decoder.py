"""Make a base model for machines without a GPU: a small Llama, trained on film reviews.

    python examples/tiny_decoder.py tiny-decoder

It takes about a minute on a core, and needs ``pip install 'fedast[llm]'``. The folder has what
``transformers`` loads: the model and a tokenizer of 1,024 pieces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fedast.tasks.data.texts import reviews

LENGTH = 64
"""Tokens of a sample."""


def make_tokenizer(texts: list[str], pieces: int = 1024) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")


def make_model(pieces: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=pieces,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, tokens: torch.Tensor, steps: int, batch: int = 16) -> float:
    """Ordinary training on random blocks; the mean loss of the last fifty steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    places = torch.arange(LENGTH)
    recent: list[float] = []
    for step in range(steps):
        starts = torch.randint(0, len(tokens) - LENGTH, (batch, 1))
        ids = tokens[starts + places]
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent = [*recent[-49:], loss.item()]
        if step % 50 == 49:
            print(f"step {step + 1} of {steps}: loss {sum(recent) / len(recent):.2f}", flush=True)
    return sum(recent) / len(recent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--reviews", type=int, default=4000)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    texts = list(reviews().train.texts[: chosen.reviews])
    tokenizer = make_tokenizer(texts)
    found = tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokens = torch.tensor([token for text in found for token in (*text, tokenizer.eos_token_id)])
    model = make_model(len(tokenizer))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size:,} parameters, {len(tokens):,} tokens in {len(tokenizer):,} pieces", flush=True)
    train(model, tokens, chosen.steps)
    model.save_pretrained(chosen.folder)
    tokenizer.save_pretrained(chosen.folder)
    print(f"wrote {chosen.folder}")


if __name__ == "__main__":
    main()
