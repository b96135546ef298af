"""Which ledgers a cursor keeps, and that the explanation of a topic names it there."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_lifecycle.cli.look.explain_topic import explain_topic as shown
from pulsar_lifecycle.formats import cursor
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.inspect.explain_topic import HeldLedger, explain_topic
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Position, Topic
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene

TOPIC = Topic.parse(f"persistent://{NAMESPACE}/a")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def stand(scene: RetentionScene, name: str, at: Position) -> None:
    path = f"{scene.servers.topic_path(TOPIC)}/{name}"
    scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, at)))


def ledgers(scene: RetentionScene) -> Sequence[HeldLedger]:
    brokers = Brokers({}, scene.servers.admin.stats_interval_ms())
    return explain_topic(scene.cluster, TOPIC, brokers).ledgers


def test_a_cursor_is_named_where_the_rule_says_that_one_holds(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80, 70)
    scene.scan()
    entries = ledgers(scene)[0].entries
    assert entries is not None
    for place in [Position(ids[0] - 1, 5), *(Position(one, at) for one in ids for at in range(-1, entries + 2))]:
        stand(scene, "s", place)
        for one in ledgers(scene)[:-1]:
            assert bool(one.held_by) == (one.code is RetentionVerdict.CURSOR), (place, one)


def test_of_several_cursors_those_are_named_that_hold_a_ledger(
    scene: RetentionScene, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, _ = scene.topic("a", 100, 90, 80, 70)
    stand(scene, "late", Position(first, -1))
    stand(scene, "later", Position(second, -1))
    stand(scene, "other", Position(third, 0))
    scene.scan()
    assert [one.held_by for one in ledgers(scene)][:2] == [("late",), ("late", "later")]
    shown(scene.cluster, TOPIC, as_json=True)
    assert json.loads(capsys.readouterr().out)["ledgers"][1]["held_by"] == ["late", "later"]
    shown(scene.cluster, TOPIC, as_json=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [str(second)])
    assert "late and 1 more" in line


def test_a_cursor_that_cannot_be_read_holds_every_ledger(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80)
    scene.servers.put(
        f"{scene.servers.topic_path(TOPIC)}/lost", cursor.encode(ManagedCursorInfo(10_000, Position(ids[0], 0)))
    )
    scene.scan()
    assert [(one.code, one.held_by) for one in ledgers(scene)] == [(RetentionVerdict.UNKNOWN_CURSOR, ("lost",))] * 3
