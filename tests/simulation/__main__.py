"""``python -m tests.simulation``: many schedules on every core, or one again with ``--seed N --verbose``.

Belongs here: the command line, sharing the work and printing the counts. Not here: the schedules (``simulator.py``).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.faults import NAMES
from tests.simulation.simulator import Result, shrink, simulate

CHUNK = 25


def run_chunk(seeds: Sequence[int]) -> list[Result]:
    """What one process does at a time."""
    return [simulate(seed) for seed in seeds]


def run_many(first: int, count: int, processes: int, patience: int = 5) -> list[Result]:
    """Results of seeds ``first .. first + count - 1``, in order; ends early after ``patience`` violations."""
    chunks = [range(n, min(n + CHUNK, first + count)) for n in range(first, first + count, CHUNK)]
    if processes == 1:
        found: list[Result] = []
        for chunk in chunks:
            found += run_chunk(chunk)
            if sum(bool(r.violation) for r in found) >= patience:
                break
        return found
    found = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for results in pool.map(run_chunk, chunks):
            found += results
            if sum(bool(r.violation) for r in found) >= patience:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return found


def replay_command(seed: int) -> str:
    """The line that shows a schedule again."""
    return f".venv/bin/python -m tests.simulation --seed {seed} --verbose"


def report(results: Sequence[Result], seconds: float) -> str:
    """Counts of what the schedules had, and what was violated."""
    had, facts = Counter[str](), Counter[str]()
    for result in results:
        had.update({code for code, n in result.faults.items() if n})
        facts.update(result.facts)
    lines = [f"{len(results)} schedules in {seconds:.0f} s"]
    lines += [f"  {code:4} {had[code]:6} schedules  {name}" for code, name in NAMES.items()]
    lines.append("  " + ", ".join(f"{what} {n}" for what, n in sorted(facts.items())))
    for result in [r for r in results if r.violation][:5]:
        lines += [
            f"seed {result.seed}, step {result.at_step}: {result.violation}",
            f"  {replay_command(result.seed)}",
        ]
    return "\n".join(lines)


def main() -> int:
    """Exit code 1 when an invariant was violated, 2 when a fault was never there."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one schedule")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    parser.add_argument("--shrink", action="store_true", help="look for a shorter schedule that still fails")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many schedules")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        skip = shrink(given.seed) if given.shrink else []
        result = simulate(given.seed, skip=skip, say=print if given.verbose or given.shrink else lambda line: None)
        print(f"seed {given.seed}: {result.violation or 'every invariant held'}")
        return bool(result.violation)
    began = time.monotonic()
    results = run_many(given.first, given.seeds, given.processes)
    print(report(results, time.monotonic() - began))
    if any(r.violation for r in results):
        return 1
    return 2 if len(results) >= 1_000 and any(not any(r.faults[c] for r in results) for c in NAMES) else 0


if __name__ == "__main__":
    sys.exit(main())
