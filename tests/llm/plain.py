"""What exported adapters score with transformers and PEFT alone: their loading, masks and loss."""

from __future__ import annotations

from pathlib import Path

import torch

from fedast.tasks.adapters.base import quiet
from fedast.tasks.task import Task


def plain_loss(adapter: Path, base: Path, task: Task) -> float:
    """The mean loss of a token of the task's test blocks."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with quiet(), torch.no_grad():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
        ids, labels = task.test.batch(torch.arange(len(task.test)))
        logits = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        losses = -logits.log_softmax(-1).gather(-1, labels.long()[..., None])
    return float(losses.mean())


def plain_accuracy(adapter: Path, base: Path, task: Task) -> float:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    with quiet(), torch.no_grad():
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
        model = PeftModel.from_pretrained(plain, adapter).eval()
        inputs, labels = task.test.batch(torch.arange(len(task.test)))
        mask = inputs["attention_mask"].long()
        logits = model(input_ids=inputs["input_ids"].long(), attention_mask=mask).logits
    return float((logits.argmax(1) == labels).double().mean())
