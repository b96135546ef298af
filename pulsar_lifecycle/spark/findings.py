# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""From tables and references to findings: the Spark side of judging, and closing an epoch with its coverage proof.

Belongs here: joining, shipping the context, storing. Not here: the rules (``plan/orphans.py``, ``plan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_lifecycle.engine import inventory
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.io.journal import deleted_since
from pulsar_lifecycle.io.zk import KazooStore, cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan import orphans, tables
from pulsar_lifecycle.plan.coverage import Census, Epoch, prove
from pulsar_lifecycle.plan.orphans import Context, Finding
from pulsar_lifecycle.plan.references import Referenced, id_set
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.scan import Cluster, referenced_ids
from pulsar_lifecycle.spark.sources import configuration_settings, root_settings


def close_epoch(cluster: Cluster, epoch_id: str, started_at: int, census: Sequence[Census], now: int) -> Epoch:
    """Prove or disprove coverage, and store the epoch with its referenced ids and the context of its decisions."""
    refs_rows = cluster.table(epoch_id, "references")
    refs = referenced_ids(refs_rows)
    errors = unread_references(refs_rows)
    ledgers = cluster.table(epoch_id, "bookkeeper_ledgers")
    facts = ledgers.agg(
        f.max("ledger_id").alias("ledger"),
        f.max("czxid").alias("zxid"),
        f.sum((f.col("component") == "schema").cast("long")).alias("schemas"),
    ).first()
    assert facts is not None
    settings = cluster.settings
    silent = (
        cluster.table(epoch_id, "topics")
        .where(f.col("load_reason").startswith("the brokers were not heard"))
        .select("load_reason")
        .limit(1)
        .collect()
    )
    with KazooStore(settings.zookeeper, read_only=True) as store:
        fingerprint = cluster_fingerprint(store, settings.bookkeeper.ledgers_root)
        zxid = store.zxid()
    # However old the last covered one is: what got lost stays a gap until the operator raises max_shrinkage over it.
    previous = [e for e in cluster.lake.epochs(fingerprint) if e.covered and e.epoch_id != epoch_id]
    epoch = Epoch(
        epoch_id=epoch_id,
        cluster=settings.cluster,
        fingerprint=fingerprint,
        started_at=started_at,
        finished_at=now,
        census=tuple(census),
        max_ledger_id=facts["ledger"] if facts["ledger"] is not None else -1,
        max_czxid=facts["zxid"] or 0,
        zxid=zxid,
        shared_with=None
        if settings.bookkeeper.shared_with is None
        else tuple(r.name for r in settings.bookkeeper.shared_with),
        acknowledged=settings.orphans.acknowledged_znodes,
        reference_errors=tuple(errors),
        broker_errors=tuple(r["load_reason"] for r in silent),
    )
    context, unread = _context(cluster, epoch_id, refs, started_at)
    if cluster.lake.fingerprint(epoch_id) not in ("", fingerprint):
        unread.append("the scan began on another cluster: its fingerprint differs")
    epoch = replace(epoch, reference_errors=(*epoch.reference_errors, *unread))
    last = max((e.started_at for e in previous), default=0)
    deleted = deleted_since(cluster.lake.location, last, settings.cluster) if previous else 0
    gaps = prove(epoch, previous, deleted, settings.orphans.max_shrinkage, facts["schemas"] or 0)
    epoch = replace(epoch, gaps=gaps)
    cluster.lake.store_epoch(epoch, refs, context)
    return epoch


def unread_references(rows: DataFrame) -> list[str]:
    """What could not be read, of the first thousand. What is gone is no gap, and may be any number."""
    unread = f.col("error").isNotNull() & ~f.col("error").startswith(tables.GONE)
    return [r["error"] for r in rows.where(unread).select("error").distinct().limit(1000).collect()]


def _context(cluster: Cluster, epoch_id: str, refs: Referenced, started_at: int) -> tuple[Context, list[str]]:
    """What the decisions need beside the tables, and what of it could not be read."""
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
                        sources |= inventory.partitioned_shadow_sources(configuration)
                else:
                    sources |= inventory.partitioned_shadow_sources(store)
        except LifecycleError as error:
            unread.append(f"namespaces, shadow topics or under-replication of {root or 'our own root'}: {error}")
            found = frozenset[str]()
        known |= found
        shared |= found if root else set[str]()
        topics = cluster.table(epoch_id, "managed_ledgers", root)
        sources |= {
            r[0] for r in topics.where("shadow_source is not null").select("shadow_source").distinct().collect()
        }
        corrupt = [
            path
            for c in ("managed_ledgers", "managed_cursors", "schemas")
            for path in _corrupt(cluster.table(epoch_id, c, root))
        ]
        kept |= {inventory.namespace_of(path) for path in corrupt}
    gone = (
        cluster.table(epoch_id, "references")
        .where(f.col("error").startswith(tables.GONE))
        .select("kind", "owner")
        .distinct()
        .collect()
    )
    context = Context(
        now=started_at,  # ages are those at the listing, however long the scan took
        grace=int(settings.orphans.grace_period * 1000),
        namespaces=frozenset(known),
        gone_namespaces=frozenset(settings.bookkeeper.gone_namespaces),
        shared_namespaces=frozenset(shared),
        kept_namespaces=frozenset(kept),
        holds=frozenset(settings.orphans.legal_holds),
        shadow_sources=frozenset(sources),
        system_topics=settings.orphans.system_topics,
        under_replicated=BitMap64(sorted(busy)),
        kept_topics=frozenset(_topic_of(r["kind"], r["owner"]) for r in gone),
        open_topics=_open_topics(cluster.table(epoch_id, "bookkeeper_ledgers"), refs),
    )
    return context, unread


def _corrupt(rows: DataFrame) -> list[str]:
    return [r["path"] for r in rows.where(f.col("error").startswith(tables.CORRUPT)).select("path").collect()]


def _topic_of(kind: str, owner: str) -> str:
    name = owner if kind != "R5" else "{0}/persistent/{2}".format(*owner.rpartition("/"))
    return str(Topic.from_managed_ledger(name))


def _open_topics(ledgers: DataFrame, refs: Referenced) -> frozenset[str]:
    """Owners of unreferenced ledgers that are not closed."""
    tags = ["component", "managed_ledger", "schema_id", "compacted_topic", "bucket_topic"]
    rows = ledgers.where("error is null and state <> 'CLOSED' and application = 'pulsar'")
    owners = {
        orphans.owner_of(*(row[t] for t in tags))[1]
        for row in rows.where(_outside(refs.needed)).select(*tags).distinct().collect()
    }
    return frozenset(owners - {""})


# ---------------------------------------------------------------------------------------------------------- findings


def build_findings(cluster: Cluster, epoch_id: str) -> DataFrame:
    """Judge every ledger of a closed epoch, and store ``findings``."""
    refs = cluster.lake.referenced(epoch_id)
    context = cluster.lake.context(epoch_id)
    ledgers = cluster.table(epoch_id, "bookkeeper_ledgers")
    rows = ledgers.where("ledger_id is not null").drop("parent", "listed")  # the census is done
    suspects = rows.where(_outside(refs.needed))
    judged = suspects.mapInArrow(_Judging(refs, context), from_arrow_schema(tables.FINDINGS))
    judged.write.mode("overwrite").parquet(cluster.lake.epoch_table(epoch_id, "judged"))
    judged = cluster.table(epoch_id, "judged")
    settled = _with_owner_facts(cluster, epoch_id, judged.where(f.col("finding") == orphans.PENDING)).mapInArrow(
        _settle, from_arrow_schema(tables.FINDINGS)
    )
    findings = judged.where(f.col("finding") != orphans.PENDING).unionAll(settled)
    listed = _listed(ledgers)
    if refs.needed - listed:  # mostly there are none, and no need to go through the references
        findings = findings.unionAll(_dangling(cluster, epoch_id, listed))
    findings.write.mode("overwrite").parquet(cluster.lake.epoch_table(epoch_id, "findings"))
    return cluster.table(epoch_id, "findings")


def _outside(ids: BitMap64) -> Column:
    """Whether ``ledger_id`` is not among ``ids``.

    Python sees nothing but that column: of millions of rows the few that it lets through are all that leave the JVM.
    """

    @f.arrow_udf("boolean")  # pyright: ignore[reportCallIssue, reportArgumentType]
    def outside(column: pa.Array) -> pa.Array:
        others = id_set(column) - ids
        return pc.is_in(column, pa.array(others.to_array(), pa.uint64()).cast(pa.int64()))

    return outside(f.col("ledger_id"))


@dataclass(frozen=True)
class _Judging:
    refs: Referenced
    context: Context

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from orphans.judge(pa.Table.from_batches([batch]), self.refs, self.context).to_batches()


def _settle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield from orphans.settle(pa.Table.from_batches([batch])).to_batches()


def _with_owner_facts(cluster: Cluster, epoch_id: str, pending: DataFrame) -> DataFrame:
    topics = cluster.table(epoch_id, "topics").where("error is null")
    facts = topics.select("topic", f.lit(True).alias("topic_exists"), "load_state", "compaction", "first_ledger_id")
    cursors = (
        cluster.table(epoch_id, "managed_cursors")
        .where("error is null")
        .select("topic", "cursor", f.lit(True).alias("cursor_exists"))
    )
    joined = pending.join(facts, "topic", "left").join(cursors, ["topic", "cursor"], "left")
    return joined.select(*orphans.OWNER_FACTS.names)


def _listed(ledgers: DataFrame) -> BitMap64:
    """The ids of all ledgers."""
    listed = BitMap64()
    ids = ledgers.where("ledger_id is not null").select("ledger_id")
    for row in ids.mapInArrow(_id_bitmap, "bitmap binary").toLocalIterator():
        listed |= BitMap64.deserialize(bytes(row["bitmap"]))
    return listed


def _dangling(cluster: Cluster, epoch_id: str, listed: BitMap64) -> DataFrame:
    """References to ledgers that were not listed and are not there now."""
    rows = cluster.table(epoch_id, "references").where("ledger_id is not null and keeps_bookkeeper_copy")
    missing = rows.where(_outside(listed))
    return missing.mapInArrow(_Dangling(cluster.settings), from_arrow_schema(tables.FINDINGS)).dropDuplicates(
        ["ledger_id", "reason"]
    )


def _id_bitmap(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = BitMap64()
    for batch in batches:
        found |= id_set(batch.column("ledger_id"))
    yield pa.RecordBatch.from_pydict({"bitmap": [found.serialize()]})


class _Dangling:
    """The kernel that confirms each missing ledger in ZooKeeper: newer ones were only listed too early."""

    def __init__(self, settings: Settings) -> None:
        self._zookeeper = settings.zookeeper
        self._root = settings.bookkeeper.ledgers_root

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = list(id_set(batch.column("ledger_id")))
            if not ids:
                continue
            with KazooStore(self._zookeeper, read_only=True) as store:
                store.sync("/")
                nodes = store.read([ledger_path.ledger_path(i, self._root) for i in ids])
            gone = {i for i, node in zip(ids, nodes, strict=True) if node is None}
            rows = batch.filter(pc.is_in(batch.column("ledger_id"), pa.array(sorted(gone), pa.int64()))).to_pylist()
            yield pa.RecordBatch.from_pylist([_dangling_row(row) for row in rows], tables.FINDINGS)


def _dangling_row(row: dict[str, str]) -> dict[str, object]:
    topic = Topic.parse(_topic_of(row["kind"], row["owner"]))
    return {
        "ledger_id": row["ledger_id"],
        "finding": Finding.DANGLING.value,
        "reason": f"{row['referrer']} refers to it ({row['kind']}) and BookKeeper does not have it",
        "topic": str(topic),
        "namespace": str(topic.namespace),
    }
