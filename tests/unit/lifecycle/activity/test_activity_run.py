"""The history of topics and subscriptions over scans of fakes, and what it says is inactive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import cursor, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.activity.activity_run import brokers_answered, build_activity
from pulsar_lifecycle.lifecycle.activity.activity_tables import UseEvidence
from pulsar_lifecycle.lifecycle.activity.partition_check import PartitionFinding, partition_findings
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.gaps import BROKERS_NOT_ANSWERING, Gap, GapCode
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from tests.kit.scenes.lifecycle.activity_scene import DAY, ActivityScene, kept
from tests.kit.scenes.retention_scene import MB, NAMESPACE
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return ActivityScene(tmp_path, monkeypatch)


def test_a_topic_that_nobody_used_for_the_period_is_inactive(scene: ActivityScene) -> None:
    scene.used("old", "s")
    assert not scene.days(6).topics
    report = scene.days(1)
    assert kept(report.topics) == {"old": None}
    assert kept(report.cursors) == {"old/s": None}
    (row,) = report.topics.to_pylist()
    assert row["bytes"] == MB + 10  # of the last ledger BookKeeper says how long it is
    assert row["scans"] == 9
    assert row["inactive_since"] <= scene.now - 7 * DAY


def test_one_scan_is_no_history_however_old_everything_is(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.servers.wait(24 * 365)
    report = scene.report()
    assert report.topics.num_rows == report.cursors.num_rows == 0
    assert report.previous is None


def test_scans_too_far_apart_begin_the_history_anew(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.days(8)
    scene.servers.wait(24 * 2)
    report = scene.report()
    assert report.previous is None
    assert not report.topics
    assert scene.row("old")["scans"] == scene.row("old", "s")["scans"] == 1
    assert kept(scene.days(8).topics) == {"old": None}


def test_a_restored_store_begins_the_history_anew(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.days(8)
    scene.epoch = scene.scan(Gap(GapCode.HISTORY_BROKEN, "", "zxid"))
    assert not scene.report().topics
    assert scene.row("old")["scans"] == 1


def test_a_topic_that_was_created_anew_has_no_history(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.days(8)
    scene.servers.remove(scene.servers.topic_path(scene.named("old")))
    scene.used("old", "s")
    report = scene.report()
    assert not report.topics
    assert not report.cursors


def test_a_write_is_seen_by_the_next_scan(scene: ActivityScene) -> None:
    scene.used("old")
    scene.days(5)
    scene.write("old")
    assert not scene.days(4).topics
    row = scene.row("old")
    assert (row["write_evidence"], row["last_write"]) == (UseEvidence.DATA_GREW, scene.now - 4 * DAY)
    assert kept(scene.days(4).topics) == {"old": None}


def test_a_load_alone_is_no_use(scene: ActivityScene) -> None:
    scene.work()
    scene.used("old", "s")
    scene.ready("old")
    scene.days(4)
    scene.servers.admin.internal_stats(scene.named("old"))  # it loads the topic
    scene.days(1)
    scene.servers.admin.unload(scene.named("old"))
    assert kept(scene.days(3).topics) == {"old": InactiveKept.LOADED_LATELY}  # by whom, nobody knows
    assert kept(scene.days(5).topics) == {"old": None}


def test_what_is_published_while_loaded_is_a_write(scene: ActivityScene) -> None:
    scene.work()
    scene.used("old")
    scene.ready("old")
    scene.days(2)
    scene.servers.admin.internal_stats(scene.named("old"))
    scene.clients("old", published=0)
    scene.days(4)
    assert scene.row("old")["write_evidence"] == UseEvidence.CREATED
    scene.clients("old", published=3)
    assert not scene.days(4).topics
    row = scene.row("old")
    assert (row["write_evidence"], row["last_write"]) == (UseEvidence.UNKNOWN, scene.now - 4 * DAY)
    assert row["end_entries"] is None
    assert kept(scene.days(4).topics) == {"old": Protection.LOADED}


def test_a_ledger_that_a_dead_broker_left_open_is_at_rest(scene: ActivityScene) -> None:
    scene.open_topic("old")
    assert kept(scene.days(9).topics) == {"old": None}


@pytest.mark.parametrize("clients", [{"producers": 1}, {"s": 1}, {"reader-x": 1}])
def test_connected_clients_are_use(scene: ActivityScene, clients: dict[str, int]) -> None:
    scene.used("old", "s")
    scene.clients("old", **clients)
    report = scene.days(9)
    assert not report.topics
    assert scene.row("old")["client_evidence"] == UseEvidence.CONNECTED
    assert kept(report.cursors) == ({} if "s" in clients else {"old/s": None})


def _unanswered(scene: ActivityScene) -> None:
    scene.servers.admin.connections = lambda: (_ for _ in ()).throw(Unavailable("no"))  # type: ignore[method-assign]


def test_a_broker_that_does_not_answer_may_have_clients(scene: ActivityScene) -> None:
    """Such a report says so, and the next goes on with the one before it."""
    scene.work()
    for name in ("loaded", "rests"):
        scene.used(name, "s")
    scene.clients("loaded")
    scene.days(8)
    before, scene.epoch = scene.epoch, scene.scan()
    assert scene.epoch
    build_activity(scene.cluster, scene.epoch)
    _unanswered(scene)
    report = build_activity(scene.cluster, scene.epoch)  # over the other
    assert report.problems == ("no",)
    assert scene.row("loaded")["client_evidence"] == scene.row("loaded", "s")["read_evidence"] == UseEvidence.UNKNOWN
    assert scene.row("rests")["client_evidence"] is None
    assert kept(report.topics) == {"rests": None}
    assert not brokers_answered(scene.lake, scene.epoch)
    del scene.servers.admin.connections
    report = scene.report()
    assert report.previous == before
    assert kept(report.topics) == {"loaded": Protection.LOADED, "rests": None}
    assert kept(report.cursors) == {"loaded/s": None, "rests/s": None}


@pytest.mark.parametrize("unanswered", ["report", *BROKERS_NOT_ANSWERING])
def test_the_history_begins_anew_where_brokers_do_not_answer_for_too_long(
    scene: ActivityScene, unanswered: str
) -> None:
    scene.used("old", "s")
    scene.days(8)
    if unanswered == "report":
        _unanswered(scene)
    for _ in range(2):
        scene.servers.wait(23)
        scene.epoch = scene.scan(*([] if unanswered == "report" else [Gap(GapCode(unanswered), "", "no")]))
        build_activity(scene.cluster, scene.epoch)
    if unanswered == "report":
        del scene.servers.admin.connections
    scene.servers.wait(1)
    report = scene.report()
    assert report.previous is None
    assert not report.topics


@pytest.mark.parametrize("moved", ["position", "acknowledged", "last_active"])
def test_a_subscription_that_moves_is_read(scene: ActivityScene, moved: str) -> None:
    scene.used("old", "still")
    ids = scene.topic("held", 60, 60)
    tags = {**data_tags(scene.named("held")), "pulsar/cursor": "s"}
    entry = scene.servers.position_entry(at=ids[0])
    own = scene.servers.ledger(tags, state=LedgerState.OPEN, entries=[entry])
    if moved == "last_active":
        scene.at("held", "s", Position(ids[0], 0))
    else:
        scene.servers.cursor(scene.named("held"), "s", ledger=own, at=0)
    scene.days(5)
    if moved == "position":
        scene.position("held", Position(ids[1], 0))
    elif moved == "acknowledged":
        scene.servers.reader.payloads[own].append(entry)
    else:
        scene.at("held", "s", Position(ids[0], 0), scene.now)
    report = scene.days(4)
    assert kept(report.topics) == {"old": None}
    assert kept(report.cursors) == {"old/still": None}
    expected = UseEvidence.LAST_ACTIVE if moved == "last_active" else UseEvidence.ACKNOWLEDGED
    assert scene.row("held", "s")["read_evidence"] == expected


def test_acknowledging_out_of_order_is_use(scene: ActivityScene) -> None:
    ids = scene.used("held", "s", read=False)
    scene.days(5)
    position = Position(ids[0], -1)
    holes = (cursor.MessageRange(Position(ids[1], -1), Position(ids[1], 0)),)
    path = f"{scene.servers.topic_path(scene.named('held'))}/s"
    scene.servers.put(path, cursor.encode(cursor.ManagedCursorInfo(-1, position, holes)))
    assert not scene.days(4).cursors
    assert scene.row("held", "s")["read_evidence"] == UseEvidence.ACKNOWLEDGED
    scene.servers.put(path, cursor.encode(cursor.ManagedCursorInfo(-1, position, holes, last_active=1)))
    assert kept(scene.days(4).cursors) == {"held/s": None}


def test_a_cursor_ledger_that_was_closed_since_may_hide_acknowledgements(scene: ActivityScene) -> None:
    ids = scene.topic("held", 60, 60, cursor=0)
    scene.days(5)
    row = scene.row("held", "s")
    assert ids
    scene.at("held", "s", Position(row["ledger_id"], row["entry_id"]))
    assert not scene.days(4).cursors
    assert scene.row("held", "s")["read_evidence"] == UseEvidence.ACKNOWLEDGED


def test_the_last_active_time_of_a_load_is_no_use(scene: ActivityScene) -> None:
    ids = scene.used("old", "s")
    scene.days(5)
    last = scene.write("old")
    scene.at("old", "s", Position(ids[-1], 0), scene.now + 1_000)
    assert scene.row("old", "s")["ledger_id"] != last
    assert kept(scene.days(3).cursors) == {"old/s": InactiveKept.LOADED_LATELY}  # a client may have come for a moment
    assert kept(scene.days(5).cursors) == {"old/s": None}


def test_a_subscription_that_is_used_on_one_partition_stays_on_all(scene: ActivityScene) -> None:
    for name in ("p-partition-0", "p-partition-1"):
        scene.used(name, "s", "t")
    scene.days(5)
    scene.at("p-partition-0", "s", Position(scene.listed("p-partition-0")[0], 0))
    assert kept(scene.days(3).cursors) == {
        "p-partition-0/t": None,
        "p-partition-1/s": InactiveKept.PARTITION_STAYS,
        "p-partition-1/t": None,
    }


def test_a_subscription_holds_the_ledgers_behind_it(scene: ActivityScene) -> None:
    ids = scene.topic("held", 90, 80, 70)
    for name, at in (("all", Position(ids[0], -1)), ("two", Position(ids[0], 0)), ("none", Position(ids[2], 0))):
        scene.at("held", name, at)
    scene.days(1)
    assert [scene.row("held", name)["bytes"] for name in ("all", "two", "none")] == [2 * MB + 10, MB + 10, 0]


@pytest.mark.parametrize(("published", "expected"), [(0, Protection.LOADED), (3, InactiveKept.UNREAD_MESSAGES)])
def test_an_open_ledger_may_have_unread_messages(
    scene: ActivityScene, published: int, expected: InactiveKept | Protection
) -> None:
    scene.work()
    scene.used("old", "s")
    scene.ready("old")
    scene.servers.admin.internal_stats(scene.named("old"))
    scene.clients("old", published=published)
    assert kept(scene.days(9).topics) == {"old": expected}


def test_what_keeps_inactive_topics(scene: ActivityScene) -> None:
    for name in ("free", "unread", "replicated", "__own", "half-partition-0", "half-partition-1", "whole-partition-0"):
        scene.used(name, *(["s"] if name == "unread" else []), read=False)
    scene.at("replicated", "pulsar.repl.west", Position(0, 0))
    scene.used("half-partition-1", "s")
    scene.days(7)
    scene.write("half-partition-1")
    assert kept(scene.days(1).topics) == {
        "free": None,
        "unread": InactiveKept.UNREAD_MESSAGES,
        "replicated": InactiveKept.REPLICATED,
        "__own": Protection.SYSTEM_TOPIC,
        "half-partition-0": InactiveKept.PARTITION_STAYS,
        "whole-partition-0": None,
    }


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(-1, InactiveKept.RETAINED), (60 * 24 * 30, InactiveKept.RETAINED), (60 * 24 * 8, None), (0, None)],
)
def test_retained_data_keeps_an_inactive_topic(
    scene: ActivityScene, minutes: int, expected: InactiveKept | None
) -> None:
    scene.retention(minutes, -1)
    scene.used("old")
    assert kept(scene.days(9).topics) == {"old": expected}


def test_what_keeps_inactive_subscriptions(scene: ActivityScene) -> None:
    names = ("s", "__compaction", "pulsar.dedup", "tenant/ns/function", "own", "named", "a/b")
    ids = scene.used("old")
    for name in names:
        scene.at("old", name, Position(ids[0], -1))
    scene.configure(additionalSystemCursorNames="[own]")
    scene.choose(kept_subscriptions=("named",))
    report = scene.days(8)
    assert kept(report.cursors) == {
        "old/s": None,
        "old/a/b": None,
        "old/__compaction": InactiveKept.SYSTEM_CURSOR,
        "old/pulsar.dedup": InactiveKept.SYSTEM_CURSOR,
        "old/own": InactiveKept.SYSTEM_CURSOR,
        "old/tenant/ns/function": InactiveKept.FUNCTION_CURSOR,
        "old/named": InactiveKept.NAMED_KEPT,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("named", InactiveKept.NAMED_KEPT),
        ("tenant/ns/function", InactiveKept.FUNCTION_CURSOR),
        ("participants", InactiveKept.FUNCTION_CURSOR),
        ("own", InactiveKept.SYSTEM_CURSOR),
        ("__compaction", InactiveKept.COMPACTED),
        ("s", None),
    ],
)
def test_a_cursor_that_its_name_keeps_keeps_its_topic(
    scene: ActivityScene, name: str, expected: InactiveKept | None
) -> None:
    scene.used("old", name)
    scene.used("other", "s")
    scene.configure(additionalSystemCursorNames="[own]")
    scene.choose(kept_subscriptions=("named",))
    assert kept(scene.days(8).topics) == {"old": expected, "other": None}


@pytest.mark.parametrize(
    ("prefix", "topic", "subscription"),
    [
        ("geo", InactiveKept.REPLICATED, InactiveKept.REPLICATOR_CURSOR),
        (None, InactiveKept.UNKNOWN_POLICY, InactiveKept.UNKNOWN_POLICY),
    ],
)
def test_the_brokers_say_how_replicators_begin(
    scene: ActivityScene, prefix: str | None, topic: InactiveKept, subscription: InactiveKept
) -> None:
    scene.configure(replicatorPrefix=prefix)
    scene.used("old", "geo.west")
    report = scene.days(8)
    assert kept(report.topics) == {"old": topic}
    assert kept(report.cursors) == {"old/geo.west": subscription}


def test_a_partition_that_cannot_be_read_keeps_the_others(scene: ActivityScene) -> None:
    for number in (0, 1):
        scene.used(f"p-partition-{number}")
    scene.servers.put(scene.servers.topic_path(scene.named("p-partition-1")), b"broken")
    assert kept(scene.days(8).topics) == {"p-partition-0": InactiveKept.PARTITION_STAYS}


def test_what_is_written_and_trimmed_between_scans_may_be_use(scene: ActivityScene) -> None:
    scene.used("old")
    scene.report()
    path = scene.servers.topic_path(scene.named("old"))
    for _ in range(8):
        scene.servers.wait(10)
        scene.write("old")
        info = managed_ledger.decode(scene.servers.zookeeper.data(path))
        empty = scene.servers.ledger(data_tags(scene.named("old")), entries=[])
        left = (managed_ledger.LedgerInfo(empty, 0, 0, scene.now, None),)
        scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=left)))
        scene.servers.wait(13)
        assert not scene.report().topics
    assert (scene.row("old")["write_evidence"], scene.row("old")["last_write"]) == (UseEvidence.UNKNOWN, scene.now)
    assert kept(scene.days(8).topics) == {"old": None}


def test_subscriptions_of_a_replicated_topic_stay(scene: ActivityScene) -> None:
    scene.used("old", "s", "pulsar.repl.west")
    assert kept(scene.days(8).cursors) == {
        "old/s": InactiveKept.REPLICATED,
        "old/pulsar.repl.west": InactiveKept.REPLICATOR_CURSOR,
    }


def test_without_a_name_in_the_settings_everything_is_only_reported(scene: ActivityScene) -> None:
    scene.choose(topics=(), subscriptions=("persistent://acme/orders/other",))
    scene.used("old", "s")
    report = scene.days(8)
    assert kept(report.topics) == {"old": InactiveKept.NOT_CHOSEN}
    assert kept(report.cursors) == {"old/s": InactiveKept.NOT_CHOSEN}


def test_nothing_goes_while_the_brokers_configuration_is_not_known(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.days(8)
    scene.servers.admin.broker_ids = ["a:1", "b:1"]
    scene.servers.admin.configuration = {"a:1": {"additionalSystemCursorNames": "[x]"}}
    report = scene.report()
    assert kept(report.topics) == {"old": InactiveKept.UNKNOWN_POLICY}
    assert kept(report.cursors) == {"old/s": InactiveKept.UNKNOWN_POLICY}
    assert report.problems


def test_a_topic_whose_last_ledger_is_open_and_listed_may_have_data(scene: ActivityScene) -> None:
    scene.open_topic("old")
    scene.clients("old", published=1)
    scene.report()
    assert scene.row("old")["write_evidence"] == UseEvidence.UNKNOWN


def test_partitions_and_metadata_that_disagree_are_named(scene: ActivityScene) -> None:
    root = f"/admin/partitioned-topics/{NAMESPACE}/persistent"
    for name, count in (("none", 2), ("fewer", 1), ("right", 2), ("lazy", 3)):
        scene.servers.put(f"{root}/{name}", json.dumps({"partitions": count}).encode())
    for name in ("fewer-partition-1", "right-partition-0", "right-partition-1", "lazy-partition-0", "lone-partition-0"):
        scene.used(name)
    found = {row["topic"].rpartition("/")[2]: row["code"] for row in scene.report().partitions.to_pylist()}
    assert found == {
        "none": PartitionFinding.NO_PARTITIONS,
        "fewer": PartitionFinding.BEYOND_METADATA,
        "lone": PartitionFinding.NO_METADATA,
    }


def test_partitioned_topics_of_brokers_have_no_findings() -> None:
    """The coordinators' topic is partitioned, and never has a ledger."""
    said = {"persistent://pulsar/system/transaction_coordinator_assign": 16, "persistent://acme/orders/p": 2}
    found = partition_findings(said, ["persistent://acme/orders/__change_events-partition-0"])
    assert found.column("topic").to_pylist() == ["persistent://acme/orders/p"]
