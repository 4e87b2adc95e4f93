"""Speed and memory of LoRA training: one client at a time, and side by side over one base.

    python benchmarks/adapters.py --base minilm-l6 --copies 1 8 32 64

Every line is measured in a process of its own, so that its peak of memory is its own. On a CPU
time is the process's CPU time: it does not depend on what else the machine does. The task is made
of random words, so nothing but the base model is fetched.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def words(clients: int, rng: np.random.Generator) -> Any:
    """Texts of random words with random labels: a source of texts."""
    from fedast.tasks.adapters.texts import Texts

    known = ("good", "bad", "film", "the", "a", "it", "was", "this", "and", "very", "plot", "end")
    texts = [" ".join(rng.choice(known, 200)) for _ in range(4 * clients)]
    parts = [np.arange(4 * n, 4 * n + 4) for n in range(clients)]
    labels = rng.integers(2, size=len(texts))
    return Texts(texts, texts[:8], parts, labels, labels[:8])


def measure(chosen: argparse.Namespace, copies: int) -> dict[str, Any]:
    """One line: ``copies`` clients side by side; 0: one after another."""
    import torch

    from fedast.tasks.adapters.base import base_of
    from fedast.tasks.adapters.options import Lora, LoraCausalLM, LoraClassifier
    from fedast.training.batched import BatchedTrainer
    from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Trainer

    device = torch.device(chosen.device)
    kind = LoraCausalLM if chosen.causal else LoraClassifier
    texts: Any = words
    options = kind(base=chosen.base, texts=texts, length=chosen.length, lora=Lora(r=8))
    clients = max(copies, 4)
    task = options.build(clients, 1, "t")
    how = task.training.model_copy(update={"local_steps": chosen.steps, "batch_size": chosen.batch})
    object.__setattr__(task, "training", how)
    device_task = DeviceTask.build(task, 1, device)
    trainer: Trainer = (
        BatchedTrainer({"t": device_task}, 1) if copies else SerialTrainer({"t": device_task}, 1)
    )
    base = device_task.model.read()
    jobs = [Job(n, n % clients, base) for n in range(copies or 1)]
    trainer.train("t", jobs)  # warms up
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    seconds = []
    for _ in range(chosen.repeat):
        _wait(device)
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        began = clock()
        trainer.train("t", jobs)
        _wait(device)
        seconds.append(clock() - began)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "copies": copies,
        "parameters": len(base),
        "base": base_of(chosen.base).bytes,
        "ms": 1e3 * min(seconds) / len(jobs),
        "peak": peak,
        "held": before,
    }


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def table(lines: Sequence[dict[str, Any]], device: str) -> str:
    mib = 2.0**20
    serial = next((line["ms"] for line in lines if line["copies"] == 0), None)
    rows = [
        f"base {lines[0]['base'] / mib:,.0f} MiB; {lines[0]['parameters']:,} adapter parameters\n",
        f"| clients | ms per update | updates/s | × serial | peak memory ({device}) |",
        "|---|---:|---:|---:|---:|",
    ]
    for line in lines:
        name = "one after another" if line["copies"] == 0 else f"{line['copies']} side by side"
        gain = "" if serial is None else f"{serial / line['ms']:.2f}"
        rows.append(
            f"| {name} | {line['ms']:.0f} | {1e3 / line['ms']:.2f} | {gain} | "
            f"{line['peak'] / mib:,.0f} MiB |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="minilm-l6")
    parser.add_argument("--causal", action="store_true", help="next token instead of classes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32"], help="on a GPU")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one is not None:
        from fedast.config.schema import Compute
        from fedast.run.compute import arithmetic

        compute = Compute.model_validate({"threads": chosen.threads, "precision": chosen.precision})
        with arithmetic(compute):
            print(json.dumps(measure(chosen, chosen.one)))
        return
    lines = []
    for copies in (0, *chosen.copies):
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--one", str(copies)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines.append(json.loads(done.stdout.splitlines()[-1]))
        print(lines[-1], file=sys.stderr, flush=True)
    print(table(lines, chosen.device))


if __name__ == "__main__":
    main()
