"""What keeps the records of a partition: each rule by its code, and its way out; nothing is written then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Lacks, Options, Timestamp
from pulsar_lifecycle.delete_records.topic_view import clusters_of
from pulsar_lifecycle.errors import Failed, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.topics import low_watermark
from pulsar_lifecycle.topics.policies import CLUSTERS, NamespacePolicies, Unknown, Unreadable
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.records_table import SHOWN
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.records.records_scene import HOUR, RecordsScene
from tests.kit.records.topic_times import sent
from tests.kit.simulated.cluster import compacted_tags

MOVE = Options(move_cursors=True)
TOPIC, OTHER = map(Topic.parse, ("persistent://acme/orders/placed-partition-0", "persistent://acme/orders/other"))


def replicated(scene: RecordsScene) -> None:
    scene.cursor("pulsar.repl.eu", 1, 3)


def to_be_replicated(scene: RecordsScene) -> None:
    scene.cluster.put("/admin/policies/acme/orders", b'{"replication_clusters": ["fake", "eu"]}')


def replicated_elsewhere_before(scene: RecordsScene) -> None:
    to_be_replicated(scene)
    scene.cursor("pulsar.repl.us", 4, 9)


def replicated_to_others_alone(scene: RecordsScene) -> None:
    scene.cluster.put("/admin/policies/acme/orders", b'{"replication_clusters": ["eu", "us"]}')
    scene.cursor("pulsar.repl.us", 4, 9)


def replicated_by_cursors_of_another_name(scene: RecordsScene) -> None:
    scene.cluster.admin.configuration = {"broker-1:8080": {"replicatorPrefix": "acme.repl"}}
    scene.cursor("acme.repl.eu", 1, 3)


def unknown_to_its_brokers(scene: RecordsScene) -> None:
    scene.cluster.admin.configuration = {"broker-1:8080": {"clusterName": "", "replicatorPrefix": "pulsar.repl"}}
    scene.cluster.put("/admin/policies/acme/orders", b'{"replication_clusters": ["fake"]}')


def deduplicated(scene: RecordsScene) -> None:
    scene.cursor("pulsar.dedup", 1, 3)


def compacted(scene: RecordsScene) -> None:
    ledger = scene.cluster.ledger(compacted_tags(scene.topic))
    scene.cluster.cursor(scene.topic, "__compaction", at=scene.ids[scene.topic][-1], compacted=ledger)


def loaded(scene: RecordsScene) -> None:
    scene.load()


def delayed(scene: RecordsScene) -> None:
    ids = scene.ids[scene.topic]
    scene.cursor("s", 0, 3)
    info = ManagedCursorInfo(
        -1, Position(ids[0], 3), cursor_properties={f"{cursor_format.BUCKET_PREFIX}_{ids[0]}_{ids[1]}": "77"}
    )
    scene.cluster.put(f"{scene.cluster.topic_path(scene.topic)}/s", cursor_format.encode(info))


def acknowledging_in_transactions(scene: RecordsScene) -> None:
    scene.cursor("s", 0, 3)
    scene.cluster.put(f"{scene.cluster.topic_path(scene.topic)}-s__transaction_pending_ack", b"")


def with_the_low_watermark_of_another_topic(scene: RecordsScene) -> None:
    path = scene.cluster.topic_path(scene.topic)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    copied = low_watermark.kept_by_broker(MessagePosition(scene.ids[scene.topic][-1] + 1, 0))
    scene.cluster.put(path, managed_ledger.encode(replace(info, properties=copied)))
    scene.cluster.wait(1)


def test_no_way_is_named_that_is_refused() -> None:
    scene = RecordsScene()
    acknowledging_in_transactions(scene)
    (row,) = scene.plan(scene.at(2, 3))
    assert (row["error"], "--move-cursors" in row["reason"]) == (RecordsError.CURSOR_BELOW, False)
    assert "subscription s acknowledges in transactions" in row["reason"]


@pytest.mark.parametrize(
    ("planted", "options", "error"),
    [
        (lambda scene: scene.cursor("s", 1, 3), Options(), RecordsError.CURSOR_BELOW),
        (replicated, MOVE, RecordsError.REPLICATION_BELOW),
        (to_be_replicated, Options(), RecordsError.REPLICATION_BELOW),
        (replicated_elsewhere_before, Options(), RecordsError.REPLICATION_BELOW),
        (replicated_to_others_alone, Options(), RecordsError.REPLICATION_BELOW),
        (replicated_by_cursors_of_another_name, MOVE, RecordsError.REPLICATION_BELOW),
        (unknown_to_its_brokers, Options(), RecordsError.UNREAD),
        (deduplicated, MOVE, RecordsError.SYSTEM_CURSOR_BELOW),
        (compacted, MOVE, RecordsError.COMPACTED_VIEW),
        (delayed, MOVE, RecordsError.DELAYED_BELOW),
        (acknowledging_in_transactions, MOVE, RecordsError.TRANSACTION_BELOW),
        (loaded, Options(), RecordsError.LOADED),
        (with_the_low_watermark_of_another_topic, Options(), RecordsError.FOREIGN_WATERMARK),
        (lambda scene: None, Options(exact=True), RecordsError.NOT_EXACT),
    ],
)
def test_each_rule_has_its_code(planted: Callable[[RecordsScene], None], options: Options, error: RecordsError) -> None:
    scene = RecordsScene()
    planted(scene)
    version = scene.cluster.zookeeper.stat(scene.cluster.topic_path(scene.topic))
    (row,) = scene.plan(scene.at(2, 3), options=options)
    assert row["error"] == error, row
    assert row["reason"]
    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, error)
    assert scene.cluster.zookeeper.stat(scene.cluster.topic_path(scene.topic)) == version
    assert not scene.cluster.deletion_topics.waiting


@pytest.mark.parametrize("begun", [False, True])
def test_a_compacted_view_holds_messages_below_where_no_ledger_goes_too(begun: bool) -> None:
    """Brokers trim the ledgers behind it: then it alone has what is below the first position that is listed."""
    scene = RecordsScene()
    path = scene.cluster.topic_path(scene.topic)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=info.ledgers[1:])))
    scene.cluster.wait(1)
    compacted(scene)
    (row,) = scene.plan(scene.at(1, 3 if begun else 0))
    assert (row["error"], row["ledgers"]) == (RecordsError.COMPACTED_VIEW, []), row
    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, RecordsError.COMPACTED_VIEW)
    assert not scene.properties()


def test_only_a_broker_that_has_the_topic_moves_the_cursor_of_deduplication() -> None:
    scene = RecordsScene()
    deduplicated(scene)
    (row,) = scene.plan(scene.at(2, 0))
    assert "have a client read it" in row["reason"], row
    scene.load(broker="b1:8080")
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], "have a client" in row["reason"]) == (RecordsError.SYSTEM_CURSOR_BELOW, False), row


def test_a_low_watermark_that_is_copied_after_the_plan_lets_nothing_go() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 3))
    with_the_low_watermark_of_another_topic(scene)
    (result,) = scene.apply()
    assert result.error is RecordsError.FOREIGN_WATERMARK
    assert scene.listed() == scene.ids[scene.topic]


def of_unknown_length(scene: RecordsScene) -> None:
    scene.load()
    scene.cluster.reader.failures[scene.ids[scene.topic][-1]] = Unavailable("bookie b1: timed out")


def with_a_cursor_that_cannot_be_read(scene: RecordsScene) -> None:
    scene.cursor("s", 4, 9)
    scene.cluster.zookeeper.unreadable.add(f"{scene.cluster.topic_path(scene.topic)}/s")


def unreadable(scene: RecordsScene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.topic_path(scene.topic))


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        (of_unknown_length, Code.LENGTH_UNKNOWN),
        (with_a_cursor_that_cannot_be_read, Code.CURSORS_UNREAD),
        (unreadable, Code.TOPIC_UNREAD),
    ],
)
def test_what_cannot_be_read_has_the_code_of_what_it_is(planted: Callable[[RecordsScene], None], code: Code) -> None:
    scene = RecordsScene()
    planted(scene)
    (row,) = scene.plan(END)
    assert (row["error"], row["code"]) == (RecordsError.UNREAD, code), row
    assert ("have its topic unloaded" in row["reason"]) == (code is Code.LENGTH_UNKNOWN)


def test_what_is_before_a_last_ledger_of_unknown_length_goes_and_nothing_inside_it() -> None:
    scene = RecordsScene()
    scene.writes_loaded = True
    scene.load()
    last = scene.ids[scene.topic][-1]
    scene.cluster.reader.payloads[last] = [sent(HOUR + 1000 + at) for at in range(4)]
    scene.plan(scene.at(5, 2))
    scene.cluster.reader.failures[last] = Unavailable("bookie b1: timed out")
    (result,) = scene.apply()  # of a plan that knew the length
    assert (result.error, scene.listed()) == (RecordsError.UNREAD, scene.ids[scene.topic])
    for offset in (END, scene.at(5, 2), Timestamp(HOUR + 2000)):
        (row,) = scene.plan(offset)
        assert (row["error"], row["code"]) == (RecordsError.UNREAD, Code.LENGTH_UNKNOWN), row
    for offset in (Timestamp(HOUR + 25), scene.at(2, 5), scene.at(5, 0)):
        (row,) = scene.plan(offset, options=Options(exact=offset == scene.at(5, 0)))
        assert row["error"] is None, row
        scene.apply()
        assert scene.properties()[LOW_WATERMARK] == row["low_watermark"]
    assert scene.listed() == [last]
    del scene.cluster.reader.failures[last]
    (row,) = scene.plan(scene.at(5, 2))
    scene.apply()
    scene.cluster.reader.failures[last] = Unavailable("bookie b1: timed out")
    (row,) = scene.plan(scene.at(5, 0))  # the low watermark is beyond: it is none of another topic
    assert row["code"] == Code.LENGTH_UNKNOWN


def test_a_position_that_the_low_watermark_is_beyond_is_no_way_to_be_exact() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 3))
    scene.apply()
    (row,) = scene.plan(scene.at(2, 0), options=Options(exact=True))
    assert (row["error"], row["low_watermark"]) == (RecordsError.NOT_EXACT, str(scene.at(2, 3)))
    assert row["reason"].endswith("ask for its end")


def test_a_tenant_that_denies_us_is_that_partitions_error() -> None:
    scene = RecordsScene()
    scene.cluster.admin.denied = {"acme"}
    (row,) = scene.plan(scene.at(2, 3))
    assert (row["error"], row["low_watermark"]) == (RecordsError.NOT_AUTHORIZED, None)


@pytest.mark.parametrize(
    ("policies", "error"),
    [(b"{}", RecordsError.TIMEOUT), (b"{rubbish", RecordsError.UNREAD), (b"", RecordsError.UNREAD)],
    ids=["whole", "rubbish", "empty"],
)
def test_a_broker_that_cannot_answer_for_its_policies_is_not_called_slow(policies: bytes, error: RecordsError) -> None:
    scene = RecordsScene()
    scene.plan(END)
    scene.cluster.put("/admin/policies/acme/orders", policies)
    scene.cluster.admin.check_admin = failing  # type: ignore[method-assign]
    applied = scene.apply()[0].error
    assert (applied, scene.plan(END)[0]["error"]) == (error, error)


def failing(topic: Topic) -> None:
    raise Failed(f"{topic}: 500")


def test_a_name_that_no_broker_can_be_asked_about_keeps_no_other_topic() -> None:
    """Clients can publish to it; consumed_records.subscriptions may name its namespace."""
    odd = Topic.parse("persistent://acme/orders/a\0b")
    scene = RecordsScene()
    scene.topics.insert(0, odd)
    row, other = scene.plan(END, scene.at(2, 3, scene.topics[1]))
    assert (row["error"], row["code"]) == (RecordsError.BROKER_FAILED, RecordsError.BROKER_FAILED)
    assert other["error"] is None


def test_a_role_of_one_tenant_alone_is_an_error_of_each_partition() -> None:
    """Its broker tells such a role nothing of what is loaded."""
    other = Topic.parse("persistent://other/orders/placed")
    scene = RecordsScene()
    scene.topics.append(other)
    admin = scene.cluster.admin
    scene.plan(scene.at(2, 3))
    admin.superuser, admin.denied = False, {"other"}
    (result,) = scene.apply()
    assert (result.error, scene.listed()) == (RecordsError.NOT_AUTHORIZED, scene.ids[scene.topic])
    own, foreign = scene.plan(scene.at(2, 3), END)
    assert (own["error"], own["czxid"]) == (RecordsError.NOT_AUTHORIZED, None)
    assert own["code"] == Code.BROKERS_DENIED
    assert "what they have loaded" in own["reason"]
    assert (foreign["error"], foreign["code"]) == (RecordsError.NOT_AUTHORIZED, Code.TENANT_DENIED)
    assert "an admin of tenant other" in foreign["reason"]


def test_a_partition_that_is_not_there() -> None:
    scene = RecordsScene()
    scene.cluster.remove(scene.cluster.topic_path(scene.topic))
    (row,) = scene.plan(END)
    assert row["error"] == RecordsError.UNKNOWN_PARTITION


def test_a_cursor_at_the_last_message_below_keeps_nothing() -> None:
    scene = RecordsScene()
    scene.cursor("s", 1, 9)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["moved_cursors"]) == (None, [])


def test_every_cursor_below_is_in_the_row_with_its_backlog() -> None:
    scene = RecordsScene()
    names = [f"s{number}" for number in range(SHOWN + 2)]
    for number, name in enumerate(names):
        scene.cursor(name, 1, number)
    (row,) = scene.plan(scene.at(2, 3))
    assert row["error"] == RecordsError.CURSOR_BELOW
    found = {one["cursor"]: one["entries"] for one in row["moved_cursors"]}
    assert found == {name: 12 - number for number, name in enumerate(names)}
    assert "s4 at 2:4 (8 entries) and 2 more, which a plan with --json names in moved_cursors: " in row["reason"]


def test_a_cursor_below_is_moved_behind_the_last_message_below_it() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cursor("s", 0, 3)
    scene.cluster.admin.topics[scene.topic] = {"s": FakeSubscription()}
    moved: list[Position] = []

    def move(topic: object, name: str, past: Position) -> None:
        moved.append(past)
        scene.cursor("s", ids.index(past.ledger_id), past.entry_id)

    scene.cluster.admin.on_move = move
    (row,) = scene.plan(scene.at(2, 0), options=MOVE)
    assert (row["error"], row["moved_cursors"]) == (None, [{"cursor": "s", "position": f"{ids[0]}:3", "entries": 16}])
    scene.apply()
    assert moved == [Position(ids[1], 9)]
    begun = next(row for row in scene.cluster.journal.rows if row.phase == Phase.MOVE_CURSOR)
    assert (begun.action, json.loads(begun.detail)["old_position"]) == (Action.DELETE_RECORDS, f"{ids[0]}:3")
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


def test_nothing_goes_before_a_moved_cursor_is_persisted() -> None:
    scene = RecordsScene()
    scene.cursor("s", 0, 3)
    scene.cluster.admin.topics[scene.topic] = {"s": FakeSubscription()}
    scene.plan(scene.at(2, 0), options=MOVE)
    (result,) = scene.apply()  # its broker has moved it in memory alone
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Code.SERVER_FAILED)
    assert "move subscription s" in result.reason
    assert (scene.listed(), scene.properties()) == (scene.ids[scene.topic], {})
    scene.cluster.clock.on_sleep = lambda seconds: scene.cursor("s", 1, 9)
    (result,) = scene.apply()
    assert result.code == Lacks.DELETION
    assert scene.listed() == scene.ids[scene.topic][2:]


def test_a_role_that_lost_its_rights_after_the_plan_deletes_nothing() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.cluster.admin.denied = {"acme"}
    (result,) = scene.apply()
    assert (result.error, result.low_watermark) == (RecordsError.NOT_AUTHORIZED, -1)
    assert (scene.listed(), scene.properties()) == (scene.ids[scene.topic], {})
    scene.cluster.admin.denied = set()
    scene.apply()
    assert scene.listed() == scene.ids[scene.topic][2:]


def test_a_subscription_that_came_after_the_plan_keeps_its_messages() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.cursor("new", 0, -1)
    (result,) = scene.apply()
    assert result.error is RecordsError.CURSOR_BELOW
    assert scene.listed() == scene.ids[scene.topic]


def test_a_topic_that_is_to_be_replicated_since_its_plan_stays() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    to_be_replicated(scene)
    assert scene.apply()[0].error is RecordsError.REPLICATION_BELOW
    assert scene.listed() == scene.ids[scene.topic]
    scene.cursor("pulsar.repl.eu", 4, 9)
    scene.apply()
    assert scene.listed() == scene.ids[scene.topic][2:]


@pytest.mark.parametrize(("second", "error"), [("fake", None), ("eu", RecordsError.UNREAD)])
def test_brokers_must_agree_on_their_clusters_name(second: str, error: RecordsError | None) -> None:
    scene = RecordsScene()
    scene.cluster.admin.broker_ids.append("broker-2:8080")
    scene.cluster.admin.configuration = {"broker-2:8080": {"clusterName": second, "replicatorPrefix": "pulsar.repl"}}
    scene.cluster.put("/admin/policies/acme/orders", b'{"replication_clusters": ["fake"]}')
    (row,) = scene.plan(scene.at(2, 0))
    assert row["error"] == error, row


@pytest.mark.parametrize("own", [frozenset({"here", "eu"}), frozenset({"here"})])
def test_clusters_that_a_topic_names_go_before_those_of_its_namespace(own: frozenset[str]) -> None:
    said = NamespacePolicies({TOPIC.partitioned_parent: TopicPolicies({CLUSTERS: sorted(own)})})
    of_namespace = frozenset({"here", "us"})
    assert clusters_of(TOPIC, of_namespace, said) == own
    assert clusters_of(OTHER, of_namespace, said) == of_namespace


@pytest.mark.parametrize("said", ["eu", ["eu", 7], {"eu": 1}])
def test_a_topic_whose_clusters_are_no_list_is_refused(said: Any) -> None:
    own = NamespacePolicies({TOPIC.partitioned_parent: TopicPolicies({CLUSTERS: said})})
    found = clusters_of(TOPIC, frozenset({"here"}), own)
    assert isinstance(found, Refusal)
    assert found.error is RecordsError.UNREAD


@pytest.mark.parametrize(
    ("clusters", "policies", "error"),
    [
        (("fake", "global"), b"{}", None),
        (("fake", "global"), b'{"replication_clusters": ["fake"]}', None),
        (("fake", "global"), b'{"replication_clusters": ["fake", "eu"]}', RecordsError.REPLICATION_BELOW),
        (("fake", "eu"), b'{"replication_clusters": ["fake"]}', RecordsError.UNREAD),
        ((), b'{"replication_clusters": ["fake"]}', RecordsError.UNREAD),
    ],
)
def test_policies_that_cannot_be_known_matter_where_there_is_another_cluster(
    clusters: tuple[str, ...], policies: bytes, error: RecordsError | None
) -> None:
    scene = RecordsScene()
    for name in clusters:
        scene.cluster.put(f"/admin/clusters/{name}", b"{}")
    scene.cluster.put("/admin/policies/acme/orders", policies)
    scene.cluster.put("/managed-ledgers/acme/orders/persistent/__change_events", b"\xffno topic")
    (row,) = scene.plan(scene.at(2, 0))
    assert row["error"] == error, row
    (result,) = scene.apply()
    assert result.error is (error or RecordsError.TIMEOUT), result


def test_a_topic_whose_policies_cannot_be_known_is_refused() -> None:
    unknown = NamespacePolicies(unknown=Unknown(Unreadable.CHANGING, "its topic"))
    found = clusters_of(TOPIC, frozenset(), unknown)
    assert isinstance(found, Refusal)
    assert found.error is RecordsError.UNREAD
