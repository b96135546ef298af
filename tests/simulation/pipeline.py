"""The product's own steps in one process over the fakes: scan, plan, apply, delete.

Belongs here: what Spark does between the steps (joins, counts), in plain Arrow. Every decision and effect is the
product's code. Not here: the cluster (``cluster.py``) and what a test expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.deletion import deletion_planning, orphans
from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.io.zookeeper.store import cluster_fingerprint
from pulsar_lifecycle.journal import in_doubt
from pulsar_lifecycle.metastore import load_state, namespaces, walk
from pulsar_lifecycle.metastore import topics as metastore_topics
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_units, read_ledgers, under_replicated
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.schemas import read_schemas, schema_units
from pulsar_lifecycle.ports import DeletionQueue, Journal, MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records import deletion_plan, owner_names, tables
from pulsar_lifecycle.records.deletion_plan import PlanSummary
from pulsar_lifecycle.records.epoch import Census, Epoch, last_covered
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.gaps import Gap
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.outcomes import LEFT, MARKED
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.runs import apply, control
from pulsar_lifecycle.runs.caps import Caps
from pulsar_lifecycle.scan import history_check, neighbours, shrinkage, snapshot_inquiry, stored_references
from pulsar_lifecycle.scan import references as plan_references
from pulsar_lifecycle.scan.coverage import broken_history, prove
from pulsar_lifecycle.scan.other_roots import look_around
from pulsar_lifecycle.scan.references import KEEPS_OWNER
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.sharing import shared

HOUR = 3_600_000
GRACE = 7 * 24 * HOUR
DELIVER_AFTER = 600_000
RETRY_DELAY = 600_000
MAX_RETRIES = 10


@dataclass(frozen=True)
class Policy:
    """What an operator sets."""

    shared_with: tuple[str, ...] | None = ()
    holds: frozenset[str] = frozenset()
    gone_namespaces: frozenset[str] = frozenset()
    system_topics: bool = False
    acknowledged: tuple[str, ...] = ()
    max_shrinkage: float = 0.2
    not_sharing: tuple[str, ...] = ()
    caps: Caps = field(default_factory=lambda: Caps(100_000, 1.0, 1 << 50, 100_000))


@dataclass(frozen=True)
class Scan:
    """A finished epoch: what it proved, what is referenced, the context of its decisions, and its findings."""

    epoch: Epoch
    refs: Referenced
    context: Context
    findings: pa.Table
    offload_uuids: OffloadUuids = field(default_factory=OffloadUuids)
    listings: tuple[shrinkage.Listing, ...] = ()
    tables: Mapping[str, pa.Table] = field(default_factory=dict[str, pa.Table])
    """Tables of the epoch as they are stored, by name."""

    def finding(self, ledger_id: int) -> str | None:
        """What a ledger was found to be; None for one in use."""
        found = self.findings.filter(pc.equal(self.findings.column("ledger_id"), ledger_id)).to_pylist()
        return found[0]["finding"] if found else None


def scan(cluster: SimulatedCluster, policy: Policy | None = None, previous: Sequence[Scan] = ()) -> Scan:
    """List BookKeeper first, read references second, judge; writes nothing."""
    policy = policy or Policy()
    store = cluster.open_store(read_only=True)
    started = cluster.clock.now_ms()
    ledgers = _table(read_ledgers(store, ledger_units(store)), tables.BOOKKEEPER_LEDGERS)
    units = metastore_topics.topic_units(store)
    owners = _table(metastore_topics.read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
    cursors = _table(metastore_topics.read_cursors(store, units), tables.MANAGED_CURSORS)
    schemas = _table(read_schemas(store, schema_units(store)), tables.SCHEMAS)
    brokers = _hear(cluster, store)
    topics = _table(
        load_state.read_topics(
            store, units, brokers, {}, cluster.admin.compaction_status, cluster.clock.now_ms(), "/ledgers"
        ),
        tables.TOPICS,
    )
    refs_table = _references(cluster, store, owners, cursors, schemas, topics)
    refs = plan_references.referenced(refs_table)
    found = {
        ("bookkeeper_ledgers", ""): ledgers,
        ("managed_ledgers", ""): owners,
        ("managed_cursors", ""): cursors,
        ("schemas", ""): schemas,
    }
    shared = {name: cluster.roots[name].open_store(read_only=True) for name in policy.shared_with or ()}
    for name, root in shared.items():
        elsewhere = _owners_of(root)
        found |= {(table, name): rows for table, rows in elsewhere.items()}
        parts = (elsewhere["managed_ledgers"], elsewhere["managed_cursors"], elsewhere["schemas"], None)
        refs_table = pa.concat_tables([refs_table, _references(cluster, store, *parts)])
        refs = plan_references.referenced(refs_table)
    errors = sorted(set(_values(refs_table, "error")) - {None, ""})
    context = _context(policy, store, started, refs_table, refs, ledgers, owners, cursors, schemas)
    if shared:
        others = frozenset[str]().union(*(namespaces.namespaces(root) for root in shared.values()))
        context = replace(context, namespaces=context.namespaces | others, shared_namespaces=others)
    try:
        fingerprint = cluster_fingerprint(store, "/ledgers")
    except LifecycleError as error:
        fingerprint, errors = "", [*errors, str(error)]
    marks = history_check.read_marks(store, fingerprint, "/ledgers")
    epoch = Epoch(
        epoch_id=f"epoch-{started}",
        cluster="simulated",
        fingerprint=fingerprint,
        started_at=started,
        finished_at=cluster.clock.now_ms(),
        census=tuple(census(rows, name, root) for (name, root), rows in found.items()),
        max_ledger_id=max((i for i in _values(ledgers, "ledger_id") if i), default=-1),
        max_czxid=max((zxid for zxid in _values(ledgers, "czxid") if zxid), default=0),
        zxid=marks.zxid,
        ids_issued=marks.ids_issued,
        lease=marks.lease,
        shared_with=policy.shared_with,
        acknowledged=policy.acknowledged,
        reference_errors=tuple(e for e in errors if not e.startswith(KEEPS_OWNER)),
        broker_errors=(brokers.error,) if brokers.error else (),
    )
    tagged = _values(ledgers, "component").count("schema")
    last = max((one.epoch.started_at for one in previous if one.epoch.covered), default=0)
    deleted = len({row.ledger_id for row in cluster.journal.rows if row.outcome == "deleted" and row.at >= last})
    deleted += len(in_doubt.absent(store, cluster.journal.nodes_in_doubt("simulated", last)))
    epochs = [one.epoch for one in previous]
    epoch = replace(epoch, broken=broken_history(epoch, epochs))
    coded = neighbours.undeclared(
        look_around(store, "", "/ledgers"),
        [metastore_topics.birth(root) for root in (store, *shared.values())] if fingerprint else [],
        [],
        policy.not_sharing,
    )
    if earlier := last_covered(epochs, fingerprint):
        listed = next(one.listings for one in previous if one.epoch is earlier)
        coded += _lost(cluster, store, policy, refs, ledgers, listed, earlier.started_at)
    epoch = replace(epoch, coded_gaps=tuple(coded))
    gaps = prove(epoch, epochs, deleted, policy.max_shrinkage, tagged)
    judged = orphans.judge(ledgers, refs, context)
    named = _offload_uuids(*(rows for (table, _), rows in found.items() if table == "managed_ledgers"))
    settled = _settled(cluster, store, judged, topics, cursors)
    tables_kept = {f"{table}@{root}" if root else table: rows for (table, root), rows in found.items()}
    tables_kept |= {"topics": topics, "findings": settled}
    return Scan(replace(epoch, gaps=gaps), refs, context, settled, named, _listings(found, refs_table), tables_kept)


def _lost(
    cluster: SimulatedCluster,
    store: MetadataStore,
    policy: Policy,
    refs: Referenced,
    ledgers: pa.Table,
    listings: Sequence[shrinkage.Listing],
    since: int,
) -> list[Gap]:
    """What the last covered scan saw listed and nothing lists now, as ``scan/epochs.py`` asks for it."""
    marks = [r for r in cluster.journal.rows if r.phase == "mark" and r.at >= since - 24 * HOUR]
    left = {r.ledger_id: r.at for r in marks if r.outcome == LEFT}
    ours = BitMap64(r.ledger_id for r in marks if r.outcome == MARKED and left.get(r.ledger_id, -1) < r.at)
    there = _good(ledgers)

    def still_there(ids: Sequence[int]) -> list[int]:
        store.sync("/")
        nodes = store.read([ledger_path.ledger_path(i) for i in ids])
        return [i for i, node in zip(ids, nodes, strict=True) if node is not None]

    now = shrinkage.Now(
        refs.needed | refs.offloaded,
        BitMap64(_values(there, "ledger_id")),
        ours,
        shrinkage.Sizes([there.select(["ledger_id", "length"])]),
    )
    limits = shrinkage.Limits(policy.max_shrinkage, 1_000, 1 << 40)
    return shrinkage.lost_references(listings, now, limits, still_there)


def _listings(found: Mapping[tuple[str, str], pa.Table], refs_table: pa.Table) -> tuple[shrinkage.Listing, ...]:
    makers = {"managed_ledgers": _by_topics, "managed_cursors": _by_cursors, "schemas": _by_schemas}
    kinds = {"managed_cursors": "R3", "schemas": "R5"}

    def listing(table: str, root: str) -> shrinkage.Listing:
        def rows() -> list[pa.Table]:
            parts = [makers[table](_good(found[table, root]))]
            if not root and table in kinds:
                entries = refs_table.filter(pc.equal(refs_table.column("kind"), kinds[table]))
                parts.append(shrinkage.by_references(entries))
            return parts

        return shrinkage.Listing(table, root, rows)

    return tuple(listing(table, root) for table, root in found if table in makers)


_by_topics, _by_cursors, _by_schemas = map(shared, (shrinkage.by_topics, shrinkage.by_cursors, shrinkage.by_schemas))


@shared
def census(rows: pa.Table, table: str, root: str = "") -> Census:
    """Count a table as ``scan/read.py`` does."""
    listed, counted = dict[str, int](), Counter[str]()
    kinds, corrupt, unread = Counter[str](), list[str](), list[str]()
    columns = (_values(rows, name) for name in ("path", "parent", "listed", "error"))
    for path, parent, children, error in zip(*columns, strict=True):
        if parent is not None:
            listed[parent] = children
            counted[parent] += 1
        if error is None or error in (tables.GONE, tables.EMPTY):
            kinds[error or "decoded"] += 1
        elif error.startswith(tables.CORRUPT):
            corrupt.append(path)
        else:
            unread.append(f"{path}: {error.removeprefix(tables.UNREAD)}")
    return Census(
        table,
        root,
        sum(listed.values()),
        kinds["decoded"],
        kinds[tables.GONE],
        kinds[tables.EMPTY],
        tuple(corrupt),
        tuple(unread),
        tuple(parent for parent, count in counted.items() if count != listed[parent]),
    )


def plan(cluster: SimulatedCluster, now: Scan, before: Scan) -> tuple[PlanSummary, pa.Table]:
    """Orphans that two scans agree on, with their digest."""
    rows = deletion_planning.confirm(now.findings, before.findings)
    gaps = (*now.epoch.gaps, *before.epoch.gaps)
    summary = PlanSummary(
        plan_id=f"orphans-{now.epoch.epoch_id}",
        cluster="simulated",
        fingerprint=now.epoch.fingerprint,
        epoch_id=now.epoch.epoch_id,
        confirmed_by=before.epoch.epoch_id,
        created_at=cluster.clock.now_ms(),
        actionable=not gaps,
        gaps=gaps,
        ledgers=rows.num_rows,
        logical_bytes=0,
        physical_bytes=0,
        cluster_ledgers=now.epoch.census[0].listed,
        digest="",
    )
    return replace(summary, digest=deletion_plan.digest(rows, summary.to_json())), rows


def apply_plan(
    cluster: SimulatedCluster,
    summary: PlanSummary,
    rows: pa.Table,
    policy: Policy | None = None,
    *,
    queue: DeletionQueue | None = None,
    journal: Journal | None = None,
    limit: int = 0,
) -> apply.Applied:
    """Send a plan's intents."""
    order = apply.Order(summary.plan_id, summary.digest, limit=limit)
    some = apply.chosen(
        order,
        (policy or Policy()).caps,
        summary,
        rows,
        fingerprint=cluster_fingerprint(cluster.open_store(), "/ledgers"),
        now=cluster.clock.now_ms(),
        valid_for_ms=24 * HOUR,
    )
    sent = {r.ledger_id for r in cluster.journal.rows if r.outcome == apply.SENT and r.plan_id == summary.plan_id}
    return apply.send_intents(
        "apply-run",
        summary,
        some,
        frozenset(sent),
        store=cluster.open_store(),
        queue=queue or cluster.open_queue(),
        journal=journal or cluster.journal,
        clock=cluster.clock,
        deliver_after_ms=DELIVER_AFTER,
        progress=lambda line: None,
    )


