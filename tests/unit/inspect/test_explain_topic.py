"""What keeps each ledger of a topic, and what would free it; over fakes."""

from pathlib import Path

import pytest

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.inspect.explain_topic import FREED_BY, TopicExplanation, explain_topic, freed_by
from pulsar_lifecycle.lifecycle.verdicts import GONE, RetentionVerdict
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.topic_load import LoadState
from pulsar_lifecycle.topics.protection import Protection
from tests.kit.retention_scene import MB, NAMESPACE, RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def explained(scene: RetentionScene, name: str, loaded: bool = False) -> TopicExplanation:
    topic = Topic.parse(f"persistent://{NAMESPACE}/{name}")
    listed = {str(topic): "broker-1"} if loaded else {}
    return explain_topic(scene.cluster, topic, Brokers(listed, scene.servers.admin.stats_interval_ms()))


def codes(found: TopicExplanation) -> list[str]:
    return [one.code for one in found.ledgers]


def test_each_ledger_has_the_code_of_what_keeps_it(scene: RetentionScene) -> None:
    scene.topic("a", 200, 190, 30, 20)
    scene.scan()
    found = explained(scene, "a")
    assert codes(found) == [
        RetentionVerdict.EXPIRED_BY_TIME,
        RetentionVerdict.EXPIRED_BY_TIME,
        RetentionVerdict.EXPIRED_BY_TIME,
        "last_ledger",
    ]
    assert found.policy is not None
    assert found.policy.minutes == 60
    assert found.load.state is LoadState.UNLOADED
    assert [one.goes for one in found.ledgers] == [True, True, True, False]
    assert {one.state for one in found.ledgers} == {"CLOSED"}


def test_a_cursor_that_stands_in_the_way_is_named_with_its_backlog(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390, 380, 370, cursor=1)
    scene.scan()
    found = explained(scene, "a")
    assert codes(found) == ["expired_by_time", "expired_by_time", "cursor", "last_ledger"]
    (cursor,) = found.cursors
    assert cursor.name == "s"
    assert cursor.unacknowledged is not None
    assert MB <= cursor.unacknowledged < 2 * MB
    assert "unsubscribe" in freed_by(found.ledgers[2])


def test_what_protects_the_whole_topic_is_its_code(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan(shadow_sources=frozenset({f"persistent://{NAMESPACE}/a"}))
    found = explained(scene, "a")
    assert set(codes(found)) == {Protection.SHADOW_SOURCE}
    assert found.protection == "source of a shadow topic"


def test_a_loaded_topic_is_left_to_its_broker(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan()
    assert set(codes(explained(scene, "a", loaded=True))) == {Protection.LOADED}


def test_without_a_scan_nobody_knows_what_protects_it(scene: RetentionScene) -> None:
    scene.topic("a", 400)
    with pytest.raises(NotFound, match="run job scan"):
        explained(scene, "a")


def test_no_such_topic(scene: RetentionScene) -> None:
    scene.scan()
    with pytest.raises(NotFound, match="name its partitions"):
        explained(scene, "none")


def test_every_code_says_what_frees_the_ledger() -> None:
    assert set(RetentionVerdict) <= set(FREED_BY)
    assert {FREED_BY[code] for code in GONE} == {"jobs plan_retention and apply_retention"}
