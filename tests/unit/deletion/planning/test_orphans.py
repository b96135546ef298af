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
from pulsar_lifecycle.scan import snapshot_memory
from pulsar_lifecycle.scan.snapshot_memory import Memory
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values import owner_names
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Context, Finding
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS

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
    return [(row["finding"], row["code"]) for row in found]


@pytest.mark.parametrize(
    ("changes", "finding", "code"),
    [
        ({}, Finding.ORPHAN, Code.UNREFERENCED),
        ({"cursor": "s"}, Finding.ORPHAN, Code.UNREFERENCED),
        ({"component": "schema", "managed_ledger": None, "schema_id": "t/n/x"}, Finding.ORPHAN, Code.UNREFERENCED),
        ({"managed_ledger": "t/c/n/persistent/x"}, Finding.ORPHAN, Code.UNREFERENCED),
        ({"managed_ledger": "t/n/persistent/a%2Bb+c%7E"}, Finding.ORPHAN, Code.UNREFERENCED),
        ({"component": "compacted-ledger", "compacted_topic": "persistent://t/n/x"}, PENDING, PENDING),
        (
            {"problem": "empty", "error": "no data", "state": None, "application": None},
            Finding.EMPTY_ZNODE,
            Finding.EMPTY_ZNODE,
        ),
        (
            {"problem": "corrupt", "error": "at byte 3", "state": None, "application": None},
            Finding.UNDECODABLE,
            Finding.UNDECODABLE,
        ),
        ({"application": None}, Finding.FOREIGN, Code.NOT_TAGGED),
        ({"application": "pravega"}, Finding.FOREIGN, Code.NOT_TAGGED),
        ({"component": "compacted-topic"}, Finding.KEPT, Code.UNKNOWN_COMPONENT),
        ({"component": None}, Finding.KEPT, Code.UNKNOWN_COMPONENT),
        ({"managed_ledger": None}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"managed_ledger": "t/n/x"}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"managed_ledger": "t/n/non-persistent/x"}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"managed_ledger": "t/n/persistent/a%2Fb"}, Finding.KEPT, Protection.UNNAMED_OWNER),  # reads back as a V1 name
        ({"managed_ledger": "t/n/persistent/.."}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"managed_ledger": "t/n/persistent/a b"}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"component": "schema"}, Finding.KEPT, Protection.UNNAMED_OWNER),
        ({"managed_ledger": "t/elsewhere/persistent/x"}, Finding.FOREIGN, Protection.UNKNOWN_NAMESPACE),
        ({"state": "OPEN", "ctime": NOW - DAY}, Finding.OPEN, Finding.OPEN),
        ({"state": "IN_RECOVERY", "ctime": NOW - DAY}, Finding.OPEN, Finding.OPEN),
        ({"state": "OPEN"}, Finding.OPEN_ORPHAN, Finding.OPEN_ORPHAN),
        ({"ctime": 0}, Finding.KEPT, Code.UNKNOWN_AGE),
        ({"ctime": None}, Finding.KEPT, Code.UNKNOWN_AGE),
        ({"ctime": NOW + 1}, Finding.KEPT, Code.UNKNOWN_AGE),
        ({"ctime": NOW - 7 * DAY + 1}, Finding.TOO_YOUNG, Finding.TOO_YOUNG),
        ({"ctime": NOW - 7 * DAY}, Finding.ORPHAN, Code.UNREFERENCED),
        (
            {"managed_ledger": "pulsar/system/persistent/__ledger_deletion-partition-3"},
            Finding.KEPT,
            Protection.RESERVED,
        ),
        ({"managed_ledger": "pulsar/system/persistent/__transaction_log_0"}, Finding.KEPT, Protection.RESERVED),
        ({"managed_ledger": "t/n/persistent/x-s__transaction_pending_ack"}, Finding.KEPT, Protection.RESERVED),
        ({"managed_ledger": "t/n/persistent/__change_events"}, Finding.KEPT, Protection.SYSTEM_TOPIC),
        ({"managed_ledger": "pulsar/system/persistent/x"}, Finding.KEPT, Protection.SYSTEM_TOPIC),
    ],
)
def test_findings_of_one_unreferenced_ledger(changes: dict[str, Any], finding: str, code: str) -> None:
    assert judged(data_ledger(**changes)) == [(finding, code)]


