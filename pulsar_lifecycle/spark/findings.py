# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""From tables and references to findings: the Spark side of judging, and closing an epoch with its coverage proof.

Belongs here: joining, shipping the context, storing. Not here: the rules (``plan/orphans.py``, ``plan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.engine import inventory, snapshots
from pulsar_lifecycle.engine.history import read_marks
from pulsar_lifecycle.engine.other_roots import look_around
from pulsar_lifecycle.engine.unsettled import absent
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.io.connect import Connections, root_settings, without_chroot
from pulsar_lifecycle.io.lake.artefacts import DAY_MS, Lake
from pulsar_lifecycle.io.lake.journal import deleted_since, taken_off, unsettled_nodes
from pulsar_lifecycle.io.zookeeper.store import cluster_fingerprint
from pulsar_lifecycle.plan import orphans, tables
from pulsar_lifecycle.plan.coverage import Census, Epoch, broken_history, last_covered, prove
from pulsar_lifecycle.plan.gaps import Gap
from pulsar_lifecycle.plan.orphans import Context, Finding
from pulsar_lifecycle.plan.other_roots import Birth, undeclared
from pulsar_lifecycle.plan.references import KEEPS_OWNER, Referenced, id_set
from pulsar_lifecycle.plan.shrinkage import (
    Limits,
    Listing,
    Now,
    Sizes,
    by_cursors,
    by_references,
    by_schemas,
    by_topics,
    lost_references,
)
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.runs import note_words
from pulsar_lifecycle.spark.scan import Cluster, referenced_ids, stored_name
from pulsar_lifecycle.spark.session import share_of
from pulsar_lifecycle.words import WordKind


def close_epoch(cluster: Cluster, epoch_id: str, started_at: int, census: Sequence[Census], now: int) -> Epoch:
    """Prove or disprove coverage, and store the epoch with its referenced ids and the context of its decisions."""
    lake = cluster.lake
    note_words(cluster, lake.begun_by(epoch_id))
    parts = cluster.parts(epoch_id, "references")
    refs = referenced_ids(lake.batches(parts, ["ledger_id", "keeps_bookkeeper_copy"]))
    unreadable = lake.batches(parts, _UNREADABLE, pc.field("error").is_valid())
    unread_entries = unread_references(unreadable, cluster.settings.orphans.acknowledged_entries_at(now))
    errors, lost = unread_entries.errors, unread_entries.lost
    newest, newest_zxid, schemas = _facts(cluster, epoch_id)
    settings = cluster.settings
    unheard = pc.starts_with(pc.field("load_reason"), "the brokers were not heard")
    silent = next(lake.batches(cluster.parts(epoch_id, "topics"), ["load_reason"], unheard), None)
    with Connections(settings, read_only=True) as ports:
        store = ports.store
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
        acknowledged=tuple(sorted(settings.orphans.acknowledged(now))),
        reference_errors=tuple(errors),
        broker_errors=(silent.column("load_reason")[0].as_py(),) if silent else (),
    )
    context, unread, places = _context(cluster, epoch_id, refs, started_at, lost, now)
    if lake.fingerprint(epoch_id) not in ("", fingerprint):
        unread.append("the scan began on another cluster: its fingerprint differs")
    coded, ignored = _other_roots(settings, places, now)
    relied_on = [(WordKind.ACKNOWLEDGED_ENTRY, entry) for entry in unread_entries.relied_on]
    relied_on += [(WordKind.NOT_SHARING, path) for path in ignored]
    epoch = replace(epoch, reference_errors=(*epoch.reference_errors, *unread), coded_gaps=tuple(coded))
    epoch = replace(epoch, relied_on=tuple(sorted(relied_on)))
    epoch = replace(epoch, broken=broken_history(epoch, previous))
    deleted = deleted_since(lake.location, last, settings.cluster) + unsaid if last else 0
    if earlier := weighed_against(lake, epoch):
        limits = Limits(*settings.orphans.loss(now))
        epoch = replace(epoch, coded_gaps=(*epoch.coded_gaps, *_lost(cluster, epoch_id, earlier, refs, limits)))
    gaps = prove(epoch, previous, deleted, settings.orphans.loss(now)[0], schemas)
    epoch = replace(epoch, gaps=gaps)
    cluster.lake.store_offload_uuids(epoch_id, [stored_name("managed_ledgers", root) for root in cluster.roots()])
    lake.store_epoch(epoch, refs, context)
    return epoch


