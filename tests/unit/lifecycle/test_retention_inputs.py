"""Where the numbers of the retention rule come from, and that what is not known stays unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.retention_inputs import (
    POSITIONS,
    persisted_positions,
    retention_topics,
)
from pulsar_lifecycle.metastore.topics import read_cursors, topic_units
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.policies import InForce, Layers, NamespacePolicies, Unknown, Unreadable
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy, policies_in_force
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, MANAGED_CURSORS, MANAGED_LEDGERS
from tests.kit.simulated.cluster import SimulatedCluster, cursor_tags

FOREVER = RetentionPolicy(-1, -1, Level.NAMESPACE)
TOPIC = Topic.parse("persistent://acme/orders/placed")
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders", "pulsar/system"}))


def path(name: str, namespace: str = "acme/orders") -> str:
    return f"/managed-ledgers/{namespace}/persistent/{name}"


def topic(name: str, *ledgers: dict[str, Any], namespace: str = "acme/orders", **more: Any) -> dict[str, Any]:
    return {
        "managed_ledger": f"{namespace}/persistent/{name}",
        "topic": f"persistent://{namespace}/{name}",
        "namespace": namespace,
        "ledgers": list(ledgers),
        "terminated": False,
        "path": path(name, namespace),
        **more,
    }


def listed(
    ledger_id: int, entries: int | None = 5, size: int | None = 50, timestamp: int | None = 7, **more: Any
) -> Any:
    return {"ledger_id": ledger_id, "entries": entries, "size": size, "timestamp": timestamp, **more}


def stored(ledger_id: int, entries: int = 5, length: int = 500, state: str = "CLOSED", error: str | None = None) -> Any:
    return {"ledger_id": ledger_id, "entries": entries, "length": length, "state": state, "mtime": 9, "problem": error}


def inputs(
    topics: list[dict[str, Any]],
    positions: list[tuple[str, int | None, int | None]] = [],  # noqa: B006 - never written
    ledgers: list[dict[str, Any]] = [],  # noqa: B006 - never written
    policies: InForce[RetentionPolicy | None] | None = None,
    context: Context = CONTEXT,
    loaded: Collection[str] = (),
) -> list[dict[str, Any]]:
    return retention_topics(
        pa.Table.from_pylist(topics, schema=MANAGED_LEDGERS),
        pa.Table.from_pylist([dict(zip(POSITIONS.names, one, strict=True)) for one in positions], schema=POSITIONS),
        pa.Table.from_pylist(ledgers, schema=BOOKKEEPER_LEDGERS),
        policies or InForce({"acme/orders": FOREVER}),
        context,
        loaded,
    ).to_pylist()


# ------------------------------------------------------------------------------------------------------- policies

JOURNAL_COLUMNS = {"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6}}


def of_topic(minutes: int) -> TopicPolicies:
    return TopicPolicies({"retentionPolicies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}})


def test_policies_of_namespaces_and_topics() -> None:
    unknown = NamespacePolicies(unknown=Unknown(Unreadable.UNREAD, "no answer"))
    layers = Layers(
        {},
        {
            "acme/orders": JOURNAL_COLUMNS,
            "acme/unset": {},
            "acme/unread": JOURNAL_COLUMNS,
            "acme/missed": JOURNAL_COLUMNS,
        },
        {
            "acme/orders": NamespacePolicies({TOPIC: of_topic(7)}),
            "acme/unset": NamespacePolicies(),
            "acme/unread": unknown,
        },
    )
    found = policies_in_force(layers)
    assert found.by_namespace == {
        "acme/orders": RetentionPolicy(5, 6, Level.NAMESPACE),
        "acme/unset": None,
        "acme/unread": None,
        "acme/missed": None,
    }
    assert found.by_topic == {str(TOPIC): RetentionPolicy(7, -1, Level.TOPIC)}


def test_a_policy_that_brokers_would_not_take_is_unknown() -> None:
    strange = {"retention_policies": {"retentionTimeInMinutes": "soon"}}
    own = {"acme/orders": NamespacePolicies({TOPIC: of_topic(1 << 40)})}
    found = policies_in_force(Layers({}, {"acme/orders": strange}, own))
    assert found == InForce({"acme/orders": None}, {str(TOPIC): None})
    assert found.of(TOPIC) is None


def test_the_brokers_policy_is_known_only_whole() -> None:
    said = {"defaultRetentionTimeInMinutes": "5", "defaultRetentionSizeInMB": "6"}
    own = {"acme/unset": NamespacePolicies()}
    found = policies_in_force(Layers(said, {"acme/unset": {}}, own))
    assert found.by_namespace == {"acme/unset": RetentionPolicy(5, 6, Level.BROKER)}
    for name in said:
        less = {other: value for other, value in said.items() if other != name}
        assert policies_in_force(Layers(less, {"acme/unset": {}}, own)).by_namespace == {"acme/unset": None}


@pytest.mark.parametrize("switch", ["topicLevelPoliciesEnabled", "systemTopicEnabled"])
def test_where_brokers_have_no_topic_policies_none_need_be_read(switch: str) -> None:
    layers = Layers({switch: "false"}, {"acme/orders": JOURNAL_COLUMNS})
    assert policies_in_force(layers).by_namespace == {"acme/orders": RetentionPolicy(5, 6, Level.NAMESPACE)}


def test_a_topic_has_its_own_policy_its_partitioned_topics_or_its_namespaces() -> None:
    own = RetentionPolicy(7, 8, Level.TOPIC)
    policies = InForce(
        {"acme/orders": FOREVER, "acme/other": None},
        {"persistent://acme/orders/a": own, "persistent://acme/orders/b": None},
    )
    names = ["a", "a-partition-0", "a-partition-12", "a-partition-01", "ab", "b-partition-1", "c"]
    found = inputs([topic(name) for name in names], policies=policies)
    limits = [(row["retention_minutes"], row["retention_mb"]) for row in found]
    assert limits == [(7, 8), (7, 8), (7, 8), (-1, -1), (-1, -1), (None, None), (-1, -1)]
    found = inputs([topic("a", namespace=name) for name in ("acme/other", "acme/new")], policies=policies)
    assert [row["retention_minutes"] for row in found] == [None, None]


# -------------------------------------------------------------------------------------------------------- cursors


def positions_of(cluster: SimulatedCluster) -> list[tuple[str, int | None, int | None]]:
    store = cluster.open_store(read_only=True)
    rows = pa.Table.from_batches(read_cursors(store, topic_units(store)), MANAGED_CURSORS)
    found = persisted_positions(store, cluster.reader, rows, "/ledgers").to_pylist()
    return [(row["path"], row["ledger_id"], row["entry_id"]) for row in found]


def test_a_position_is_its_cursor_ledgers_last_entry_or_else_its_z_nodes() -> None:
    cluster = SimulatedCluster()
    place = cluster.topic_path(TOPIC)
    cluster.topic(TOPIC, [1])
    cluster.cursor(TOPIC, "in-z-node")
    assert len(positions_of(cluster)) == 1
    in_node = positions_of(cluster)[0]
    assert in_node[0] == place
    for state in (LedgerState.CLOSED, LedgerState.OPEN):
        ledger = cluster.ledger(
            cursor_tags(TOPIC, f"{state}"), state=state, entries=[cluster.position_entry(at=n) for n in (3, 4)]
        )
        cluster.cursor(TOPIC, f"{state}", ledger=ledger)
    found = positions_of(cluster)
    assert sorted(found) == sorted([in_node, (place, 4, 0), (place, 4, 0)])


def test_a_position_that_cannot_be_read_is_unknown() -> None:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [1])
    failing = cluster.ledger(cursor_tags(TOPIC, "failing"), entries=[cluster.position_entry()])
    strange = cluster.ledger(cursor_tags(TOPIC, "strange"), entries=[b"{}"])
    for name, ledger in (("failing", failing), ("strange", strange), ("gone", 9_999)):
        cluster.cursor(TOPIC, name, ledger=ledger)
    cluster.reader.failures[failing] = Unavailable("no bookie answers")
    cluster.put(f"{cluster.topic_path(TOPIC)}/broken", b"\xff")
    assert positions_of(cluster) == [(cluster.topic_path(TOPIC), None, None)] * 4
    cluster.reader.failures[failing] = NotFound("gone")
    assert positions_of(cluster) == [(cluster.topic_path(TOPIC), None, None)] * 4


def test_a_cursor_ledger_without_entries_and_another_topics_say_no_position() -> None:
    """A broker names one once it has an entry: that entry is lost, and the z-node may be ahead of it."""
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [1])
    for state in LedgerState:
        lost = cluster.ledger(cursor_tags(TOPIC, f"{state}"), state=state, entries=[])
        cluster.cursor(TOPIC, f"{state}", ledger=lost, at=1)
    other = cluster.ledger(
        cursor_tags(Topic.parse("persistent://acme/orders/other"), "s"), entries=[cluster.position_entry()]
    )
    cluster.cursor(TOPIC, "s", ledger=other, at=1)
    assert positions_of(cluster) == [(cluster.topic_path(TOPIC), None, None)] * 4


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], (0, None, None)),
        ([(path("a"), 5, 2)], (1, 5, 2)),
        ([(path("a"), 5, 2), (path("a"), 4, 9), (path("a"), 4, 10), (path("b"), 1, 1)], (3, 4, 9)),
        ([(path("a"), 5, -1), (path("a"), None, None)], (None, None, None)),
        ([(path("a"), 5, -1), ("/managed-ledgers/acme/orders/persistent", None, None)], (None, None, None)),
        ([(path("a"), 5, -1), ("/managed-ledgers/acme", None, None)], (None, None, None)),
        ([(path("a"), 5, -1), (path("gone"), None, None), ("/managed-ledgers/other", None, None)], (1, 5, -1)),
        ([(path("a"), 5, -1), ("/managed-ledgers/acme/orders2", None, None)], (1, 5, -1)),
        ([(path("a"), 5, -1), (path("gone"), 1, 1)], (1, 5, -1)),
    ],
)
def test_the_slowest_cursor_of_a_topic(positions: Any, expected: tuple[Any, ...]) -> None:
    row = inputs([topic("0"), topic("a"), topic("b")], positions)[1]
    assert (row["durable_cursors"], row["slowest_ledger_id"], row["slowest_entry_id"]) == expected


# -------------------------------------------------------------------------------------------------------- ledgers


def first_and_last(first: dict[str, Any], *ledgers: dict[str, Any], last: Mapping[str, Any] | None = None) -> list[Any]:
    (row,) = inputs([topic("a", first, last or listed(9))], ledgers=list(ledgers))
    return [(one["entries"], one["size"], one["closed_at"]) for one in row["ledgers"]]


@pytest.mark.parametrize(
    ("first", "ledgers", "expected"),
    [
        (listed(1), [stored(1)], (5, 50, 7)),
        (listed(1), [], (5, 50, 7)),
        (listed(1, timestamp=0), [stored(1)], (5, 50, 9)),
        (listed(1, timestamp=None), [stored(1)], (5, 50, 9)),
        (listed(1, timestamp=None), [stored(1, state="OPEN")], (5, 50, None)),
        (listed(1, timestamp=None), [stored(1, error="corrupt: x")], (5, 50, None)),
        (listed(1, timestamp=None), [], (5, 50, None)),
        (listed(1, size=None), [stored(1)], (5, None, 7)),
        (listed(1, 0, 0), [stored(1, 0, 0)], (0, 0, 7)),
        (listed(1, 0, 0), [stored(1)], (None, 0, 7)),
        (listed(1, 0, 0), [], (None, 0, 7)),
        (listed(1, None), [stored(1)], (None, 50, 7)),
    ],
)
def test_of_a_ledger_the_z_node_counts(first: dict[str, Any], ledgers: Any, expected: tuple[Any, ...]) -> None:
    assert first_and_last(first, *ledgers)[0] == expected


@pytest.mark.parametrize("said", [listed(9), listed(9, None, None, None), listed(9, 0, 0, 0)])
def test_of_the_last_ledger_bookkeeper_counts(said: dict[str, Any]) -> None:
    assert first_and_last(listed(1), stored(9, 6, 60), last=said)[1] == (6, 60, 9)
    assert first_and_last(listed(1), stored(9, 6, 60, state="OPEN"), last=said)[1] == (None, None, None)
    assert first_and_last(listed(1), last=said)[1] == (None, None, None)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, None),
        ({"shadow_source": "persistent://acme/orders/b"}, "shadow_topic"),
        ({"terminated": True}, "terminated"),
        ({"ledgers": [listed(1, offload_uuid="x", offload_complete=False)]}, "open_attempt"),
        ({"ledgers": [listed(1, offload_uuid="x", offload_complete=True)]}, None),
        ({"topic": "persistent://acme/orders/__change_events"}, "system_topic"),
        ({"topic": "persistent://pulsar/system/any"}, "system_topic"),
        ({"topic": "persistent://acme/new/b"}, "unknown_namespace"),
        ({"topic": "persistent://acme/orders/a__b"}, None),
    ],
)
def test_what_a_topic_itself_is_kept_for(changed: dict[str, Any], expected: str | None) -> None:
    found = inputs([topic("a"), {**topic("b", listed(1)), **changed}, topic("c")])
    assert [row["kept"] for row in found] == [None, expected, None]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"holds": frozenset({"acme"})}, "legal_hold"),
        ({"shadow_sources": frozenset({"persistent://acme/orders/b"})}, "shadow_source"),
        ({"shared_namespaces": frozenset({"acme/orders"})}, "shared_namespace"),
        ({"open_topics": frozenset({"persistent://acme/orders/b"})}, "open_orphan"),
        ({"system_topics": True}, None),
    ],
)
def test_what_a_topic_is_kept_for_by_the_owners_rules(changed: dict[str, Any], expected: str | None) -> None:
    assert inputs([topic("b")], context=replace(CONTEXT, **changed))[0]["kept"] == expected


def test_system_topics_stay_whatever_the_settings_say() -> None:
    found = inputs([topic("__change_events")], context=replace(CONTEXT, system_topics=True))
    assert found[0]["kept"] == "system_topic"


def test_loaded_topics_are_left_to_their_brokers() -> None:
    found = inputs(
        [topic("a"), topic("b"), topic("c", terminated=True)], loaded=[f"persistent://acme/orders/{n}" for n in "bc"]
    )
    assert [row["kept"] for row in found] == [None, "loaded", "terminated"]


def test_topics_that_could_not_be_read_have_no_row() -> None:
    assert [row["managed_ledger"] for row in inputs([topic("a", problem="corrupt"), topic("b")])] == [
        "acme/orders/persistent/b"
    ]
    assert inputs([]) == []
