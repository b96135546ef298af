"""The history of subscriptions of which some scan could not read all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.formats import cursor
from pulsar_lifecycle.lifecycle.activity.activity_run import CURSORS
from pulsar_lifecycle.lifecycle.activity.activity_tables import CURSOR_HISTORY, UseEvidence
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return ActivityScene(tmp_path, monkeypatch)


def test_a_position_that_cannot_be_read_is_neither_use_nor_rest(scene: ActivityScene) -> None:
    scene.topic("held", 60, 60, cursor=1)
    scene.days(5)
    payloads = scene.servers.reader.payloads
    ledger = scene.row("held", "s")["cursors_ledger_id"]
    there = payloads.pop(ledger)
    report = scene.days(4)
    assert kept(report.cursors) == {"held/s": InactiveKept.UNKNOWN_CURSOR}
    assert kept(report.topics) == {"held": InactiveKept.UNKNOWN_CURSOR}
    payloads[ledger] = there
    report = scene.report()  # the history went on: it stands where it stood
    assert kept(report.cursors) == {"held/s": None}
    assert kept(report.topics) == {"held": None}


def test_what_moved_while_it_could_not_be_read_was_used(scene: ActivityScene) -> None:
    ids = scene.topic("held", 60, 60, cursor=0)
    scene.days(5)
    scene.servers.reader.payloads.pop(scene.row("held", "s")["cursors_ledger_id"])
    scene.days(4)
    scene.position("held", Position(ids[1], 0))
    assert not scene.report().cursors
    row = scene.row("held", "s")
    assert (row["read_evidence"], row["last_read"]) == (UseEvidence.ACKNOWLEDGED, scene.now)


def test_a_cursor_ledger_that_came_while_it_could_not_be_read_is_compared_with_nothing(scene: ActivityScene) -> None:
    """The next look counts as use, though it stands as far in that ledger as it stood in the one before it."""
    ids = scene.topic("held", 60, 60, cursor=0)
    payloads = scene.servers.reader.payloads
    scene.days(5)
    scene.position("held", Position(ids[0], 0))  # in another ledger
    path = f"{scene.servers.topic_path(scene.named('held'))}/s"
    ledger = cursor.decode(scene.servers.zookeeper.data(path)).cursors_ledger_id
    there = payloads.pop(ledger)
    scene.days(4)
    assert scene.row("held", "s")["ledger_id"] is None
    payloads[ledger] = there
    assert not scene.report().cursors
    assert scene.row("held", "s")["last_read"] == scene.now


def test_a_history_of_an_earlier_version_goes_on(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.days(8)
    assert scene.epoch
    epoch_id, lake = scene.epoch.epoch_id, scene.lake
    rows = lake.batches(lake.parts(epoch_id, CURSORS), CURSOR_HISTORY.names)
    lake.publish(epoch_id, CURSORS, [lake.write_part(epoch_id, CURSORS, CURSOR_HISTORY, rows)])
    report = scene.report()
    assert (kept(report.topics), kept(report.cursors)) == ({"old": None}, {"old/s": None})
    assert scene.row("old", "s")["scans"] == 10


def test_a_subscription_that_a_scan_did_not_see_begins_the_history_of_its_topic_anew(scene: ActivityScene) -> None:
    ids = scene.used("old", "s")
    scene.days(8)
    path = f"{scene.servers.topic_path(scene.named('old'))}/s"
    scene.servers.put(path, b"broken")
    assert not scene.report().topics
    scene.at("old", "s", Position(ids[-1], 0))  # whether it was read meanwhile, nobody knows
    assert not scene.days(6).topics
    assert kept(scene.days(1).topics) == {"old": None}
