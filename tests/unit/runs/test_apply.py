"""Applying a plan: what is refused, what is sent once, what a failure leaves to the next try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import Paused, StoreError, Unavailable
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.apply import chosen
from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.deletion_queue import FakeDeletionQueue
from tests.kit.fakes.journal import FakeJournal
from tests.kit.refused import refused_by
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import DELIVER_AFTER, HOUR, Plan, Policy, apply_plan, plan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/x")


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [cluster.ledger(data_tags(TOPIC))])
    for _ in range(5):
        cluster.ledger(data_tags(TOPIC))
    return cluster


@pytest.fixture
def planned(cluster: SimulatedCluster) -> Plan:
    return plan(cluster, *two_scans(cluster))


def sent_ids(cluster: SimulatedCluster) -> list[int]:
    return [row.ledger_id for row in cluster.journal.rows if row.outcome == Outcome.SENT]


def test_one_message_per_row_delayed_and_journalled(cluster: SimulatedCluster, planned) -> None:
    applied = apply_plan(cluster, planned)
    assert (applied.sent, applied.already, applied.failed) == (5, 0, 0)
    assert sent_ids(cluster) == [2, 3, 4, 5, 6]
    queue = cluster.open_queue()
    assert queue.receive(10, 0) == []
    cluster.wait(DELIVER_AFTER / HOUR)
    received = cluster.open_queue().receive(10, 0)
    assert [one.info.ledger_id for one in received if one.info] == [2, 3, 4, 5, 6]
    assert {one.info.plan_id for one in received if one.info} == {planned.summary.plan_id}


def test_applying_again_sends_nothing_twice(cluster: SimulatedCluster, planned) -> None:
    assert apply_plan(cluster, planned, limit=2).sent == 2
    assert sent_ids(cluster) == [2, 3]
    again = apply_plan(cluster, planned)
    assert (again.sent, again.already) == (3, 2)
    assert apply_plan(cluster, planned).sent == 0
    assert sent_ids(cluster) == [2, 3, 4, 5, 6]
    assert cluster.open_queue().backlog() == 5


def test_what_failed_is_journalled_and_sent_by_the_next_try(cluster: SimulatedCluster, planned) -> None:
    queue = cluster.open_queue()
    queue.refused = {3, 5}
    applied = apply_plan(cluster, planned, queue=queue)
    assert (applied.sent, applied.failed, applied.first_error) == (3, 2, "refused by the test")
    assert [row.ledger_id for row in cluster.journal.rows if row.outcome == Outcome.SEND_FAILED] == [3, 5]
    again = apply_plan(cluster, planned)
    assert (again.sent, again.already, again.failed) == (2, 3, 0)


def test_a_send_whose_journal_row_was_lost_is_repeated(cluster: SimulatedCluster, planned) -> None:
    class Full(FakeJournal):
        def record(self, rows: Sequence[JournalRow]) -> str:
            raise Unavailable("the disk is full")

    with pytest.raises(Unavailable):
        apply_plan(cluster, planned, journal=Full())
    assert apply_plan(cluster, planned).sent == 5
    assert cluster.open_queue().backlog() == 10


def test_nothing_is_sent_that_could_not_be_journalled(cluster: SimulatedCluster, planned) -> None:
    """Each of three tries would send the same messages."""
    full = FakeJournal()
    full.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        apply_plan(cluster, planned, journal=full)
    assert cluster.open_queue().backlog() == 0


def test_a_limit_holds_however_often_a_plan_is_applied(cluster: SimulatedCluster, planned) -> None:
    assert apply_plan(cluster, planned, limit=2).sent == 2
    again = apply_plan(cluster, planned, limit=2)
    assert (again.sent, again.already) == (0, 2)
    assert apply_plan(cluster, planned, limit=3).sent == 1


def test_a_batch_of_which_nothing_arrived_is_the_last(cluster: SimulatedCluster, planned, monkeypatch) -> None:
    monkeypatch.setattr("pulsar_lifecycle.runs.apply.SEND_BATCH", 2)
    queue = cluster.open_queue()
    queue.refused = {3, 4, 5}
    applied = apply_plan(cluster, planned, queue=queue)
    assert (applied.sent, applied.failed, applied.left) == (1, 3, 1)
    assert "3 intents could not be sent, and 1 were not tried after that, the first: refused by" in applied.problem
    again = apply_plan(cluster, planned)
    assert (again.sent, again.already, again.left, again.problem) == (4, 1, 0, None)
    assert sorted(sent_ids(cluster)) == [2, 3, 4, 5, 6]


def test_a_pause_stops_before_the_next_batch(cluster: SimulatedCluster, planned, monkeypatch) -> None:
    monkeypatch.setattr("pulsar_lifecycle.runs.apply.SEND_BATCH", 2)

    class Pausing(FakeDeletionQueue):
        def send(self, infos, deliver_after_ms):
            control.pause(cluster.open_store(), "stop")
            return super().send(infos, deliver_after_ms)

    with pytest.raises(Paused):
        apply_plan(cluster, planned, queue=Pausing(cluster.deletion_topics))
    assert sent_ids(cluster) == [2, 3]


CAPS = Caps(100, 1.0, 1 << 50, 100)


@pytest.mark.parametrize(
    ("caps", "limit", "why"),
    [
        (replace(CAPS, max_ledgers=4), 0, "max_ledgers"),
        (replace(CAPS, max_share=0.5), 0, "max_share"),
        (replace(CAPS, max_bytes=49), 0, "max_bytes"),
        (replace(CAPS, max_ledgers_per_topic=4), 0, "max_ledgers_per_topic"),
        (replace(CAPS, max_ledgers=4), 5, "max_ledgers"),
    ],
)
def test_a_cap_refuses_before_anything_is_sent(cluster: SimulatedCluster, planned, caps, limit, why) -> None:
    with refused_by(RefusalCode(why)):
        apply_plan(cluster, planned, Policy(caps=caps), limit=limit)
    assert (cluster.journal.rows, cluster.open_queue().backlog()) == ([], 0)
    assert apply_plan(cluster, planned, Policy(caps=caps), limit=2).sent == 2


def test_a_plan_that_was_touched_or_belongs_elsewhere_is_refused(cluster: SimulatedCluster, planned) -> None:
    summary, rows, _ = planned
    more = cluster.ledger(data_tags(TOPIC))
    column = rows.column_names.index("ledger_id")
    other = rows.set_column(column, "ledger_id", pa.array([2, 3, 4, 5, more], pa.int64()))
    for tampered in (other, rows.slice(1)):
        with refused_by(RefusalCode.PLAN_DIFFERS):
            apply_plan(cluster, planned._replace(rows=tampered))
    order = Order(summary.plan_id, summary.digest)
    for name, fingerprint in ((summary.cluster, "x"), ("renamed", summary.fingerprint)):
        with refused_by(RefusalCode.OTHER_CLUSTER):
            chosen(
                order,
                CAPS,
                summary,
                rows,
                cluster=name,
                fingerprint=fingerprint,
                now=summary.created_at,
                valid_for_ms=1,
            )
    cluster.wait(25)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        apply_plan(cluster, planned)
    assert cluster.open_queue().backlog() == 0


@pytest.mark.parametrize("limit", [1, 4])
def test_a_limit_takes_the_lowest_ids(planned, limit: int) -> None:
    summary, rows, _ = planned
    order = Order(summary.plan_id, summary.digest, limit=limit)
    of, now = {"cluster": summary.cluster, "fingerprint": summary.fingerprint}, summary.created_at
    some = chosen(order, CAPS, summary, rows, **of, now=now, valid_for_ms=1)
    assert some.column("ledger_id").to_pylist() == [2, 3, 4, 5, 6][:limit]