def weighed_against(lake: Lake, epoch: Epoch) -> Epoch | None:
    """The covered scan that says what got lost since, however old; None if no earlier one is of this metadata store.

    ``accept-restore`` does not free a scan from it: what is missing after a restore is what must be noticed. A whole
    one takes BookKeeper's metadata back, too, and so weighs nothing.
    """
    kept = lake.epochs(epoch.fingerprint, epoch.cluster, set_aside=True)
    return last_covered((e for e in kept if e.started_at < epoch.started_at), epoch.fingerprint)


_UNREADABLE = ["kind", "owner", "referrer", "error", "held_in", "entry_id"]


class UnreadReferences(NamedTuple):
    """What was not read (the first thousand), (kind, owner) of what is lost or untold, entries acknowledged as lost."""

    errors: list[str]
    lost: set[tuple[str, str]]
    relied_on: list[str]


def unread_references(batches: Iterable[pa.RecordBatch], acknowledged: Collection[str] = ()) -> UnreadReferences:
    """Judge references with an ``error``.

    What is lost or untold is no gap, and may be any number, if its owner can be named. ``acknowledged`` entries count
    as lost.
    """
    unread: dict[str, None] = {}
    relied_on: set[str] = set()
    lost: set[tuple[str, str]] = set()
    for batch in batches:
        for kind, owner, path, error, ledger, entry in zip(
            *(batch.column(c).to_pylist() for c in _UNREADABLE), strict=True
        ):
            name = "" if ledger is None else f"{path} {ledger} {entry}"
            known = error.startswith(KEEPS_OWNER) and orphans.has_a_name(kind, owner)
            if known or name in acknowledged:
                lost.add((kind, owner))
                relied_on |= set() if known else {name}
            elif len(unread) < 1000:
                way_out = f'if it is lost for good, put entry = "{name}" into orphans.acknowledged_entries'
                unread[f"{error}; {way_out}" if name else error] = None
    return UnreadReferences(list(unread), lost, sorted(relied_on))


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
    cluster: Cluster, epoch_id: str, refs: Referenced, started_at: int, lost: Collection[tuple[str, str]], now: int
) -> tuple[Context, list[str], dict[Birth, str]]:
    """What the decisions need beside the tables, what of it could not be read, and when each root was made.

    ``lost``: kind and owner of references that nobody can know. ``now`` (ms): which of the operator's
    words hold.
    """
    settings = cluster.settings
    known: set[str] = set()
    shared: set[str] = set()
    busy: set[int] = set()
    sources: set[str] = set()
    kept: set[str] = set()
    unread: list[str] = []
    places: dict[Birth, str] = {}
    for root in cluster.roots():
        try:
            with Connections(settings) as ports:
                store = ports.root(root)
                found = inventory.namespaces(store)
                twin = places.setdefault(inventory.birth(store), root)
                if twin != root:
                    unread.append(
                        f"bookkeeper.shared_with.{root} is {twin or 'our own metadata store'}: give the other cluster's"
                    )
                if not root:
                    busy = inventory.under_replicated(store, settings.bookkeeper.ledgers_root)
                    found |= inventory.namespaces(ports.configuration)
                    sources.update(inventory.partitioned_shadow_sources(ports.configuration).values())
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
    kept_topics, strange = orphans.owners_to_keep(lost)
    context = Context(
        now=started_at,  # ages are those at the listing, however long the scan took
        grace=int(settings.orphans.grace_period * 1000),
        namespaces=frozenset(known),
        gone_namespaces=settings.bookkeeper.gone(now),
        shared_namespaces=frozenset(shared),
        kept_namespaces=frozenset(kept) | strange,
        holds=settings.orphans.holds(now),
        shadow_sources=orphans.full_names(sources),
        system_topics=settings.orphans.system_topics,
        under_replicated=BitMap64(sorted(busy)),
        kept_topics=kept_topics | _once_called(cluster, epoch_id, {owner for _, owner in lost}),
        open_topics=_open_topics(cluster, epoch_id, refs),
    )
    return context, unread, places


