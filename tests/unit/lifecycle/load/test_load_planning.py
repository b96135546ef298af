"""A load plan of a stored scan: which topics need a broker, what it would free, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.gaps import GapCode
from tests.kit.builders import A_GAP
from tests.kit.scenes.lifecycle.load_runs import OWN, plan, stored
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MB, MINUTE, NAMESPACE


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadScene:
    return LoadScene(tmp_path, monkeypatch)


def test_an_expired_last_ledger_goes_in_a_second_visit(scene: LoadScene) -> None:
    ids = scene.topic("a", 100, 90, 80, cursor=2)
    scene.servers.wait(1)  # the last ledger's age is that of its own z-node
    summary, (row,) = plan(scene)
    assert row == {
        "ledger_id": ids[-1],
        "topic": f"{OWN}a",
        "namespace": NAMESPACE,
        "needs": ["last_ledger_expired"],
        "monitors": [],
        "bytes": 10,
        "bytes_at_once": 0,
        "physical_bytes": 10,
        "trims": [ids[0], ids[1]],
        "may_trim": [ids[0], ids[1]],
        "weights": [MB, MB, 10],
        "second_visit_at": summary.created_at + 60 * MINUTE,
        "retention_minutes": 60,
        "retention_mb": -1,
        "level": "namespace",
        "ttl_seconds": 0,
        "expiry_minutes": 0,
        "expired_subscriptions": [],
        "inactive_subscriptions": [],
        "inactive_czxids": [],
        "durable_cursors": 1,
        "slowest_ledger_id": ids[-1],
        "slowest_entry_id": 0,
        "kept": None,
    }
    assert (summary.actionable, summary.ledgers, summary.logical_bytes) == (True, 1, 10)


def test_without_retention_the_last_ledger_goes_at_once(scene: LoadScene) -> None:
    scene.retention(0, -1)
    scene.topic("a", 100, cursor=0)
    _, (row,) = plan(scene)
    assert (row["bytes"], row["bytes_at_once"], row["second_visit_at"]) == (10, 10, None)


def test_a_young_last_ledger_needs_nothing(scene: LoadScene) -> None:
    scene.retention(600, -1)
    scene.topic("a", 1000, 900, cursor=1)
    assert plan(scene)[1] == []
    assert stored(scene) == {}


def test_an_expired_ledger_that_was_never_closed_is_closed_by_a_load(scene: LoadScene) -> None:
    topic = scene.open_topic("a")
    scene.servers.wait(2)
    summary, (row,) = plan(scene)
    assert (row["ledger_id"], row["needs"]) == (topic, ["open_expired"])
    assert (row["bytes"], row["second_visit_at"]) == (10, summary.created_at + 60 * MINUTE)
    assert (row["bytes_at_once"], row["physical_bytes"], row["trims"], row["weights"]) == (0, 10, [], [10])


def test_an_open_ledger_goes_at_once_where_nothing_is_retained(scene: LoadScene) -> None:
    topic = scene.open_topic("a")
    scene.retention(0, -1)
    _, (row,) = plan(scene)
    assert (row["needs"], row["bytes_at_once"], row["trims"]) == (["open_expired"], 10, [topic])


def test_an_open_ledger_whose_bytes_nobody_knows_is_not_loaded(scene: LoadScene) -> None:
    """What cannot be counted may be beyond any cap."""
    topic = scene.open_topic("a")
    scene.servers.wait(2)
    scene.servers.reader.failures[topic] = StoreError("no bookie answers")
    assert plan(scene)[1] == []
    assert stored(scene)["a"]["kept"] == "unknown_ledger"


def test_messages_past_their_ttl_stay_where_nobody_knows_the_bytes_of_the_open_ledger(scene: LoadScene) -> None:
    """Retention by size counts these bytes, too: its broker may trim more than a plan can count."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3600)
    scene.retention(60, 100)
    _left_open(scene, ids[-1])
    scene.servers.reader.failures[ids[-1]] = StoreError("no bookie answers")
    assert plan(scene)[1] == []
    row = stored(scene)["a"]
    assert (row["needs"], row["kept"]) == (["past_ttl"], "unknown_ledger")


