"""Findings: every row of a scan judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import snapshot_inquiry
from pulsar_lifecycle.scan.epochs import UNREADABLE, listed_by, outside
from pulsar_lifecycle.scan.references import stale_copies
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.findings import Context, Finding
from pulsar_lifecycle.values.owner_names import topic_of
from pulsar_lifecycle.values.referenced import Referenced, id_set
from pulsar_lifecycle.values.tables import Problem


def build_findings(cluster: Cluster, epoch_id: str) -> None:
    """Judge every ledger of a closed epoch, and store ``findings``."""
    lake = cluster.lake
    refs = lake.referenced(epoch_id)
    ledgers = cluster.parts(epoch_id, "bookkeeper_ledgers")
    missing = refs.needed - listed_by(lake.batches(ledgers, ["ledger_id"]))
    # Mostly there are none missing, damaged or untold, and no need to go through the references.
    parts = cluster.parts(epoch_id, "references")
    damaged = next(lake.batches(parts, ["problem"], pc.field("problem").is_valid()), None)
    pieces = [*ledgers, *(parts if missing or damaged else ())]
    judging = Judging(
        share_of(cluster.tasks, cluster.settings),
        lake,
        refs,
        lake.context(epoch_id),
        missing,
        topics=cluster.parts(epoch_id, "topics"),
        cursors=cluster.parts(epoch_id, "managed_cursors"),
        references=pieces[len(ledgers) :],
        parts=max(1, len(ledgers)),
        connect=cluster.connect,
    )
    cluster.store(epoch_id, "findings", tables.FINDINGS, judging.rows, pieces)


@dataclass(frozen=True)
class Judging:
    """The findings of one file, of ledgers or of references; runs in a task."""

    settings: Settings
    lake: Lake
    refs: Referenced
    context: Context
    missing: BitMap64
    """Ledgers that are needed and were not listed."""
    topics: Sequence[str]
    cursors: Sequence[str]
    references: Sequence[str]
    connect: Connect
    parts: int = 1
    """How many files of ledgers there are: they share what the brokers may be asked."""

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of ``tables.FINDINGS``."""
        if part in self.references:
            yield from self._dangling(part)
            yield from self._damaged(part)
            yield from self._unanswered(part)
            return
        pending: list[pa.Table] = []
        for batch in self.lake.batches([part], _JUDGED, pc.field("ledger_id").is_valid()):
            unneeded = outside(batch, self.refs.needed)
            if not unneeded.num_rows:
                continue
            judged = orphans.judge(pa.Table.from_batches([unneeded]), self.refs, self.context)
            waits = pc.equal(judged.column("finding"), orphans.PENDING)
            pending.append(judged.filter(waits))
            yield from judged.filter(pc.invert(waits)).to_batches()
        if any(some.num_rows for some in pending):
            yield from orphans.decide_pending(self._with_owner_facts(pa.concat_tables(pending))).to_batches()

    def _with_owner_facts(self, pending: pa.Table) -> pa.Table:
        owners = pc.unique(pending.column("topic"))
        theirs = pc.field("problem").is_null() & pc.field("topic").isin(owners)
        topics = self._read(self.topics, tables.TOPICS, ["topic", *_OF_TOPICS], theirs)
        cursors = self._read(self.cursors, tables.MANAGED_CURSORS, ["topic", "cursor"], theirs)
        known = {row["topic"]: {**row, "topic_exists": True} for row in topics.to_pylist()}
        named = set(zip(*(cursors.column(name).to_pylist() for name in ("topic", "cursor")), strict=True))
        rows = [
            {**_NO_TOPIC, **row, **known.get(row["topic"], {}), "cursor_exists": (row["topic"], row["cursor"]) in named}
            for row in pending.to_pylist()
        ]
        if not any(map(snapshot_inquiry.must_ask, rows)):
            return snapshot_inquiry.with_memory(rows, None)
        most = -(-snapshot_inquiry.MOST_ASKED // self.parts)
        with self.connect(self.settings, read_only=True) as ports:
            inquiry = snapshot_inquiry.Inquiry(ports.store, ports.admin, self.settings.bookkeeper.ledgers_root, most)
            return snapshot_inquiry.with_memory(rows, inquiry, turn=self.context.now)

    def _read(self, parts: Sequence[str], table: pa.Schema, columns: list[str], where: pc.Expression) -> pa.Table:
        schema = pa.schema([table.field(column) for column in columns])
        batches = self.lake.batches(parts, [*columns, "problem"], where)
        return pa.Table.from_batches([batch.select(columns) for batch in batches], schema)

    def _dangling(self, part: str) -> Iterator[pa.RecordBatch]:
        """References to ledgers that were not listed and are not there now: newer ones were only listed too early."""
        needing = pc.field("ledger_id").is_valid() & pc.field("keeps_bookkeeper_copy")
        columns = ["ledger_id", "kind", "owner", "referrer", "keeps_bookkeeper_copy"]
        seen: set[tuple[object, ...]] = set()
        for batch in self.lake.batches([part], columns, needing):
            ids = list(id_set(batch.column("ledger_id")) & self.missing)
            if not ids:
                continue
            root = self.settings.bookkeeper.ledgers_root
            with self.connect(self.settings, read_only=True) as ports:
                ports.store.sync("/")
                nodes = ports.store.read([ledger_path.ledger_path(i, root) for i in ids])
            gone = {i for i, node in zip(ids, nodes, strict=True) if node is None}
            rows = batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(sorted(gone), pa.int64()))).to_pylist()
            stale = self._stale_copies({row["owner"] for row in rows if row["kind"] == "R3"})
            rows = [row for row in rows if row["kind"] != "R3" or row["referrer"] not in stale]
            found = {(row["ledger_id"], row["kind"], row["referrer"]): dangling_row(row) for row in rows}
            yield pa.RecordBatch.from_pylist([row for key, row in found.items() if key not in seen], tables.FINDINGS)
            seen |= found.keys()

    def _stale_copies(self, owners: Set[str]) -> frozenset[str]:
        """Of cursors of these managed ledgers (``stale_copies``)."""
        if not owners:
            return frozenset()
        wanted = pc.field("kind").isin(["R2", "R3"]) & pc.field("owner").isin(sorted(owners))
        columns = ["kind", "referrer", "ledger_id"]
        schema = pa.schema([tables.REFERENCES.field(name) for name in columns])
        return stale_copies(pa.Table.from_batches(self.lake.batches(self.references, columns, wanted), schema))

    def _damaged(self, part: str) -> Iterator[pa.RecordBatch]:
        """Entries that held references and are lost: damaged ones, and those that the operator says are."""
        acknowledged = self.settings.orphans.acknowledged_entries_at(self.context.now)
        for batch in self.lake.batches([part], UNREADABLE, pc.field("held_in").is_valid()):
            rows = batch.to_pylist()
            found = [
                row
                for row in rows
                if row["problem"] == Problem.DAMAGED
                or f"{row['referrer']} {row['held_in']} {row['entry_id']}" in acknowledged
            ]
            yield pa.RecordBatch.from_pylist(list(map(damaged_row, found)), tables.FINDINGS)

    def _unanswered(self, part: str) -> Iterator[pa.RecordBatch]:
        """Topics of which their brokers do not say what they have in memory."""
        untold = (pc.field("problem") == Problem.UNANSWERED) & (pc.field("kind") == "R3")
        for batch in self.lake.batches([part], UNREADABLE, untold):
            yield pa.RecordBatch.from_pylist(list(map(unanswered_row, batch.to_pylist())), tables.FINDINGS)