@pytest.mark.parametrize("changes", [{"bucket_cursor": None}, {"bucket_key": None}])
def test_a_snapshot_whose_tags_are_not_whole_is_kept(changes: dict[str, Any]) -> None:
    assert judged(bucket()) == [(PENDING, PENDING)]
    assert judged(bucket(**changes)) == [(Finding.KEPT, Code.UNNAMED_CURSOR)]


def test_what_is_needed_gone_or_without_an_id_gives_no_row() -> None:
    rows = [data_ledger(), data_ledger(ledger_id=None, error="unread: x"), data_ledger(ledger_id=8, error="gone")]
    assert judged(*rows, refs=Referenced(BitMap64([7, 8]))) == []


def test_an_offload_leftover_is_reported_unless_another_reference_needs_it() -> None:
    assert judged(data_ledger(), refs=Referenced(BitMap64(), BitMap64([7])))[0][0] == Finding.OFFLOAD_LEFTOVER
    assert judged(data_ledger(), refs=Referenced(BitMap64([7]), BitMap64([7]))) == []


X = "persistent://t/n/x"


@pytest.mark.parametrize(
    ("context", "ledger", "code"),
    [
        ({"holds": {"t"}}, {}, Protection.LEGAL_HOLD),
        ({"holds": {"t/n"}}, {}, Protection.LEGAL_HOLD),
        ({"holds": {X}}, {}, Protection.LEGAL_HOLD),
        ({"holds": {X}}, {"managed_ledger": "t/n/persistent/x-partition-12"}, Protection.LEGAL_HOLD),
        (
            {"holds": {f"{X}-partition-1"}},
            {"component": "schema", "schema_id": "t/n/x"},
            Protection.LEGAL_HOLD_ON_PARTITION,
        ),
        ({"kept_namespaces": {"t/n"}}, {}, Protection.UNREAD_NAMESPACE),
        ({"kept_topics": {X}}, {}, Protection.LOST_ENTRIES),
        ({"kept_topics": {X}}, {"managed_ledger": "t/n/persistent/x-partition-0"}, Protection.LOST_ENTRIES),
        ({"kept_topics": {X}}, {"managed_ledger": "t/c/n/persistent/x"}, Protection.LOST_ENTRIES),
        ({"kept_topics": {X}}, {"component": "schema", "schema_id": "t/n/x"}, Protection.LOST_ENTRIES),
        ({"shadow_sources": {X}}, {}, Protection.SHADOW_SOURCE),
        ({"shadow_sources": {X}}, {"managed_ledger": "t/n/persistent/x-partition-0"}, Protection.SHADOW_SOURCE),
        ({"open_topics": {X}}, {}, Code.OTHER_OPEN),
    ],
)
def test_what_is_said_of_the_owner_keeps(context: dict[str, Any], ledger: dict[str, Any], code: str) -> None:
    found = judged(data_ledger(**ledger), context=replace(CONTEXT, **{k: frozenset(v) for k, v in context.items()}))
    assert found == [(Finding.KEPT, code)]


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
    assert judged(schema, context=context) == [(Finding.KEPT, Code.OTHER_OPEN)]
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
        (Finding.KEPT, Code.UNDER_REPLICATED)
    ]


def test_the_first_rule_that_applies_gives_the_code() -> None:
    context = replace(CONTEXT, holds=frozenset({"t"}), open_topics=frozenset({X}))
    young = data_ledger(ctime=NOW - DAY)
    assert judged(young, context=context)[0][1] == Protection.LEGAL_HOLD
    assert judged(young | {"state": "OPEN"}, context=context)[0][1] == Protection.LEGAL_HOLD
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


def of(code: str) -> Finding:
    return Finding.ORPHAN if code == Code.NOT_HELD else Finding.KEPT


