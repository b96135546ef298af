"""What is said of references that are not in a z-node, when the ledger that should hold them answers oddly."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    CorruptFormat,
    Failed,
    LifecycleError,
    NotFound,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.scan.references import StoredReference
from pulsar_lifecycle.scan.stored_references import (
    OTHER_TOPICS,
    broker_references,
    compaction_references,
    other_topics,
    schema_references,
)
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.gaps import GapCode
from pulsar_lifecycle.values.owner_names import parent_of
from pulsar_lifecycle.values.tables import Problem
from tests.kit.simulated.cluster import (
    BROKER,
    SimulatedCluster,
    bucket_tags,
    compacted_tags,
    cursor_tags,
    data_tags,
    schema_tags,
)
from tests.kit.simulated.pipeline import Scan, scan

TOPIC = Topic.parse("persistent://acme/orders/placed")
TAGS = cursor_tags(TOPIC, "__compaction")


def references(cluster: SimulatedCluster, ledger: int) -> list[StoredReference]:
    cursors = [(TOPIC.managed_ledger, "/path", ledger)]
    return compaction_references(cluster.open_store(), cluster.reader, cursors, "/ledgers")


def test_a_compaction_cursor_ledger_that_was_never_written_holds_no_reference() -> None:
    """Every bookie says NO_LEDGER of it; the topic's other orphans need not be kept for that."""
    cluster = SimulatedCluster()
    fresh = cluster.ledger(TAGS, state=LedgerState.OPEN, entries=[])
    assert references(cluster, fresh) == []
    named, leak = cluster.ledger(compacted_tags(TOPIC)), cluster.ledger(compacted_tags(TOPIC))
    cluster.topic(TOPIC)
    cluster.cursor(TOPIC, "__compaction", ledger=fresh, compacted=named)
    cluster.wait(8 * 24)
    found = scan(cluster)
    assert found.epoch.gaps == ()
    assert found.finding(leak) == Finding.ORPHAN
    assert found.finding(named) is None


def test_a_compaction_cursor_ledger_that_was_closed_without_an_entry_is_damaged() -> None:
    cluster = SimulatedCluster()
    (one,) = references(cluster, cluster.ledger(TAGS, entries=[]))
    assert one.problem is Problem.DAMAGED


@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.IN_RECOVERY])
def test_a_compaction_cursor_ledger_that_bookies_lost_is_gone(state: LedgerState) -> None:
    cluster = SimulatedCluster()
    lost = cluster.ledger(TAGS, state=state)
    cluster.reader.failures[lost] = NotFound("every replica says that the ledger is gone")
    (one,) = references(cluster, lost)
    assert one.problem is Problem.GONE


def test_an_open_one_with_an_earlier_ensemble_was_written() -> None:
    cluster = SimulatedCluster()
    lost = cluster.ledger(TAGS, state=LedgerState.OPEN, entries=[])
    segments = (Segment(0, ("bookie-1:3181",)), Segment(7, ("bookie-2:3181",)))
    metadata = LedgerMetadata(LedgerState.OPEN, 1, 1, 1, segments, 0, -1, DigestType.CRC32C)
    cluster.put(cluster.path(lost), ledger_metadata.encode(metadata))
    (one,) = references(cluster, lost)
    assert one.problem is Problem.GONE


def test_one_without_a_z_node_is_gone() -> None:
    (one,) = references(SimulatedCluster(), 77)
    assert one.problem is Problem.GONE


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (CorruptFormat("entry", 0, "its digest"), Problem.DAMAGED),
        (StoreError("every replica answered and none has it"), Problem.DAMAGED),
        (NotFound("every replica says that the ledger is gone"), Problem.GONE),
        (Unavailable("no answer"), Problem.UNREAD),
        (Failed("it never finished"), Problem.UNREAD),
        (AccessDenied("the bookie demands authentication"), Problem.UNREAD),
    ],
)
def test_only_what_every_replica_answered_is_lost(error: LifecycleError, problem: Problem) -> None:
    cluster = SimulatedCluster()
    cursor = cluster.ledger(TAGS, entries=[cluster.position_entry(7)])
    schema = cluster.ledger(schema_tags("acme/orders/placed"), entries=[cluster.schema_entry()])
    cluster.reader.failures = {cursor: error, schema: error}
    (one,) = references(cluster, cursor)
    locator = ("acme/orders/placed", "/schemas/acme/orders/placed", [(0, schema, 0)])
    (other,) = schema_references(cluster.open_store(), cluster.reader, [locator], "/ledgers")
    assert [w.problem for w in (one, other)] == [problem, problem]
    assert [w.keeps_owner for w in (one, other)] == [problem is not Problem.UNREAD] * 2
    assert (one.referrer, one.held_in, one.entry_id) == ("/path", cursor, 0)
    assert (other.referrer, other.held_in, other.entry_id) == ("/schemas/acme/orders/placed", schema, 0)


