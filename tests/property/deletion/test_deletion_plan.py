"""What no plan and no deletion run may ever do, over random clusters, in one process on the fakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.errors import AccessDenied, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.refused import refused_by
from tests.kit.simulated.cluster import (
    SimulatedCluster,
    bucket_tags,
    compacted_tags,
    cursor_tags,
    data_tags,
    schema_tags,
)
from tests.kit.simulated.pipeline import Policy, apply_plan, delete, plan, scan, two_scans, whole_round
from tests.kit.simulated.random_clusters import TOPICS, Drawn, clusters

FEW = settings(max_examples=60, deadline=None)


@FEW
@given(drawn=clusters())
def test_nothing_referenced_is_ever_deleted_and_a_second_round_finds_nothing(drawn: Drawn) -> None:
    latest, decisions = whole_round(drawn.cluster)
    assert latest.epoch.covered, latest.epoch.gaps
    left = drawn.cluster.ledger_ids()
    assert drawn.live <= left
    assert {d.info.ledger_id for d in decisions if d.outcome == Outcome.DELETED} == (
        {row.ledger_id for row in drawn.cluster.journal.nodes} - left
    )
    again, more = whole_round(drawn.cluster)
    assert again.epoch.covered
    assert {d.outcome for d in more} <= {Outcome.KEPT, Outcome.RETRYING, Outcome.WAITING, Outcome.GONE}
    assert drawn.cluster.ledger_ids() == left


@FEW
@given(drawn=clusters())
def test_the_same_cluster_gives_the_same_digest_and_planning_writes_nothing(drawn: Drawn) -> None:
    cluster = drawn.cluster
    now, before = two_scans(cluster)
    zxid = cluster.zookeeper.zxid
    summary, rows, _ = plan(cluster, now, before)
    again = plan(cluster, replace(scan(cluster, previous=[before]), epoch=now.epoch), before)
    repeated = replace(again.summary, plan_id=summary.plan_id)
    assert deletion_plan.digest(again.rows, repeated.to_json()) == summary.digest
    assert cluster.zookeeper.zxid == zxid
    assert set(rows.column("ledger_id").to_pylist()).isdisjoint(drawn.live - _in_memory_only(drawn))


def _in_memory_only(drawn: Drawn) -> set[int]:
    """What only brokers' memory holds may be planned; the deletion run asks the broker."""
    return {i for internals in drawn.cluster.admin.internals.values() for i in internals.ledgers}


TROUBLES = ("unreadable", "corrupt", "unread entry", "no brokers", "undeclared")


@FEW
@given(drawn=clusters(), trouble=st.sampled_from(TROUBLES), data=st.data())
def test_whatever_stays_unread_makes_the_plan_report_only(drawn: Drawn, trouble: str, data: Any) -> None:
    cluster = drawn.cluster
    policy = Policy(shared_with=None) if trouble == "undeclared" else Policy()
    paths = sorted(path for path in cluster.zookeeper._nodes if path.count("/") >= 5 and "/ledgers/" not in path[:9])
    if trouble == "unreadable":
        cluster.zookeeper.unreadable.add(data.draw(st.sampled_from([*paths, "/managed-ledgers", "/schemas"])))
    elif trouble == "corrupt":
        paths = [path for path in paths if cluster.zookeeper.data(path)]
        assume(paths)
        cluster.put(data.draw(st.sampled_from(paths)), b"\xff\xff\xff")
    elif trouble == "unread entry":
        held = [i for i in drawn.live if cluster.reader.payloads[i] != [b"x" * 10]]
        assume(held)
        for ledger in held:
            cluster.reader.failures[ledger] = Unavailable("no bookie answers")
    elif trouble == "no brokers":
        cluster.admin.failure = Unavailable("503")
    if "/managed-ledgers" in cluster.zookeeper.unreadable:  # then not even which cluster it is
        with pytest.raises(AccessDenied):
            two_scans(cluster, policy)
        return
    now, before = two_scans(cluster, policy)
    assert now.epoch.gaps
    made = plan(cluster, now, before, policy)
    assert not made.summary.actionable
    with refused_by(RefusalCode.REPORT_ONLY):
        apply_plan(cluster, made, policy)


REVIVALS = ("data", "cursor", "schema", "schema entry", "compacted", "compacted entry", "bucket", "open", "other")


@FEW
@given(topic=st.sampled_from(TOPICS[:6]), how=st.sampled_from(REVIVALS), topic_exists=st.booleans())
def test_a_reference_that_appears_after_the_scans_saves_the_ledger(topic: Topic, how: str, topic_exists: bool) -> None:
    cluster = SimulatedCluster()
    other = cluster.ledger(data_tags(topic))
    cluster.topic(Topic(topic.namespace, "neighbour"))
    for name in {topic.schema_id.rpartition("/")[0], str(topic.namespace)}:
        cluster.put(f"/managed-ledgers/{name}/persistent", b"")
    if topic_exists:
        cluster.topic(topic, [other])
    else:
        cluster.remove(cluster.path(other))
    kind = how.partition(" ")[0]
    tags = {
        "cursor": cursor_tags(topic, "s/é"),
        "schema": schema_tags(topic.schema_id),
        "compacted": compacted_tags(topic),
        "bucket": bucket_tags(topic, "s/é", 1, 2),
    }.get(kind, data_tags(topic))
    leak = cluster.ledger(tags)
    now, before = two_scans(cluster)
    apply_plan(cluster, plan(cluster, now, before))
    assert cluster.open_queue().backlog() == 1
    cluster.wait(1)
    latest = scan(cluster, previous=[now])
    _revive(cluster, topic, how, leak)
    cluster.wait(1)
    (decision,) = delete(cluster, latest, before)
    assert decision.outcome in (
        (Outcome.REFUSED,) if how == "other" else (Outcome.KEPT, Outcome.RETRYING, Outcome.WAITING)
    ), decision.reason
    assert cluster.exists(leak)


def _revive(cluster: SimulatedCluster, topic: Topic, how: str, leak: int) -> None:
    if how == "other":  # another ledger has the id now
        cluster.remove(cluster.path(leak))
        cluster.ledger(data_tags(topic), ledger_id=leak)
        return
    if how == "open":  # somebody opened it for recovery
        cluster.ledger(data_tags(topic), ledger_id=leak, state=LedgerState.IN_RECOVERY)
        return
    if how == "schema":
        cluster.schema(topic.schema_id, [leak])
        return
    if how == "schema entry":
        new = cluster.ledger(schema_tags(topic.schema_id), ledger_id=leak + 1, entries=[cluster.schema_entry([leak])])
        cluster.schema(topic.schema_id, [new])
        return
    if how == "data":
        cluster.topic(topic, [leak])
        return
    cluster.topic(topic, [])
    if how == "cursor":
        cluster.cursor(topic, "s/é", ledger=leak)
    elif how == "bucket":
        cluster.cursor(topic, "s/é", buckets={(1, 2): leak})
    elif how == "compacted":
        cluster.cursor(topic, "__compaction", compacted=leak)
    else:
        tags = cursor_tags(topic, "__compaction")
        held = cluster.ledger(tags, ledger_id=leak + 1, state=LedgerState.OPEN, entries=[cluster.position_entry(leak)])
        cluster.cursor(topic, "__compaction", ledger=held)
