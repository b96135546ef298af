"""What a plan gathers: the brokers' word, where reading proves nothing, which messages are under way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.run_settings import OffloadSettings
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.tiered.planning.offload_planning import (
    OffloadPolicies,
    broker_layer,
    done_since,
    in_flight,
    leftovers,
    queued,
    totals,
    unlike_cluster,
    unlike_object_store,
    unproven,
)
from pulsar_lifecycle.topics import retention_policy
from pulsar_lifecycle.topics.offload_policy import BROKER_READ_PRIORITY, DRIVER, in_force
from pulsar_lifecycle.topics.policies import InForce, Unknown, Unreadable
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Waiting
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadCode
from tests.kit.builders import PROOF, ROW
from tests.kit.fakes.broker_admin import FakeBrokerAdmin, FakeSubscription

TIERED, BOOKKEEPER = "tiered-storage-first", "bookkeeper-first"


# --------------------------------------------------------------------------------------------------- what is read first


def test_brokers_that_differ_in_what_they_read_first_are_a_problem() -> None:
    both = {"a": {BROKER_READ_PRIORITY: TIERED}, "b": {BROKER_READ_PRIORITY: BOOKKEEPER}}
    _, problems = broker_layer(both, OffloadSettings(), sandbox=False)
    assert problems == [f"the brokers differ in {BROKER_READ_PRIORITY}: '{BOOKKEEPER}', '{TIERED}'"]
    layer, problems = broker_layer({"a": both["b"], "b": both["b"]}, OffloadSettings(), sandbox=False)
    assert (layer[BROKER_READ_PRIORITY], problems) == (BOOKKEEPER, [])


def test_the_settings_do_not_talk_a_brokers_priority_away() -> None:
    settings = OffloadSettings(brokers={BROKER_READ_PRIORITY: TIERED})
    _, problems = broker_layer({"a": {BROKER_READ_PRIORITY: BOOKKEEPER}}, settings, sandbox=False)
    assert len(problems) == 1


def test_namespaces_where_reading_proves_nothing_are_named() -> None:
    policies = {"t/a": in_force(None, None, {}), "t/b": in_force(None, None, {BROKER_READ_PRIORITY: BOOKKEEPER})}
    (said,) = unproven(policies)
    assert said.startswith("t/b: brokers read BookKeeper first")


def test_brokers_that_write_another_clusters_name_than_we_expect_are_named() -> None:
    brokers = {"a": {"clusterName": "prod-eu"}, "b": {"clusterName": "prod-eu"}, "c": {}}
    (said,) = unlike_cluster(brokers, ObjectStoreSettings(buckets=("b",)), "east")
    assert said.startswith(
        "the brokers' clusterName is 'prod-eu', object_store.pulsar_cluster or else cluster says 'east'"
    )
    assert unlike_cluster(brokers, ObjectStoreSettings(buckets=("b",), pulsar_cluster="prod-eu"), "east") == []
    assert unlike_cluster(brokers, None, "prod-eu") == []


def test_a_plan_counts_what_a_run_would_leave_to_brokers() -> None:
    rows = [("offload", 1, ""), ("offload", 2, "left-to-broker"), ("delete_copy", 4, "left-to-broker")]
    table = pa.Table.from_pylist([{"action": a, "bytes": b, "outlook": o} for a, b, o in rows])
    found = totals(table, pa.table({"bytes": [8]}))
    assert (found["ledgers"], found["bytes"], found["copies"], found["copies_bytes"]) == (2, 3, 1, 4)
    assert (found["left_to_broker"], found["left_to_broker_bytes"]) == (2, 6)
    assert (found["brokers_delete"], found["brokers_delete_bytes"]) == (1, 8)


# ------------------------------------------------------------------------------------------- what the brokers read from


def test_a_namespace_with_a_bucket_of_its_own_is_left_out_alone() -> None:
    ours = {DRIVER: "S3", "managedLedgerOffloadBucket": "tiered", "managedLedgerOffloadServiceEndpoint": "http://s3"}
    theirs = {"offload_policies": {"managedLedgerOffloadBucket": "theirs", "managedLedgerOffloadServiceEndpoint": "x"}}
    policies = {"t/a": in_force(None, None, ours), "t/b": in_force(None, theirs, ours)}
    left_out = unlike_object_store(policies, ObjectStoreSettings(buckets=("tiered",), endpoint="http://s3"))
    assert {name: why.code for name, why in left_out.items()} == {"t/b": OffloadCode.LEFT_OUT}
    assert left_out["t/b"].text == (
        "driver S3 of the broker: its bucket theirs is not one of object_store.buckets; "
        "its endpoint is x, object_store.endpoint 'http://s3'"
    )
    assert set(unlike_object_store(policies, None)) == {"t/a", "t/b"}


ITS_BUCKET = Why(OffloadCode.LEFT_OUT, "its bucket")


def test_a_topic_with_policies_of_its_own_is_not_left_out_with_its_namespace() -> None:
    policy, retention = in_force(None, None, {}), retention_policy.in_force(TopicPolicies(), None, {})
    own, other = Topic.parse("persistent://t/b/own-partition-1"), Topic.parse("persistent://t/b/other")
    offloading = InForce({"t/b": policy}, {"persistent://t/b/own": policy})
    policies = OffloadPolicies(offloading, InForce({"t/b": retention}), {"t/b": ITS_BUCKET}, ())
    assert (policies.of(own)[2], policies.of(other)[2]) == (None, ITS_BUCKET)
    policies = OffloadPolicies(offloading, InForce({"t/b": retention}), {"persistent://t/b/own": ITS_BUCKET}, ())
    assert (policies.of(own)[2], policies.of(other)[2]) == (ITS_BUCKET, None)


def test_a_topic_that_has_only_a_retention_of_its_own_is_left_out_with_its_namespace() -> None:
    policy, retention = in_force(None, None, {}), RetentionPolicy(7, 7, Level.TOPIC)
    own = Topic.parse("persistent://t/b/own")
    retentions = InForce({"t/b": retention_policy.in_force(TopicPolicies(), None, {})}, {str(own): retention})
    policies = OffloadPolicies(InForce({"t/b": policy}), retentions, {"t/b": ITS_BUCKET}, ())
    assert policies.of(own) == (policy, retention, ITS_BUCKET)


def test_topics_whose_policies_are_not_known_are_left_out() -> None:
    policy, retention = in_force(None, None, {}), retention_policy.in_force(TopicPolicies(), None, {})
    unknown = Unknown(Unreadable.UNREAD, "ledger 7: timed out")
    left_out = {"t/b": Why(unknown.code, str(unknown))}
    policies = OffloadPolicies(
        InForce({"t/b": policy}), InForce({"t/b": retention}), left_out, (), (), {"t/b": unknown}
    )
    assert policies.of(Topic.parse("persistent://t/b/any"))[2] == left_out["t/b"]


# --------------------------------------------------------------------------------------------------- messages under way

AT = ROW.at
DETAIL = json.dumps({**PROOF, "uuid": str(UUID(int=1)), "bucket": "b", "czxid": 9})
DELETION = replace(
    ROW, action=Action.COPY_DELETION, phase="bookkeeper-copy-deletion", outcome=Outcome.MARKED, detail=DETAIL
)
MESSAGE = replace(ROW, action=Action.DELETE_LEDGER, phase="send", outcome=Outcome.SENT)
ONE = BitMap64([ROW.ledger_id])
NOW = AT + 90 * 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> str:
    FileJournal(str(tmp_path)).record([DELETION, MESSAGE])
    return str(tmp_path)


def test_a_ledger_whose_copy_we_began_to_delete_and_whose_message_waits_is_in_flight(lake: str) -> None:
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == ONE
    assert in_flight(FileJournal(lake), ROW.cluster, BitMap64([ROW.ledger_id + 1]), AT, NOW) == BitMap64()
    assert in_flight(FileJournal(lake), ROW.cluster, BitMap64(), AT, NOW) == BitMap64()
    assert in_flight(FileJournal(lake), "another", ONE, AT, NOW) == BitMap64()


def test_a_message_that_is_older_may_be_lost(lake: str) -> None:
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT + 1, NOW) == BitMap64()


@pytest.mark.parametrize(
    ("outcome", "waits"),
    [(Outcome.RETRYING, True), (Outcome.KEPT, False), (Outcome.DELETED, False), (Outcome.DEAD_LETTERED, False)],
)
def test_what_a_deletion_run_said_of_it_counts(lake: str, outcome: str, waits: bool) -> None:
    FileJournal(lake).record([replace(MESSAGE, phase="delete", outcome=outcome, at=AT + 1)])
    assert bool(in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW)) == waits


@pytest.mark.parametrize(("waiting", "counts"), [(Waiting.NO_SCAN, True), (Waiting.UNREAD_LOCATION, False)])
def test_a_message_that_waits_for_a_read_leaves_its_ledger_to_the_plan(
    lake: str, waiting: Waiting, counts: bool
) -> None:
    """The read that frees its location is made by a run that has a copy of a ledger there to delete."""
    decided = replace(
        MESSAGE, phase="delete", outcome=Outcome.WAITING, detail=json.dumps({"waiting": waiting}), at=AT + 1
    )
    FileJournal(lake).record([decided])
    assert bool(in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW)) == counts
    FileJournal(lake).record([replace(decided, outcome=Outcome.RETRYING, detail="{}", at=AT + 2)])
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == ONE


def test_a_message_is_as_old_as_its_sending_however_often_it_was_decided_since(lake: str) -> None:
    again = [replace(MESSAGE, phase="delete", outcome=Outcome.WAITING, at=AT + day) for day in range(1, 9)]
    FileJournal(lake).record(again)
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT + 1, NOW) == BitMap64()
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == ONE
    FileJournal(lake).record([replace(MESSAGE, phase="redrive", at=AT + 5)])
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT + 5, NOW) == ONE


def test_a_message_about_a_ledger_whose_copy_nobody_deletes_is_another(tmp_path: Path) -> None:
    FileJournal(str(tmp_path)).record([MESSAGE])
    assert in_flight(FileJournal(str(tmp_path)), ROW.cluster, ONE, AT, NOW) == BitMap64()


@pytest.mark.parametrize(("main", "retry", "found"), [(0, 0, False), (1, 0, True), (0, 1, True)])
def test_only_a_queue_that_holds_messages_has_some_under_way(main: int, retry: int, found: bool) -> None:
    admin = FakeBrokerAdmin()
    for topic, backlog in ((DELETION_TOPIC, main), (RETRY_TOPIC, retry)):
        admin.topics[topic] = {SUBSCRIPTION: FakeSubscription(backlog=backlog)}
    assert queued(admin) == found


def test_a_queue_that_is_not_set_up_holds_none() -> None:
    admin = FakeBrokerAdmin()
    assert not queued(admin)
    admin.topics[DELETION_TOPIC] = {}
    assert not queued(admin)


def test_a_message_that_waits_for_a_read_and_was_sent_again_is_in_flight(lake: str) -> None:
    """Else every offload run would send another, until a deletion run decides the first."""
    waits = json.dumps({"waiting": Waiting.UNREAD_LOCATION})
    FileJournal(lake).record([replace(MESSAGE, phase="delete", outcome=Outcome.WAITING, detail=waits, at=AT + 1)])
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == BitMap64()
    FileJournal(lake).record([replace(MESSAGE, at=AT + 2)])
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == ONE


def test_a_send_that_a_clock_ahead_has_dated_hides_no_wait(lake: str) -> None:
    FileJournal(lake).record([replace(MESSAGE, at=NOW + 1)])
    waits = json.dumps({"waiting": Waiting.UNREAD_LOCATION})
    FileJournal(lake).record([replace(MESSAGE, phase="delete", outcome=Outcome.WAITING, detail=waits, at=AT + 3)])
    assert in_flight(FileJournal(lake), ROW.cluster, ONE, AT, NOW) == BitMap64()


@pytest.mark.parametrize(("scanned", "restored", "planned"), [(0, False, False), (1, False, True), (0, True, True)])
def test_a_leftover_that_was_deleted_since_the_scan_is_in_no_plan(
    lake: str, scanned: int, *, restored: bool, planned: bool
) -> None:
    """A deletion run scans before it deletes, and plans of that scan are made after it."""
    gone = replace(MESSAGE, phase="delete", outcome=Outcome.DELETED, at=AT + 5)
    back = replace(MESSAGE, phase="undo", outcome=Outcome.RESTORED, at=AT + 6)
    FileJournal(lake).record([gone, back] if restored else [gone])
    cluster: Any = SimpleNamespace(
        lake=SimpleNamespace(batches=lambda *_: [pa.record_batch({"ledger_id": [ROW.ledger_id]})]),
        parts=lambda *_: [],
        journal_reader=FileJournal(lake),
        settings=SimpleNamespace(cluster=ROW.cluster, orphans=SimpleNamespace(grace_period=0.0)),
    )
    epoch: Any = SimpleNamespace(epoch_id="e", started_at=AT + 5 + scanned)
    assert bool(leftovers(cluster, epoch, NOW)) == planned


@pytest.mark.parametrize(("scanned", "done"), [(0, True), (1, False)])
def test_what_runs_have_done_since_the_scan_is_known(tmp_path: Path, scanned: int, *, done: bool) -> None:
    """A deletion run scans while an offload run is at work, and plans of that scan are made after it."""
    rows = [
        replace(ROW, ledger_id=1, action=Action.OFFLOAD, phase="offload", outcome=Outcome.OFFLOADED, at=AT),
        replace(DELETION, ledger_id=2, outcome=Outcome.BOOKKEEPER_DELETED, at=AT),
        replace(DELETION, ledger_id=3, at=AT),
        replace(DELETION, ledger_id=4, outcome=Outcome.BOOKKEEPER_DELETED, cluster="another", at=AT),
    ]
    FileJournal(str(tmp_path)).record(rows)
    cluster: Any = SimpleNamespace(
        journal_reader=FileJournal(str(tmp_path)), settings=SimpleNamespace(cluster=ROW.cluster)
    )
    found = done_since(cluster, AT + scanned)
    assert found[OffloadChoice.OFFLOAD] == (BitMap64([1]) if done else BitMap64())
    assert found[OffloadChoice.DELETE_COPY] == (BitMap64([2]) if done else BitMap64())
