"""Which topics a load plan keeps, and by which code: above all for what brokers would do to them besides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.model import Topic
from tests.kit.scenes.lifecycle.load_runs import OWN, plan, stored
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MB, MINUTE, NAMESPACE
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.topic_policies import set_topic_policies


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadScene:
    return LoadScene(tmp_path, monkeypatch)


def kept(scene: LoadScene, **context: Any) -> str | None:
    scene.topic("a", 100, cursor=0)
    scene.servers.wait(1)
    rows = plan(scene, **context)[1]
    code = stored(scene)["a"]["kept"]
    assert (code is None) == bool(rows)
    return code


def test_a_namespace_goes_by_metadata_unless_the_settings_name_it(scene: LoadScene) -> None:
    scene.change(namespaces=())
    assert kept(scene) == "way_is_metadata"


def test_what_is_protected_is_not_loaded(scene: LoadScene) -> None:
    assert kept(scene, shadow_sources=frozenset({f"{OWN}a"})) == "shadow_source"


def test_little_is_not_worth_a_load(scene: LoadScene) -> None:
    scene.change(min_bytes=11)
    assert kept(scene) == "little_to_free"


@pytest.mark.parametrize("name", sorted(LoadScene.CONFIGURATION))
def test_what_brokers_would_do_must_be_known(scene: LoadScene, name: str) -> None:
    if name == "additionalSystemCursorNames" or name.startswith("backlogQuota"):
        return
    scene.configure(**{name: None})
    scene.namespace(message_ttl_in_seconds=None)
    deletes = "brokerDeleteInactiveTopicsEnabled"
    if name == "brokerDeleteInactiveTopicsMode":
        scene.configure(**{name: None, deletes: "true"})
    assert kept(scene) == "monitors_unknown"


BY_AGE = {"message_age": {"limitSize": -1, "limitTime": 10, "policy": "consumer_backlog_eviction"}}


BY_SIZE = {"destination_storage": {"limitSize": 10, "limitTime": -1, "policy": "consumer_backlog_eviction"}}


HOLDS = {"destination_storage": {"limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}}


NO_LIMIT = {"message_age": {"limitSize": -1, "limitTime": -1, "policy": "consumer_backlog_eviction"}}


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        (BY_AGE, "backlog_would_be_evicted"),
        (BY_SIZE, "backlog_would_be_evicted"),
        (HOLDS, None),
        (NO_LIMIT, None),
        ({"message_age": {"policy": "consumer_backlog_eviction"}}, "monitors_unknown"),
    ],
)
def test_a_backlog_that_brokers_would_evict_keeps_its_topic_unless_ordered(
    scene: LoadScene, quotas: dict[str, Any], expected: str | None
) -> None:
    """Two hours past the TTL one ledger goes; of the unread others a quota could take all."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.servers.wait(1)
    scene.namespace(message_ttl_in_seconds=3 * 3600, backlog_quota_map=quotas)
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected
    if expected == "backlog_would_be_evicted":
        scene.change(backlog_eviction=(NAMESPACE,))
        _, (row,) = plan(scene)
        assert (row["kept"], row["monitors"]) == (None, [expected])


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({}, None),
        ({"replication_clusters": ["fake"]}, None),
        ({"replication_clusters": ["far", "fake"]}, None),
        ({"replication_clusters": ["far"]}, "not_replicated_here"),
        ({"replication_clusters": ["far"], "allowed_clusters": ["fake"]}, None),
        ({"replication_clusters": "far"}, "monitors_unknown"),
    ],
)
def test_a_topic_that_is_not_replicated_here_is_not_loaded(
    scene: LoadScene, policies: dict[str, Any], expected: str | None
) -> None:
    """Brokers delete it at once, with what is unread; no word of the settings lifts that."""
    scene.change(topic_deletion=(NAMESPACE,))
    scene.namespace(**policies)
    assert kept(scene) == expected


def test_a_topic_of_a_namespace_that_is_being_deleted_is_not_loaded(scene: LoadScene) -> None:
    """Brokers answer 404 to whoever asks for it; each such topic would count as one that they do not unload."""
    scene.change(topic_deletion=(NAMESPACE,))
    scene.namespace(deleted=True)
    assert kept(scene) == "namespace_deleted"
    scene.namespace(deleted=False)
    assert kept(scene) is None


