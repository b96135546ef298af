"""What exists without us: ZooKeeper, BookKeeper, the brokers, the object store and the deletion topics."""

from __future__ import annotations

import dagster as dg

from assets.names import key


def external_assets(cluster: str) -> list[dg.AssetSpec]:
    """Externals of one cluster, each with what its state is read from."""

    def spec(name: str, description: str, kinds: set[str], deps: list[str] | None = None) -> dg.AssetSpec:
        return dg.AssetSpec(
            key(cluster, name),
            group_name="cluster",
            description=description,
            kinds=kinds,
            deps=[key(cluster, d) for d in deps or ()],
        )

    queue = "`persistent://pulsar/system/__ledger_deletion"
    return [
        spec(
            "zookeeper",
            "The metadata store: managed ledgers, cursors, schemas, policies, ledger metadata.",
            {"zookeeper"},
        ),
        spec(
            "bookkeeper",
            "The bookies. A ledger's data goes when its z-node is gone and the bookies' GC has run.",
            {"bookkeeper"},
        ),
        spec("brokers", "The brokers: which topics are loaded, and what they hold in memory.", {"pulsar"}),
        spec("object_store", "Offloaded ledgers.", {"s3"}, ["offload_plan"]),
        spec(
            "ledger_deletion_topic",
            f"{queue}`: one message per ledger to delete (PIP-186).",
            {"pulsar"},
            ["deletion_plan", "orphan_objects", "trimmed_ledgers"],
        ),
        spec("ledger_deletion_retry_topic", f"{queue}-RETRY`: intents that failed and wait.", {"pulsar"}),
        spec("ledger_deletion_dlq_topic", f"{queue}-DLQ`: intents that failed after the last retry.", {"pulsar"}),
    ]
