"""What keeps each ledger of a topic, and what would free it; over fakes."""

import json
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.formats import cursor, ledger_path
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.inspect.explain_topic import FREED_BY, TopicExplanation, explain_topic
from pulsar_lifecycle.lifecycle.held.open_ledgers import OpenCause
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.topic_load import LoadState
from tests.kit.command import run
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MB, NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import data_tags, deleted_copy


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
    assert {one.state for one in found.ledgers} == {LedgerState.CLOSED}


def test_a_cursor_that_stands_in_the_way_is_named_with_its_backlog(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390, 380, 370, cursor=1)
    scene.scan()
    found = explained(scene, "a")
    assert codes(found) == ["expired_by_time", "expired_by_time", "cursor", "last_ledger"]
    assert [one.held_by for one in found.ledgers] == [(), (), ("s",), ("s",)]
    (own,) = found.cursors
    assert own.name == "s"
    assert own.unacknowledged is not None
    assert MB <= own.unacknowledged < 2 * MB
    assert "unsubscribe" in found.ledgers[2].freed_by


@pytest.mark.parametrize(
    ("name", "moves"),
    [("pulsar.dedup", "snapshot"), ("__compaction", "compact"), ("pulsar.repl.west", "replication")],
)
def test_what_holds_a_ledger_and_is_no_subscription_is_moved_otherwise(
    scene: RetentionScene, name: str, moves: str
) -> None:
    ids = scene.topic("a", 400, 390, 380, cursor=2)
    path = f"{scene.servers.topic_path(Topic.parse(f'persistent://{NAMESPACE}/a'))}/{name}"
    scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, Position(ids[0], -1))))
    scene.scan()
    (held, *_) = explained(scene, "a").ledgers
    assert held.code is RetentionVerdict.CURSOR
    assert moves in held.freed_by
    assert "unsubscribe" not in held.freed_by


@pytest.mark.parametrize(
    ("clusters", "frees"),
    [
        (["fake", "west"], "its replication to the other cluster, once a broker has the topic loaded"),
        (["fake"], "do not name that cluster any more"),
        (["east"], "leave this cluster out"),
    ],
)
def test_a_replicator_that_sends_no_more_is_not_said_to_free_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: list[str], frees: str
) -> None:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.namespace(replication_clusters=clusters)
    ids = scene.topic("a", 400, 390, 380, cursor=2)
    path = f"{scene.servers.topic_path(Topic.parse(f'persistent://{NAMESPACE}/a'))}/pulsar.repl.west"
    scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, Position(ids[0], -1))))
    scene.scan()
    assert frees in explained(scene, "a").ledgers[0].freed_by


@pytest.mark.parametrize(("clusters", "warned"), [(["fake", "west"], True), (["fake"], False)])
def test_a_retention_that_what_is_yet_to_be_sent_hides_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: list[str], warned: bool
) -> None:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.configure(replicationStartAt="earliest")
    scene.namespace(replication_clusters=clusters)
    scene.topic("a", 400, 390)
    scene.scan()
    found = explained(scene, "a")
    assert (codes(found)[0] == "unknown_policy", bool(found.warnings)) == (warned, warned)


@pytest.mark.parametrize(
    ("loaded", "name", "frees"),
    [(False, "s", "a load"), (True, "s", "its broker, every"), (False, "pulsar.repl.west", "its replication")],
)
def test_what_is_past_its_ttl_is_freed_by_a_broker_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool, name: str, frees: str
) -> None:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.namespace(message_ttl_in_seconds=3 * 3600, replication_clusters=["fake", "west"])
    ids = scene.topic("a", 400, 90, 80)  # and an hour until the scan
    path = f"{scene.servers.topic_path(Topic.parse(f'persistent://{NAMESPACE}/a'))}/{name}"
    scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, Position(ids[0], -1))))
    scene.scan()
    old, young, _ = explained(scene, "a", loaded).ledgers
    assert (old.code, young.code) == (RetentionVerdict.CURSOR, RetentionVerdict.CURSOR)
    assert old.freed_by.startswith(frees)
    dropped = name != "s"  # whatever of it is past its TTL once it is loaded
    assert ("TTL" in old.freed_by, "TTL" in young.freed_by) == (True, dropped)