_OF_TOPICS = ("load_state", "compaction", "broker", "broker_started", "last_ledger_state")
"""The columns of ``tables.TOPICS`` that decide about pending findings."""
_NO_TOPIC = {**dict.fromkeys(_OF_TOPICS), "topic_exists": False}

_UNJUDGED = ("parent", "listed", "ensemble_size", "ack_quorum", "ensembles")
_JUDGED = [name for name in tables.BOOKKEEPER_LEDGERS.names if name not in _UNJUDGED]
"""The columns that a judgement is made of: the census is done."""


def dangling_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of a reference (``tables.REFERENCES``) to a ledger that is not there."""
    return {
        "ledger_id": row["ledger_id"],
        "finding": Finding.DANGLING.value,
        "code": Finding.DANGLING.value,
        "reason": f"{row['referrer']} refers to it ({row['kind']}) and BookKeeper does not have it",
        **_owner_of(row),
    }


def damaged_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of an entry that held references (``tables.REFERENCES``) and is lost."""
    return {
        "ledger_id": row["held_in"],
        "finding": Finding.DAMAGED.value,
        "code": Finding.DAMAGED.value,
        "reason": f"its entry {row['entry_id']} held references ({row['kind']}), so its owner is kept: {row['error']}",
        "path": row["referrer"],
        **_owner_of(row),
    }


def unanswered_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of a topic whose broker does not say what it holds (``tables.REFERENCES``)."""
    return {
        "finding": Finding.UNANSWERED.value,
        "code": Finding.UNANSWERED.value,
        "reason": f"its broker does not say what it has in memory, so the topic is kept: {row['error']}",
        "path": row["referrer"],
        **_owner_of(row),
    }


def _owner_of(row: Mapping[str, object]) -> dict[str, str]:
    topic = topic_of(str(row["kind"]), str(row["owner"]))
    return {"topic": str(topic) if topic else "", "namespace": str(topic.namespace) if topic else ""}
