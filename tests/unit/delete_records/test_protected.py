"""What protects a topic keeps its records, and says how that ends; a reader that is not durable keeps nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_lifecycle.delete_records.request import END
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.records.records_scene import RecordsScene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.pipeline import Policy

TOPIC, OTHER = map(Topic.parse, ("persistent://acme/orders/placed-partition-0", "persistent://acme/orders/other"))


def shadowed(scene: RecordsScene, shadow: Topic, source: Topic) -> None:
    scene.cluster.topic(shadow, scene.ids[scene.topic], entries=10, shadow_of=str(source))


def of_the_brokers_own(scene: RecordsScene) -> None:
    scene.topics[0] = Topic.parse("persistent://acme/orders/__change_events")
    scene.cluster.topic(scene.topic, [scene.cluster.ledger(data_tags(scene.topic))], entries=1)


@pytest.mark.parametrize(
    ("holds", "planted", "code", "way_out"),
    [
        ("acme/orders", lambda scene: None, Protection.LEGAL_HOLD, "withdraw it in orphans.legal_holds"),
        (str(TOPIC), lambda scene: None, Protection.LEGAL_HOLD, "withdraw it in orphans.legal_holds"),
        ("", lambda scene: shadowed(scene, OTHER, TOPIC), Protection.SHADOW_SOURCE, "orphans.confirm_after"),
        ("", lambda scene: shadowed(scene, TOPIC, OTHER), Protection.SHADOW_TOPIC, "ask for the source"),
        ("", of_the_brokers_own, Protection.SYSTEM_TOPIC, "trimming.system_topics"),
    ],
)
def test_what_protects_a_topic_is_named_with_its_way_out(
    holds: str, planted: Callable[[RecordsScene], None], code: Protection, way_out: str
) -> None:
    scene = RecordsScene(policy=Policy(holds=frozenset({holds} - {""})))
    planted(scene)
    (row,) = scene.plan(END)
    assert (row["error"], row["code"], way_out in row["reason"]) == (RecordsError.PROTECTED, code, True), row["reason"]
    (result,) = scene.apply()
    assert (result.low_watermark, result.error, result.code) == (-1, RecordsError.PROTECTED, code)
    assert not scene.cluster.deletion_topics.waiting


def test_readers_that_are_not_durable_are_shown_and_keep_nothing() -> None:
    scene = RecordsScene()
    scene.writes_loaded = True
    scene.load(broker="broker-1:8080")
    scene.cursor("s", 4, 9)
    scene.cluster.admin.clients[scene.topic] = TopicConnections(1, {"tail": 1, "s": 1, "reader-1f": 1}, 0)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["readers"]) == (None, ["reader-1f", "tail"])