def _once_called(cluster: Cluster, epoch_id: str, owners: Collection[str]) -> frozenset[str]:
    """Topics in the tags of all ledgers that these owners refer to: z-nodes that were moved leave their old name."""
    if not owners:
        return frozenset()
    lake, theirs = cluster.lake, pc.field("owner").isin(sorted(owners)) & pc.field("ledger_id").is_valid()
    ids = _listed(lake.batches(cluster.parts(epoch_id, "references"), ["ledger_id"], theirs))
    rows = lake.batches(
        cluster.parts(epoch_id, "bookkeeper_ledgers"), ["ledger_id", *orphans.OWNER_TAGS], pc.field("error").is_null()
    )
    return frozenset(name for batch in rows for name in orphans.names_in_tags(_inside(batch, ids)))


def _other_roots(settings: Settings, births: Collection[Birth], now: int) -> tuple[list[Gap], list[str]]:
    """Other clusters on our ZooKeeper that no setting speaks of at ``now`` (ms), and where one is by not_sharing alone.

    Raises what the store raises: no epoch without it.
    """
    _, chroot = without_chroot(settings.zookeeper)
    with Connections(settings) as ports:
        found = look_around(ports.whole, chroot, settings.bookkeeper.ledgers_root)
    declared = [without_chroot(root_settings(settings, r.name))[1] for r in settings.bookkeeper.shared_with or ()]
    gaps = undeclared(found, births, declared, settings.bookkeeper.not_sharing_at(now))
    where = {gap.where for gap in undeclared(found, births, declared, ())}
    return gaps, sorted(where.difference(gap.where for gap in gaps))


def _lost(cluster: Cluster, epoch_id: str, last: Epoch, refs: Referenced, limits: Limits) -> list[Gap]:
    """Too much that the ``last`` covered epoch saw listed is listed by nothing now; ``refs`` are this epoch's."""
    lake, settings = cluster.lake, cluster.settings
    referenced, before = refs.needed | refs.offloaded, lake.referenced(last.epoch_id)
    ours = BitMap64(taken_off(lake.location, settings.cluster, last.started_at - DAY_MS))
    ledgers, there = cluster.parts(epoch_id, "bookkeeper_ledgers"), pc.field("error").is_null()
    here = _listed(lake.batches(ledgers, ["ledger_id"], there))
    newer = (pc.field("czxid") > last.max_czxid) & (pc.field("component") == "managed-ledger")
    written = {
        row["ledger_id"]: f"{inventory.MANAGED_LEDGERS_ROOT}/{row['managed_ledger']}"
        for batch in lake.batches(
            ledgers, ["ledger_id", "managed_ledger"], there & newer & pc.field("cursor").is_null()
        )
        for row in _outside(batch, referenced).to_pylist()
    }
    unnamed = (before.needed | before.offloaded) - referenced - ours
    if not unnamed or not (unnamed & here or written):
        return []
    sizes = Sizes(lake.batches(ledgers, ["ledger_id", "length"], there))
    now = Now(referenced, here, ours, sizes, written)
    root = settings.bookkeeper.ledgers_root

    def still_there(ids: Sequence[int]) -> list[int]:
        with Connections(settings, read_only=True) as ports:
            ports.store.sync("/")
            nodes = ports.store.read([ledger_path.ledger_path(i, root) for i in ids])
        return [i for i, node in zip(ids, nodes, strict=True) if node is not None]

    return lost_references(_listings(lake, last), now, limits, still_there)


