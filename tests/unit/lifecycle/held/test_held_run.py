"""What topics hold that retention does not reach: ledgers that were never closed, and backlogs past their TTL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.lifecycle.held.backlog import BacklogEnds
from pulsar_lifecycle.lifecycle.held.held_run import BACKLOG_TABLE, OPEN_TABLE, build_held, held_rows, newest_held
from pulsar_lifecycle.lifecycle.held.open_ledgers import OpenCause
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.storage_run import REASONS_TABLE, build_storage_report
from pulsar_lifecycle.model import Position
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.retention_scene import MB
from tests.kit.simulated.functions import functions_subscribe

ROLLOVER = {
    "managedLedgerMinLedgerRolloverTimeMinutes": "10",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "240",
    "managedLedgerMaxSizePerLedgerMbytes": "2048",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerInactiveLedgerRolloverTimeSeconds": "0",
}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    scene = ActivityScene(tmp_path, monkeypatch)
    scene.retention(60, -1)
    scene.configure(**ROLLOVER)
    return scene


def built(scene: ActivityScene, table: str) -> dict[str, dict[str, Any]]:
    """Rows by topic, or by topic and cursor, of a new scan's report."""
    epoch = judged_scan.scan(scene.cluster, "run")
    build_storage_report(scene.cluster, epoch)
    build_held(scene.cluster, epoch)
    assert newest_held(scene.lake, "test") == epoch
    rows = held_rows(scene.lake, epoch.epoch_id, table).to_pylist()
    return {"/".join(filter(None, (row["topic"].rpartition("/")[2], row.get("cursor")))): row for row in rows}


def open_topic(scene: ActivityScene, name: str, entries: int = 3, size: int = 1000) -> int:
    ledger = scene.open_topic(name)
    scene.servers.reader.payloads[ledger] = [b"x" * size] * entries
    return ledger


def test_what_is_in_an_open_ledger_and_what_leaves_it_open(scene: ActivityScene) -> None:
    ledger = open_topic(scene, "a")
    scene.servers.wait(2)
    row = built(scene, OPEN_TABLE)["a"]
    assert (row["ledger_id"], row["entries"], row["bytes"]) == (ledger, 3, 3000)
    assert (row["loaded"], row["expired"], row["closes_at"], row["problem"]) == (False, True, None, None)
    assert row["causes"] == [OpenCause.NOT_LOADED, OpenCause.MAX_TIME, OpenCause.NO_INACTIVE_TIME]


@pytest.mark.parametrize("name", ["__transaction_log_0", "a-s__transaction_pending_ack"])
def test_a_broker_does_not_list_what_transactions_keep(scene: ActivityScene, name: str) -> None:
    """An open ledger of that is one that its broker writes, and not one that a dead broker left."""
    scene.retention(0, 0)
    open_topic(scene, name)
    ledger = open_topic(scene, "a")
    scene.servers.wait(2)
    assert [row["ledger_id"] for row in built(scene, OPEN_TABLE).values()] == [ledger]
    epoch = newest_held(scene.lake, "test").epoch_id
    reasons = scene.lake.read_epoch_table(epoch, REASONS_TABLE).select(["ledger_id", "reason"]).to_pylist()
    assert [row["ledger_id"] for row in reasons if row["reason"] == Reason.EXPIRED_OPEN] == [ledger]


