"""We and brokers with an offloader at the same topics: neither takes what the other still needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.tiered.offload_run import revert_offloads
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code
from sandbox.clients import Admin, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.pipeline import Pipeline, existing, new_namespace, settings_file, transactions
from tests.integration.tiered.broker_offloads import (
    begin_offload,
    misbehaving,
    offload_status,
    offloaded_by_broker,
    published,
    read_by_broker,
    set_policy,
    unload,
    with_offloader,
)
from tests.integration.tiered.offloads import contexts, flip, keys, object_file, offload, planned, s3_client

pytestmark = pytest.mark.integration

KEEP = -1
"""The brokers' lag: they delete no copy, which is what ``bookkeeper_copies = "ours"`` is for."""


@pytest.fixture
def bucket(offloading: Cluster) -> Iterator[Any]:
    with s3_client(offloading) as client:
        yield client


@pytest.fixture
def operator(offloading: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    """Pipelines that delete copies at once; ``lake`` is another one's, to go on where it ended."""

    def make(lake: str = "", **more: Any) -> Pipeline:
        made = with_offloader(offloading, **{"bookkeeper_copies": "ours", "deletion_lag": 0, **more})
        made["trimming"] = {"loaded_topics": True}
        if lake:
            made["lake"] = {"path": lake}
        return Pipeline(settings_file(offloading, tmp_path_factory.mktemp("pipeline"), made))

    return make


def written(sandbox: Cluster, *names: str) -> dict[str, tuple[int, int]]:
    """The last transaction of each topic's z-node: a load is one, too."""
    with sandbox.metadata() as zk:
        return transactions(zk, [znodes.topic_znode(topic) for topic in names])


def is_loaded(sandbox: Cluster, topic: str) -> bool:
    """Whether a broker has a topic now: it has a ledger open."""
    with sandbox.metadata() as zk:
        found = zk.get(znodes.ledger_znode(max(znodes.listed_ledgers(zk, topic))))
    return ledger_metadata.decode(found[0]).state is LedgerState.OPEN


def listed_as_deleted(sandbox: Cluster, topic: str) -> set[int]:
    """The ledgers whose copy in BookKeeper a topic lists as deleted."""
    return {
        ledger for ledger, offloaded in contexts(sandbox, topic).items() if offloaded and offloaded.bookkeeper_deleted
    }


# ------------------------------------------------------------------------- 9: a copy that is refused must not go anyway


def test_a_copy_that_we_refuse_to_delete_is_deleted_by_no_broker(
    offloading: Cluster, operator: Callable[..., Pipeline], bucket: Any
) -> None:
    namespace = new_namespace(offloading, "damaged")
    topic = f"persistent://{namespace}/t"
    set_policy(offloading, namespace, KEEP)
    payloads = topics.payloads(120)
    ledgers = published(offloading, topic, payloads)
    damaged, sound = sorted(set(ledgers))[:2]
    offloaded_by_broker(offloading, topic, ledgers)
    (data, _) = keys(bucket, damaged)
    file = object_file(offloading, data)
    flip(file, file.read_bytes().index(payloads[20]))
    unload(offloading, topic)

    # brokers delete copies by their lag: who reads a topic through them to delete the copy of another lets them do it
    set_policy(offloading, namespace, 0)
    before = written(offloading, topic)
    pipeline = operator()
    plan, rows = planned(pipeline, namespace)
    said = offload(pipeline, plan, "brokers-delete") if rows else {}
    assert not is_loaded(offloading, topic), said
    assert written(offloading, topic) == before, said
    assert existing(offloading, [damaged, sound]) == {damaged, sound}
    assert [row for row in rows if row["action"] == "delete_copy"] == []
    assert plan.brokers_delete == 2
    assert any(namespace in warned for warned in plan.warnings), plan.warnings

    # with brokers that delete no copy the sound one goes, and the damaged one stays, whatever comes out
    set_policy(offloading, namespace, KEEP)
    plan, rows = planned(pipeline, namespace)
    assert {row["ledger_id"] for row in rows if row["action"] == "delete_copy"} == {damaged, sound}
    said = offload(pipeline, plan, "delete-copies")
    assert said[damaged].outcome == "proof-failed", said
    assert said[damaged].why.code is Code.NOT_PROVEN
    assert said[sound].outcome == "bookkeeper-deleted", said
    assert listed_as_deleted(offloading, topic) == {sound}
    assert not is_loaded(offloading, topic)
    back = operator(pipeline.lake, loaded_topics=True)
    outcomes = revert_offloads(back.where, "back", Topic.parse(topic), [damaged], dry_run=False)
    assert [one.outcome for one in outcomes] == ["reverted"], outcomes
    assert [payload for *_, payload in read_by_broker(offloading, topic, 120)] == payloads


# ------------------------------------------------------------------------ 10: a location that one broker could not read


def test_no_copy_is_deleted_at_a_location_that_a_broker_cannot_read(
    offloading: Cluster, operator: Callable[..., Pipeline]
) -> None:
    """It could a moment ago; the endpoint in its configuration is wrong since its restart."""
    namespaces = [new_namespace(offloading, name) for name in ("passed", "failing")]
    passed, failing = (f"persistent://{namespace}/t" for namespace in namespaces)
    for topic in (passed, failing):
        offloaded_by_broker(offloading, topic, published(offloading, topic, topics.payloads(120)))
    unload(offloading, passed, failing)
    pipeline = operator(loaded_topics=True)
    epoch = pipeline.scan()
    first = operator(pipeline.lake, loaded_topics=True, max_ledgers=1)
    offload(first, planned(first, namespaces[0], epoch=epoch)[0], "first")
    assert len(listed_as_deleted(offloading, passed)) == 1
    before = {topic: listed_as_deleted(offloading, topic) for topic in (passed, failing)}
    offloading.restart("broker-1", {"s3ManagedLedgerOffloadServiceEndpoint": "http://127.0.0.1:9"})
    try:
        plan, rows = planned(pipeline, *namespaces)
        assert {row["topic"] for row in rows} == {passed, failing}
        said = offload(pipeline, plan, "broken")
        assert {topic: listed_as_deleted(offloading, topic) for topic in (passed, failing)} == before, said
        asked = [
            row
            for row in journal_rows(FileJournal(pipeline.lake), run_id="broken").to_pylist()
            if row["outcome"] == "read-failed"
        ]
        assert asked
    finally:
        offloading.restart("broker-1", {})
    said = offload(pipeline, planned(pipeline, *namespaces)[0], "mended")
    assert listed_as_deleted(offloading, failing), said


def test_a_deletion_run_that_is_under_way_deletes_nothing_where_a_broker_cannot_read_since(
    offloading: Cluster, operator: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its evidence, and then a broker that was restarted with a wrong endpoint fails in another namespace."""
    namespaces = [new_namespace(offloading, name) for name in ("given", "failing")]
    given, failing = (f"persistent://{namespace}/t" for namespace in namespaces)
    for topic in (given, failing):
        offloaded_by_broker(offloading, topic, published(offloading, topic, topics.payloads(120)))
    unload(offloading, given, failing)
    pipeline = operator(loaded_topics=True)
    offload(pipeline, planned(pipeline, namespaces[0])[0], "first")
    deleted = listed_as_deleted(offloading, given)
    assert deleted
    plan, _ = planned(pipeline, namespaces[1])
    delete = deletion_run.delete_from_queue

    def fail_first(*begun: Any) -> Any:
        said = offload(pipeline, plan, "beside")
        asked = [row["outcome"] for row in journal_rows(FileJournal(pipeline.lake), run_id="beside").to_pylist()]
        assert "read-failed" in asked, said
        return delete(*begun)

    offloading.restart("broker-1", {"s3ManagedLedgerOffloadServiceEndpoint": "http://127.0.0.1:9"})
    try:
        monkeypatch.setattr(deletion_run, "delete_from_queue", fail_first)
        pipeline.delete_pending()
        monkeypatch.undo()
        assert existing(offloading, deleted) == deleted
        last = [pipeline.journal(ledger)[-1] for ledger in deleted]
        assert {row["outcome"] for row in last} == {"waiting"}
        assert all("unread-location" in row["detail"] for row in last), last
    finally:
        offloading.restart("broker-1", {})
    offload(pipeline, planned(pipeline, *namespaces)[0], "mended")
    runs = pipeline.delete_until(lambda: not existing(offloading, deleted))
    assert not existing(offloading, deleted), runs


# ------------------------------------------------------------------------------------- 11: a broker's offload that runs


@pytest.mark.parametrize("what", ["trim", "offload", "copy deletion"])
def test_a_topic_with_a_running_offload_is_left_alone_whole(
    offloading: Cluster, operator: Callable[..., Pipeline], bucket: Any, what: str
) -> None:
    """Written at any other of its ledgers, its broker could not complete the attempt, and would leave its objects."""
    namespace = new_namespace(offloading, "running")
    topic = f"persistent://{namespace}/t"
    set_policy(offloading, namespace, KEEP)
    ledgers = published(offloading, topic, topics.payloads(170))
    first, second, third, last = sorted(set(ledgers))
    offloaded_by_broker(offloading, topic, [first, second])
    pipeline = operator(loaded_topics=True, bookkeeper_copies="ours" if what == "copy deletion" else "brokers")
    plan, rows = planned(pipeline, namespace)  # the attempt begins after it
    assert {row["ledger_id"] for row in rows} >= {second, third}
    with misbehaving(offloading, "hold-offloads") as go_on:
        begin_offload(offloading, topic, last)
        wait_for("the data object of the attempt", lambda: len(keys(bucket, second)) == 1)
        attempt: UUID = contexts(offloading, topic)[second].uuid
        before = written(offloading, topic)
        if what == "trim":
            order = TrimOrder(Topic.parse(topic), up_to=second)
            said = {one.ledger_id: one.outcome for one in trim_run.trim(pipeline.where, "trim", [order], dry_run=False)}
        else:
            said = {ledger: one.outcome for ledger, one in offload(pipeline, plan, what).items()}
        assert written(offloading, topic) == before, said
        assert set(said.values()) == {"refused" if what == "trim" else "foreign-attempt"}, said
        go_on()
        wait_for("the broker's offload", lambda: offload_status(offloading, topic) != "RUNNING")
    assert offload_status(offloading, topic) == "SUCCESS"
    made = contexts(offloading, topic)
    assert made[second].uuid == attempt
    assert all(made[ledger].complete for ledger in (first, second, third))
    assert [len(keys(bucket, ledger)) for ledger in (first, second, third)] == [2, 2, 2]


# -------------------------------------------------------------------------------------------- 12: a plan loads no topic


def test_planning_loads_no_topic(offloading: Cluster, operator: Callable[..., Pipeline]) -> None:
    """Not even where topics have policies of their own, which lie in a topic of their namespace."""
    namespace = new_namespace(offloading, "asleep")
    own, other = (f"persistent://{namespace}/{name}" for name in ("own policy", "none"))
    set_policy(offloading, namespace, KEEP)
    for topic in (own, other):
        published(offloading, topic, topics.payloads(60))
    with Admin(offloading.admin_url) as admin:
        elsewhere = {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "elsewhere"}
        admin.topic("POST", own, "/offloadPolicies", elsewhere)
    offloading.restart("broker-1")  # an unload would not do: the broker's own readers take the bundles again at once
    every = [own, other, f"persistent://{namespace}/__change_events"]
    assert not any(is_loaded(offloading, topic) for topic in every)
    before = written(offloading, *every)
    plan, rows = planned(operator(), namespace)
    assert written(offloading, *every) == before
    assert {row["topic"] for row in rows} == {other}
    assert any(own in warned and "elsewhere" in warned for warned in plan.warnings), plan.warnings
