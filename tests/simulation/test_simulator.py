"""Thousands of schedules of brokers, operators, time and faults: every invariant holds after every step."""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.faults.fault_codes import NAMES
from tests.simulation.many import report, run_many
from tests.simulation.operators import delaying, idle_loads, idling, loading, recording, tiering
from tests.simulation.simulator import shrink, simulate
from tests.simulation.steps import EXTRAS, ROUTINE

SCHEDULES = 600


@pytest.mark.timeout(3600)  # beside the tests with servers, at low priority
def test_every_invariant_holds_in_every_schedule() -> None:
    began = time.monotonic()
    results = run_many(0, SCHEDULES, os.cpu_count() or 1, patience=1)
    said = report(results, time.monotonic() - began)
    broken = [r for r in results if r.violation]
    if broken:
        skip = shrink(broken[0].seed, most_runs=60)
        said += f"\n{broken[0].steps - len(skip)} of its {broken[0].steps} steps are enough: --shrink"
    assert not broken, said
    assert len(results) == SCHEDULES
    missing = [f"{code}: {name}" for code, name in NAMES.items() if not any(r.faults[code] for r in results)]
    assert not missing, said
    for what in ("deleted", "trimmed", "brought back", "objects deleted"):
        assert sum(r.facts[what] for r in results) > SCHEDULES / 4, f"next to nothing was {what}"
    for what in (
        "offloaded",
        "listed as deleted",
        "reverted",
        "copies deleted",
        "swept",
        "uploads dropped",
        "attempts removed",
    ):
        assert sum(r.facts[what] for r in results) > SCHEDULES / 400, f"next to nothing was {what}"
    assert sum(r.facts["expired"] for r in results) > SCHEDULES / 100, "next to nothing was past its retention"
    for what in ("loaded by order", "expired by order", "freed by loads"):
        assert sum(r.facts[what] for r in results) > SCHEDULES / 200, f"next to nothing was {what}"
    for what in (
        *("unsubscribed by order", "subscriptions deleted", "inactive topics deleted"),
        "subscriptions of unloaded topics deleted",
    ):
        assert any(r.facts[what] for r in results), f"nothing was {what}"
    for level in ("rebuild", "drop", "merge", "delete"):
        assert any(r.facts[f"{level} repairs"] for r in results), f"no index of delayed messages had a {level}"
    assert sum(r.facts["delayed messages delivered"] for r in results) > SCHEDULES
    runs = {*loading.Loading.RUNS, *recording.Recording.RUNS, *delaying.Delaying.RUNS, *idling.Idling.RUNS}
    runs |= idle_loads.IdleLoads.RUNS
    for what in {*ROUTINE, *EXTRAS, *tiering.RUNS, *runs} & {what for r in results for what in r.facts}:
        tried, ended = (sum(r.facts[fact] for r in results) for fact in (what, f"{what} ended"))
        assert ended > tried / 10, f"{what}: {ended} of {tried} ended without an error"


def test_a_seed_always_makes_the_same_schedule() -> None:
    first, second = list[str](), list[str]()
    for lines in (first, second):
        for seed in range(5):
            simulate(seed, say=lines.append)
    assert first == second