def stands_at_end(scene: LoadScene, ledger: int, cursor: str) -> None:
    """A cursor of topic ``a`` has read this ledger, and all before it."""
    tags = {**data_tags(Topic.parse(f"{OWN}a")), "pulsar/cursor": cursor}
    position = scene.servers.ledger(tags, entries=[scene.servers.position_entry(at=ledger)])
    scene.servers.cursor(Topic.parse(f"{OWN}a"), cursor, ledger=position)


@pytest.mark.parametrize(("sent", "expected"), [(0, "replication_would_expire"), (2, None)])
def test_what_a_replicator_has_not_sent_keeps_its_topic(scene: LoadScene, sent: int, expected: str | None) -> None:
    """Brokers expire its messages like those of clients; no word of the settings lifts that."""
    ids = scene.topic("a", 330, 240, 180)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    stands_at_end(scene, ids[sent], "pulsar.repl.far")
    scene.namespace(message_ttl_in_seconds=3600, replication_clusters=["fake", "far"])
    plan(scene)
    row = stored(scene)["a"]
    assert (row["needs"], row["kept"]) == (["past_ttl"], expected)
    assert row["bytes_at_once"] == (2 * MB if sent else MB)  # the last one becomes young


@pytest.mark.parametrize(
    ("own", "everywhere", "expected"),
    [
        (3600, 60, "global_ttl_would_expire"),
        (3600, 7200, None),
        (3600, 0, None),
        (3600, None, None),
        (None, 3600, None),
    ],
)
def test_a_global_ttl_that_is_shorter_than_its_own_keeps_a_topic(
    scene: LoadScene, own: int | None, everywhere: int | None, expected: str | None
) -> None:
    """Brokers take global policies first as they load a topic, and expire its messages by them at once."""
    ids = scene.topic("a", 330, 240, 0)
    topic = Topic.parse(f"{OWN}a")
    scene.servers.cursor(topic, "s", at=ids[0])
    local, shared = ({"messageTTLInSeconds": one} for one in (own, everywhere))
    set_topic_policies(scene.servers, topic, local, shared)
    plan(scene)
    row = stored(scene)["a"]
    assert (row["needs"], row["ttl_seconds"], row["kept"]) == (["past_ttl"], 3600, expected)


@pytest.mark.parametrize(
    ("shared", "cursor", "expected"),
    [({"compactionThreshold": 0}, True, "deduplication_would_forget"), (None, True, None), ({}, False, None)],
)
def test_a_topic_stays_whose_deduplication_counts_too_late(
    scene: LoadScene, shared: dict[str, int] | None, cursor: bool, expected: str | None
) -> None:
    """A broker takes global policies first as it loads a topic; one whose `pulsar.dedup` goes takes messages again."""
    ids, topic = scene.topic("a", 330, 240, 180), Topic.parse(f"{OWN}a")
    scene.servers.cursor(topic, "s", at=ids[0])
    if cursor:
        stands_at_end(scene, ids[2], "pulsar.dedup")
    scene.namespace(message_ttl_in_seconds=3600)
    scene.configure(brokerDeduplicationEnabled="false")
    set_topic_policies(scene.servers, topic, {"deduplicationEnabled": True}, shared)
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected


@pytest.mark.parametrize(
    ("lazy", "cursor", "expected"),
    [("true", True, "cursors_come_later"), ("true", False, None), ("false", True, None), (None, True, None)],
)
def test_a_topic_stays_whose_broker_would_not_know_its_subscriptions(
    scene: LoadScene, lazy: str | None, cursor: bool, expected: str | None
) -> None:
    """Seen on 4.0.7: it has no subscription to expire, and the broker deletes it as one without any."""
    scene.topic("a", 100, cursor=0 if cursor else None)
    scene.servers.wait(1)
    scene.configure(lazyCursorRecovery=lazy)
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected


