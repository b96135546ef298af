"""The read budget and the latency guard, on a clock of their own."""

from __future__ import annotations

import threading

import pytest

from pulsar_lifecycle.errors import Overloaded, Unavailable
from pulsar_lifecycle.throttle import LatencyGuard, RateBudget
from tests.kit.fakes.clock import FakeClock


@pytest.mark.parametrize("batch", [1, 64, 1000, 7000])
def test_the_long_run_rate_is_the_budget_whatever_the_batch(batch: int) -> None:
    clock = FakeClock()
    budget = RateBudget(1000, clock)
    began, taken = clock.now_ms(), 0
    while taken < 70_000:
        budget.take(batch)
        taken += batch

    seconds = (clock.now_ms() - began) / 1000
    assert taken - batch == pytest.approx(1000 * seconds, rel=0.02)


def test_the_first_request_does_not_wait_and_idle_time_gives_no_credit() -> None:
    clock = FakeClock()
    budget = RateBudget(1000, clock)
    budget.take(500)
    assert clock.slept == []

    clock.advance(3600)
    budget.take(500)
    budget.take(500)

    assert clock.slept == [pytest.approx(0.5)]


def test_a_clock_that_is_set_back_does_not_freeze_the_budget() -> None:
    clock = FakeClock()
    budget = RateBudget(1000, clock)
    budget.take(500)
    clock.advance(-3600)
    budget.take(500)

    assert clock.slept == [pytest.approx(0.5)]


def guard(clock: FakeClock, *round_trips: float | Exception) -> LatencyGuard:
    """A guard that has measured these round trips, in seconds."""
    pending = iter(round_trips)

    def probe() -> None:
        trip = next(pending)
        if isinstance(trip, Exception):
            clock.advance(1.0)
            raise trip
        clock.advance(trip)

    found = LatencyGuard(probe, 0.1, 0.5, clock)
    for _ in round_trips:
        found.measure()
    return found


def test_a_fast_server_is_not_slowed() -> None:
    clock = FakeClock()
    found = guard(clock, 0.004, 0.09)
    found.hold()

    assert found.latency_ms == 90
    assert clock.slept == []


def test_above_the_first_limit_every_request_waits_a_round_trip() -> None:
    clock = FakeClock()
    guard(clock, 0.3, 0.2).hold()

    assert clock.slept == [pytest.approx(0.2)]


def test_above_the_second_limit_the_step_stops() -> None:
    found = guard(FakeClock(), 0.6, 0.7)
    with pytest.raises(Overloaded, match="600 ms"):
        found.hold()


def test_one_slow_probe_alone_neither_slows_nor_stops() -> None:
    clock = FakeClock()
    for trips in ((0.01, 5.0), (5.0, 0.01)):
        guard(clock, *trips).hold()

    assert clock.slept == []


def test_a_lost_connection_is_not_a_slow_one() -> None:
    clock = FakeClock()
    found = guard(clock, 0.002, 0.003, Unavailable("lost"), Unavailable("lost"))
    found.hold()

    assert found.latency_ms == 3
    assert clock.slept == []


def test_it_measures_by_itself_until_stopped_and_may_start_again() -> None:
    probed = threading.Event()
    found = LatencyGuard(probed.set, 0.1, 0.5, FakeClock())
    for _ in range(2):
        found.start()
        assert probed.wait(10)
        found.stop()
        probed.clear()
