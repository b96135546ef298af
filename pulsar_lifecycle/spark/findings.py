# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""From tables and references to findings: the Spark side of judging, and closing an epoch with its coverage proof.

Belongs here: joining, shipping the context, storing. Not here: the rules (``plan/orphans.py``, ``plan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.engine import inventory
from pulsar_lifecycle.engine.history import read_marks
from pulsar_lifecycle.engine.unsettled import absent
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.io.journal import deleted_since, unsettled_nodes
from pulsar_lifecycle.io.lake import Lake
from pulsar_lifecycle.io.zk import KazooStore, cluster_fingerprint
from pulsar_lifecycle.plan import orphans, tables
from pulsar_lifecycle.plan.coverage import Census, Epoch, broken_history, prove
from pulsar_lifecycle.plan.orphans import Context, Finding
from pulsar_lifecycle.plan.references import Referenced, id_set
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.scan import Cluster, referenced_ids, stored_name
from pulsar_lifecycle.spark.sources import configuration_settings, root_settings


def close_epoch(cluster: Cluster, epoch_id: str, started_at: int, census: Sequence[Census], now: int) -> Epoch:
    """Prove or disprove coverage, and store the epoch with its referenced ids and the context of its decisions."""
    lake = cluster.lake
    parts = cluster.parts(epoch_id, "references")
    refs = referenced_ids(lake.batches(parts, ["ledger_id", "keeps_bookkeeper_copy"]))
    unreadable = lake.batches(parts, ["kind", "owner", "error"], pc.field("error").is_valid())
    errors, gone = unread_references(unreadable)
    newest, newest_zxid, schemas = _facts(cluster, epoch_id)
    settings = cluster.settings
    unheard = pc.starts_with(pc.field("load_reason"), "the brokers were not heard")
    silent = next(lake.batches(cluster.parts(epoch_id, "topics"), ["load_reason"], unheard), None)
    with KazooStore(settings.zookeeper, read_only=True) as store:
        # However old the last covered one is: what got lost stays a gap until the operator raises max_shrinkage.
        # Listed before the counters are read: one that finishes in between is later, and no sign of a restore.
        previous = [e for e in lake.epochs(cluster=settings.cluster) if e.epoch_id != epoch_id]
        fingerprint = cluster_fingerprint(store, settings.bookkeeper.ledgers_root)
        marks = read_marks(store, fingerprint, settings.bookkeeper.ledgers_root)
        last = max((e.started_at for e in previous if e.covered and e.fingerprint == fingerprint), default=0)
        unsaid = len(absent(store, unsettled_nodes(lake.location, settings.cluster, last))) if last else 0
    epoch = Epoch(
        epoch_id=epoch_id,
        cluster=settings.cluster,
        fingerprint=fingerprint,
        started_at=started_at,
        finished_at=now,
        census=tuple(census),
        max_ledger_id=newest,
        max_czxid=newest_zxid,
        zxid=marks.zxid,
        ids_issued=marks.ids_issued,
        lease=marks.lease,
        shared_with=None
        if settings.bookkeeper.shared_with is None
        else tuple(r.name for r in settings.bookkeeper.shared_with),
        acknowledged=settings.orphans.acknowledged_znodes,
        reference_errors=tuple(errors),
        broker_errors=(silent.column("load_reason")[0].as_py(),) if silent else (),
    )
    context, unread = _context(cluster, epoch_id, refs, started_at, gone)
    if lake.fingerprint(epoch_id) not in ("", fingerprint):
        unread.append("the scan began on another cluster: its fingerprint differs")
    epoch = replace(epoch, reference_errors=(*epoch.reference_errors, *unread))
    epoch = replace(epoch, broken=broken_history(epoch, previous))
    deleted = deleted_since(lake.location, last, settings.cluster) + unsaid if last else 0
    gaps = prove(epoch, previous, deleted, settings.orphans.max_shrinkage, schemas)
    epoch = replace(epoch, gaps=gaps)
    cluster.lake.store_offload_uuids(epoch_id, [stored_name("managed_ledgers", root) for root in cluster.roots()])
    lake.store_epoch(epoch, refs, context)
    return epoch


def unread_references(batches: Iterable[pa.RecordBatch]) -> tuple[list[str], set[tuple[str, str]]]:
    """Of references with an ``error``: what was not read (the first thousand), and (kind, owner) of what is gone.

    What is gone is no gap, and may be any number.
    """
    unread: dict[str, None] = {}
    gone: set[tuple[str, str]] = set()
    for batch in batches:
        for kind, owner, error in zip(*(batch.column(c).to_pylist() for c in ("kind", "owner", "error")), strict=True):
            if error.startswith(tables.GONE):
                gone.add((kind, owner))
            elif len(unread) < 1000:
                unread[error] = None
    return list(unread), gone


def _facts(cluster: Cluster, epoch_id: str) -> tuple[int, int, int]:
    """Of the ledgers listed: the highest id (-1: none), the newest czxid, and how many are schemas'."""
    newest, zxid, schemas = -1, 0, 0
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    for batch in cluster.lake.batches(parts, ["ledger_id", "czxid", "component"]):
        newest = max(newest, pc.max(batch.column("ledger_id").fill_null(-1)).as_py())
        zxid = max(zxid, pc.max(batch.column("czxid").fill_null(0)).as_py())
        schemas += pc.sum(pc.equal(batch.column("component"), "schema")).as_py() or 0
    return newest, zxid, schemas


def _context(
    cluster: Cluster, epoch_id: str, refs: Referenced, started_at: int, gone: Iterable[tuple[str, str]]
) -> tuple[Context, list[str]]:
    """What the decisions need beside the tables, and what of it could not be read.

    ``gone``: kind and owner of references in ledgers that are gone.
    """
    settings = cluster.settings
    known: set[str] = set()
    shared: set[str] = set()
    busy: set[int] = set()
    sources: set[str] = set()
    kept: set[str] = set()
    unread: list[str] = []
    places: dict[tuple[int, int], str] = {}
    for root in cluster.roots():
        try:
            with KazooStore(root_settings(settings, root), read_only=True) as store:
                found = inventory.namespaces(store)
                twin = places.setdefault(inventory.birth(store), root)
                if twin != root:
                    unread.append(
                        f"bookkeeper.shared_with.{root} is {twin or 'our own metadata store'}: give the other cluster's"
                    )
                if not root:
                    busy = inventory.under_replicated(store, settings.bookkeeper.ledgers_root)
                    with KazooStore(configuration_settings(settings), read_only=True) as configuration:
                        found |= inventory.namespaces(configuration)
                        sources.update(inventory.partitioned_shadow_sources(configuration).values())
                else:
                    sources.update(inventory.partitioned_shadow_sources(store).values())
        except LifecycleError as error:
            unread.append(f"namespaces, shadow topics or under-replication of {root or 'our own root'}: {error}")
            found = frozenset[str]()
        known |= found
        shared |= found if root else set[str]()
        sources |= _distinct(
            cluster, epoch_id, "managed_ledgers", root, "shadow_source", pc.field("shadow_source").is_valid()
        )
        for table in ("managed_ledgers", "managed_cursors", "schemas"):
            corrupt = pc.starts_with(pc.field("error"), tables.CORRUPT)
            kept |= {inventory.namespace_of(p) for p in _distinct(cluster, epoch_id, table, root, "path", corrupt)}
    kept_topics, strange = orphans.owners_to_keep(gone)
    context = Context(
        now=started_at,  # ages are those at the listing, however long the scan took
        grace=int(settings.orphans.grace_period * 1000),
        namespaces=frozenset(known),
        gone_namespaces=frozenset(settings.bookkeeper.gone_namespaces),
        shared_namespaces=frozenset(shared),
        kept_namespaces=frozenset(kept) | strange,
        holds=frozenset(settings.orphans.legal_holds),
        shadow_sources=orphans.full_names(sources),
        system_topics=settings.orphans.system_topics,
        under_replicated=BitMap64(sorted(busy)),
        kept_topics=kept_topics,
        open_topics=_open_topics(cluster, epoch_id, refs),
    )
    return context, unread


def _distinct(cluster: Cluster, epoch_id: str, table: str, root: str, column: str, where: pc.Expression) -> set[str]:
    needed = [column] if column == "shadow_source" else [column, "error"]
    batches = cluster.lake.batches(cluster.parts(epoch_id, table, root), needed, where)
    return {value for batch in batches for value in batch.column(column).to_pylist()}


def _open_topics(cluster: Cluster, epoch_id: str, refs: Referenced) -> frozenset[str]:
    error, state, application = pc.field("error"), pc.field("state"), pc.field("application")
    rows = cluster.lake.batches(
        cluster.parts(epoch_id, "bookkeeper_ledgers"),
        ["ledger_id", "error", "state", "application", *orphans.OWNER_TAGS],
        error.is_null() & (state != "CLOSED") & (application == "pulsar"),
    )
    return frozenset(topic for batch in rows for topic in orphans.written_topics(_outside(batch, refs.needed)))


# ---------------------------------------------------------------------------------------------------------- findings


def build_findings(cluster: Cluster, epoch_id: str) -> None:
    """Judge every ledger of a closed epoch, and store ``findings``."""
    lake = cluster.lake
    refs = lake.referenced(epoch_id)
    ledgers = cluster.parts(epoch_id, "bookkeeper_ledgers")
    missing = refs.needed - _listed(lake.batches(ledgers, ["ledger_id"]))
    # Mostly there are none missing, and no need to go through the references.
    pieces = [*ledgers, *(cluster.parts(epoch_id, "references") if missing else ())]
    judging = Judging(
        cluster.settings,
        lake,
        refs,
        lake.context(epoch_id),
        missing,
        topics=cluster.parts(epoch_id, "topics"),
        cursors=cluster.parts(epoch_id, "managed_cursors"),
        references=pieces[len(ledgers) :],
    )
    cluster.store(epoch_id, "findings", tables.FINDINGS, judging.rows, pieces)


def _listed(batches: Iterable[pa.RecordBatch]) -> BitMap64:
    """The ids of all ledgers."""
    listed = BitMap64()
    for batch in batches:
        listed |= id_set(batch.column("ledger_id").drop_null())
    return listed


def _outside(batch: pa.RecordBatch, ids: BitMap64) -> pa.RecordBatch:
    """The rows whose ``ledger_id`` is not among ``ids``."""
    others = id_set(batch.column("ledger_id")) - ids
    return batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(others.to_array(), pa.uint64()).cast(pa.int64())))


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

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of ``tables.FINDINGS``."""
        if part in self.references:
            yield from self._dangling(part)
            return
        pending: list[pa.Table] = []
        for batch in self.lake.batches([part], _JUDGED, pc.field("ledger_id").is_valid()):
            judged = orphans.judge(pa.Table.from_batches([_outside(batch, self.refs.needed)]), self.refs, self.context)
            waits = pc.equal(judged.column("finding"), orphans.PENDING)
            pending.append(judged.filter(waits))
            yield from judged.filter(pc.invert(waits)).to_batches()
        if any(some.num_rows for some in pending):
            yield from orphans.settle(self._with_owner_facts(pa.concat_tables(pending))).to_batches()

    def _with_owner_facts(self, pending: pa.Table) -> pa.Table:
        owners = pc.unique(pending.column("topic"))
        theirs = pc.field("error").is_null() & pc.field("topic").isin(owners)
        topics = self._read(self.topics, ["topic", "load_state", "compaction", "first_ledger_id"], theirs)
        cursors = self._read(self.cursors, ["topic", "cursor"], theirs).group_by(["topic", "cursor"]).aggregate([])
        topics = topics.append_column("topic_exists", pa.repeat(True, topics.num_rows))
        cursors = cursors.append_column("cursor_exists", pa.repeat(True, cursors.num_rows))
        joined = pending.join(topics, "topic", join_type="left outer")
        joined = joined.join(cursors, ["topic", "cursor"], join_type="left outer")
        return joined.select(orphans.OWNER_FACTS.names)

    def _read(self, parts: Sequence[str], columns: list[str], where: pc.Expression) -> pa.Table:
        schema = pa.schema([orphans.OWNER_FACTS.field(column) for column in columns])
        batches = self.lake.batches(parts, [*columns, "error"], where)
        return pa.Table.from_batches([batch.select(columns) for batch in batches], schema)

    def _dangling(self, part: str) -> Iterator[pa.RecordBatch]:
        """References to ledgers that were not listed and are not there now: newer ones were only listed too early."""
        needing = pc.field("ledger_id").is_valid() & pc.field("keeps_bookkeeper_copy")
        columns = ["ledger_id", "kind", "owner", "referrer", "keeps_bookkeeper_copy"]
        seen: set[tuple[object, object]] = set()
        for batch in self.lake.batches([part], columns, needing):
            ids = list(id_set(batch.column("ledger_id")) & self.missing)
            if not ids:
                continue
            root = self.settings.bookkeeper.ledgers_root
            with KazooStore(self.settings.zookeeper, read_only=True) as store:
                store.sync("/")
                nodes = store.read([ledger_path.ledger_path(i, root) for i in ids])
            gone = {i for i, node in zip(ids, nodes, strict=True) if node is None}
            rows = batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(sorted(gone), pa.int64()))).to_pylist()
            found = {(row["ledger_id"], row["reason"]): row for row in map(dangling_row, rows)}
            yield pa.RecordBatch.from_pylist([row for key, row in found.items() if key not in seen], tables.FINDINGS)
            seen |= found.keys()


_UNJUDGED = ("parent", "listed", "ensemble_size", "ack_quorum")
_JUDGED = [name for name in tables.BOOKKEEPER_LEDGERS.names if name not in _UNJUDGED]
"""The columns that a judgement is made of: the census is done."""


def dangling_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of a reference (``tables.REFERENCES``) to a ledger that is not there."""
    topic = orphans.topic_of(str(row["kind"]), str(row["owner"]))
    return {
        "ledger_id": row["ledger_id"],
        "finding": Finding.DANGLING.value,
        "reason": f"{row['referrer']} refers to it ({row['kind']}) and BookKeeper does not have it",
        "topic": str(topic) if topic else "",
        "namespace": str(topic.namespace) if topic else "",
    }
