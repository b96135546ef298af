"""A bookie that dies or hangs while it collects: the run stops, names it, and the next one ends the work.

Two brokers do meanwhile by themselves what production's do.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection, StopReason, is_at_it
from pulsar_lifecycle.lifecycle.bookies.collection_run import Collected, CollectionRun
from pulsar_lifecycle.lifecycle.bookies.suspension import resume, suspend
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import BookieAdminSettings, ZooKeeperSettings
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from tests.integration.pipeline import Pipeline, settings_file
from tests.kit.fakes.journal import FakeJournal

pytestmark = pytest.mark.integration

COLLECTED, LEFT, NOT_STARTED = Outcome.COLLECTED, Outcome.LEFT_AT_IT, Outcome.NOT_STARTED


@pytest.fixture
def two(seldom: Cluster) -> Iterator[Cluster]:
    seldom.start(bookies=2)
    yield seldom
    for name in ("bookie-1", "bookie-2"):
        seldom.kill(name, signal.SIGCONT)


class Struck(HttpBookieAdmin):
    """Strikes the bookie that was told to collect, once; ``back``: and has it up again before anybody looks."""

    cluster: Cluster
    number: int | None
    back = False
    victim = ""

    def collect(self, bookie: str, *, major: bool) -> None:
        super().collect(bookie, major=major)
        if self.number is not None and not self.victim:
            self.victim = f"bookie-{self.cluster.bookies.index(bookie) + 1}"
            self.cluster.kill(self.victim, self.number)
            if self.back:
                self.cluster.start_server(self.victim)


def _both(bookies: HttpBookieAdmin) -> bool:
    """Whether both are registered, a moment apart: one that was stopped may lose its session once it goes on."""
    time.sleep(1)
    return len(bookies.bookies()) == 2


def collect(
    cluster: Cluster, number: int | None, settings: CollectionSettings, *, back: bool = False
) -> tuple[str, list[Collected]]:
    """Have both collect, striking the first with this signal: which server that is, and what the run says."""
    journal = FakeJournal()
    with (
        closing(KazooStore(ZooKeeperSettings(hosts=cluster.zookeeper))) as store,
        closing(Struck(store, "/ledgers", BookieAdminSettings(request_timeout=6.0))) as bookies,
    ):
        bookies.cluster, bookies.number, bookies.back = cluster, number, back
        wait_for("both bookies, for good", lambda: all(_both(bookies) for _ in range(5)))
        wait_for("what is begun to end", lambda: not any(is_at_it(bookies.status(one)) for one in bookies.bookies()))
        plan = [
            PlannedCollection(bookie, "/default-rack", CollectionChoice.COLLECT, 1, DiskVerdict.WAITS_FOR_GC)
            for bookie in bookies.bookies()
        ]
        clock = SystemClock()
        lease = control.take_lease(store, "a test", clock, 30, control.COLLECTION_LEASE)
        try:
            run = CollectionRun("r", "c", settings, plan, lease.guard, store, bookies, journal, clock, print)
            done = run.all()
        finally:
            control.release_lease(store, lease)
    assert [row.outcome for row in journal.rows if row.outcome != Outcome.COLLECTING] == [
        one.outcome.value for one in done
    ]
    return bookies.victim, done


@pytest.mark.parametrize(
    ("number", "stalled_after", "stop"),
    [
        pytest.param(signal.SIGSTOP, 3.0, StopReason.STALLED, id="hangs"),
        pytest.param(signal.SIGKILL, 600.0, StopReason.BOOKIE_AWAY, id="is killed"),
    ],
)
def test_a_bookie_struck_while_it_collects_stops_the_run_and_the_next_ends_it(
    two: Cluster, number: int, stalled_after: float, stop: StopReason
) -> None:
    settings = CollectionSettings(min_bytes=1, max_add_latency=600.0)
    victim, found = collect(two, number, settings.model_copy(update={"stalled_after": stalled_after}))
    assert [(one.outcome, one.why.code) for one in found] == [(LEFT, stop), (NOT_STARTED, stop)], found
    assert found[0].bookie in found[1].why.text
    if number == signal.SIGSTOP:
        two.kill(victim, signal.SIGCONT)
    else:
        two.start_server(victim)
    _, found = collect(two, None, settings)
    assert [one.outcome for one in found] == [COLLECTED, COLLECTED], found


def test_a_bookie_that_is_up_again_before_anybody_looks_is_not_said_to_have_collected(two: Cluster) -> None:
    """Nothing of it moved but the times of its last compactions, which a bookie sets as it starts."""
    settings = CollectionSettings(min_bytes=1, max_add_latency=600.0)
    _, found = collect(two, signal.SIGKILL, settings, back=True)
    assert [one.outcome for one in found] == [Outcome.RESTARTED, COLLECTED], found


def test_compaction_is_suspended_and_resumed_on_bookies_one_of_which_is_gone(
    two: Cluster, tmp_path: Path, spark: None
) -> None:
    where = Pipeline(settings_file(two, tmp_path, {"bookkeeper.admin": {"request_timeout": "6s"}})).where
    with where.ports(read_only=True) as ports:
        wait_for("both bookies", lambda: len(ports.bookies.bookies()) == 2)
        first, second = ports.bookies.bookies()

        def both() -> dict[str, bool]:
            return {one: ports.bookies.status(one).minor_suspended for one in (first, second)}

        assert {one.outcome for one in suspend(where, "s", [], "a test")} == {Outcome.SUSPENDED}
        assert both() == {first: True, second: True}
        assert [one.outcome for one in resume(where, "r", [first], "")] == [Outcome.RESUMED]
        assert both() == {first: False, second: True}
        two.kill("bookie-1", signal.SIGSTOP)
        told = {one.outcome for one in resume(where, "r", [], "")}
        two.kill("bookie-1", signal.SIGCONT)
        assert told == {Outcome.RESUMED, Outcome.TELLING}
        assert {one.outcome for one in resume(where, "r", [], "")} == {Outcome.RESUMED}
        assert both() == {first: False, second: False}