@pytest.mark.parametrize(
    ("namespace", "brokers", "freed"), [(None, "false", True), (True, "false", False), (None, None, False)]
)
def test_a_load_frees_what_a_cursor_of_ended_deduplication_holds(
    scene: LoadScene, namespace: bool | None, brokers: str | None, freed: bool
) -> None:
    """A broker deletes `pulsar.dedup` as it loads a topic whose deduplication is off; the last ledger becomes young."""
    ids, topic = scene.topic("a", 330, 240, 180, cursor=2), Topic.parse(f"{OWN}a")
    scene.servers.cursor(topic, "pulsar.dedup", at=ids[0])
    scene.namespace(deduplicationEnabled=namespace)
    scene.configure(brokerDeduplicationEnabled=brokers)
    _, rows = plan(scene)
    found = [(row["needs"], row["trims"]) for row in rows]
    assert found == ([(["deduplication_ended"], ids[:2])] if freed else [])


def test_messages_that_a_system_cursor_holds_are_not_freed_by_their_ttl(scene: LoadScene) -> None:
    scene.configure(additionalSystemCursorNames="[audit]")
    ids = scene.topic("a", 330, 240, 0)
    for name in ("s", "audit"):
        scene.servers.cursor(Topic.parse(f"{OWN}a"), name, at=ids[0])
    scene.namespace(message_ttl_in_seconds=3600)
    plan(scene)
    row = stored(scene)["a"]
    assert (row["needs"], row["bytes_at_once"], row["kept"]) == (["past_ttl"], 0, "little_to_free")
    scene.servers.remove(f"{scene.servers.topic_path(Topic.parse(f'{OWN}a'))}/audit")
    plan(scene)
    assert (stored(scene)["a"]["bytes_at_once"], stored(scene)["a"]["kept"]) == (2 * MB, None)


@pytest.mark.parametrize(("clusters", "expected"), [(["fake", "far"], None), (["fake"], "replicator_would_be_deleted")])
def test_a_replicator_whose_cluster_went_keeps_its_topic(
    scene: LoadScene, clusters: list[str], expected: str | None
) -> None:
    (own,) = scene.topic("a", 100, cursor=0)
    stands_at_end(scene, own, "pulsar.repl.far")
    scene.namespace(replication_clusters=clusters)
    scene.servers.wait(1)
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected


@pytest.mark.parametrize(
    ("threshold", "compacted", "expected"),
    [
        (0, None, None),
        (-1, None, None),
        (1, None, "compaction_would_begin"),
        (1 << 40, None, "compaction_would_begin"),
        (1, 2, None),
        (1, 1, "compaction_would_begin"),
        (MB, 1, None),
        (MB, 0, "compaction_would_begin"),
        ("1", 2, "monitors_unknown"),
    ],
)
def test_a_compaction_that_a_load_would_begin_keeps_the_topic_unless_ordered(
    scene: LoadScene, threshold: object, compacted: int | None, expected: str | None
) -> None:
    """A topic with a threshold and without a cursor ``__compaction`` gets one that holds all its ledgers."""
    ids = scene.topic("a", 330, 240, 180)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    if compacted is not None:
        stands_at_end(scene, ids[compacted], "__compaction")
    scene.namespace(message_ttl_in_seconds=3600, compaction_threshold=threshold)
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected
    if expected == "compaction_would_begin":
        scene.change(compaction=(NAMESPACE,))
        _, (row,) = plan(scene)
        assert (row["kept"], row["monitors"]) == (None, [expected])


def test_what_waits_for_a_compaction_in_an_open_ledger_may_be_any_amount(scene: LoadScene) -> None:
    last = scene.open_topic("a")
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "__compaction", at=last)
    scene.namespace(compaction_threshold=1 << 40)
    scene.servers.wait(2)
    scene.servers.reader.failures[last] = StoreError("no bookie answers")
    plan(scene)
    assert stored(scene)["a"]["kept"] == "compaction_would_begin"


@pytest.mark.parametrize(("compacted", "expected"), [(None, "compaction_would_begin"), (0, None)])
def test_a_cursor_of_a_compaction_that_a_load_would_make_keeps_the_topic(
    scene: LoadScene, compacted: int | None, expected: str | None
) -> None:
    ids, topic = scene.topic("a", 330, 240, 180), Topic.parse(f"{OWN}a")
    scene.servers.cursor(topic, "s", at=ids[0])
    if compacted is not None:
        stands_at_end(scene, ids[compacted], "__compaction")
    scene.namespace(message_ttl_in_seconds=3600)
    set_topic_policies(scene.servers, topic, {"compactionThreshold": 0}, {"compactionThreshold": 1})
    plan(scene)
    assert stored(scene)["a"]["kept"] == expected


