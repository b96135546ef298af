"""What closing an epoch makes of references that could not be read, and judging a stored file as a task does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.io.lake import Lake
from pulsar_lifecycle.plan.orphans import Context, Finding
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.plan.tables import BOOKKEEPER_LEDGERS, MANAGED_CURSORS, REFERENCES, TOPICS
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.findings import Judging, dangling_row, unread_references

DAY = 86_400_000


def test_one_unread_reference_shows_among_thousands_that_are_gone() -> None:
    """Only so many errors are kept; what is gone is no gap and must not crowd out what is."""
    gone = [
        {"kind": "R3", "owner": f"t/n/persistent/{n}", "error": f"gone: /topic-{n}: no z-node"} for n in range(3000)
    ]
    unread = [{"kind": "R5", "owner": "t/n/x", "error": "unread: /one: no answer"}] * 2
    batch = pa.RecordBatch.from_pylist([*gone, *unread], REFERENCES)
    errors, owners = unread_references([batch])
    assert errors == ["unread: /one: no answer"]
    assert owners == {(row["kind"], row["owner"]) for row in gone}


def ledger(number: int, component: str, **tags: Any) -> dict[str, Any]:
    """Old, closed, of Pulsar."""
    owned = {"ledger_id": number, "state": "CLOSED", "application": "pulsar", "component": component, "ctime": DAY}
    return owned | {"path": f"/ledgers/00/0000/L{number:04d}"} | tags


def compacted(number: int, topic: str) -> dict[str, Any]:
    return ledger(number, "compacted-ledger", compacted_topic=f"persistent://t/n/{topic}")


def snapshot(number: int, topic: str, cursor: str) -> dict[str, Any]:
    tags = {"bucket_topic": f"persistent://t/n/{topic}", "bucket_cursor": cursor}
    return ledger(number, "delayed-index-bucket", bucket_key="#pulsar.internal.delayed.bucket_3_5", **tags)


def stored(lake: Lake, table: str, schema: pa.Schema, *rows: dict[str, Any]) -> list[str]:
    batches = pa.Table.from_pylist(list(rows), schema).to_batches()
    lake.publish("e", table, [lake.write_part("e", table, schema, batches)])
    return lake.parts("e", table)


def test_a_file_of_ledgers_is_judged_with_what_is_known_of_their_topics(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    loaded = {"load_state": "loaded", "first_ledger_id": 1}
    topics = stored(
        lake,
        "topics",
        TOPICS,
        {"topic": "persistent://t/n/busy", "compaction": "RUNNING", **loaded},
        {"topic": "persistent://t/n/calm", "compaction": "SUCCESS", **loaded},
        {"topic": "persistent://t/n/unread", "compaction": "SUCCESS", **loaded, "error": "unread: no answer"},
    )
    two_of_one_name = [{"topic": "persistent://t/n/calm", "cursor": "s"}] * 2
    cursors = stored(lake, "managed_cursors", MANAGED_CURSORS, *two_of_one_name)
    (ledgers,) = stored(
        lake,
        "bookkeeper_ledgers",
        BOOKKEEPER_LEDGERS,
        ledger(1, "managed-ledger", managed_ledger="t/n/persistent/calm"),
        ledger(2, "managed-ledger", managed_ledger="t/n/persistent/calm"),
        compacted(3, "busy"),
        compacted(4, "calm"),
        compacted(5, "deleted"),
        snapshot(6, "calm", "s"),
        snapshot(7, "calm", "gone"),
        {"ledger_id": 8, "path": "/ledgers/00/0000/L0008", "error": "gone"},
        {"path": "/ledgers/00/0001", "error": "unread: no answer"},
    )
    judging = Judging(
        Settings.model_construct(),
        lake,
        Referenced(needed=BitMap64([2])),
        Context(now=9 * DAY, grace=7 * DAY, namespaces=frozenset({"t/n"})),
        BitMap64(),
        topics,
        cursors,
        references=(),
    )
    rows = [row for batch in judging.rows(ledgers) for row in batch.to_pylist()]
    found = {row["ledger_id"]: row["finding"] for row in rows}
    assert len(rows) == len(found)
    orphan, kept = Finding.ORPHAN, Finding.KEPT
    assert found == {1: orphan, 3: kept, 4: orphan, 5: orphan, 6: kept, 7: orphan}


@pytest.mark.parametrize(
    ("kind", "owner", "topic", "namespace"),
    [
        ("R1", "t/n/persistent/a%2Bb", "persistent://t/n/a+b", "t/n"),
        ("R5", "t/n/a%2Bb", "persistent://t/n/a+b", "t/n"),
        ("R5", "t/c/n/x", "persistent://t/c/n/x", "t/c/n"),
        ("R5", "t/n/a b", "", ""),
    ],
)
def test_a_dangling_reference_names_its_z_node_and_its_topic_if_there_is_one(
    kind: str, owner: str, topic: str, namespace: str
) -> None:
    row = dangling_row({"ledger_id": 7, "kind": kind, "owner": owner, "referrer": "/z/node"})
    assert (row["topic"], row["namespace"]) == (topic, namespace)
    assert "/z/node" in str(row["reason"])
