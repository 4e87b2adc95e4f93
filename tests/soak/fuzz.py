"""``make fuzz MINUTES=...``: the decoders, coverage-guided if atheris is installed, otherwise with
Hypothesis; then every subject of a running federation (``fuzz_subjects``).

Each target has its share of the time and a process of its own, so that one that hangs or takes too
much memory is a finding and not the end. The inputs of findings are kept beside the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_SECONDS, _MEGABYTES = 10, 1024
"""What one input may take before it counts as a finding."""


def _with_atheris(name: str, seconds: int, folder: Path) -> tuple[int, list[str]]:
    """Run one target under libFuzzer in a process of its own."""
    corpus = folder / "corpus" / name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "tests.soak.fuzz", "--target", name, str(corpus),
        f"-max_total_time={seconds}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEGABYTES}",
        "-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={folder}/finding-",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    counted = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
    findings = []
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line or "Finding" in line or "ERROR" in line]
        findings.append(" | ".join((told or lines)[-3:]))
        (folder / f"finding-{name.replace(' ', '-')}.txt").write_text(ended.stderr)
    return (int(counted[1]) if counted else 0), findings


def _under_atheris(name: str, arguments: list[str]) -> None:
    """In the process of one target; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["fedast", "tests.soak.fuzz_targets"]):
        from tests.soak import fuzz_targets
    corpus = Path(arguments[0])
    for number, example in enumerate(fuzz_targets.examples()[name]):
        (corpus / f"example-{number}").write_bytes(example)
    atheris.Setup([sys.argv[0], *arguments], fuzz_targets.TARGETS[name])
    atheris.Fuzz()


def _with_hypothesis(name: str, seconds: int, folder: Path) -> tuple[int, list[str]]:
    from tests.soak import fuzz_targets

    target, sound = fuzz_targets.TARGETS[name], fuzz_targets.examples()[name]
    end, count = time.monotonic() + seconds, 0

    @settings(
        database=None, deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(st.sampled_from(sound), st.binary(max_size=512), st.integers(0, 4096), st.booleans())
    def attempt(example: bytes, noise: bytes, where: int, insert: bool) -> None:
        nonlocal count
        count += 1
        place = where % (len(example) + 1)
        target(noise)
        target(example[:place] + noise + example[place if insert else place + len(noise) :])

    while time.monotonic() < end:
        try:
            seed(random.getrandbits(64))(attempt)()
        except Exception as error:  # whatever it raises is what we look for
            said = f"{type(error).__name__}: {error}"
            (folder / f"finding-{name.replace(' ', '-')}.txt").write_text(said)
            return 2 * count, [said[:300]]
    return 2 * count, []


def main() -> None:
    if sys.argv[1:2] == ["--target"]:
        _under_atheris(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("soak/fuzz"))
    parser.add_argument("--engine", choices=["auto", "atheris", "hypothesis"], default="auto")
    parser.add_argument("--subjects", type=float, default=0.0, metavar="MINUTES",
                        help="then the subjects of a running federation")  # fmt: skip
    parser.add_argument("--only", action="append", help="a target; repeatable")
    options = parser.parse_args()
    from tests.soak.fuzz_targets import TARGETS

    found = importlib.util.find_spec("atheris") is not None
    engine = options.engine if options.engine != "auto" else ("hypothesis", "atheris")[found]
    run = _with_atheris if engine == "atheris" else _with_hypothesis
    names = options.only or list(TARGETS)
    seconds = max(1, int(options.minutes * 60 / len(names)))
    options.out.mkdir(parents=True, exist_ok=True)
    problems = 0
    for name in names:
        began = time.monotonic()
        count, findings = run(name, seconds, options.out)
        problems += len(findings)
        line = {
            "target": name, "engine": engine, "seconds": round(time.monotonic() - began),
            "executions": count, "findings": findings,
        }  # fmt: skip
        with (options.out / "fuzz.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}: {count:,} executions in {line['seconds']} s ({engine})", *findings)
    if options.subjects:
        from tests.soak import fuzz_subjects

        # (A short path: there are sockets below it.)
        folder = Path(tempfile.mkdtemp(prefix="fedast-fuzz-")) / "federation"
        began, chosen = time.monotonic(), random.randrange(2**31)
        count, findings = fuzz_subjects.run(folder, chosen, 60 * options.subjects)
        problems += len(findings)
        seconds = round(time.monotonic() - began)
        line = {
            "target": "subjects of a running federation", "engine": f"seed {chosen}",
            "seconds": seconds, "executions": count, "findings": findings,
        }  # fmt: skip
        with (options.out / "fuzz.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"subjects: {count:,} messages in {seconds} s (seed {chosen})", *findings)
        if findings:
            print(f"records: {folder}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
