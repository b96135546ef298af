"""Who refers to a ledger: every kind of reference there is, and how each one is treated.

Belongs here: turning metastore rows into reference rows, and the set of referenced ids. Not here: reading anything.
The kinds are those a Pulsar 4.0 cluster can hold; a kind that cannot be read must be declared or must keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.values.referenced import Referenced, id_set
from pulsar_lifecycle.values.tables import REFERENCES, Problem


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of reference: its short name in the tables, where it lives, and what we do about it."""

    code: str
    name: str
    where: str
    treatment: str


KINDS: Mapping[str, Kind] = {
    kind.code: kind
    for kind in (
        Kind("R1", "managed-ledger", "/managed-ledgers/**: ManagedLedgerInfo.ledgerInfo", "read"),
        Kind("R2", "cursor", "/managed-ledgers/*/<cursor>: ManagedCursorInfo.cursorsLedgerId", "read"),
        Kind(
            "R3",
            "compacted-topic",
            "CompactedTopicLedger of __compaction: z-node, last entry of its cursor ledger, the broker's memory",
            "read, all three; while a compaction may run its topic's compacted ledgers are kept",
        ),
        Kind(
            "R4",
            "delayed-bucket",
            "cursor properties #pulsar.internal.delayed.bucket_*",
            "read; of a loaded topic an unreferenced one is kept unless its broker started later without that cursor",
        ),
        Kind("R5", "schema", "/schemas/**: SchemaLocator, and SchemaEntry.index in the ledgers", "read, both"),
        Kind("R6", "transaction", "__transaction_log_*, __transaction_pending_ack: managed ledgers", "read as R1, R2"),
        Kind("R7", "system topic", "__change_events and other system topics: managed ledgers", "read as R1-R3"),
        Kind("R8", "shadow topic", "a shadow topic's own z-node lists its source's ledgers", "read as R1"),
        Kind("R9", "functions", "DistributedLog below /pulsar/functions: untagged ledgers", "untagged is kept"),
        Kind("R10", "table service", "DistributedLog below /stream/storage: untagged ledgers", "untagged is kept"),
        Kind(
            "R11",
            "other clusters",
            "another metadata root on the same BookKeeper",
            "declared: bookkeeper.shared_with; one on our ZooKeeper that is not is found, and blocks",
        ),
        Kind("R12", "broker memory", "a ledger created and not yet stored in metadata", "grace period, second scan"),
        Kind("R13", "busy", "OPEN or IN_RECOVERY state, under-replication entry", "kept"),
        Kind("R14", "streaming offload", "OffloadContext.offloadSegment", "read as R1; the ledger stays listed"),
        Kind("R15", "own intents", "messages in __ledger_deletion", "refer to nothing that lives"),
        Kind("R16", "older world", "ledgers without tags; a restored metadata store", "untagged is kept; report-only"),
    )
}
"""Every kind of reference, by code."""


KEEPS_OWNER = frozenset({Problem.GONE, Problem.DAMAGED, Problem.UNANSWERED})
"""Problems of references whose owner is kept."""


def referenced(references: pa.Table | pa.RecordBatch) -> Referenced:
    """The sets of ids in a table of ``tables.REFERENCES``."""
    references = references.select(["ledger_id", "keeps_bookkeeper_copy"])
    if references.column("ledger_id").null_count:
        references = references.filter(pc.is_valid(references.column("ledger_id")))
    ids, keeps = references.columns
    if pc.all(keeps, skip_nulls=False).as_py():
        return Referenced(id_set(ids))
    return Referenced(id_set(pc.filter(ids, keeps)), id_set(pc.filter(ids, pc.invert(keeps))))