def _left_open(scene: LoadScene, ledger: int) -> None:
    path = scene.servers.path(ledger)
    metadata = ledger_metadata.decode(scene.servers.zookeeper.data(path))
    open_ = replace(metadata, state=LedgerState.OPEN, length=0, last_entry_id=-1)
    scene.servers.put(path, ledger_metadata.encode(open_))


def test_of_each_ledger_the_larger_of_its_sizes_counts(scene: LoadScene) -> None:
    """One is in a bucket alone, another has three replicas: neither sum alone is what goes."""
    ids = scene.topic("a", 100, 90, 80, cursor=2)
    scene.servers.replicate(ids[1:], 3, MB)
    scene.servers.remove(scene.servers.path(ids[0]))
    scene.servers.wait(1)
    _, (row,) = plan(scene)
    assert row["weights"] == [MB, 3 * MB, 3 * MB]


def test_what_metadata_leaves_of_a_topic_whose_broker_died_counts(scene: LoadScene) -> None:
    """It counts as loaded there, as its last ledger was never closed."""
    ids = scene.topic("a", 100, 90, 80)
    _left_open(scene, ids[-1])
    scene.servers.wait(2)
    _, (row,) = plan(scene)
    assert (row["needs"], row["bytes_at_once"], row["trims"]) == (["open_expired"], 2 * MB, ids[:-1])
    assert (row["bytes"], row["weights"]) == (2 * MB + 10, [MB, MB, 10])


@pytest.mark.parametrize("retention", [(60, -1), (-1, 1)])
def test_what_expired_before_an_open_ledger_that_may_not_go_is_freed_by_a_load(
    scene: LoadScene, retention: tuple[int, int]
) -> None:
    """Its broker died, and a subscription, or retention by size, keeps the last ledger for good."""
    ids = scene.topic("a", 400, 390, 380, 370)
    scene.retention(*retention)
    if retention == (60, -1):
        scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[2])
    _left_open(scene, ids[-1])
    scene.servers.wait(2)
    _, (row,) = plan(scene)
    assert (row["needs"], row["bytes_at_once"], row["trims"]) == (["before_open"], 2 * MB, ids[:2])
    assert (row["bytes"], row["weights"], row["second_visit_at"]) == (2 * MB, [MB, MB], None)
    scene.servers.load(Topic.parse(f"{OWN}a"))
    scene.servers.wait(2)
    assert plan(scene)[1] == []


def test_an_open_ledger_of_a_topic_that_a_broker_lists_is_left_to_it(scene: LoadScene) -> None:
    scene.open_topic("a")
    scene.servers.load(Topic.parse(f"{OWN}a"))
    scene.servers.wait(2)
    assert plan(scene)[1] == []


@pytest.mark.parametrize("ttl", [0, 3600, 7 * 3600, None])
def test_messages_past_their_ttl_need_a_broker(scene: LoadScene, ttl: int | None) -> None:
    """Ledgers of 6.5 and 5 hours ago are not acknowledged, retention is an hour."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=ttl)
    found = {row["topic"]: row for row in plan(scene)[1]}
    if ttl != 3600:
        assert found == {}
        return
    row = found[f"{OWN}a"]
    assert (row["needs"], row["ttl_seconds"]) == (["past_ttl"], 3600)
    assert row["bytes_at_once"] == 2 * MB
    assert (row["slowest_ledger_id"], row["slowest_entry_id"]) == (ids[0], -1)


@pytest.mark.parametrize(("minutes", "more"), [(0, True), (60, False)])
def test_a_ledger_that_was_closed_within_the_ttl_counts_as_its_messages_may_be_older(
    scene: LoadScene, minutes: int, more: bool
) -> None:
    """Brokers expire messages by their own time, and an unload closes a ledger long after its last message."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3600)
    scene.retention(minutes, -1)
    _, (row,) = plan(scene)
    assert (row["trims"], row["may_trim"]) == (ids[:-1], ids if more else ids[:-1])
    assert (row["weights"], row["bytes"]) == ([MB, MB, 10], 2 * MB)