def test_bytes_that_are_no_entry_are_damage_and_a_ledger_that_may_not_be_read_is_none() -> None:
    cluster = SimulatedCluster()
    garbled = cluster.ledger(TAGS, entries=[cluster.position_entry(), b"\xff\xff\xff"])
    (one,) = references(cluster, garbled)
    assert (one.problem, one.held_in, one.entry_id) == (Problem.DAMAGED, garbled, 1)
    cluster.zookeeper.unreadable.add(cluster.path(garbled))
    (one,) = references(cluster, garbled)
    assert one.problem is Problem.UNREAD


def test_damage_keeps_its_owner_and_what_it_was_once_called_and_nobody_else() -> None:
    """A compacted ledger that only the damaged entry named, made before the z-nodes were moved to another name."""
    cluster = SimulatedCluster()
    old, other = (Topic.parse(f"persistent://acme/orders/{name}") for name in ("old", "other"))
    data, compacted = cluster.ledger(data_tags(old)), cluster.ledger(compacted_tags(old))
    damaged = cluster.ledger(TAGS, entries=[b"\xff\xff\xff"])
    mine, leak = cluster.ledger(compacted_tags(TOPIC)), cluster.ledger(compacted_tags(other))
    cluster.topic(TOPIC, [data])
    cluster.cursor(TOPIC, "__compaction", ledger=damaged)
    cluster.topic(other)
    cluster.wait(8 * 24)
    found = scan(cluster)
    assert found.epoch.gaps == ()
    findings = [found.finding(ledger) for ledger in (compacted, mine, leak)]
    assert findings == [Finding.KEPT, Finding.KEPT, Finding.ORPHAN]


# ------------------------------------------------------------------------------------------ what brokers have in memory

PARTITION = Topic.parse("persistent://acme/orders/paid-partition-1")
OTHER = Topic.parse("persistent://acme/orders/other")
BROKEN = Failed("GET /admin/v2/persistent/acme/orders/paid-partition-1/internalStats: 500: the schema locator")


def loaded(cluster: SimulatedCluster, *topics: Topic, compaction: bool = True) -> None:
    """Topics that a broker has, with an open last ledger."""
    for topic in topics:
        cluster.topic(topic, [cluster.ledger(data_tags(topic), state=LedgerState.OPEN)])
        cluster.load(topic)
        if compaction:
            cluster.cursor(topic, "__compaction")


def asked(error: LifecycleError, *, others: LifecycleError | None = None) -> list[StoredReference]:
    """What is said of a topic that is answered with ``error``, and another one with ``others``, if anything."""
    cluster = SimulatedCluster()
    loaded(cluster, PARTITION, OTHER)
    cluster.admin.unanswered[PARTITION] = error
    if others:
        cluster.admin.unanswered[OTHER] = others
    return broker_references(cluster.admin, [(str(PARTITION), BROKER)], {BROKER: [str(PARTITION), str(OTHER)]})


@pytest.mark.parametrize("error", [BROKEN, StoreError("the answer is not what Pulsar 4.0 sends"), NotFound("404")])
def test_what_a_broker_fails_at_saying_of_one_topic_alone_is_that_topics_and_its_schemas(error: LifecycleError) -> None:
    found = asked(error)
    assert [(w.kind, w.owner) for w in found] == [("R3", PARTITION.managed_ledger), ("R5", "acme/orders/paid")]
    assert all(w.keeps_owner for w in found)
    assert {w.referrer for w in found} == {f"/managed-ledgers/{PARTITION.managed_ledger}"}
    assert {(w.problem, w.error) for w in found} == {(Problem.UNANSWERED, str(error))}


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (AccessDenied("403"), None),
        (NotFound("404"), BROKEN),
        (Conflict("409"), None),
        (Unavailable("no connection"), None),
        (ConfigError("no such token file"), None),
        (StoreError("the answer is not what Pulsar 4.0 sends"), BROKEN),
    ],
)
def test_what_is_about_us_or_about_the_broker_is_unread(error: LifecycleError, others: LifecycleError | None) -> None:
    (one,) = asked(error, others=others)
    assert not one.keeps_owner
    assert (one.problem, one.error) == (Problem.UNREAD, f"broker memory of {PARTITION}: {error}")


@pytest.mark.parametrize("others", [BROKEN, AccessDenied("403"), Unavailable("no connection")])
def test_a_broker_that_says_so_of_no_topic_and_answers_otherwise_is_well(others: LifecycleError) -> None:
    assert [w.keeps_owner for w in asked(BROKEN, others=others)] == [True, True]


