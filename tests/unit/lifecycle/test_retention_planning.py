"""A retention plan of a stored scan: what goes, what is kept by which code, and when it is only a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.retention_planning import TABLE, make_retention_plan
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.retention_now import undecodable_policies
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans import retention_plan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.builders import A_GAP
from tests.kit.scenes.retention_scene import MB, NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import ENTRY_BYTES

OWN = f"persistent://{NAMESPACE}/"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def plan(scene: RetentionScene, *gaps: Gap, **context: Any) -> tuple[PlanSummary, list[dict[str, Any]]]:
    summary, rows = make_retention_plan(scene.cluster, scene.scan(*gaps, **context))
    assert retention_plan.digest(rows, summary.to_json()) == summary.digest
    assert scene.lake.retention_plan(summary.plan_id) == (summary, rows)
    return summary, rows.to_pylist()


def stored(scene: RetentionScene) -> dict[int, tuple[str, str | None]]:
    """By ledger of table ``expired_ledgers``: by what it is expired, and what keeps it."""
    epoch = scene.lake.epochs()[-1].epoch_id
    rows = [
        row
        for batch in scene.lake.batches(scene.lake.parts(epoch, TABLE), ["ledger_id", "expired_by", "kept"])
        for row in batch.to_pylist()
    ]
    return {row["ledger_id"]: (row["expired_by"], row["kept"]) for row in rows}


def test_expired_ledgers_go_and_the_last_one_is_reported(scene: RetentionScene) -> None:
    first, second, third, last = scene.topic("a", 100, 90, 0, 80)
    summary, rows = plan(scene)  # an hour later
    closed = scene.now - 60 * 60_000
    assert rows == [
        {
            "ledger_id": ledger,
            "topic": f"{OWN}a",
            "namespace": NAMESPACE,
            "bytes": MB,
            "physical_bytes": ENTRY_BYTES,
            "expired_by": "expired_by_time",
            "expired_at": closed - age * 60_000 + 60 * 60_000,
            "retention_minutes": 60,
            "retention_mb": -1,
            "level": "namespace",
            "kept": None,
        }
        for ledger, age in ((first, 100), (second, 90))
    ]
    assert (summary.actionable, summary.ledgers, summary.logical_bytes) == (True, 2, 2 * MB)
    assert third not in stored(scene)
    assert last not in stored(scene)
    scene.servers.wait(1)
    summary, rows = plan(scene)
    assert [row["ledger_id"] for row in rows] == [first, second, third]
    assert stored(scene)[last] == ("expired_by_time", "last_ledger")


@pytest.mark.parametrize(("megabytes", "by"), [(1, "expired_by_size"), (0, "no_retention")])
def test_since_when_is_said_only_of_a_ledger_whose_time_is_over(scene: RetentionScene, megabytes: int, by: str) -> None:
    scene.retention(200, megabytes)
    closed = scene.now - 150 * 60_000
    scene.topic("a", 150, 0, 0, 0)
    _, rows = plan(scene)  # an hour later
    over = "expired_by_time" if megabytes else by
    assert [(row["expired_by"], row["expired_at"]) for row in rows][:2] == [(over, closed + 200 * 60_000), (by, None)]


def test_cursors_hold_what_they_have_not_read(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100, 100, 100, cursor=1)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "t", at=ids[1])
    _, rows = plan(scene)
    assert [row["ledger_id"] for row in rows] == ids[:1]


def test_what_a_cursor_holds_past_its_retention_is_named(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100, 0, 100, cursor=0)
    plan(scene)
    held = {ids[1]: ("expired_by_time", "cursor")}
    assert {one: code for one, code in stored(scene).items() if one != ids[0]} == held


def test_bytes_on_disk_are_those_of_every_replica(scene: RetentionScene) -> None:
    first, second, _ = scene.topic("a", 100, 100, 100)
    path = scene.servers.path(first)
    metadata = ledger_metadata.decode(scene.servers.zookeeper.data(path))
    scene.servers.put(path, ledger_metadata.encode(replace(metadata, ensemble_size=3, write_quorum=3)))
    summary, rows = plan(scene)
    assert {row["ledger_id"]: row["physical_bytes"] for row in rows} == {first: 3 * ENTRY_BYTES, second: ENTRY_BYTES}
    assert (summary.logical_bytes, summary.physical_bytes) == (2 * MB, 4 * ENTRY_BYTES)


def test_a_ledger_whose_copy_no_deletion_run_would_take_ends_the_prefix(scene: RetentionScene) -> None:
    first, second, third, _ = scene.topic("a", 100, 100, 100, 100)
    strange = scene.servers.ledger({"component": "schema"}, ledger_id=second)
    _, rows = plan(scene)
    assert strange == second
    assert [row["ledger_id"] for row in rows] == [first]
    assert stored(scene)[second] == ("expired_by_time", "copy_not_deletable")
    assert stored(scene)[third] == ("expired_by_time", "not_prefix")


def test_a_partition_of_a_partitioned_shadow_topic_is_a_shadow_topic(scene: RetentionScene) -> None:
    first, _ = scene.topic("a-partition-0", 100, 100)
    document = {"partitions": 1, "properties": {SHADOW_SOURCE: f"{OWN}source"}}
    scene.servers.put(f"/admin/partitioned-topics/{NAMESPACE}/persistent/a", json.dumps(document).encode())
    assert plan(scene)[1] == []
    assert stored(scene)[first] == ("expired_by_time", "shadow_topic")


def test_the_ledger_that_all_cursors_have_read_to_its_end_goes(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100, 100, cursor=1)
    _, rows = plan(scene)
    assert [row["ledger_id"] for row in rows] == ids[:2]


@pytest.mark.parametrize(
    ("context", "code"),
    [
        ({"holds": frozenset({f"{OWN}a"})}, None),
        ({"shadow_sources": frozenset({f"{OWN}a"})}, "shadow_source"),
        ({"namespaces": frozenset({"other/ns"})}, "unknown_namespace"),
        ({"open_topics": frozenset({f"{OWN}a"})}, "open_orphan"),
    ],
)
def test_what_is_protected_is_kept_by_its_code(
    scene: RetentionScene, context: dict[str, Any], code: str | None
) -> None:
    """Holds are those of the settings now, whatever the scan had."""
    first, _ = scene.topic("a", 100, 100)
    _, rows = plan(scene, **context)
    assert stored(scene)[first] == ("expired_by_time", code)
    assert [row["ledger_id"] for row in rows] == ([] if code else [first])


def test_a_loaded_topic_is_left_to_its_broker(scene: RetentionScene) -> None:
    first, _ = scene.topic("a", 100, 100)
    scene.servers.load(Topic.parse(f"{OWN}a"))
    _, rows = plan(scene)
    assert stored(scene)[first] == ("expired_by_time", "loaded")
    assert rows == []


def test_what_a_broker_that_died_left_open_has_a_code_of_its_own(scene: RetentionScene) -> None:
    """A broker that has a topic trims it; here nobody has it."""
    first, last = scene.topic("a", 100, 100)
    path = scene.servers.path(last)
    closed = ledger_metadata.decode(scene.servers.zookeeper.data(path))
    open_ = replace(closed, state=LedgerState.OPEN, length=0, last_entry_id=-1)
    scene.servers.put(path, ledger_metadata.encode(open_))
    _, rows = plan(scene)
    assert stored(scene)[first] == ("expired_by_time", "last_ledger_open")
    assert rows == []


def test_policies_are_those_in_force_now(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100)
    epoch = scene.scan()
    scene.retention(-1, -1)
    assert make_retention_plan(scene.cluster, epoch)[1].num_rows == 0
    scene.retention(-1, 0)
    assert make_retention_plan(scene.cluster, epoch)[1].column("expired_by").to_pylist() == ["no_retention"]


def test_policies_that_only_the_brokers_have_must_be_theirs_all(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100)
    scene.servers.put(f"/admin/policies/{NAMESPACE}", b"{}")
    assert plan(scene)[1] == []
    said = {"defaultRetentionTimeInMinutes": "1", "defaultRetentionSizeInMB": "-1"}
    scene.servers.admin.configuration = dict.fromkeys(scene.servers.admin.broker_ids, said)
    summary, rows = plan(scene)
    assert [row["level"] for row in rows] == ["broker"]
    other = {**said, "defaultRetentionTimeInMinutes": "2"}
    scene.servers.admin.broker_ids = [*scene.servers.admin.broker_ids, "other:1"]
    scene.servers.admin.configuration = {**scene.servers.admin.configuration, "other:1": other}
    summary, rows = plan(scene)
    assert rows == []
    assert not summary.actionable
    assert summary.gaps[-1].code is GapCode.POLICIES_UNKNOWN
    assert "defaultRetentionTimeInMinutes" in summary.gaps[-1].text


def test_policies_of_topics_that_are_kept_elsewhere_are_not_known(scene: RetentionScene) -> None:
    scene.topic("a", 100, 90)
    brokers = scene.servers.admin.broker_ids
    scene.servers.admin.configuration = {one: {"topicPoliciesServiceClassName": "com.acme.Policies"} for one in brokers}
    summary, rows = plan(scene)
    assert rows == []
    assert not summary.actionable
    assert summary.gaps[-1].code is GapCode.POLICIES_UNKNOWN
    assert "com.acme.Policies" in summary.gaps[-1].text
    assert set(stored(scene).values()) == {(None, "unknown_policy")}  # of both ledgers


def test_policies_of_topics_that_brokers_do_not_read_do_not_count(scene: RetentionScene) -> None:
    """Without system topics nobody reads ``__change_events``, whatever it says."""
    scene.topic("a", 100, 90)
    brokers = scene.servers.admin.broker_ids
    scene.servers.admin.configuration = {one: {"systemTopicEnabled": "false"} for one in brokers}
    scene.servers.put("/managed-ledgers/acme/orders/persistent/__change_events", b"no managed ledger")
    summary, rows = plan(scene)
    assert (len(rows), summary.actionable) == (1, True)


def test_a_plan_on_a_scan_that_is_not_covered_is_report_only(scene: RetentionScene) -> None:
    first, _ = scene.topic("a", 100, 100)
    summary, rows = plan(scene, A_GAP)
    assert (summary.actionable, summary.gaps) == (False, (A_GAP,))
    assert [row["ledger_id"] for row in rows] == [first]


def test_making_a_plan_writes_nothing_to_the_cluster(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100, cursor=0)
    epoch, before = scene.scan(), scene.servers.zookeeper.zxid
    make_retention_plan(scene.cluster, epoch)
    assert scene.servers.zookeeper.zxid == before
    assert scene.servers.deletion_topics.waiting == {}


def test_policies_that_cannot_be_decoded_stop_their_own_namespace_alone(scene: RetentionScene) -> None:
    first, _ = scene.topic("a", 100, 100)
    strange = scene.topic("a", 100, 100, namespace="acme/strange")
    scene.retention(60, -1, "acme/strange")
    both = {NAMESPACE, "acme/strange"}
    summary, rows = plan(scene, namespaces=frozenset(both))
    assert {row["ledger_id"] for row in rows} == {first, strange[0]}
    scene.servers.put("/admin/policies/acme/strange", b'{"retention_policies": "60"}')
    summary, rows = plan(scene, namespaces=frozenset(both))
    assert (summary.actionable, [row["ledger_id"] for row in rows]) == (True, [first])
    assert {stored(scene)[one][1] for one in strange} == {"unknown_policy"}
    (said,) = undecodable_policies(scene.cluster)
    assert "/admin/policies/acme/strange" in said
    assert "pulsar-admin" in said