@pytest.mark.parametrize(
    ("retention", "loaded", "begins", "ends"),
    [
        ((-1, -1), False, "its consumers", "; and a finite retention policy"),
        ((-1, -1), True, "its broker, every", "; and a finite retention policy"),
        ((600, -1), False, "a load", "; and time"),
        ((10, -1), False, "a load", "`unsubscribe`"),
        ((600, 1), False, "a load", "`unsubscribe`"),
        ((0, -1), False, "a load", "`unsubscribe`"),
    ],
)
def test_what_retention_keeps_all_the_same_is_not_said_to_be_freed_by_consumers_or_ttl(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    retention: tuple[int, int],
    loaded: bool,
    begins: str,
    ends: str,
) -> None:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.namespace(
        message_ttl_in_seconds=3 * 3600,
        retention_policies={"retentionTimeInMinutes": retention[0], "retentionSizeInMB": retention[1]},
    )
    ids = scene.topic("a", 400, 90)
    path = f"{scene.servers.topic_path(Topic.parse(f'persistent://{NAMESPACE}/a'))}/s"
    scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, Position(ids[0], -1))))
    scene.scan()
    old, last = explained(scene, "a", loaded).ledgers
    assert old.code is RetentionVerdict.CURSOR
    assert (old.freed_by.startswith(begins), old.freed_by.endswith(ends)) == (True, True), old.freed_by
    assert ("finite" in last.freed_by) == (retention == (-1, -1))


