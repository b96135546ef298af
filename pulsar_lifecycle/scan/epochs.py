"""Closing an epoch: what its tables and references say together, and its coverage proof.

Belongs here: joining, shipping the context, storing. Not here: the rules (``deletion/planning/orphans.py``,
``scan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_MANAGED_LEDGER, COMPONENT_SCHEMA, LedgerState
from pulsar_lifecycle.journal.archive import nodes_in_doubt
from pulsar_lifecycle.journal.first_phase_marks import list_writes, taken_off, unnamed_snapshots
from pulsar_lifecycle.journal.in_doubt import absent
from pulsar_lifecycle.journal.operator_words import note_words
from pulsar_lifecycle.journal.queries import deleted_since
from pulsar_lifecycle.metastore import namespaces, topics, walk
from pulsar_lifecycle.metastore.bookkeeper_ledgers import under_replicated
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.list_writes import ListWrite
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.coverage import broken_history, prove
from pulsar_lifecycle.scan.history_check import read_counters
from pulsar_lifecycle.scan.neighbours import Birth, undeclared
from pulsar_lifecycle.scan.other_roots import look_around
from pulsar_lifecycle.scan.read import referenced_ids
from pulsar_lifecycle.scan.references import KEEPS_OWNER
from pulsar_lifecycle.scan.shrinkage import (
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
from pulsar_lifecycle.values import owner_names
from pulsar_lifecycle.values.epoch import DAY_MS, Census, Epoch, last_covered
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.referenced import Referenced, id_set
from pulsar_lifecycle.values.store_history import went_back
from pulsar_lifecycle.values.tables import Problem, stored_name
from pulsar_lifecycle.words import WordKind


def close_epoch(cluster: Cluster, epoch_id: str, started_at: int, census: Sequence[Census], now: int) -> Epoch:
    """Prove or disprove coverage, and store the epoch with its referenced ids and the context of its decisions."""
    lake = cluster.lake
    note_words(cluster, lake.begun_by(epoch_id))
    parts = cluster.parts(epoch_id, "references")
    refs = referenced_ids(lake.batches(parts, ["ledger_id", "keeps_bookkeeper_copy"]))
    unreadable = lake.batches(parts, UNREADABLE, pc.field("problem").is_valid())
    unread_entries = unread_references(unreadable, cluster.settings.orphans.acknowledged_entries_at(now))
    newest, newest_zxid, schemas = _facts(cluster, epoch_id)
    settings = cluster.settings
    with cluster.ports(read_only=True) as ports:
        store = ports.store
        # However old the last covered one is: what got lost stays a gap until the operator raises max_shrinkage.
        # Listed before the counters are read: one that finishes in between is later, and no sign of a restore.
        previous = [e for e in lake.epochs(cluster=settings.cluster) if e.epoch_id != epoch_id]
        fingerprint = cluster_fingerprint(store, settings.bookkeeper.ledgers_root)
        counters = read_counters(store, fingerprint, settings.bookkeeper.ledgers_root)
        last = max((e.started_at for e in previous if e.covered and e.fingerprint == fingerprint), default=0)
        unsaid = len(absent(store, nodes_in_doubt(cluster.journal_reader, settings.cluster, last))) if last else 0
    epoch = Epoch(
        epoch_id=epoch_id,
        cluster=settings.cluster,
        fingerprint=fingerprint,
        started_at=started_at,
        finished_at=now,
        census=tuple(census),
        max_ledger_id=newest,
        max_czxid=newest_zxid,
        zxid=counters.zxid,
        ids_issued=counters.ids_issued,
        lease=counters.lease,
        shared_with=None
        if settings.bookkeeper.shared_with is None
        else tuple(r.name for r in settings.bookkeeper.shared_with),
        acknowledged=tuple(sorted(settings.orphans.acknowledged(now))),
    )
    context, unread, places = _context(cluster, epoch_id, refs, started_at, unread_entries.lost, now)
    known = min((e.finished_at for e in previous if e.fingerprint == fingerprint), default=now)
    context = replace(context, overtaken_topics=_overtaken_topics(cluster, epoch_id, refs, context.open_topics, known))
    found = [*unread_entries.gaps, *unread]
    began = lake.began_at(epoch_id)
    if began and began.fingerprint != fingerprint:
        what = "the scan began on another cluster: its fingerprint differs"
        found.append(Gap(GapCode.OTHER_CLUSTER, "", what))
    elif began and (gone_back := went_back(counters, began, "the begin of this scan")):
        found.append(replace(gone_back, text=f"{gone_back}; what was read before and after does not fit: scan again"))
    found += [one.broker_error for one in census if one.broker_error]
    undeclared_roots, ignored = _other_roots(cluster, places, now)
    found += undeclared_roots
    relied_on = [(WordKind.ACKNOWLEDGED_ENTRY, entry) for entry in unread_entries.relied_on]
    relied_on += [(WordKind.NOT_SHARING, path) for path in ignored]
    epoch = replace(epoch, relied_on=tuple(sorted(relied_on)), broken=broken_history(epoch, previous))
    deleted = deleted_since(cluster.journal_reader, last, settings.cluster) + unsaid if last else 0
    if earlier := weighed_against(lake, epoch):
        limits = Limits(*settings.orphans.loss(now))
        found += _lost(cluster, epoch_id, earlier, refs, limits)
    gaps = prove(epoch, previous, deleted, settings.orphans.loss(now)[0], schemas, found)
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


UNREADABLE = ["kind", "owner", "referrer", "problem", "error", "held_in", "entry_id"]


class UnreadReferences(NamedTuple):
    """What was not read (the first thousand), (kind, owner) of what is lost or untold, entries acknowledged as lost."""

    gaps: list[Gap]
    lost: set[tuple[str, str]]
    relied_on: list[str]


def unread_references(batches: Iterable[pa.RecordBatch], acknowledged: Collection[str] = ()) -> UnreadReferences:
    """Judge references with a ``problem``.

    What is lost or untold is no gap, and may be any number, if its owner can be named. ``acknowledged`` entries count
    as lost.
    """
    unread: dict[Gap, None] = {}
    relied_on: set[str] = set()
    lost: set[tuple[str, str]] = set()
    for batch in batches:
        for kind, owner, path, problem, error, ledger, entry in zip(
            *(batch.column(c).to_pylist() for c in UNREADABLE), strict=True
        ):
            name = "" if ledger is None else f"{path} {ledger} {entry}"
            known = problem in KEEPS_OWNER and owner_names.has_a_name(kind, owner)
            if known or name in acknowledged:
                lost.add((kind, owner))
                relied_on |= set() if known else {name}
            elif len(unread) < 1000:
                way_out = f'if it is lost for good, put entry = "{name}" into orphans.acknowledged_entries'
                said = f"reference not read: {error}" + (f"; {way_out}" if name else "")
                unread[Gap(GapCode.REFERENCE_UNREAD, path, said)] = None
    return UnreadReferences(list(unread), lost, sorted(relied_on))


def _facts(cluster: Cluster, epoch_id: str) -> tuple[int, int, int]:
    """Of the ledgers listed: the highest id (-1: none), the newest czxid, and how many are schemas'."""
    newest, zxid, schemas = -1, 0, 0
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    for batch in cluster.lake.batches(parts, ["ledger_id", "czxid", "component"]):
        newest = max(newest, pc.max(batch.column("ledger_id").fill_null(-1)).as_py())
        zxid = max(zxid, pc.max(batch.column("czxid").fill_null(0)).as_py())
        schemas += pc.sum(pc.equal(batch.column("component"), COMPONENT_SCHEMA)).as_py() or 0
    return newest, zxid, schemas