def _listings(lake: Lake, epoch: Epoch) -> list[Listing]:
    """What an epoch saw listed, by table and root; what only entries name counts to the table of its z-nodes."""

    def listing(
        table: str, root: str, columns: list[str], make: Callable[[pa.RecordBatch], pa.Table], kind: str = ""
    ) -> Listing:
        parts = lake.parts(epoch.epoch_id, stored_name(table, root))
        entries = lake.parts(epoch.epoch_id, "references") if kind and not root else []

        def rows() -> Iterator[pa.Table]:
            yield from map(make, lake.batches(parts, columns, pc.field("error").is_null()))
            yield from map(by_references, lake.batches(entries, ["ledger_id", "referrer"], pc.field("kind") == kind))

        return Listing(table, root, rows)

    cursors = ["managed_ledger", "path", "cursors_ledger_id", "compacted_ledger_id", "buckets"]
    return [
        one
        for root in ("", *(epoch.shared_with or ()))
        for one in (
            listing("managed_ledgers", root, ["path", "ledgers"], by_topics),
            listing("managed_cursors", root, cursors, by_cursors, "R3"),
            listing("schemas", root, ["schema_id", "path", "versions"], by_schemas, "R5"),
        )
    ]


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
    # Mostly there are none missing, damaged or untold, and no need to go through the references.
    parts = cluster.parts(epoch_id, "references")
    damaged = next(lake.batches(parts, ["error"], pc.field("error").is_valid()), None)
    pieces = [*ledgers, *(parts if missing or damaged else ())]
    judging = Judging(
        share_of(cluster.spark, cluster.settings),
        lake,
        refs,
        lake.context(epoch_id),
        missing,
        topics=cluster.parts(epoch_id, "topics"),
        cursors=cluster.parts(epoch_id, "managed_cursors"),
        references=pieces[len(ledgers) :],
        parts=max(1, len(ledgers)),
    )
    cluster.store(epoch_id, "findings", tables.FINDINGS, judging.rows, pieces)


def _listed(batches: Iterable[pa.RecordBatch]) -> BitMap64:
    """The ids of all ledgers."""
    listed = BitMap64()
    for batch in batches:
        listed |= id_set(batch.column("ledger_id").drop_null())
    return listed