def test_what_protects_the_whole_topic_is_its_code(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan(shadow_sources=frozenset({f"persistent://{NAMESPACE}/a"}))
    found = explained(scene, "a")
    assert set(codes(found)) == {Protection.SHADOW_SOURCE}
    assert found.protection
    assert found.protection.code is Protection.SHADOW_SOURCE


def test_a_loaded_topic_is_left_to_its_broker(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan()
    found = explained(scene, "a", loaded=True)
    assert codes(found) == [RetentionVerdict.EXPIRED_BY_TIME, RetentionVerdict.LAST_LEDGER]
    assert not any(one.goes for one in found.ledgers)
    assert found.ledgers[0].freed_by.startswith("its broker")


def test_what_keeps_the_ledgers_of_a_loaded_topic_is_told_too(scene: RetentionScene) -> None:
    scene.retention(-1, -1)
    scene.topic("a", 400, 390)
    scene.scan()
    assert codes(explained(scene, "a", loaded=True)) == [RetentionVerdict.FOREVER, RetentionVerdict.LAST_LEDGER]


@pytest.mark.parametrize(
    ("minutes", "cursor_at", "loaded", "frees"),
    [
        (10, None, False, [FREED_BY[RetentionVerdict.LAST_LEDGER]]),
        (0, None, False, ["a load (jobs plan_load and load_topics)"]),
        (0, 0, False, ["unsubscribe", "; and a newer ledger"]),
        (60, None, False, ["time; and a newer ledger"]),
        (-1, None, False, ["a finite retention policy; and a newer ledger"]),
        (0, None, True, ["which its broker begins when this one is full or too old"]),
        (0, 0, True, ["which its broker begins", "; and its consumers"]),
    ],
)
def test_a_load_alone_is_not_said_to_free_a_last_ledger_that_something_else_keeps(
    scene: RetentionScene, minutes: int, cursor_at: int | None, loaded: bool, frees: list[str]
) -> None:
    scene.retention(minutes, -1)
    scene.topic("a", 400, 390, cursor=cursor_at)
    scene.scan()
    last = explained(scene, "a", loaded).ledgers[-1]
    assert last.code is RetentionVerdict.LAST_LEDGER
    assert all(part in last.freed_by for part in frees), last.freed_by
    assert ("load_topics" in last.freed_by) == ("load_topics" in frees[0])
    assert ("begins then" in last.freed_by) == ("begins then" in frees[0])


@pytest.mark.parametrize(
    ("state", "entries", "frees"),
    [
        (LedgerState.CLOSED, 0, "nothing: "),
        (LedgerState.OPEN, 0, "nothing: "),
        (LedgerState.OPEN, 5, "its consumers"),
    ],
)
def test_a_load_is_not_said_to_free_a_last_ledger_that_is_empty_or_unread(
    scene: RetentionScene, state: LedgerState, entries: int, frees: str
) -> None:
    _, last = scene.topic("a", 400, 390, cursor=0)
    scene.servers.zookeeper.session().delete(ledger_path.ledger_path(last), -1)
    tags = data_tags(Topic.parse(f"persistent://{NAMESPACE}/a"))
    scene.servers.ledger(tags, state=state, ledger_id=last, entries=[b"1"] * entries)
    scene.scan()
    found = explained(scene, "a").ledgers[-1]
    assert (found.code, found.entries) == (RetentionVerdict.LAST_LEDGER, entries)
    assert found.freed_by.startswith(frees)


def test_what_keeps_a_topic_from_the_load_that_it_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.topic("a", 400, 390)
    scene.retention(0, 0)
    scene.scan()
    found = explained(scene, "a")
    assert "a load" in found.ledgers[-1].freed_by
    assert found.load_kept is None
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    assert explained(scene, "a").load_kept == LoadKept.TOPIC_WOULD_BE_DELETED
    scene.change(namespaces=())
    assert explained(scene, "a").load_kept == LoadKept.WAY_IS_METADATA
    scene.retention(-1, -1)
    assert explained(scene, "a").load_kept is None


def test_a_topic_that_a_broker_has_is_not_said_to_be_kept_from_a_load(scene: RetentionScene) -> None:
    scene.retention(0, 0)
    scene.topic("a", 400, 390)
    scene.scan(shadow_sources=frozenset({f"persistent://{NAMESPACE}/a"}))
    assert explained(scene, "a").load_kept == Protection.SHADOW_SOURCE
    assert explained(scene, "a", loaded=True).load_kept is None


def test_a_partition_of_a_shadow_topic_is_said_to_be_kept_from_a_load(scene: RetentionScene) -> None:
    scene.retention(0, 0)
    scene.topic("a-partition-0", 400, 390)
    document = {"partitions": 1, "properties": {SHADOW_SOURCE: f"persistent://{NAMESPACE}/source"}}
    scene.servers.put(f"/admin/partitioned-topics/{NAMESPACE}/persistent/a", json.dumps(document).encode())
    scene.scan()
    assert explained(scene, "a-partition-0").load_kept == Protection.SHADOW_TOPIC


def test_the_bytes_of_an_open_ledger_are_not_taken_for_none(scene: RetentionScene) -> None:
    _, second = scene.topic("a", 400, 390, cursor=0)
    scene.servers.zookeeper.session().delete(ledger_path.ledger_path(second), -1)
    scene.servers.ledger(
        data_tags(Topic.parse(f"persistent://{NAMESPACE}/a")), state=LedgerState.OPEN, ledger_id=second
    )
    scene.servers.reader.failures[second] = Unavailable("no bookie answers")
    scene.scan()
    found = explained(scene, "a")
    assert [one.bytes is None for one in found.ledgers] == [False, True]
    (cursor,) = found.cursors
    assert cursor.unsized == 1


def test_a_ledger_that_nobody_has_is_warned_of(scene: RetentionScene) -> None:
    first, _ = scene.topic("a", 400, 390)
    scene.servers.zookeeper.session().delete(ledger_path.ledger_path(first), -1)
    scene.scan()
    assert f"ledger {first} is listed" in explained(scene, "a").warnings[0]


def test_that_policies_are_kept_elsewhere_is_warned_of_once(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan()
    admin = scene.servers.admin
    admin.configuration = {one: {"topicPoliciesServiceClassName": "com.acme.Own"} for one in admin.broker_ids}
    found = explained(scene, "a")
    assert codes(found)[0] == RetentionVerdict.UNKNOWN_POLICY
    (warning,) = found.warnings
    assert "com.acme.Own" in warning


def test_why_the_policies_of_its_namespace_are_not_known_is_warned_of(scene: RetentionScene) -> None:
    scene.topic("a", 400, 390)
    scene.scan()
    events = Topic.parse(f"persistent://{NAMESPACE}/{CHANGE_EVENTS}")
    ledger = scene.servers.ledger(data_tags(events))
    scene.servers.topic(events, [ledger], offloaded={ledger: deleted_copy()})
    found = explained(scene, "a")
    assert codes(found)[0] == RetentionVerdict.UNKNOWN_POLICY
    (warning,) = found.warnings
    assert warning.startswith(f"namespace {NAMESPACE}: ")
    assert CHANGE_EVENTS in warning


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
    assert {FREED_BY[code] for code in GOING} == {"jobs plan_retention and apply_retention"}


@pytest.mark.parametrize("loaded", [True, False])
def test_a_newer_ledger_alone_is_not_said_to_free_an_open_one_that_is_kept_for_ever(
    scene: RetentionScene, loaded: bool
) -> None:
    scene.retention(-1, -1)
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    scene.servers.topic(topic, [scene.servers.ledger(data_tags(topic), state=LedgerState.OPEN, entries=[b"x"])])
    scene.scan()
    (last,) = explained(scene, "a", loaded=loaded).ledgers
    assert FREED_BY[RetentionVerdict.FOREVER] in last.freed_by
    assert "a load" not in last.freed_by


def test_what_leaves_the_last_ledger_open_is_named(scene: RetentionScene) -> None:
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    ledger = scene.servers.ledger(data_tags(topic), state=LedgerState.OPEN, entries=[b"x" * 1000] * 3)
    scene.servers.topic(topic, [ledger])
    scene.scan()
    found = explained(scene, "a")
    assert found.open_causes == (OpenCause.NOT_LOADED, OpenCause.SETTINGS_UNKNOWN)
    assert (found.ledgers[-1].bytes, found.ledgers[-1].entries) == (3000, 3)
    scene.topic("closed", 100)
    scene.scan()
    assert explained(scene, "closed").open_causes == ()
    log = f"persistent://{NAMESPACE}/a-s__transaction_pending_ack"  # its broker has it, and does not list it
    ledger = scene.servers.ledger(data_tags(Topic.parse(log)), state=LedgerState.OPEN)
    scene.servers.topic(Topic.parse(log), [ledger])
    scene.scan()
    assert explained(scene, "a-s__transaction_pending_ack").open_causes == (OpenCause.SETTINGS_UNKNOWN,)


def test_a_broker_that_does_not_answer_is_warned_of(scene: RetentionScene) -> None:
    scene.topic("a", 200, 20)
    scene.scan()
    admin, topic = scene.servers.admin, Topic.parse(f"persistent://{NAMESPACE}/a")
    said = Brokers({}, admin.stats_interval_ms())
    admin.broker_ids = [*admin.broker_ids, "unanswered:8080"]
    admin.unreachable = {"unanswered:8080"}
    found = explain_topic(scene.cluster, topic, said)
    assert codes(found) == [RetentionVerdict.EXPIRED_BY_TIME, "last_ledger"]
    assert [one for one in found.warnings if "unanswered:8080" in one]
    admin.unreachable = {*admin.broker_ids}
    found = explain_topic(scene.cluster, topic, said)
    assert codes(found)[0] == RetentionVerdict.UNKNOWN_POLICY
    (warning,) = found.warnings  # the namespace's policies could be read
    assert "no broker answers" in warning


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_the_command_ends_as_with_a_finding_where_a_warning_says_what_is_not_known(
    scene: RetentionScene, as_json: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    scene.topic("a", 200, 20)
    scene.scan()
    asked = ("--config", str(scene.file), "explain", f"persistent://{NAMESPACE}/a", *as_json)
    assert run(*asked, connect=scene.cluster.connect) == 0
    assert capsys.readouterr().err == ""
    scene.servers.admin.unreachable = {*scene.servers.admin.broker_ids}
    assert run(*asked, connect=scene.cluster.connect) == 1
    assert "the warnings above say" in capsys.readouterr().err