def test_bookies_are_asked_once_about_open_ledgers_alone(scene: ActivityScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report follows each scan: whatever is closed, or young and with a broker, costs them nothing."""
    ledger = open_topic(scene, "a")
    scene.topic("closed", 200, 100)
    scene.servers.wait(2)
    young = open_topic(scene, "young")
    scene.servers.load(scene.named("young"))
    reader, asked = scene.servers.reader, list[int]()
    whole = reader.last_entries

    def counting(ledgers: Any) -> Any:
        asked.extend(ledger_id for ledger_id, _ in ledgers)
        return whole(ledgers)

    epoch = judged_scan.scan(scene.cluster, "run")
    build_storage_report(scene.cluster, epoch)
    monkeypatch.setattr(reader, "last_entries", counting)
    build_held(scene.cluster, epoch)
    assert young not in asked
    assert asked == [ledger]


def test_a_full_ledger_is_open_by_the_minimum_time(scene: ActivityScene) -> None:
    """The case of 54 GB: written fast, and its broker died before it might close the ledger."""
    scene.configure(**{**ROLLOVER, "managedLedgerMaxEntriesPerLedger": "3"})
    open_topic(scene, "a")
    scene.servers.wait(2)
    assert built(scene, OPEN_TABLE)["a"]["causes"] == [OpenCause.NOT_LOADED, OpenCause.MIN_TIME]


@pytest.mark.parametrize(
    ("minutes", "most", "inactive", "causes"),
    [
        (300, "240", "60", []),
        (60, "240", "60", [OpenCause.MAX_TIME]),
        (60, "0", "60", [OpenCause.MAX_TIME]),
        (-1, "240", "0", [OpenCause.NO_INACTIVE_TIME]),
    ],
)
def test_each_setting_that_leaves_it_open_is_named(
    scene: ActivityScene, minutes: int, most: str, inactive: str, causes: list[OpenCause]
) -> None:
    scene.retention(minutes, -1)
    scene.configure(
        **{
            **ROLLOVER,
            "managedLedgerMaxLedgerRolloverTimeMinutes": most,
            "managedLedgerInactiveLedgerRolloverTimeSeconds": inactive,
        }
    )
    open_topic(scene, "a")
    scene.servers.wait(2)
    assert built(scene, OPEN_TABLE)["a"]["causes"] == [OpenCause.NOT_LOADED, *causes]


def test_a_loaded_topics_ledger_is_listed_once_it_is_older_than_its_retention(scene: ActivityScene) -> None:
    made = scene.now
    for name in ("old", "young"):
        scene.servers.load(scene.named(name))
    open_topic(scene, "old")
    scene.servers.wait(1.5)
    open_topic(scene, "young")
    found = built(scene, OPEN_TABLE)
    assert set(found) == {"old"}
    row = found["old"]
    assert (row["loaded"], row["expired"]) == (True, True)
    assert row["closes_at"] == made + 240 * 60_000


def test_what_bookies_and_brokers_do_not_say_is_named(scene: ActivityScene) -> None:
    ledger = open_topic(scene, "a")
    scene.servers.reader.failures[ledger] = Unavailable("no bookie answers")
    scene.configure(**{**ROLLOVER, "managedLedgerMaxEntriesPerLedger": None})
    scene.servers.wait(2)
    row = built(scene, OPEN_TABLE)["a"]
    assert (row["bytes"], row["problem"]) == (None, "no bookie answers")
    assert row["causes"] == [OpenCause.NOT_LOADED, OpenCause.SETTINGS_UNKNOWN]


def test_backlogs_count_from_the_position_and_those_past_the_ttl_apart(scene: ActivityScene) -> None:
    ids = scene.topic("a", 300, 200, 0)
    scene.at("a", "all", Position(ids[0], -1))
    scene.at("a", "some", Position(ids[0], 0))
    scene.at("a", "none", Position(ids[-1], 0))
    scene.namespace(message_ttl_in_seconds=4 * 3600)
    scene.servers.wait(0.1)
    found = built(scene, BACKLOG_TABLE)
    last = 10  # BookKeeper says how long the last ledger is
    assert {name: (row["bytes"], row["expired_bytes"], row["ends"]) for name, row in found.items()} == {
        "a/all": (2 * MB + last, MB, BacklogEnds.LOAD),
        "a/some": (MB + last, 0, BacklogEnds.LATER),
    }


def test_an_open_ledger_counts_as_bookies_have_it(scene: ActivityScene) -> None:
    open_topic(scene, "a")
    scene.at("a", "s", Position(0, -1))
    scene.servers.wait(2)
    row = built(scene, BACKLOG_TABLE)["a/s"]
    assert (row["bytes"], row["ledgers_unsized"], row["loaded"]) == (3000, 0, False)


@pytest.mark.parametrize(
    ("cursor", "ttl", "expected"),
    [
        ("s", 0, BacklogEnds.NO_TTL),
        ("own", 3600, BacklogEnds.NEVER),
        ("pulsar.repl.b", 3600, BacklogEnds.REPLICATOR),
        ("pulsar.repl.b", 0, BacklogEnds.REPLICATOR),
        ("s", 3600, BacklogEnds.LOAD),
    ],
)
def test_what_ends_a_backlog(scene: ActivityScene, cursor: str, ttl: int, expected: BacklogEnds) -> None:
    scene.configure(**ROLLOVER, additionalSystemCursorNames="[own]")
    ids = scene.topic("a", 300, 200)
    scene.at("a", cursor, Position(ids[0], -1))
    scene.namespace(message_ttl_in_seconds=ttl)
    scene.servers.wait(0.1)
    assert built(scene, BACKLOG_TABLE)[f"a/{cursor}"]["ends"] == expected


@pytest.mark.parametrize("name", ["__transaction_log_0", "a-s__transaction_pending_ack"])
def test_transactions_end_their_own_backlog(scene: ActivityScene, name: str) -> None:
    """A TTL, or deleting the subscription, would be no way out."""
    ids = scene.topic(name, 300, 200)
    scene.at(name, "s", Position(ids[0], -1))
    assert built(scene, BACKLOG_TABLE)[f"{name}/s"]["ends"] == BacklogEnds.NEVER


@pytest.mark.parametrize(("ttl", "expected"), [(0, BacklogEnds.REPLICATOR), (3600, BacklogEnds.BROKER)])
def test_a_replicator_of_a_loaded_topic_sends(scene: ActivityScene, ttl: int, expected: BacklogEnds) -> None:
    ids = scene.topic("a", 300, 200)
    scene.at("a", "pulsar.repl.b", Position(ids[0], -1))
    scene.namespace(message_ttl_in_seconds=ttl)
    scene.servers.load(scene.named("a"))
    assert built(scene, BACKLOG_TABLE)["a/pulsar.repl.b"]["ends"] == expected


@pytest.mark.parametrize(
    ("name", "hours", "loaded", "expected"),
    [
        ("s", 30, False, BacklogEnds.SUBSCRIPTION_EXPIRED),
        ("s", 20, False, BacklogEnds.NO_TTL),
        ("s", 30, True, BacklogEnds.NO_TTL),
        ("kept", 30, False, BacklogEnds.NO_TTL),
        ("enriching", 30, False, BacklogEnds.NO_TTL),
    ],
)
def test_a_load_ends_the_backlog_of_an_expired_subscription(
    scene: ActivityScene, name: str, hours: int, loaded: bool, expected: BacklogEnds
) -> None:
    inactivity = scene.cluster.settings.inactivity.model_copy(update={"kept_subscriptions": ("kept",)})
    settings = scene.cluster.settings.model_copy(update={"inactivity": inactivity})
    object.__setattr__(scene.cluster, "settings", settings)
    functions_subscribe(scene.servers, "enriching")
    ids = scene.topic("a", 300, 200)
    scene.servers.clock.advance(0.001)
    scene.at("a", name, Position(ids[0], -1), last_active=scene.now - hours * 3_600_000)
    scene.namespace(message_ttl_in_seconds=0, subscription_expiration_time_minutes=25 * 60)
    if loaded:
        scene.servers.load(scene.named("a"))
    scene.servers.wait(0.1)
    assert built(scene, BACKLOG_TABLE)[f"a/{name}"]["ends"] == expected


def test_a_loaded_topics_broker_ends_it(scene: ActivityScene) -> None:
    ids = scene.topic("a", 300, 200)
    scene.at("a", "s", Position(ids[0], -1))
    scene.namespace(message_ttl_in_seconds=3600)
    scene.servers.load(scene.named("a"))
    row = built(scene, BACKLOG_TABLE)["a/s"]
    assert (row["loaded"], row["ends"]) == (True, BacklogEnds.BROKER)


def test_brokers_that_do_not_answer_leave_it_unknown(scene: ActivityScene) -> None:
    ids = scene.topic("a", 300, 200)
    scene.at("a", "s", Position(ids[0], -1))
    epoch = judged_scan.scan(scene.cluster, "run")
    build_storage_report(scene.cluster, epoch)
    scene.servers.admin.failure = Unavailable("no broker")
    assert build_held(scene.cluster, epoch) == ("no broker",)
    (row,) = held_rows(scene.lake, epoch.epoch_id, BACKLOG_TABLE).to_pylist()
    assert (row["ends"], row["expired_bytes"]) == (BacklogEnds.UNKNOWN, None)
    assert row["bytes"] > 0


def test_without_a_storage_report_there_is_nothing_to_read(scene: ActivityScene) -> None:
    scene.topic("a", 300)
    epoch = judged_scan.scan(scene.cluster, "run")
    with pytest.raises(NotFound):
        build_held(scene.cluster, epoch)
    with pytest.raises(NotFound):
        newest_held(scene.lake, "test")