def test_a_ledger_that_was_begun_within_the_ttl_has_no_older_messages(scene: LoadScene) -> None:
    ids = scene.topic("a", 330, 0, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3600)
    scene.retention(0, -1)
    _, (row,) = plan(scene)
    assert (row["trims"], row["may_trim"]) == (ids[:1], ids[:2])
    assert row["weights"] == [MB, MB]


@pytest.mark.parametrize("unsaid", ["entries", "timestamp"])
def test_a_ledger_that_a_broker_would_take_for_empty_or_old_keeps_its_topic(scene: LoadScene, unsaid: str) -> None:
    """It would delete the first of them unread, and the second before its retention time has passed."""
    scene.retention(600, -1)
    ids = scene.topic("a", 700, 20, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=690 * 60)
    path = scene.servers.topic_path(Topic.parse(f"{OWN}a"))
    info = managed_ledger.decode(scene.servers.zookeeper.data(path))
    first, second, last = info.ledgers
    ledgers = (first, replace(second, **{unsaid: None}), last)
    scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=ledgers)))
    assert plan(scene)[1] == []
    assert stored(scene)["a"]["kept"] == "unknown_ledger"


def test_a_ttl_frees_nothing_where_retention_keeps_all(scene: LoadScene) -> None:
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=60)
    scene.retention(-1, -1)
    assert plan(scene)[1] == []


def test_brokers_that_differ_make_the_plan_a_report(scene: LoadScene) -> None:
    scene.topic("a", 100, cursor=0)
    admin = scene.servers.admin
    admin.broker_ids = [*admin.broker_ids, "other:1"]
    other = {**LoadScene.CONFIGURATION, "subscriptionExpirationTimeMinutes": "7"}
    admin.configuration = {**admin.configuration, "other:1": other}
    scene.servers.wait(1)
    summary, _ = plan(scene)
    assert not summary.actionable
    assert summary.gaps[-1].code is GapCode.POLICIES_UNKNOWN
    assert "subscriptionExpirationTimeMinutes" in summary.gaps[-1].text


def test_what_another_cursor_holds_once_messages_are_expired_is_not_counted(scene: LoadScene) -> None:
    """Nothing of the topic goes, nor in a second visit: the last ledger is held, too."""
    scene.configure(additionalSystemCursorNames="[system]")
    ids = scene.topic("a", 330, 240, 239)
    for name in ("s", "system"):
        scene.servers.cursor(Topic.parse(f"{OWN}a"), name, at=ids[0])
    scene.namespace(message_ttl_in_seconds=60)
    scene.servers.wait(1)
    assert plan(scene)[1] == []
    row = stored(scene)["a"]
    assert (row["needs"], row["kept"]) == (["past_ttl"], LoadKept.LITTLE_TO_FREE)
    assert (row["bytes"], row["second_visit_at"]) == (0, None)


def test_a_topic_that_its_broker_has_is_not_said_to_be_freed_by_a_load(scene: LoadScene) -> None:
    """Where its cursors stand was not asked."""
    scene.topic("a", 100, 90, cursor=0)
    scene.servers.load(Topic.parse(f"{OWN}a"))
    scene.servers.wait(1)
    assert plan(scene)[1] == []
    assert stored(scene) == {}


def test_a_plan_on_a_scan_that_is_not_covered_is_report_only(scene: LoadScene) -> None:
    scene.topic("a", 100, cursor=0)
    scene.servers.wait(1)
    summary, rows = plan(scene, A_GAP)
    assert (summary.actionable, len(rows)) == (False, 1)


def test_making_a_plan_writes_nothing_and_loads_nothing(scene: LoadScene) -> None:
    scene.topic("a", 100, cursor=0)
    scene.servers.wait(1)
    epoch, before = scene.scan(), scene.servers.zookeeper.zxid
    make_load_plan(scene.cluster, epoch)
    assert scene.servers.zookeeper.zxid == before
    assert scene.servers.admin.touched == []
