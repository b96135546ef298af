"""Many schedules: sharing them among processes, and what to print of them.

Belongs here: running ranges of seeds and counting. Not here: the schedules (``simulator.py``), the command line.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.faults.fault_codes import NAMES
from tests.simulation.simulator import simulate
from tests.simulation.steps import Result

CHUNK = 25


def run_chunk(seeds: Sequence[int]) -> list[Result]:
    """What one process does at a time."""
    return [simulate(seed) for seed in seeds]


def run_many(
    first: int,
    count: int,
    processes: int,
    patience: int = 5,
    progress: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Results of seeds ``first .. first + count - 1``, in order; ends early after ``patience`` violations.

    ``progress`` is called with all results so far, after every :data:`CHUNK` of them.
    """
    chunks = [range(n, min(n + CHUNK, first + count)) for n in range(first, first + count, CHUNK)]
    if processes == 1:
        found: list[Result] = []
        for chunk in chunks:
            found += run_chunk(chunk)
            progress(found)
            if sum(bool(r.violation) for r in found) >= patience:
                break
        return found
    found = []
    quiet = {"initializer": logging.disable, "initargs": (logging.WARNING,)}  # the product warns of every fault
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), **quiet) as pool:
        for results in pool.map(run_chunk, chunks):
            found += results
            progress(found)
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
