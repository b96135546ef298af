"""Calls that come at the same time are one call, and each caller has its own answers, however threads take turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_lifecycle.runs.side_by_side import Combined

CALLERS, CALLS = 8, 300


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns between any two steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_every_caller_has_its_own_answers() -> None:
    """One that is made the next leader before it begins to wait for its turn leads no call twice."""
    combined = Combined[tuple[int, int], tuple[int, int]](list)

    def ask(caller: int) -> list[list[tuple[int, int]]]:
        return [combined([(caller, n)]) for n in range(CALLS)]

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(ask, range(CALLERS)))
    assert answers == [[[(caller, n)] for n in range(CALLS)] for caller in range(CALLERS)]
