"""``python -m tests.simulation``: many schedules on every core, or one again with ``--seed N --verbose``.

Belongs here: the command line. Not here: sharing the work (``many.py``), the schedules (``simulator.py``).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence

from tests.simulation.faults.fault_codes import NAMES
from tests.simulation.many import report, run_many
from tests.simulation.simulator import shrink, simulate
from tests.simulation.steps import Result

PRINTED_EVERY = 500
"""Schedules."""


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
    logging.disable(logging.WARNING)  # the product warns of every fault
    if given.seed is not None:
        skip = shrink(given.seed) if given.shrink else []
        result = simulate(given.seed, skip=skip, say=print if given.verbose or given.shrink else lambda line: None)
        print(f"seed {given.seed}: {result.violation or 'every invariant held'}")
        return bool(result.violation)
    began = time.monotonic()

    def progress(results: Sequence[Result]) -> None:
        if len(results) % PRINTED_EVERY == 0:
            broken = [r.seed for r in results if r.violation]
            violations = f"seeds {broken} violate an invariant" if broken else "every invariant held"
            print(f"{len(results)} of {given.seeds} in {time.monotonic() - began:.0f} s: {violations}", flush=True)

    results = run_many(given.first, given.seeds, given.processes, progress=progress)
    print(report(results, time.monotonic() - began))
    if any(r.violation for r in results):
        return 1
    return 2 if len(results) >= 1_000 and any(not any(r.faults[c] for r in results) for c in NAMES) else 0


if __name__ == "__main__":
    sys.exit(main())
