"""``make soak``: runs, one after the other, until there were enough hours or faults.

Results are appended to a file, so that a campaign can be spread over several calls; seeds go on
from the last one there. ``--seed`` repeats the run of that seed: the same harms in the same order,
though not at the same instants.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak import results
from tests.soak.campaign import run
from tests.soak.catalogue import ATTACKS, FAULTS


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--hours", type=float, help="stop after so long")
    parser.add_argument("--faults", type=int, help="... or after so many faults and attacks")
    parser.add_argument("--seed", type=int, help="of the (first) run; default: the next one")
    parser.add_argument("--runs", type=int, help="stop after so many runs")
    parser.add_argument("--rounds", type=int, default=400, help="of each task of a run")
    parser.add_argument("--results", type=Path, default=Path("soak/results.jsonl"))
    parser.add_argument("--work", type=Path, help="for the runs; those that fail stay there")
    parser.add_argument("--only", nargs="*", default=[], help="choose from these")
    parser.add_argument("--skip", nargs="*", default=[], help="... and not from these")
    parser.add_argument("--list", action="store_true", help="the names to choose from, and end")
    parser.add_argument("--sum", type=Path, nargs="*", help="print the table of these files, or "
                        "of --results, and end")  # fmt: skip
    return parser.parse_args()


def _report(runs: list[dict[str, object]]) -> None:
    print(results.table(runs), results.summary(runs), sep="\n\n")


def main() -> None:
    options = _options()
    if options.list:
        print(*FAULTS, *ATTACKS, sep="\n")
        return
    if options.sum is not None:
        _report(results.read(*(options.sum or [options.results])))
        return
    known = [*FAULTS, *ATTACKS]
    unknown = [name for name in (*options.only, *options.skip) if name not in known]
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}; see --list")
    names = [n for n in options.only or known if n not in options.skip]
    before = results.read(options.results)
    seed = options.seed
    if seed is None:
        seed = max((past["seed"] for past in before), default=0) + 1
    work = (options.work or Path(tempfile.mkdtemp(prefix="fedast-soak-"))).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # processes are ended with us
    for noisy in ("nats", "asyncio", "fedast.nats"):  # normal events of TLS, and what is refused
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    began, done, count, failed = time.monotonic(), 0, 0, 0
    while True:
        if options.hours is not None and time.monotonic() - began > options.hours * 3600:
            break
        if options.faults is not None and count >= options.faults:
            break
        if done >= (options.runs or (1 if not (options.hours or options.faults) else done + 1)):
            break
        print(f"run with seed {seed}", flush=True)
        folder = work / f"seed-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        most = None if options.faults is None else options.faults - count
        found = asyncio.run(
            run(folder, seed, rounds=options.rounds, names=names, most=most, say=True)
        )
        results.append(options.results, found)
        print(f"  {found.harms} faults and attacks in {found.seconds:.0f} s, {found.counts}",
              *found.problems, sep="\n  ", flush=True)  # fmt: skip
        if not found.problems:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"  its records are in {folder}", flush=True)
        failed += bool(found.problems)
        done, count, seed = done + 1, count + found.harms, seed + 1
    _report(results.read(options.results))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
