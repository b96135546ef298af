"""Calls that come at the same time are one call, and each caller has its own answers, however threads take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pulsar_lifecycle.runs.side_by_side import Combined

SECONDS = 60
"""What a thread waits for another at most, where the test fails."""


class _Lock:
    """A lock; who gives it back first does what a test has it do."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._lock, self._after = threading.Lock(), after

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()
        self._after()


def test_who_is_made_the_leader_before_he_waits_for_his_turn_leads_one_call() -> None:
    came, done, calls = threading.Event(), threading.Event(), list[list[int]]()

    def call(items: list[int]) -> Sequence[int]:
        calls.append(items)
        if items == [1]:
            assert came.wait(SECONDS)
        return items

    def after() -> None:
        """The second caller is in line, and goes on once the first one has made him the leader."""
        if threading.current_thread() is not first and not came.is_set():
            came.set()
            assert done.wait(SECONDS)

    def ask() -> None:
        combined([1])
        done.set()

    combined = Combined[int, int](call)
    combined._lock = _Lock(after)  # type: ignore[assignment]
    first = threading.Thread(target=ask)
    first.start()
    while not calls:
        done.wait(0.001)
    assert combined([2]) == [2]
    first.join(SECONDS)
    assert (combined([3]), calls) == ([3], [[1], [2], [3]])


def test_every_caller_has_its_own_answers() -> None:
    combined = Combined[tuple[int, int], tuple[int, int]](list)

    def ask(caller: int) -> list[list[tuple[int, int]]]:
        return [combined([(caller, n)]) for n in range(100)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers == [[[(caller, n)] for n in range(100)] for caller in range(8)]