def test_a_broker_with_nothing_but_partitions_of_one_mute_topic_is_asked_otherwise() -> None:
    cluster = SimulatedCluster()
    partitions = [Topic.parse(f"persistent://acme/orders/paid-partition-{n}") for n in range(8)]
    loaded(cluster, *partitions)
    cluster.admin.unanswered = dict.fromkeys(partitions, BROKEN)
    names = [(str(topic), BROKER) for topic in partitions]
    found = broker_references(cluster.admin, names, other_topics(names))
    assert {w.owner for w in found} == {"acme/orders/paid", *(t.managed_ledger for t in partitions)}
    assert {(w.problem, w.error) for w in found} == {(Problem.UNANSWERED, str(BROKEN))}
    cluster.admin.failing.add(BROKER)
    assert {w.keeps_owner for w in broker_references(cluster.admin, names, other_topics(names))} == {False}


def test_only_the_broker_of_a_topic_speaks_for_it() -> None:
    cluster = SimulatedCluster()
    loaded(cluster, PARTITION, OTHER)
    cluster.admin.unanswered[PARTITION] = BROKEN
    cluster.admin.failing.add(BROKER)
    both = [(str(PARTITION), BROKER), (str(OTHER), "broker-2:8080")]
    assert [w.keeps_owner for w in broker_references(cluster.admin, both, other_topics(both))] == [False]
    assert [w.keeps_owner for w in broker_references(cluster.admin, [(one, BROKER) for one, _ in both], {})] == [
        True,
        True,
    ]


def test_sampled_topics_are_few_and_no_partitions_of_one_topic() -> None:
    partitions = [(f"persistent://acme/orders/p-partition-{n}", BROKER) for n in range(99)]
    others = [(f"persistent://acme/orders/{n}", BROKER) for n in range(99)]
    found = other_topics([*partitions, *others, (str(OTHER), "broker-2:8080")])
    assert len({parent_of(topic) for topic in found[BROKER]}) == OTHER_TOPICS + 1
    assert found["broker-2:8080"] == [str(OTHER)]


def test_sampled_topics_are_the_same_in_any_order_and_are_not_the_first_ones() -> None:
    """Some damage takes a whole namespace: its topics are listed one after another."""
    mute = [Topic.parse(f"persistent://acme/lost/{n}") for n in range(30)]
    healthy = [Topic.parse(f"persistent://acme/orders/{n}") for n in range(100)]
    names = [(str(topic), BROKER) for topic in (*mute, *healthy)]
    found = other_topics(names)
    assert found == other_topics(reversed(names))
    assert found == other_topics([*((topic, BROKER) for topic in other_topics(names[:50])[BROKER]), *names[50:]])
    cluster = SimulatedCluster()
    loaded(cluster, *mute, *healthy, compaction=False)
    cluster.admin.unanswered = dict.fromkeys(mute, BROKEN)
    cluster.admin.failing.add(BROKER)
    assert [w.keeps_owner for w in broker_references(cluster.admin, names[:1], found)] == [True, True]


def test_a_topic_of_which_its_broker_does_not_say_what_it_holds_keeps_its_own_and_nobody_elses() -> None:
    cluster = SimulatedCluster()
    sibling = Topic.parse("persistent://acme/orders/paid-partition-2")
    tags = [
        data_tags(PARTITION),
        cursor_tags(PARTITION, "s"),
        compacted_tags(PARTITION),
        bucket_tags(PARTITION, "s", 1, 2),
    ]
    tags += [schema_tags(PARTITION.schema_id), data_tags(sibling)]
    theirs = [cluster.ledger(one) for one in tags]
    leaks = [cluster.ledger(one) for one in (data_tags(OTHER), schema_tags(OTHER.schema_id))]
    loaded(cluster, PARTITION)
    loaded(cluster, OTHER, compaction=False)
    cluster.wait(8 * 24)

    def findings(found: Scan) -> tuple[set[str | None], set[str | None]]:
        return {found.finding(i) for i in theirs}, {found.finding(i) for i in leaks}

    cluster.admin.internals[PARTITION] = TopicInternals("LedgerOpened", tuple(theirs), {}, {}, None, ())
    assert findings(scan(cluster)) == ({None}, {Finding.ORPHAN})
    cluster.admin.unanswered[PARTITION] = BROKEN
    found = scan(cluster)
    assert found.epoch.gaps == ()
    assert findings(found) == ({Finding.KEPT}, {Finding.ORPHAN})
    cluster.admin.unanswered[OTHER] = BROKEN  # it says so of no topic, and answers otherwise
    assert scan(cluster).epoch.gaps == ()
    cluster.admin.failing.add(BROKER)  # it answers nothing else either: that is no topic's fault
    (gap,) = scan(cluster).epoch.gaps
    assert (gap.code, gap.where) == (GapCode.REFERENCE_UNREAD, f"broker memory of {PARTITION}")
    cluster.admin.unanswered = {PARTITION: AccessDenied("403")}
    (gap,) = scan(cluster).epoch.gaps
    assert (gap.code, gap.where) == (GapCode.REFERENCE_UNREAD, f"broker memory of {PARTITION}")
