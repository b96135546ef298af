"""Pause, and the lease that lets one controller act at a time."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import LeaseLost, OutcomeUnknown, Overloaded, Paused, Unavailable
from pulsar_lifecycle.ports import Deletion
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper, Operation
from tests.kit.refused import refused_by


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def zookeeper(clock: FakeClock) -> FakeZooKeeper:
    return FakeZooKeeper(clock)


@pytest.fixture
def store(zookeeper: FakeZooKeeper) -> FakeStore:
    return zookeeper.session()


def test_pause_and_resume_may_be_said_twice(store: FakeStore) -> None:
    control.check_not_paused(store)
    for _ in range(2):
        control.pause(store, "why")
    with pytest.raises(Paused, match="/pulsar-lifecycle/pause"):
        control.check_not_paused(store)
    for _ in range(2):
        control.resume(store)
    control.check_not_paused(store)


def test_a_pause_that_cannot_be_read_is_a_pause(zookeeper: FakeZooKeeper, store: FakeStore) -> None:
    control.pause(store, "why")
    zookeeper.unreadable.add(control.PAUSE)
    with pytest.raises(Paused):
        control.check_not_paused(store)


def test_only_the_marker_makes_a_sandbox(store: FakeStore) -> None:
    assert not control.is_sandbox(store)
    store.create(control.SANDBOX, parents=True)
    assert control.is_sandbox(store)


def test_a_second_controller_is_refused_by_the_first_ones_name(
    zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock
) -> None:
    control.take_lease(store, "run one", clock, 0)
    with refused_by(RefusalCode.LEASE_HELD, "run one"):
        control.take_lease(zookeeper.session(), "run two", clock, 5)
    assert sum(clock.slept) >= 5
    zookeeper.unreadable.add(control.holder_of(control.LEASE))
    with refused_by(RefusalCode.LEASE_HELD, "no permission"):
        control.take_lease(zookeeper.session(), "run three", clock, 5)


def test_a_holder_that_is_no_sessions_is_to_be_deleted_by_hand(
    zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock
) -> None:
    holder = control.holder_of(control.LEASE)
    store.create(holder, b"restored", parents=True)
    with refused_by(RefusalCode.LEASE_HELD, f"no session holds {holder}"):
        control.take_lease(zookeeper.session(), "run", clock, 30)
    assert not clock.slept
    store.delete(holder, -1)
    assert control.take_lease(zookeeper.session(), "run", clock, 0).holder == "run"


@pytest.mark.parametrize("error", [Overloaded("too slow"), Unavailable("no answer"), OutcomeUnknown("lost")])
@pytest.mark.parametrize("name", ["write", "read", "delete"])
def test_a_lease_that_cannot_be_given_back_goes_with_its_session(
    zookeeper: FakeZooKeeper,
    store: FakeStore,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    name: str,
    error: Unavailable,
) -> None:
    def fail(operation: Operation) -> None:
        if operation.name == name:
            raise error

    lease = control.take_lease(store, "one", clock, 0)
    store.before = fail
    control.release_lease(store, lease)
    assert str(error) in caplog.text
    store.close()
    assert control.take_lease(zookeeper.session(), "two", clock, 0).version > lease.version


def test_a_lease_that_was_given_back_is_taken_with_another_guard(
    zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock
) -> None:
    first = control.take_lease(store, "one", clock, 0)
    assert first.taken_at == clock.now_ms()
    control.release_lease(store, first)
    second = control.take_lease(zookeeper.session(), "two", clock, 0)
    assert first.guard[0] == second.guard[0]
    assert first.guard[1] < second.guard[1]


def test_a_dead_holders_session_is_waited_for(zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock) -> None:
    control.take_lease(store, "dead", clock, 0)
    session = zookeeper.session()
    session.before = lambda operation: store.expire() if clock.slept else None
    assert control.take_lease(session, "next", clock, 30).holder == "next"


def test_who_lost_its_session_cannot_delete_with_its_old_guard(
    zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock
) -> None:
    store.create("/ledger")
    first = control.take_lease(store, "one", clock, 0)
    worker, store_two = zookeeper.session(), zookeeper.session()
    assert worker.delete_many([], first.guard) == []
    store.expire()
    second = control.take_lease(store_two, "two", clock, 0)
    with pytest.raises(LeaseLost):
        worker.delete_many([Deletion("/ledger", 0)], first.guard)
    assert zookeeper.stat("/ledger") is not None
    control.release_lease(store, first)  # harmless, and not the second one's
    with refused_by(RefusalCode.LEASE_HELD, "two"):
        control.take_lease(zookeeper.session(), "three", clock, 0)
    assert [r.outcome for r in worker.delete_many([Deletion("/ledger", 0)], second.guard)] == ["deleted"]


def test_a_lease_is_given_back_once(zookeeper: FakeZooKeeper, store: FakeStore, clock: FakeClock) -> None:
    lease = control.take_lease(store, "one", clock, 0)
    for _ in range(2):
        control.release_lease(store, lease)
    other = control.take_lease(zookeeper.session(), "two", clock, 0)
    control.release_lease(store, lease)
    assert zookeeper.data(control.holder_of(control.LEASE)) == b"two"
    assert other.version > lease.version
