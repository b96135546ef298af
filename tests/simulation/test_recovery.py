"""A ledger that somebody opens for recovery changes as BookKeeper changes it."""

from __future__ import annotations

from random import Random

import pytest

from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from tests.simulation.world import other_acts
from tests.simulation.world.model import TOPICS
from tests.simulation.world.world import World


@pytest.fixture
def world() -> World:
    return World(Random(0))


def _state(world: World, ledger: int) -> LedgerState:
    return ledger_metadata.decode(world.zookeeper.data(world.path(ledger))).state


def test_recovery_of_a_closed_ledger_writes_nothing(world: World) -> None:
    ledger = world.make("data", TOPICS[0])
    before = world.zookeeper.stat(world.path(ledger))
    assert other_acts.recover(world) is None
    assert world.zookeeper.stat(world.path(ledger)) == before
    assert not world.model.busy


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_recovery_closes_a_ledger_that_nobody_closed(world: World, state: LedgerState) -> None:
    ledger = world.make("data", TOPICS[0], state=state)
    assert other_acts.recover(world)
    assert (_state(world, ledger), world.model.busy) == (LedgerState.IN_RECOVERY, {ledger})
    assert other_acts.recover(world) is None
    assert other_acts.end_recovery(world)
    assert (_state(world, ledger), world.model.busy) == (LedgerState.CLOSED, set())