def from_managed_ledgers(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """R1 (with R6, R7, R8, R14) from rows of ``tables.MANAGED_LEDGERS``; rows with an error give none."""
    nested: Any = rows.column("ledgers")
    flat: Any = pc.list_flatten(nested)
    if not len(flat):
        return _NOTHING
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.combine_chunks()
    gone: Any = pc.fill_null(pc.and_(flat.field("offload_complete"), flat.field("bookkeeper_deleted")), False)
    parents: Any = pc.list_parent_indices(nested)
    return _table(
        flat.field("ledger_id"),
        "R1",
        rows.column("managed_ledger").take(parents),
        rows.column("path").take(parents),
        pc.invert(gone),
    )


def from_cursors(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """R2, R3 (the z-node's copy) and R4 from rows of ``tables.MANAGED_CURSORS``."""
    parts = [
        _scalar_column(rows, "cursors_ledger_id", "R2", "managed_ledger"),
        _scalar_column(rows, "compacted_ledger_id", "R3", "managed_ledger"),
        _list_column(rows, "buckets", "R4", "managed_ledger"),
    ]
    return pa.concat_tables(parts)


def in_cursor_ledger(path: str, ledger_id: int) -> str:
    """The referrer of what the last entry of a cursor's ledger names; ``path`` is the cursor's z-node."""
    return f"{path}, cursor ledger {ledger_id}"


def stale_copies(rows: pa.Table) -> frozenset[str]:
    """The z-nodes of cursors, of R2 and R3 in ``tables.REFERENCES``, whose own R3 no broker goes by.

    A broker writes it as it begins a cursor ledger, and from then on into that ledger alone: the next compaction
    leaves the z-node's copy behind, and deletes what it names. It protects what it names all the same.
    """
    some = rows.select(["kind", "referrer", "ledger_id"]).to_pylist()
    said = {row["referrer"] for row in some if row["kind"] == "R3" and row["ledger_id"] is not None}
    cursors = [row for row in some if row["kind"] == "R2"]
    return frozenset(row["referrer"] for row in cursors if in_cursor_ledger(row["referrer"], row["ledger_id"]) in said)


def from_schemas(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """R5 (the locators) from rows of ``tables.SCHEMAS``; the index inside the entries is added by the reader."""
    return _list_column(rows, "versions", "R5", "schema_id")


@dataclass(frozen=True, slots=True)
class StoredReference:
    """One reference found outside the z-nodes' own tables, or (with a ``problem``) one that could not be read.

    The latter is in entry ``entry_id`` of ledger ``held_in``, if it is in any.
    """

    ledger_id: int | None
    kind: str
    owner: str
    referrer: str
    problem: Problem | None = None
    error: str = ""
    held_in: int | None = None
    entry_id: int | None = None

    @property
    def keeps_owner(self) -> bool:
        """Whether nobody can tell what it named, which is its owner's: so the owner is kept."""
        return self.problem in KEEPS_OWNER


def table_of(found: Iterable[StoredReference]) -> pa.Table:
    """Rows of single references; ids below 0 are left out."""
    kept = [one for one in found if one.problem or (one.ledger_id is not None and one.ledger_id >= 0)]
    if not kept:
        return _NOTHING
    return pa.table(
        {
            "ledger_id": [one.ledger_id for one in kept],
            "kind": [one.kind for one in kept],
            "owner": [one.owner for one in kept],
            "referrer": [one.referrer for one in kept],
            "keeps_bookkeeper_copy": [True] * len(kept),
            "problem": [one.problem for one in kept],
            "error": [one.error if one.problem else None for one in kept],
            "held_in": [one.held_in for one in kept],
            "entry_id": [one.entry_id for one in kept],
        },
        schema=REFERENCES,
    )


def _scalar_column(rows: Any, column: str, kind: str, owner: str) -> pa.Table:
    ids = rows.column(column)
    if ids.null_count == len(ids):
        return _NOTHING
    there: Any = pc.fill_null(pc.greater_equal(ids, 0), False)
    return _table(ids.filter(there), kind, rows.column(owner).filter(there), rows.column("path").filter(there), None)


def _list_column(rows: Any, column: str, kind: str, owner: str) -> pa.Table:
    nested: Any = rows.column(column)
    flat: Any = pc.list_flatten(nested)
    if not len(flat):
        return _NOTHING
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.combine_chunks()
    ids: Any = flat.field("ledger_id")
    there: Any = pc.greater_equal(ids, 0)
    parents: Any = pc.list_parent_indices(nested).filter(there)
    return _table(ids.filter(there), kind, rows.column(owner).take(parents), rows.column("path").take(parents), None)


def _table(ids: Any, kind: str, owners: Any, referrers: Any, keeps: Any) -> pa.Table:
    count = len(ids)
    keeps = pa.repeat(_KEEPS, count) if keeps is None else keeps
    no_text, no_id = pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())
    columns = [ids, pa.repeat(kind, count), owners, referrers, keeps, no_text, no_text, no_id, no_id]
    return pa.Table.from_arrays(columns, schema=REFERENCES)


_KEEPS = pa.scalar(True)
_NOTHING = REFERENCES.empty_table()
