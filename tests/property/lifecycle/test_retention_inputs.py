"""The inputs of the retention rule, made in bulk, against the same made for one topic at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.retention_inputs import POSITIONS, owners_kept, retention_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, MANAGED_LEDGERS

Row = dict[str, Any]
SOME = settings(max_examples=200, deadline=None)
NAMES = [f"persistent://acme/{n}/{t}" for n in ("a", "b") for t in ("x", "x-partition-0", "x-partition-10", "y", "xx")]
ABOVE = ["/managed-ledgers/acme/a/persistent", "/managed-ledgers/acme/a/persistent/x", "/managed-ledgers/acme/c"]

ids = st.integers(0, 9)
maybe = st.sampled_from([None, 0, 1, 5])
ledgers = st.fixed_dictionaries({"entries": maybe, "size": maybe, "timestamp": maybe})
bookkeeper = st.fixed_dictionaries(
    {
        "entries": st.sampled_from([0, 1, 7]),
        "length": st.sampled_from([0, 70]),
        "mtime": st.just(9),
        "state": st.sampled_from(["CLOSED", "CLOSED", "OPEN", "IN_RECOVERY"]),
        "problem": st.sampled_from([None, None, None, "corrupt"]),
    }
)
policies = st.none() | st.builds(RetentionPolicy, st.integers(-1, 3), st.integers(-1, 3), st.just(Level.TOPIC))


def path(name: str) -> str:
    return f"/managed-ledgers/{Topic.parse(name).managed_ledger}"


def topic_row(name: str, listed: dict[int, Row], error: str | None) -> Row:
    return {
        "managed_ledger": Topic.parse(name).managed_ledger,
        "topic": name,
        "namespace": str(Topic.parse(name).namespace),
        "ledgers": None if error else [{"ledger_id": i, **listed[i]} for i in sorted(listed)],
        "terminated": None if error else False,
        "path": path(name),
        "problem": error,
    }


def ledger(ledger_id: int, said: Row, found: Row | None, *, last: bool) -> Row:
    """What a broker that loads the topic would see."""
    closed = found if found and found["state"] == "CLOSED" and not found["problem"] else {}
    entries, size, closed_at = said["entries"], said["size"], said["timestamp"] or closed.get("mtime")
    if last:
        entries, size, closed_at = closed.get("entries"), closed.get("length"), closed.get("mtime")
    elif not entries:
        entries = 0 if closed.get("entries") == 0 else None
    return {"ledger_id": ledger_id, "entries": entries, "size": size, "closed_at": closed_at}


def plainly(name: str, listed: dict[int, Row], positions: list[Any], found: dict[int, Row], in_force: Any) -> Row:
    own = [one for one in positions if one[0] == path(name)]
    lost = any(path(name) == one[0] or path(name).startswith(f"{one[0]}/") for one in positions if None in one)
    slowest = min(((i, n) for _, i, n in own), default=None) if not lost else None
    topic = Topic.parse(name)
    parent, namespace = str(topic.partitioned_parent), str(topic.namespace)
    policy = in_force.by_topic[parent] if parent in in_force.by_topic else in_force.by_namespace.get(namespace)
    return {
        "managed_ledger": topic.managed_ledger,
        "ledgers": [ledger(i, listed[i], found.get(i), last=i == max(listed)) for i in sorted(listed)],
        "retention_minutes": policy and policy.minutes,
        "retention_mb": policy and policy.megabytes,
        "durable_cursors": None if lost else len(own),
        "slowest_ledger_id": slowest and slowest[0],
        "slowest_entry_id": slowest and slowest[1],
        "kept": None,
    }


@SOME
@given(
    st.dictionaries(st.sampled_from(NAMES), st.dictionaries(ids, ledgers, max_size=4), max_size=5),
    st.lists(
        st.tuples(st.sampled_from([path(name) for name in NAMES]), ids, st.integers(-1, 2))
        | st.tuples(st.sampled_from([*map(path, NAMES), *ABOVE]), st.none(), st.none()),
        max_size=6,
    ),
    st.dictionaries(ids, bookkeeper),
    st.builds(
        InForce,
        st.dictionaries(st.sampled_from(["acme/a", "acme/b", "acme/c"]), policies),
        st.dictionaries(st.sampled_from(["persistent://acme/a/x", "persistent://acme/b/y"]), policies),
    ),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
def test_in_bulk_as_one_by_one(
    topics: dict[str, dict[int, Row]],
    positions: list[Any],
    found: dict[int, Row],
    in_force: InForce[RetentionPolicy | None],
    broken: set[str],
) -> None:
    rows = [topic_row(name, listed, "corrupt" if name in broken else None) for name, listed in topics.items()]
    stored = [{"ledger_id": i, **row} for i, row in found.items()]
    made = retention_topics(
        pa.Table.from_pylist(rows, schema=MANAGED_LEDGERS),
        pa.Table.from_pylist([dict(zip(POSITIONS.names, one, strict=True)) for one in positions], schema=POSITIONS),
        pa.Table.from_pylist(stored, schema=BOOKKEEPER_LEDGERS),
        in_force,
        Context(now=0, grace=0, namespaces=frozenset({"acme/a", "acme/b"})),
    )
    expected = [plainly(n, listed, positions, found, in_force) for n, listed in topics.items() if n not in broken]
    assert made.to_pylist() == expected


LOCALS = [
    "x",
    "x-partition-0",
    "y",
    "__change_events",
    "a__transaction_pending_ack",
    "transaction_coordinator_1",
    "z\n",
]
SPACES = ["acme/a", "acme/b", "pulsar/system", "acme/here/a", "other/a"]
FULL = [f"persistent://{space}/{local}" for space in SPACES for local in LOCALS]
owned = st.frozensets(st.sampled_from([*FULL, "non-persistent://acme/a/x"]), max_size=3)
some_spaces = st.frozensets(st.sampled_from(SPACES), max_size=4)


@SOME
@given(
    st.lists(st.tuples(st.sampled_from([*FULL, "non-persistent://acme/a/x"]), st.booleans()), max_size=20),
    st.builds(
        Context,
        now=st.just(0),
        grace=st.just(0),
        namespaces=some_spaces,
        gone_namespaces=some_spaces,
        shared_namespaces=some_spaces,
        kept_namespaces=some_spaces,
        holds=st.frozensets(st.sampled_from([*FULL, *SPACES, "acme", "other"]), max_size=2),
        shadow_sources=owned,
        system_topics=st.booleans(),
        kept_topics=owned,
        open_topics=owned,
    ),
)
def test_what_keeps_topics_is_what_keeps_each_of_them(topics: list[tuple[str, bool]], context: Context) -> None:
    source = "persistent://acme/a/s"
    rows = [{"topic": name, "shadow_source": source if shadow else None} for name, shadow in topics]
    found = owners_kept(pa.Table.from_pylist(rows, MANAGED_LEDGERS), context).to_pylist()
    expected = [
        protection.topic_protection(topic, source if shadow else "", context)
        or protection.deletion_protection(topic, context)
        for topic, shadow in ((Topic.parse(name), shadow) for name, shadow in topics)
    ]
    assert found == expected
