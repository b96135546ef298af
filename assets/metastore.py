"""The metastore's tables: source of truth ZooKeeper, read by everything that judges.

``bookkeeper_ledgers`` begins an epoch and is listed first, so that references can only grow for newer ledgers.
"""

from collections import Counter
from typing import Any

import dagster as dg

from assets.names import METASTORE, key, pool, register_namespaces
from assets.pages import show, versions
from assets.pages.epochs import epoch_to_write
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.metastore.reading import TABLES
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.epoch import Census
from pulsar_lifecycle.values.tables import stored_name
from resources.lifecycle import LifecycleResource

_DESCRIPTIONS = {
    "bookkeeper_ledgers": "Every ledger z-node below `/ledgers`: state, size, owner tags. Listed first in every scan.",
    "managed_ledgers": "Every topic z-node: which ledgers a topic lists, which are offloaded.",
    "managed_cursors": "Every cursor z-node: cursor ledgers, delayed-index snapshots, compaction.",
    "schemas": "Every schema locator: which ledgers hold which version.",
    "topics": "Every topic with its load state, owner broker and namespace policies: what may be touched.",
}


def metastore_assets(cluster: str) -> list[dg.AssetsDefinition]:
    """One asset per table of ``pulsar_lifecycle.metastore.reading``."""
    return [_table_asset(cluster, table) for table in METASTORE]


def _table_asset(cluster: str, table: str) -> dg.AssetsDefinition:
    first = table == METASTORE[0]
    sources = ["zookeeper", "brokers"] if table == "topics" else ["zookeeper", "bookkeeper"] if first else ["zookeeper"]

    @dg.asset(
        key=key(cluster, table),
        group_name="metastore",
        description=_DESCRIPTIONS[table],
        deps=[key(cluster, s) for s in sources] + ([] if first else [key(cluster, METASTORE[0])]),
        kinds={"pyspark", "parquet"},
        pool=pool(cluster, "zookeeper"),
    )
    def body(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.cluster()
        if first:
            epoch_id, now = judged_scan.begin(where, context.run.run_id)
            for old in where.lake.prune(now):
                context.log.info(f"removed epoch {old} from the lake")
        else:
            epoch_id, _ = epoch_to_write(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            counts = judged_scan.read_table(where, epoch_id, table)
        for census in counts:
            context.log.info(f"{stored_name(table, census.root)}: {census.listed} listed, {census.decoded} decoded")
        if table == "managed_ledgers":
            topics = where.lake.batches(where.parts(epoch_id, table), ["namespace"])
            namespaces = {n for b in topics for n in b.column("namespace").unique().to_pylist() if n}
            register_namespaces(context.instance, cluster, namespaces)
        return dg.MaterializeResult(
            metadata={**show.stored(where, epoch_id, table), **_shown(counts)},
            data_version=_version(where, epoch_id, table),
        )

    return body


def _version(where: Cluster, epoch_id: str, table: str) -> dg.DataVersion:
    """By the z-nodes that were read, of every root, and by what brokers have loaded; without the queue's own topics."""
    roots = [""] if table in judged_scan.OF_OUR_OWN_ROOT else where.roots()
    others = versions.not_ours(TABLES[table])
    found = [versions.sums(where.lake, where.parts(epoch_id, table, root), where=others) for root in roots]
    loaded = Counter[str]()
    if table == "topics":
        for batch in where.lake.batches(where.parts(epoch_id, table), ["load_state"], others):
            loaded.update({c["values"]: c["counts"] for c in batch.column("load_state").value_counts().to_pylist()})
    return versions.version_of(found, {str(state): count for state, count in loaded.items()})


def _shown(counts: list[Census]) -> dict[str, Any]:
    return {
        "dagster/row_count": sum(c.decoded for c in counts),
        "listed": sum(c.listed for c in counts),
        "vanished while reading": sum(c.gone for c in counts),
        "empty z-nodes": sum(c.empty for c in counts),
        "undecodable": show.bullets([path for c in counts for path in c.corrupt]),
        "unread": show.bullets([f"{path}: {why}" for c in counts for path, why in c.unread]),
    }