def begin(
    cluster: SimulatedCluster,
    store: MetadataStore,
    now: Scan,
    before: Scan,
    policy: Policy | None = None,
    batch: int = 4,
    run_id: str = "delete-run",
) -> tuple[Run, control.Lease]:
    """Take the lease and gather the evidence, as ``deletion/deletion_run.py`` does."""
    policy = policy or Policy()
    lease = control.take_lease(store, "simulated run", cluster.clock, 0)
    context = replace(
        now.context, holds=policy.holds, gone_namespaces=policy.gone_namespaces, system_topics=policy.system_topics
    )
    left = cluster.journal.nodes_in_doubt("simulated", cluster.clock.now_ms() - in_doubt.WITHIN_MS)
    in_doubt.resolve(run_id, left, store, cluster.journal, "/ledgers")
    run = Run(
        run_id=run_id,
        cluster="simulated",
        guard=lease.guard,
        ledgers_root="/ledgers",
        now=min(lease.taken_at, cluster.clock.now_ms()),
        brokers=load_state.fetch_brokers(store, cluster.admin),
        evidence=Evidence(
            now.refs, now.epoch.started_at, before.refs, before.epoch.started_at, before.epoch.max_czxid, context
        ),
        batch=4,
        retry_delay_ms=RETRY_DELAY,
        max_retries=MAX_RETRIES,
        deletes_per_second=1_000_000,
        bytes_per_second=1 << 40,
        slow_above_ms=100,
        stop_above_ms=500,
    )
    return run, lease