def decided(component: str, **facts: Any) -> tuple[str, str]:
    row = bucket() | {"component": component, "topic": X, "topic_exists": True, "load_state": "loaded"} | facts
    known = {name: value for name, value in row.items() if name in snapshot_memory.OWNER_FACTS.names}
    (found,) = orphans.decide_pending(pa.Table.from_pylist([known], snapshot_memory.OWNER_FACTS)).to_pylist()
    return found["finding"], found["code"]


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"compaction": "NOT_RUN"}, Code.NOT_HELD),
        ({"compaction": "SUCCESS"}, Code.NOT_HELD),
        ({"compaction": "RUNNING"}, Code.COMPACTION_POSSIBLE),
        ({"compaction": "ERROR"}, Code.COMPACTION_POSSIBLE),
        ({"compaction": "UNKNOWN"}, Code.COMPACTION_POSSIBLE),
        ({"compaction": "UNKNOWN: 503"}, Code.COMPACTION_POSSIBLE),  # as an earlier version's scan has it
        ({"compaction": "ANOTHER"}, Code.COMPACTION_POSSIBLE),
        ({"compaction": None}, Code.COMPACTION_POSSIBLE),
        ({"load_state": "unloaded", "compaction": None}, Code.NOT_HELD),
        ({"load_state": "never_loaded"}, Code.NOT_HELD),
        ({"load_state": None}, Code.COMPACTION_POSSIBLE),
        ({"topic_exists": None, "load_state": None}, Code.NOT_HELD),
    ],
)
def test_a_compacted_ledger_goes_when_no_compaction_can_be_running(facts: dict[str, Any], code: str) -> None:
    assert decided("compacted-ledger", **facts) == (of(code), code)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"memory": Memory.NOTHING}, Code.NOT_HELD),
        *(({"memory": code}, code) for code in Memory if code is not Memory.NOTHING),
        ({"memory": None}, Code.NOT_ASKED),
        ({"memory": "unheard of"}, Code.NOT_ASKED),
        ({"memory": None, "compaction": "SUCCESS"}, Code.NOT_ASKED),
        ({"memory": None, "load_state": None}, Code.NOT_ASKED),
        ({"memory": None, "load_state": "unloaded"}, Code.NOT_HELD),
        ({"memory": None, "load_state": "never_loaded"}, Code.NOT_HELD),
        ({"memory": Memory.HELD_CURSOR, "topic_exists": None, "load_state": None}, Code.NOT_HELD),
    ],
)
def test_a_snapshot_goes_when_no_broker_can_hold_it(facts: dict[str, Any], code: str) -> None:
    assert decided("delayed-index-bucket", **facts) == (of(code), code)
    assert decided("delayed-index-bucket", bucket_key="odd", **facts) == (of(code), code)


# -------------------------------------------------------------------------------------------------------- the wording


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "closed, older than the grace period, and nothing refers to it"),
        ({"problem": "empty", "state": None, "application": None}, "the z-node has no data"),
        ({"problem": "corrupt", "error": "at byte 3", "state": None, "application": None}, "at byte 3"),
        ({"application": None}, "not tagged application=pulsar"),
        ({"component": None}, "unknown component"),
        ({"managed_ledger": None}, "its tags name no owner"),
        (
            {"managed_ledger": "t/elsewhere/persistent/x"},
            "namespace t/elsewhere exists under no declared root: foreign or gone (bookkeeper.gone_namespaces)",
        ),
        ({"state": "OPEN", "ctime": NOW - DAY}, "never closed, and younger than the grace period"),
        ({"state": "OPEN"}, "never closed: no broker rolled it over, nothing refers to it"),
        ({"ctime": 0}, "its age is unknown: ctime is missing or in the future"),
        ({"ctime": NOW - DAY}, "younger than the grace period"),
    ],
)
def test_what_a_finding_says(changes: dict[str, Any], reason: str) -> None:
    table = pa.Table.from_pylist([data_ledger(**changes)], BOOKKEEPER_LEDGERS)
    assert orphans.judge(table, Referenced(), CONTEXT).column("reason").to_pylist() == [reason]


def test_each_undecodable_z_node_says_what_is_wrong_with_it() -> None:
    broken = {"problem": "corrupt", "state": None, "application": None}
    rows = [data_ledger(ledger_id=i, error=error, **broken) for i, error in enumerate(("a", "b", "a"))]
    found = orphans.judge(pa.Table.from_pylist(rows, BOOKKEEPER_LEDGERS), Referenced(), CONTEXT)
    assert found.column("reason").to_pylist() == ["a", "b", "a"]


def test_a_code_is_a_member_and_of_an_earlier_version_the_finding() -> None:
    assert orphans.code_of({"finding": "kept", "code": "legal_hold"}) is Protection.LEGAL_HOLD
    assert orphans.code_of({"finding": "kept", "code": None}) is Finding.KEPT
    members = [str(one) for codes in orphans.CODES for one in codes]
    assert len(set(members) - {"open_orphan"}) == len(members) - 2  # the only code of two enumerations