def _inside(batch: pa.RecordBatch, ids: BitMap64) -> pa.RecordBatch:
    """The rows whose ``ledger_id`` is among ``ids``."""
    some = id_set(batch.column("ledger_id")) & ids
    return batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(some.to_array(), pa.uint64()).cast(pa.int64())))


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
            judged = orphans.judge(pa.Table.from_batches([_outside(batch, self.refs.needed)]), self.refs, self.context)
            waits = pc.equal(judged.column("finding"), orphans.PENDING)
            pending.append(judged.filter(waits))
            yield from judged.filter(pc.invert(waits)).to_batches()
        if any(some.num_rows for some in pending):
            yield from orphans.settle(self._with_owner_facts(pa.concat_tables(pending))).to_batches()

    def _with_owner_facts(self, pending: pa.Table) -> pa.Table:
        owners = pc.unique(pending.column("topic"))
        theirs = pc.field("error").is_null() & pc.field("topic").isin(owners)
        topics = self._read(self.topics, tables.TOPICS, ["topic", *_OF_TOPICS], theirs)
        cursors = self._read(self.cursors, tables.MANAGED_CURSORS, ["topic", "cursor"], theirs)
        cursors = cursors.group_by(["topic", "cursor"]).aggregate([])
        topics = topics.append_column("topic_exists", pa.repeat(True, topics.num_rows))
        cursors = cursors.append_column("cursor_exists", pa.repeat(True, cursors.num_rows))
        joined = pending.join(topics, "topic", join_type="left outer")
        rows = joined.join(cursors, ["topic", "cursor"], join_type="left outer").to_pylist()
        if not any(map(snapshots.must_ask, rows)):
            return snapshots.with_memory(rows, None)
        most = -(-snapshots.MOST_ASKED // self.parts)
        with Connections(self.settings, read_only=True) as ports:
            inquiry = snapshots.Inquiry(ports.store, ports.admin, self.settings.bookkeeper.ledgers_root, most)
            return snapshots.with_memory(rows, inquiry, turn=self.context.now)

    def _read(self, parts: Sequence[str], table: pa.Schema, columns: list[str], where: pc.Expression) -> pa.Table:
        schema = pa.schema([table.field(column) for column in columns])
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
            with Connections(self.settings, read_only=True) as ports:
                ports.store.sync("/")
                nodes = ports.store.read([ledger_path.ledger_path(i, root) for i in ids])
            gone = {i for i, node in zip(ids, nodes, strict=True) if node is None}
            rows = batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(sorted(gone), pa.int64()))).to_pylist()
            found = {(row["ledger_id"], row["reason"]): row for row in map(dangling_row, rows)}
            yield pa.RecordBatch.from_pylist([row for key, row in found.items() if key not in seen], tables.FINDINGS)
            seen |= found.keys()

    def _damaged(self, part: str) -> Iterator[pa.RecordBatch]:
        """Entries that held references and are lost: damaged ones, and those that the operator says are."""
        acknowledged = self.settings.orphans.acknowledged_entries_at(self.context.now)
        for batch in self.lake.batches([part], _UNREADABLE, pc.field("held_in").is_valid()):
            rows = batch.to_pylist()
            found = [
                row
                for row in rows
                if row["error"].startswith(tables.DAMAGED)
                or f"{row['referrer']} {row['held_in']} {row['entry_id']}" in acknowledged
            ]
            yield pa.RecordBatch.from_pylist(list(map(damaged_row, found)), tables.FINDINGS)

    def _unanswered(self, part: str) -> Iterator[pa.RecordBatch]:
        """Topics of which their brokers do not say what they have in memory."""
        untold = pc.starts_with(pc.field("error"), tables.UNANSWERED) & (pc.field("kind") == "R3")
        for batch in self.lake.batches([part], _UNREADABLE, untold):
            yield pa.RecordBatch.from_pylist(list(map(unanswered_row, batch.to_pylist())), tables.FINDINGS)


_OF_TOPICS = ("load_state", "compaction", "broker", "broker_started", "last_ledger_state")
"""The columns of ``tables.TOPICS`` that decide about pending findings."""

_UNJUDGED = ("parent", "listed", "ensemble_size", "ack_quorum")
_JUDGED = [name for name in tables.BOOKKEEPER_LEDGERS.names if name not in _UNJUDGED]
"""The columns that a judgement is made of: the census is done."""


def dangling_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of a reference (``tables.REFERENCES``) to a ledger that is not there."""
    return {
        "ledger_id": row["ledger_id"],
        "finding": Finding.DANGLING.value,
        "reason": f"{row['referrer']} refers to it ({row['kind']}) and BookKeeper does not have it",
        **_owner_of(row),
    }


def damaged_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of an entry that held references (``tables.REFERENCES``) and is lost."""
    return {
        "ledger_id": row["held_in"],
        "finding": Finding.DAMAGED.value,
        "reason": f"its entry {row['entry_id']} held references ({row['kind']}), so its owner is kept: {row['error']}",
        "path": row["referrer"],
        **_owner_of(row),
    }


def unanswered_row(row: Mapping[str, object]) -> dict[str, object]:
    """The finding (``tables.FINDINGS``) of a topic whose broker does not say what it holds (``tables.REFERENCES``)."""
    return {
        "finding": Finding.UNANSWERED.value,
        "reason": f"its broker does not say what it has in memory, so the topic is kept: {row['error']}",
        "path": row["referrer"],
        **_owner_of(row),
    }


def _owner_of(row: Mapping[str, object]) -> dict[str, str]:
    topic = orphans.topic_of(str(row["kind"]), str(row["owner"]))
    return {"topic": str(topic) if topic else "", "namespace": str(topic.namespace) if topic else ""}
