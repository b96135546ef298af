"""The simulator bites: each deliberate fault of the engine is caught, and within how many schedules."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.simulator import simulate

WITHIN = 400
"""Schedules that may pass before a mutation is caught."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with MUTATIONS[name]():
        for seed in range(WITHIN):
            found = simulate(seed)
            if found.violation:
                break
    assert found.violation, f"{name}: not caught by seeds 0 .. {WITHIN - 1}"
    assert not simulate(seed).violation, f"seed {seed} is violated without the mutation too"
    with capsys.disabled():
        print(f"\n{name}: caught after {seed + 1} schedules: {found.violation[:110]}")