def tools_of(cluster: SimulatedCluster, store: MetadataStore, queue: DeletionQueue) -> Ports:
    """The ports of one worker."""
    return Ports(store, cluster.reader, cluster.admin, queue, cluster.journal, cluster.clock)


def delete(
    cluster: SimulatedCluster,
    now: Scan,
    before: Scan,
    policy: Policy | None = None,
    wrap: Callable[[Ports], Ports] = lambda tools: tools,
    limit: int = 1_000_000,
    marked: Mapping[int, tuple[int, int]] | None = None,
    run_id: str = "delete-run",
) -> list[Decision]:
    """One deletion run over ``limit`` messages of the queue; ``wrap`` may put faults or recorders around the ports."""
    store, queue = cluster.open_store(), cluster.open_queue()
    try:
        run, lease = begin(cluster, store, now, before, policy, run_id=run_id)
        run = replace(run, evidence=replace(run.evidence, marked=marked or {}))
        decisions = list(work_off(run, wrap(tools_of(cluster, store, queue)), limit, 1_000))
        control.release_lease(store, lease)
        return decisions
    finally:
        queue.close()
        store.close()


def two_scans(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, Scan]:
    """Wait out the grace period, scan, wait a day, scan again: (now, before)."""
    cluster.wait(8 * 24)
    before = scan(cluster, policy)
    cluster.wait(25)
    return scan(cluster, policy, [before]), before


