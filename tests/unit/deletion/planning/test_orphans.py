"""Every finding, and the order of the rules, over hand-made ledgers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.deletion.planning.orphans import PENDING
from pulsar_lifecycle.records import owner_names
from pulsar_lifecycle.records.findings import Context, Finding
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.records.tables import BOOKKEEPER_LEDGERS
from pulsar_lifecycle.scan import snapshot_memory
from pulsar_lifecycle.scan.snapshot_memory import Memory

DAY = 86_400_000
NOW = 100 * DAY
OLD = NOW - 8 * DAY
CONTEXT = Context(now=NOW, grace=7 * DAY, namespaces=frozenset({"t/n", "t/c/n", "pulsar/system", "t/held", "t/kept"}))
KEY = "#pulsar.internal.delayed.bucket_3_5"


def data_ledger(**changes: Any) -> dict[str, Any]:
    """An old, closed ledger of topic t/n/x."""
    return {
        "ledger_id": 7,
        "state": "CLOSED",
        "entries": 2,
        "length": 100,
        "write_quorum": 3,
        "application": "pulsar",
        "component": "managed-ledger",
        "managed_ledger": "t/n/persistent/x",
        "czxid": 1,
        "ctime": OLD,
        "path": "/ledgers/00/0000/L0007",
    } | changes


def bucket(**changes: Any) -> dict[str, Any]:
    return (
        data_ledger(managed_ledger=None)
        | {
            "component": "delayed-index-bucket",
            "bucket_topic": "persistent://t/n/x",
            "bucket_cursor": "s",
            "bucket_key": KEY,
        }
        | changes
    )


def judged(*rows: dict[str, Any], refs: Referenced | None = None, context: Context = CONTEXT) -> list[tuple[str, str]]:
    table = pa.Table.from_pylist(list(rows), BOOKKEEPER_LEDGERS)
    found = orphans.judge(table, refs or Referenced(), context).to_pylist()
    return [(row["finding"], row["reason"]) for row in found]


@pytest.mark.parametrize(
    ("changes", "finding", "why"),
    [
        ({}, Finding.ORPHAN, "nothing refers to it"),
        ({"cursor": "s"}, Finding.ORPHAN, "nothing refers"),
        ({"component": "schema", "managed_ledger": None, "schema_id": "t/n/x"}, Finding.ORPHAN, "nothing refers"),
        ({"managed_ledger": "t/c/n/persistent/x"}, Finding.ORPHAN, "nothing refers"),
        ({"managed_ledger": "t/n/persistent/a%2Bb+c%7E"}, Finding.ORPHAN, "nothing refers"),
        ({"component": "compacted-ledger", "compacted_topic": "persistent://t/n/x"}, PENDING, ""),
        ({"problem": "empty", "error": "no data", "state": None, "application": None}, Finding.EMPTY_ZNODE, "no data"),
        (
            {"problem": "corrupt", "error": "at byte 3", "state": None, "application": None},
            Finding.UNDECODABLE,
            "at byte 3",
        ),
        ({"application": None}, Finding.FOREIGN, "not tagged"),
        ({"application": "pravega"}, Finding.FOREIGN, "not tagged"),
        ({"component": "compacted-topic"}, Finding.KEPT, "unknown component"),
        ({"component": None}, Finding.KEPT, "unknown component"),
        ({"managed_ledger": None}, Finding.KEPT, "name no owner"),
        ({"managed_ledger": "t/n/x"}, Finding.KEPT, "name no owner"),
        ({"managed_ledger": "t/n/non-persistent/x"}, Finding.KEPT, "name no owner"),
        ({"managed_ledger": "t/n/persistent/a%2Fb"}, Finding.KEPT, "name no owner"),  # reads back as a V1 name
        ({"managed_ledger": "t/n/persistent/.."}, Finding.KEPT, "name no owner"),
        ({"managed_ledger": "t/n/persistent/a b"}, Finding.KEPT, "name no owner"),
        ({"component": "schema"}, Finding.KEPT, "name no owner"),
        ({"managed_ledger": "t/elsewhere/persistent/x"}, Finding.FOREIGN, "t/elsewhere exists under no declared root"),
        ({"state": "OPEN", "ctime": NOW - DAY}, Finding.OPEN, "never closed"),
        ({"state": "IN_RECOVERY", "ctime": NOW - DAY}, Finding.OPEN, "never closed"),
        ({"state": "OPEN"}, Finding.OPEN_ORPHAN, "never closed"),
        ({"ctime": 0}, Finding.KEPT, "age is unknown"),
        ({"ctime": None}, Finding.KEPT, "age is unknown"),
        ({"ctime": NOW + 1}, Finding.KEPT, "age is unknown"),
        ({"ctime": NOW - 7 * DAY + 1}, Finding.TOO_YOUNG, "younger"),
        ({"ctime": NOW - 7 * DAY}, Finding.ORPHAN, "nothing refers"),
        ({"managed_ledger": "pulsar/system/persistent/__ledger_deletion-partition-3"}, Finding.KEPT, "never deleted"),
        ({"managed_ledger": "pulsar/system/persistent/__transaction_log_0"}, Finding.KEPT, "never deleted"),
        ({"managed_ledger": "t/n/persistent/x-s__transaction_pending_ack"}, Finding.KEPT, "never deleted"),
        ({"managed_ledger": "t/n/persistent/__change_events"}, Finding.KEPT, "system topic"),
        ({"managed_ledger": "pulsar/system/persistent/x"}, Finding.KEPT, "system topic"),
    ],
)
def test_findings_of_one_unreferenced_ledger(changes: dict[str, Any], finding: str, why: str) -> None:
    ((found, reason),) = judged(data_ledger(**changes))
    assert found == finding
    assert why in reason


@pytest.mark.parametrize("changes", [{"bucket_cursor": None}, {"bucket_key": None}])
def test_a_snapshot_whose_tags_are_not_whole_is_kept(changes: dict[str, Any]) -> None:
    assert judged(bucket()) == [(PENDING, "")]
    ((found, reason),) = judged(bucket(**changes))
    assert found == Finding.KEPT
    assert "no cursor or no bucket key" in reason


def test_what_is_needed_gone_or_without_an_id_gives_no_row() -> None:
    rows = [data_ledger(), data_ledger(ledger_id=None, error="unread: x"), data_ledger(ledger_id=8, error="gone")]
    assert judged(*rows, refs=Referenced(BitMap64([7, 8]))) == []


def test_an_offload_leftover_is_reported_unless_another_reference_needs_it() -> None:
    assert judged(data_ledger(), refs=Referenced(BitMap64(), BitMap64([7])))[0][0] == Finding.OFFLOAD_LEFTOVER
    assert judged(data_ledger(), refs=Referenced(BitMap64([7]), BitMap64([7]))) == []


X = "persistent://t/n/x"


@pytest.mark.parametrize(
    ("context", "ledger", "why"),
    [
        ({"holds": {"t"}}, {}, "legal hold"),
        ({"holds": {"t/n"}}, {}, "legal hold"),
        ({"holds": {X}}, {}, "legal hold"),
        ({"holds": {X}}, {"managed_ledger": "t/n/persistent/x-partition-12"}, "legal hold"),
        ({"holds": {f"{X}-partition-1"}}, {"component": "schema", "schema_id": "t/n/x"}, "hold on one of its partiti"),
        ({"kept_namespaces": {"t/n"}}, {}, "could not be read whole"),
        ({"kept_topics": {X}}, {}, "gone or damaged"),
        ({"kept_topics": {X}}, {"managed_ledger": "t/n/persistent/x-partition-0"}, "gone or damaged"),
        ({"kept_topics": {X}}, {"managed_ledger": "t/c/n/persistent/x"}, "gone or damaged"),
        ({"kept_topics": {X}}, {"component": "schema", "schema_id": "t/n/x"}, "gone or damaged"),
        ({"shadow_sources": {X}}, {}, "shadow"),
        ({"shadow_sources": {X}}, {"managed_ledger": "t/n/persistent/x-partition-0"}, "shadow"),
        ({"open_topics": {X}}, {}, "open"),
    ],
)
def test_what_is_said_of_the_owner_keeps(context: dict[str, Any], ledger: dict[str, Any], why: str) -> None:
    ((found, reason),) = judged(
        data_ledger(**ledger), context=replace(CONTEXT, **{k: frozenset(v) for k, v in context.items()})
    )
    assert found == Finding.KEPT
    assert why in reason


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("t", "t"),
        ("t/n", "t/n"),
        ("t/c/n", "t/n"),
        (X, X),
        (f"{X}-partition-1", X),
        (f"{X}-partition-01", f"{X}-partition-01"),
        ("persistent://t/c/n/x-partition-1", X),
        ("persistent://t/c/n/a/b", "persistent://t/n/a/b"),
        ("persistent://t", "persistent://t"),
    ],
)
def test_as_whose_the_schemas_of_a_topic_or_a_namespace_go(name: str, owner: str) -> None:
    assert owner_names.schema_owner(name) == owner


def test_of_an_owner_with_a_strange_name_the_whole_namespace_is_kept() -> None:
    gone = [("R3", "t/n/persistent/a+b"), ("R5", "t/c/n/x"), ("R5", "t/odd/a b"), ("R1", "t/other/persistent/a b")]
    topics, namespaces = owner_names.owners_to_keep(gone)
    assert topics == {"persistent://t/n/a b", "persistent://t/c/n/x"}
    assert namespaces == {"t/odd", "t/other"}


@pytest.mark.parametrize("owner", ["t/n/persistent/x-partition-0", "t/c/n/persistent/x-partition-0"])
def test_an_open_ledger_of_a_partition_keeps_the_schemas_that_all_partitions_share(owner: str) -> None:
    open_ = pa.Table.from_pylist([data_ledger(ledger_id=9, state="OPEN", managed_ledger=owner)], BOOKKEEPER_LEDGERS)
    context = replace(CONTEXT, open_topics=frozenset(owner_names.written_topics(open_)))
    schema = data_ledger(component="schema", managed_ledger=None, schema_id="t/n/x")
    ((found, reason),) = judged(schema, context=context)
    assert (found, "open" in reason) == (Finding.KEPT, True)
    partition, other = data_ledger(managed_ledger=owner), data_ledger(managed_ledger="t/n/persistent/y-partition-0")
    assert [found for found, _ in judged(partition, other, context=context)] == [Finding.KEPT, Finding.ORPHAN]


@pytest.mark.parametrize(
    "context",
    [
        {"holds": {"t/c/n"}},
        {"holds": {"persistent://t/c/n/x"}},
        {"holds": {"persistent://t/c/n/x-partition-3"}},
        {"shared_namespaces": {"t/c/n"}},
    ],
)
def test_schema_ledgers_do_not_name_the_cluster_of_a_v1_name(context: dict[str, Any]) -> None:
    schema = data_ledger(component="schema", managed_ledger=None, schema_id="t/n/x")
    v1 = data_ledger(managed_ledger="t/c/n/persistent/x-partition-3")
    others = data_ledger(), data_ledger(component="schema", managed_ledger=None, schema_id="t/held/x")
    rows = judged(schema, v1, *others, context=replace(CONTEXT, **{k: frozenset(v) for k, v in context.items()}))
    assert [found for found, _ in rows] == [Finding.KEPT] * 2 + [Finding.ORPHAN] * 2


@pytest.mark.parametrize("hold", ["t/n/x", "n", "t/other", f"{X}-partition-0", "persistent://t/n/xy", "persistent://t"])
def test_a_hold_on_something_else_holds_nothing(hold: str) -> None:
    other = data_ledger(managed_ledger="t/n/persistent/x-partition-1")
    assert judged(other, context=replace(CONTEXT, holds=frozenset({hold})))[0][0] == Finding.ORPHAN


def test_what_the_operator_opts_in_to() -> None:
    context = replace(CONTEXT, system_topics=True, gone_namespaces=frozenset({"t/gone"}))
    rows = [
        data_ledger(managed_ledger="t/n/persistent/__change_events"),
        data_ledger(managed_ledger="t/gone/persistent/x"),
        data_ledger(managed_ledger="pulsar/system/persistent/__ledger_deletion"),
        data_ledger(managed_ledger="pulsar/system/persistent/__transaction_log_1"),
    ]
    assert [found for found, _ in judged(*rows, context=context)] == [Finding.ORPHAN] * 2 + [Finding.KEPT] * 2


def test_an_under_replicated_ledger_is_kept() -> None:
    assert judged(data_ledger(), context=replace(CONTEXT, under_replicated=BitMap64([7]))) == [
        (Finding.KEPT, "under-replicated")
    ]


def test_the_first_rule_that_applies_gives_the_reason() -> None:
    context = replace(CONTEXT, holds=frozenset({"t"}), open_topics=frozenset({X}))
    young = data_ledger(ctime=NOW - DAY)
    assert judged(young, context=context)[0][1] == "legal hold"
    assert judged(young | {"state": "OPEN"}, context=context)[0][1] == "legal hold"
    assert judged(young, refs=Referenced(BitMap64(), BitMap64([7])), context=context)[0][0] == Finding.OFFLOAD_LEFTOVER
    assert judged(young, context=replace(context, holds=frozenset()))[0][0] == Finding.TOO_YOUNG


def test_bytes_are_multiplied_by_the_write_quorum() -> None:
    table = pa.Table.from_pylist([data_ledger()], BOOKKEEPER_LEDGERS)
    (row,) = orphans.judge(table, Referenced(), CONTEXT).to_pylist()
    assert (row["logical_bytes"], row["physical_bytes"]) == (100, 300)


def test_ids_up_to_the_largest() -> None:
    largest = 2**63 - 1
    rows = [data_ledger(ledger_id=largest), data_ledger(ledger_id=0), data_ledger(ledger_id=2**40)]
    assert len(judged(*rows, refs=Referenced(BitMap64([largest])))) == 2


def test_no_ledgers_give_no_findings() -> None:
    assert judged() == []


def test_a_context_survives_json() -> None:
    context = replace(CONTEXT, under_replicated=BitMap64([2**40]), holds=frozenset({"t"}), open_topics=frozenset({X}))
    assert Context.from_json(json.loads(json.dumps(context.to_json()))) == context


def settled(component: str, **facts: Any) -> str:
    row = bucket() | {"component": component, "topic": X, "topic_exists": True, "load_state": "loaded"} | facts
    known = {name: value for name, value in row.items() if name in snapshot_memory.OWNER_FACTS.names}
    (found,) = orphans.decide_pending(pa.Table.from_pylist([known], snapshot_memory.OWNER_FACTS)).to_pylist()
    return found["finding"]


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        ({"compaction": "NOT_RUN"}, Finding.ORPHAN),
        ({"compaction": "SUCCESS"}, Finding.ORPHAN),
        ({"compaction": "RUNNING"}, Finding.KEPT),
        ({"compaction": "ERROR"}, Finding.KEPT),
        ({"compaction": "UNKNOWN: 503"}, Finding.KEPT),
        ({"compaction": None}, Finding.KEPT),
        ({"load_state": "unloaded", "compaction": None}, Finding.ORPHAN),
        ({"load_state": "never_loaded"}, Finding.ORPHAN),
        ({"load_state": None}, Finding.KEPT),
        ({"topic_exists": None, "load_state": None}, Finding.ORPHAN),
    ],
)
def test_a_compacted_ledger_goes_when_no_compaction_can_be_running(facts: dict[str, Any], finding: str) -> None:
    assert settled("compacted-ledger", **facts) == finding


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        ({"memory": Memory.NOTHING}, Finding.ORPHAN),
        *(({"memory": code}, Finding.KEPT) for code in Memory if code is not Memory.NOTHING),
        ({"memory": None}, Finding.KEPT),
        ({"memory": "unheard of"}, Finding.KEPT),
        ({"memory": None, "compaction": "SUCCESS"}, Finding.KEPT),
        ({"memory": None, "load_state": None}, Finding.KEPT),
        ({"memory": None, "load_state": "unloaded"}, Finding.ORPHAN),
        ({"memory": None, "load_state": "never_loaded"}, Finding.ORPHAN),
        ({"memory": Memory.HELD_CURSOR, "topic_exists": None, "load_state": None}, Finding.ORPHAN),
    ],
)
def test_a_snapshot_goes_when_no_broker_can_hold_it(facts: dict[str, Any], finding: str) -> None:
    assert settled("delayed-index-bucket", **facts) == finding
    assert settled("delayed-index-bucket", bucket_key="odd", **facts) == finding