def test_a_quota_of_the_brokers_counts_where_nobody_says_more(scene: LoadScene) -> None:
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(Topic.parse(f"{OWN}a"), "s", at=ids[0])
    scene.servers.wait(1)
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    evicts = {"backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction"}
    expected = {
        ("backlogQuotaDefaultLimitSecond", "10"): "backlog_would_be_evicted",
        ("backlogQuotaDefaultLimitGB", "1.0"): "backlog_would_be_evicted",
        ("backlogQuotaDefaultLimitBytes", None): "monitors_unknown",
        ("backlogQuotaDefaultLimitSecond", "-1"): None,
    }
    for (name, value), code in expected.items():
        scene.configure(**evicts, **{name: value})
        plan(scene)
        assert stored(scene)["a"]["kept"] == code, name
    scene.configure(**evicts, backlogQuotaDefaultLimitSecond="10", backlogQuotaCheckEnabled="false")
    _, (row,) = plan(scene)
    assert row["kept"] is None


def test_a_quota_takes_nothing_where_all_is_read(scene: LoadScene) -> None:
    scene.namespace(backlog_quota_map=BY_AGE)
    assert kept(scene) is None


@pytest.mark.parametrize("ordered", [False, True])
def test_a_subscription_that_would_expire_keeps_its_topic_unless_ordered(scene: LoadScene, ordered: bool) -> None:
    scene.namespace(subscription_expiration_time_minutes=30)
    if ordered:
        scene.change(subscription_expiry=("acme",))
    assert kept(scene) == (None if ordered else "subscription_would_expire")


@pytest.mark.parametrize(("hours", "expected"), [(26, None), (24, "subscription_would_expire")])
def test_a_subscription_must_not_expire_within_a_day(scene: LoadScene, hours: int, expected: str | None) -> None:
    """A run that dies leaves its topic loaded until the next one."""
    scene.namespace(subscription_expiration_time_minutes=hours * 60)
    ids = scene.topic("a", 100, cursor=0)
    scene.servers.wait(1)
    path = f"{scene.servers.topic_path(Topic.parse(f'{OWN}a'))}/s"
    info = cursor_format.decode(scene.servers.zookeeper.data(path))
    scene.servers.put(path, cursor_format.encode(replace(info, last_active=scene.now - 60 * MINUTE)))
    plan(scene)
    row = stored(scene)["a"]
    assert (row["ledger_id"], row["kept"]) == (ids[0], expected)


@pytest.mark.parametrize(
    ("cursor", "mode", "ordered", "code"),
    [
        (0, "delete_when_no_subscriptions", False, None),
        (None, "delete_when_no_subscriptions", False, "topic_would_be_deleted"),
        (0, "delete_when_subscriptions_caught_up", False, "topic_would_be_deleted"),
        (None, "delete_when_no_subscriptions", True, None),
    ],
)
def test_a_topic_that_would_be_deleted_is_left_alone_unless_ordered(
    scene: LoadScene, cursor: int | None, mode: str, ordered: bool, code: str | None
) -> None:
    scene.configure(brokerDeleteInactiveTopicsEnabled="true", brokerDeleteInactiveTopicsMode=mode)
    if ordered:
        scene.change(topic_deletion=(NAMESPACE,))
    scene.topic("a", 100, cursor=cursor)
    scene.servers.wait(1)
    plan(scene)
    assert stored(scene)["a"]["kept"] == code


def test_a_namespace_that_forbids_deletion_is_obeyed(scene: LoadScene) -> None:
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    scene.namespace(
        inactive_topic_policies={
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": False,
        }
    )
    scene.topic("a", 100)
    scene.servers.wait(1)
    assert [row["topic"] for row in plan(scene)[1]] == [f"{OWN}a"]


def test_a_topic_whose_subscriptions_would_expire_would_be_deleted_then(scene: LoadScene) -> None:
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    scene.namespace(subscription_expiration_time_minutes=30)
    scene.change(subscription_expiry=("acme",))
    assert kept(scene) == "topic_would_be_deleted"
