"""What every clock and every source of ids does: the same tests on the real ones and on the tests' own."""

from __future__ import annotations

from random import Random

import pytest

from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.ids import RandomIds
from pulsar_lifecycle.ports import Clock, Ids
from tests.kit.fakes.clock import FakeClock
from tests.kit.simulated.connections import SimIds


@pytest.fixture(params=["system", "fake"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock() if request.param == "system" else FakeClock()


@pytest.fixture(params=["random", "simulated"])
def ids(request: pytest.FixtureRequest) -> Ids:
    random = Random(1)
    return RandomIds() if request.param == "random" else SimIds(lambda: random)


def test_a_clock_tells_milliseconds_since_the_epoch(clock: Clock) -> None:
    assert isinstance(clock.now_ms(), int)
    assert clock.now_ms() > 1_600_000_000_000


@pytest.mark.parametrize("seconds", [0.001, 0, -1])
def test_a_clock_that_is_slept_on_goes_on(clock: Clock, seconds: float) -> None:
    clock.sleep(seconds)
    assert clock.now_ms() > 1_600_000_000_000


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_token_has_two_digits_a_byte_and_comes_once(ids: Ids, size: int) -> None:
    tokens = [ids.token(size) for _ in range(20)]
    assert {len(bytes.fromhex(token)) for token in tokens} == {size}
    assert len(set(tokens)) == 20


def test_a_uuid_is_of_version_4_and_comes_once(ids: Ids) -> None:
    uuids = [ids.uuid() for _ in range(20)]
    assert {uuid.version for uuid in uuids} == {4}
    assert len(set(uuids)) == 20
