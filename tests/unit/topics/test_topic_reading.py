"""Reading a topic with all that it is judged by, and reading it again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.topics.snapshot import TopicReading
from pulsar_lifecycle.topics.write import checked_path
from pulsar_lifecycle.trimming.trim import TrimOrder, trim_topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.metadata_store import Operation
from tests.kit.refused import refused_by
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def reading(scene: Scene, before: TopicReading | None = None) -> TopicReading:
    return TopicReading(scene.store, "/ledgers", TOPIC, lambda info: [i.ledger_id for i in info.ledgers[:3]], before)


def test_what_has_not_changed_is_not_decoded_again(scene: Scene) -> None:
    first = reading(scene)
    rows = first.rows(scene.ids[:3])
    again = reading(scene, first)
    assert again.info is first.info
    assert again.cursors is first.cursors
    assert all(row is rows[i] for i, row in again.rows(scene.ids[:3]).items())


def test_all_of_it_is_read_again(scene: Scene) -> None:
    first = reading(scene)
    first.rows(scene.ids[:3])
    asked: list[Operation] = []
    scene.store.before = asked.append
    reading(scene, first)
    read = {path for one in asked for path in one.paths}
    assert read >= {scene.path, f"{scene.path}/s", *map(ledger_path, [*scene.ids[:3], scene.ids[-1]])}


@pytest.mark.parametrize(
    "change",
    [
        lambda scene: scene.cursor("s", Position(scene.ids[1], -1)),
        lambda scene: scene.cursor("another", Position(scene.ids[0], -1)),
        lambda scene: scene.cluster.remove(f"{scene.path}/s"),
        lambda scene: scene.cluster.topic(TOPIC, scene.ids[:4]),
        lambda scene: scene.cluster.remove(ledger_path(scene.ids[0])),
        lambda scene: scene.cluster.ledger({}, ledger_id=scene.ids[1]),
    ],
    ids=["cursor moved", "cursor made", "cursor deleted", "list written", "ledger deleted", "ledger written"],
)
def test_what_has_changed_is_seen(scene: Scene, change: Callable[[Scene], object]) -> None:
    first = reading(scene)
    before = first.info, first.cursors, first.rows(scene.ids[:3])
    change(scene)
    again, fresh = reading(scene, first), reading(scene)
    after = again.info, again.cursors, again.rows(scene.ids[:3])
    assert after == (fresh.info, fresh.cursors, fresh.rows(scene.ids[:3]))
    assert after != before


def test_a_topic_that_is_gone_is_refused(scene: Scene) -> None:
    first = reading(scene)
    scene.cluster.remove(f"{scene.path}/s")
    scene.cluster.remove(scene.path)
    with refused_by(Code.TOPIC_GONE):
        reading(scene, first)


def test_a_topic_is_not_told_by_what_was_read_before_its_ledger(scene: Scene) -> None:
    """BookKeeper lost the last ledger: the next one is looked at later, and so must the topic be."""
    scene.cluster.remove(ledger_path(scene.ids[-1]))
    seen = reading(scene)
    assert checked_path(seen.store, "/ledgers", TOPIC, seen.node, seen.info) == ledger_path(scene.ids[-2])
    scene.cluster.remove(f"{scene.path}/s")
    scene.cluster.remove(scene.path)
    scene.cluster.topic(TOPIC, [scene.cluster.ledger(data_tags(TOPIC))])
    with refused_by(Code.CHANGED_MEANWHILE):
        checked_path(seen.store, "/ledgers", TOPIC, seen.node, seen.info)


def test_who_gives_a_reading_does_not_spare_the_look_before_the_write(scene: Scene) -> None:
    order = TrimOrder(TOPIC, frozenset(scene.ids[:3]))
    old = reading(scene)
    scene.cursor("s", Position(scene.ids[1], -1))
    found = scene.act(lambda run, ports, guard: trim_topic(run, ports, guard, order, old))
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert scene.listed == scene.ids[1:]