def whole_round(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, list[Decision]]:
    """Scan twice, plan, apply, scan again, delete: (the newest scan, what became of the messages)."""
    now, before = two_scans(cluster, policy)
    summary, rows = plan(cluster, now, before)
    if not summary.actionable:
        return now, []
    apply_plan(cluster, summary, rows, policy)
    cluster.wait(1)
    latest = scan(cluster, policy, [now])
    return latest, delete(cluster, latest, before, policy)


# ---------------------------------------------------------------------------------------------------- between the steps


def _table(batches: Any, schema: pa.Schema) -> pa.Table:
    return _whole(schema, *batches)


@shared
def _whole(schema: pa.Schema, *batches: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(batches, schema).combine_chunks()


_of_managed_ledgers = shared(plan_references.from_managed_ledgers)
_of_cursors = shared(plan_references.from_cursors)
_of_schemas = shared(plan_references.from_schemas)


@shared
def _values(rows: pa.Table, name: str) -> list[Any]:
    column = rows.column(name)
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def _owners_of(root: MetadataStore) -> dict[str, pa.Table]:
    """The tables of another cluster that shares the BookKeeper."""
    units = metastore_topics.topic_units(root)
    return {
        "managed_ledgers": _table(metastore_topics.read_managed_ledgers(root, units), tables.MANAGED_LEDGERS),
        "managed_cursors": _table(metastore_topics.read_cursors(root, units), tables.MANAGED_CURSORS),
        "schemas": _table(read_schemas(root, schema_units(root)), tables.SCHEMAS),
    }


@shared
def _offload_uuids(*owners: pa.Table) -> OffloadUuids:
    return OffloadUuids.collect(rows.column("offload_uuids") for rows in owners)


def _hear(cluster: SimulatedCluster, store: MetadataStore) -> Brokers:
    try:
        return load_state.fetch_brokers(store, cluster.admin)
    except LifecycleError as error:
        return Brokers({}, 0, str(error))


@shared
def _good(rows: pa.Table) -> pa.Table:
    if rows.column("error").null_count == rows.num_rows:
        return rows
    return rows.filter(pc.is_null(rows.column("error")))


def _references(
    cluster: SimulatedCluster,
    store: MetadataStore,
    owners: pa.Table,
    cursors: pa.Table,
    schemas: pa.Table,
    topics: pa.Table | None,
) -> pa.Table:
    """``topics`` are our own: the brokers of another cluster cannot be asked."""
    owners, cursors, schemas = _good(owners), _good(cursors), _good(schemas)
    rows = cursors.select(["cursor", "managed_ledger", "path", "cursors_ledger_id"]).to_pylist()
    compaction = [r for r in rows if r["cursor"] == stored_references.COMPACTION_CURSOR]
    locators = [
        (r["schema_id"], r["path"], [(v["version"], v["ledger_id"], v["entry_id"]) for v in r["versions"]])
        for r in schemas.select(["schema_id", "path", "versions"]).to_pylist()
    ]
    with_cursor = {r["managed_ledger"] for r in compaction}
    known = ["topic", "broker", "last_ledger_state", "managed_ledger"]
    loaded = [
        r
        for r in (topics.select(known).to_pylist() if topics is not None and with_cursor else ())
        if r["broker"] and r["last_ledger_state"] == "OPEN"
    ]
    asked = [(r["topic"], r["broker"]) for r in loaded if r["managed_ledger"] in with_cursor]
    others = stored_references.other_topics((r["topic"], r["broker"]) for r in loaded)
    open_cursors = [
        (r["managed_ledger"], r["path"], r["cursors_ledger_id"]) for r in compaction if r["cursors_ledger_id"] >= 0
    ]
    words = stored_references.compaction_words(store, cluster.reader, open_cursors, "/ledgers")
    words += stored_references.schema_words(store, cluster.reader, locators, "/ledgers")
    words += stored_references.broker_words(cluster.admin, asked, others)
    parts = [
        _of_managed_ledgers(owners),
        _of_cursors(cursors),
        _of_schemas(schemas),
        plan_references.from_words(words),
    ]
    return pa.concat_tables(parts).combine_chunks()


def _context(
    policy: Policy,
    store: MetadataStore,
    now: int,
    refs_table: pa.Table,
    refs: Referenced,
    ledgers: pa.Table,
    *read: pa.Table,
) -> Context:
    columns = (_values(ledgers, name) for name in ("ledger_id", "state", "application", "error"))
    unneeded = [
        index
        for index, (ledger_id, state, application, error) in enumerate(zip(*columns, strict=True))
        if state not in (None, "CLOSED") and application == "pulsar" and error is None and ledger_id not in refs.needed
    ]
    columns = (_values(refs_table, name) for name in ("kind", "owner", "error"))
    lost = {(kind, owner) for kind, owner, e in zip(*columns, strict=True) if e and e.startswith(KEEPS_OWNER)}
    kept_topics, strange = _kept_owners(lost, refs_table, ledgers)
    corrupt = [
        path
        for rows in read
        if rows.column("error").null_count < rows.num_rows
        for path, error in zip(_values(rows, "path"), _values(rows, "error"), strict=True)
        if (error or "").startswith(tables.CORRUPT)
    ]
    sources = set(_values(read[0], "shadow_source")) - {None}
    sources.update(metastore_topics.partitioned_shadow_sources(store).values())
    return Context(
        now=now,
        grace=GRACE,
        namespaces=namespaces.namespaces(store),
        gone_namespaces=policy.gone_namespaces,
        kept_namespaces=strange | frozenset(walk.namespace_of(path) for path in corrupt),
        holds=policy.holds,
        shadow_sources=owner_names.full_names(sources),
        system_topics=policy.system_topics,
        under_replicated=BitMap64(sorted(under_replicated(store))),
        kept_topics=kept_topics,
        open_topics=frozenset(owner_names.written_topics(ledgers.take(unneeded)) if unneeded else ()),
    )


def _kept_owners(
    lost: set[tuple[str, str]], refs_table: pa.Table, ledgers: pa.Table
) -> tuple[frozenset[str], frozenset[str]]:
    """Topics and namespaces that are kept because entries with their references are lost."""
    kept_topics, strange = owner_names.owners_to_keep(lost)
    owners = {owner for _, owner in lost}
    columns = (_values(refs_table, name) for name in ("owner", "ledger_id"))
    theirs = {ledger_id for owner, ledger_id in zip(*columns, strict=True) if owner in owners} if owners else set()
    named = [index for index, ledger_id in enumerate(_values(ledgers, "ledger_id")) if ledger_id in theirs]
    return kept_topics | (owner_names.names_in_tags(ledgers.take(named)) if named else set()), strange


def _settled(
    cluster: SimulatedCluster, store: MetadataStore, judged: pa.Table, topics: pa.Table, cursors: pa.Table
) -> pa.Table:
    if orphans.PENDING not in _values(judged, "finding"):
        return judged
    pending = pc.equal(judged.column("finding"), orphans.PENDING)
    told = ["load_state", "compaction", "broker", "broker_started", "last_ledger_state", "first_ledger_id"]
    facts = {row["topic"]: row for row in _good(topics).select(["topic", *told]).to_pylist()}
    good = _good(cursors)
    known = set(zip(_values(good, "topic"), _values(good, "cursor"), strict=True))
    rows: list[dict[str, Any]] = []
    for row in judged.filter(pending).to_pylist():
        fact = facts.get(row["topic"])
        added = {name: fact and fact[name] for name in told}
        exists = (row["topic"], row["cursor"]) in known
        rows.append({**row, "topic_exists": fact is not None, "cursor_exists": exists, **added})
    inquiry = snapshot_inquiry.Inquiry(store, cluster.admin, "/ledgers")
    settled = orphans.decide_pending(snapshot_inquiry.with_memory(rows, inquiry))
    return pa.concat_tables([judged.filter(pc.invert(pending)), settled])