def _context(
    cluster: Cluster, epoch_id: str, refs: Referenced, started_at: int, lost: Collection[tuple[str, str]], now: int
) -> tuple[Context, list[Gap], dict[Birth, str]]:
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
    unread: list[Gap] = []
    places: dict[Birth, str] = {}
    for root in cluster.roots():
        try:
            with cluster.ports() as ports:
                store = ports.root(root)
                found = namespaces.namespaces(store)
                twin = places.setdefault(topics.birth(store), root)
                if twin != root:
                    setting = f"bookkeeper.shared_with.{root}"
                    what = f"{setting} is {twin or 'our own metadata store'}: give the other cluster's"
                    unread.append(Gap(GapCode.SAME_ROOT_TWICE, setting, what))
                if not root:
                    busy = under_replicated(store, settings.bookkeeper.ledgers_root)
                    found |= namespaces.namespaces(ports.configuration)
                    sources.update(topics.partitioned_shadow_sources(ports.configuration).values())
                else:
                    sources.update(topics.partitioned_shadow_sources(store).values())
        except LifecycleError as error:
            what = f"namespaces, shadow topics or under-replication of {root or 'our own root'}: {error}"
            unread.append(Gap(GapCode.CONTEXT_UNREAD, root, what))
            found = frozenset[str]()
        known |= found
        shared |= found if root else set[str]()
        sources |= _distinct(
            cluster, epoch_id, "managed_ledgers", root, "shadow_source", pc.field("shadow_source").is_valid()
        )
        for table in ("managed_ledgers", "managed_cursors", "schemas"):
            unclear = pc.field("problem").isin([Problem.CORRUPT, Problem.UNKNOWN_DOMAIN])
            kept |= {walk.namespace_of(p) for p in _distinct(cluster, epoch_id, table, root, "path", unclear)}
    kept_topics, strange = owner_names.owners_to_keep(lost)
    context = Context(
        now=started_at,  # ages are those at the listing, however long the scan took
        grace=int(settings.orphans.grace_period * 1000),
        namespaces=frozenset(known),
        gone_namespaces=settings.bookkeeper.gone(now),
        shared_namespaces=frozenset(shared),
        kept_namespaces=frozenset(kept) | strange,
        holds=settings.orphans.holds(now),
        shadow_sources=owner_names.full_names(sources),
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
    ids = listed_by(lake.batches(cluster.parts(epoch_id, "references"), ["ledger_id"], theirs))
    rows = lake.batches(
        cluster.parts(epoch_id, "bookkeeper_ledgers"),
        ["ledger_id", *owner_names.OWNER_TAGS],
        pc.field("problem").is_null(),
    )
    return frozenset(name for batch in rows for name in owner_names.names_in_tags(inside(batch, ids)))


def _other_roots(cluster: Cluster, births: Collection[Birth], now: int) -> tuple[list[Gap], list[str]]:
    """Other clusters on our ZooKeeper that no setting speaks of at ``now`` (ms), and where one is by not_sharing alone.

    Raises what the store raises: no epoch without it.
    """
    settings = cluster.settings
    _, chroot = settings.zookeeper.without_chroot()
    with cluster.ports() as ports:
        found = look_around(ports.whole, chroot, settings.bookkeeper.ledgers_root)
    declared = [settings.root(r.name).without_chroot()[1] for r in settings.bookkeeper.shared_with or ()]
    gaps = undeclared(found, births, declared, settings.bookkeeper.not_sharing_at(now))
    where = {gap.where for gap in undeclared(found, births, declared, ())}
    return gaps, sorted(where.difference(gap.where for gap in gaps))


def _lost(cluster: Cluster, epoch_id: str, last: Epoch, refs: Referenced, limits: Limits) -> list[Gap]:
    """Too much that the ``last`` covered epoch saw listed is listed by nothing now; ``refs`` are this epoch's."""
    lake, settings = cluster.lake, cluster.settings
    referenced, before = refs.needed | refs.offloaded, lake.referenced(last.epoch_id)
    unnamed = (before.needed | before.offloaded) - referenced
    if not unnamed:
        return []
    ours = BitMap64()
    for taken in (taken_off, unnamed_snapshots):
        ours |= BitMap64(taken(cluster.journal_reader, settings.cluster, last.started_at - DAY_MS))
    unnamed -= ours
    ledgers, there = cluster.parts(epoch_id, "bookkeeper_ledgers"), pc.field("problem").is_null()
    here = listed_by(lake.batches(ledgers, ["ledger_id"], there))
    newer = (pc.field("czxid") > last.max_czxid) & (pc.field("component") == COMPONENT_MANAGED_LEDGER)
    written = {
        row["ledger_id"]: f"{walk.MANAGED_LEDGERS_ROOT}/{row['managed_ledger']}"
        for batch in lake.batches(
            ledgers, ["ledger_id", "managed_ledger"], there & newer & pc.field("cursor").is_null()
        )
        for row in outside(batch, referenced).to_pylist()
    }
    if not unnamed or not (unnamed & here or written):
        return []
    sizes = Sizes(lake.batches(ledgers, ["ledger_id", "length"], there))
    now = Now(referenced, here, ours, sizes, written)
    root = settings.bookkeeper.ledgers_root

    def still_there(ids: Sequence[int]) -> list[int]:
        with cluster.ports(read_only=True) as ports:
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
            # A row with a problem has an error, too; scans of earlier versions have only the latter.
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
    needed = [column] if column == "shadow_source" else [column, "problem"]
    batches = cluster.lake.batches(cluster.parts(epoch_id, table, root), needed, where)
    return {value for batch in batches for value in batch.column(column).to_pylist()}


def _open_topics(cluster: Cluster, epoch_id: str, refs: Referenced) -> frozenset[str]:
    return frozenset(
        name for some in _open_ledgers(cluster, epoch_id, refs) for name in owner_names.written_topics(some)
    )


def _open_ledgers(cluster: Cluster, epoch_id: str, refs: Referenced, *more: str) -> Iterator[pa.RecordBatch]:
    """Unreferenced ledgers of Pulsar's that are not closed: whose they are, and columns ``more``."""
    problem, state, application = pc.field("problem"), pc.field("state"), pc.field("application")
    rows = cluster.lake.batches(
        cluster.parts(epoch_id, "bookkeeper_ledgers"),
        ["ledger_id", "problem", "state", "application", *more, *owner_names.OWNER_TAGS],
        problem.is_null() & (state != "CLOSED") & (application == "pulsar"),
    )
    return (outside(batch, refs.needed) for batch in rows)


def _overtaken_topics(
    cluster: Cluster, epoch_id: str, refs: Referenced, open_topics: Collection[str], known_since: int
) -> frozenset[str]:
    """``Context.overtaken_topics``; no write of ours counts that is older than ``known_since`` (ms).

    That is when the first scan ended that no restore of the metadata store has set aside: transactions are numbered
    anew after one, and what was written before may be gone.
    """
    if not open_topics:
        return frozenset()
    writes = list_writes(cluster.journal_reader, cluster.settings.cluster, open_topics, known_since)
    if not writes:
        return frozenset()
    known = pc.field("topic").isin(sorted(writes)) & pc.field("problem").is_null()
    nodes = cluster.lake.batches(
        cluster.parts(epoch_id, "managed_ledgers"), ["topic", "managed_ledger", "czxid", "version", "problem"], known
    )
    by_list = {
        row["managed_ledger"]: [one for one in writes[row["topic"]] if one.is_of(row["czxid"], row["version"])]
        for batch in nodes
        for row in batch.to_pylist()
    }
    ledgers = _open_ledgers(cluster, epoch_id, refs, "cursor", "czxid", "ctime")
    return frozenset(open_topics).difference(*(_writable(some, by_list) for some in ledgers))


def _writable(ledgers: pa.RecordBatch, by_list: Mapping[str, Sequence[ListWrite]]) -> set[str]:
    """``owner_names.written_topics`` of those open ledgers that a broker may list yet."""
    stays = [
        not (
            (row["component"], row["cursor"], row["state"]) == (COMPONENT_MANAGED_LEDGER, None, LedgerState.OPEN.name)
            and any(one.came_before(row["czxid"], row["ctime"]) for one in by_list.get(row["managed_ledger"], ()))
        )
        for row in ledgers.to_pylist()
    ]
    return owner_names.written_topics(ledgers.filter(pa.array(stays, pa.bool_())))


def listed_by(batches: Iterable[pa.RecordBatch]) -> BitMap64:
    """The ids of all ledgers."""
    listed = BitMap64()
    for batch in batches:
        listed |= id_set(batch.column("ledger_id").drop_null())
    return listed


def inside(batch: pa.RecordBatch, ids: BitMap64) -> pa.RecordBatch:
    """The rows whose ``ledger_id`` is among ``ids``."""
    some = id_set(batch.column("ledger_id")) & ids
    return batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(some.to_array(), pa.uint64()).cast(pa.int64())))


def outside(batch: pa.RecordBatch, ids: BitMap64) -> pa.RecordBatch:
    """The rows whose ``ledger_id`` is not among ``ids``."""
    here = id_set(batch.column("ledger_id"))
    others = here - ids
    if not others:  # mostly: what is referenced stands together
        return batch.slice(0, 0)
    if len(others) == len(here):
        return batch
    return batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(others.to_array(), pa.uint64()).cast(pa.int64())))
