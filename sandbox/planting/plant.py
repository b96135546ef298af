"""Leaks, one kind at a time: ledgers whose z-nodes live on while what referred to them is gone.

Belongs here: one function per kind. Each builds a real topic through the client, unloads it, and takes the reference
away in ZooKeeper as a crashed or hand-edited cluster does; it returns what it left. The topic must be new, its
namespace must exist. :func:`foreign`, :func:`young`, :func:`open_ledger` and :func:`empty` need no data and write a
ledger z-node only. Not here: the cluster they are planted in (:mod:`sandbox.planting.seed`).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from kazoo.client import KazooClient

from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Planted:
    """One planted ledger.

    ``verdict`` is what should be found: orphan, offload-leftover, untagged, young, open, empty, dangling, or neighbour
    (live in another cluster).
    """

    ledger_id: int
    kind: str
    verdict: str
    topic: str | None = None


# ----------------------------------------------------------------------------------------------------------- orphans


def orphan_data(cluster: Cluster, topic: str) -> list[Planted]:
    """A topic whose z-node is gone while the ledgers of its 120 messages live."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        topics.publish(client, topic, topics.payloads(120))
        admin.unload(topic)
        ledgers = znodes.listed_ledgers(zk, topic)
        zk.delete(znodes.topic_znode(topic), recursive=True)
    return [Planted(ledger, "data", "orphan", topic) for ledger in ledgers]


def orphan_data_of_live_topic(cluster: Cluster, topic: str) -> tuple[list[Planted], list[bytes]]:
    """A topic that lives on unloaded, its first ledger no longer on its list; also the payloads it still holds."""
    contents = topics.payloads(130)
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        ledgers = topics.publish(client, topic, contents)
        admin.unload(topic)
        dropped = min(ledgers)
        with znodes.editing(zk, topic) as info:
            kept = [entry for entry in info.ledgerInfo if entry.ledgerId != dropped]
            del info.ledgerInfo[:]
            info.ledgerInfo.extend(kept)
    left = [payload for payload, ledger in zip(contents, ledgers, strict=True) if ledger != dropped]
    return [Planted(dropped, "data-of-live-topic", "orphan", topic)], left


def orphan_cursor(cluster: Cluster, topic: str) -> list[Planted]:
    """A subscription whose cursor z-node is gone while the cursor ledger lives; its topic lives on unloaded."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        topics.acknowledge_with_holes(cluster, client, topic, "leaked", topics.payloads(60))
        admin.unload(topic)
        return _drop_cursor(zk, topic, "leaked")


def orphan_schema(cluster: Cluster, topic: str) -> list[Planted]:
    """A topic that was never written to and whose schema locator is gone while the ledgers of both versions live."""
    with Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        for version in (1, 2):
            admin.post_schema(topic, version)
        ledgers = admin.schema_ledgers(topic)
        zk.delete(znodes.schema_znode(topic))
    return [Planted(ledger, "schema", "orphan", topic) for ledger in ledgers]


def orphan_compacted(cluster: Cluster, topic: str) -> list[Planted]:
    """A compacted topic whose ``__compaction`` cursor is gone while the compacted ledger lives; it is unloaded."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        topics.publish(client, topic, topics.payloads(60), keys=[f"key-{number % 7}" for number in range(60)])
        compacted = admin.compact(topic)
        admin.unload(topic)
        return [Planted(compacted, "compacted", "orphan", topic), *_drop_cursor(zk, topic, "__compaction")]


def orphan_bucket(cluster: Cluster, topic: str) -> list[Planted]:
    """A subscription whose cursor z-node is gone while its delayed-index snapshots live; its topic is unloaded."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        due = int(time.time() * 1000) + HOUR_MS
        contents = topics.payloads(120)
        buckets = topics.delayed_backlog(
            cluster, client, topic, "leaked", contents, [due + number for number in range(len(contents))]
        )
        admin.unload(topic)
        rest = _drop_cursor(zk, topic, "leaked")
    return [*(Planted(ledger, "bucket", "orphan", topic) for ledger in buckets), *rest]


# -------------------------------------------------------------------------------------------------- other findings


def offload_leftover(cluster: Cluster, topic: str) -> list[Planted]:
    """A ledger marked as offloaded and deleted from BookKeeper that is still in BookKeeper; the topic is unloaded."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        ledgers = topics.publish(client, topic, topics.payloads(130))
        admin.unload(topic)
        offloaded = min(ledgers)
        with znodes.editing(zk, topic) as info:
            context = next(entry for entry in info.ledgerInfo if entry.ledgerId == offloaded).offloadContext
            context.uidMsb, context.uidLsb = secrets.randbits(63), -secrets.randbits(62)
            context.complete = context.bookkeeperDeleted = True
            context.timestamp = int(time.time() * 1000)
            context.driverMetadata.name = "aws-s3"
            for key, value in (
                ("bucket", "offload"),
                ("region", "us-east-1"),
                ("managedLedgerOffloadDriver", "AWS_S3"),
            ):
                context.driverMetadata.properties.add(key=key, value=value)
    return [Planted(offloaded, "offload-leftover", "offload-leftover", topic)]


def dangling(cluster: Cluster, topic: str) -> list[Planted]:
    """A topic that lists a ledger which BookKeeper no longer has, not its last one; the topic is unloaded."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        ledgers = topics.publish(client, topic, topics.payloads(130))
        admin.unload(topic)
        lost = min(ledgers)
        zk.delete(znodes.ledger_znode(lost))
    return [Planted(lost, "dangling", "dangling", topic)]


def neighbour(cluster: Cluster, topic: str, root: str) -> list[Planted]:
    """A topic of another Pulsar cluster on the same BookKeeper, whose metadata store is the chroot ``root``.

    Its ledgers are live there and unknown here; their tags do not tell the two clusters apart.
    """
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin, cluster.metadata() as zk:
        topics.publish(client, topic, topics.payloads(120))
        admin.unload(topic)
        ledgers = znodes.listed_ledgers(zk, topic)
        znodes.copy(zk, znodes.topic_znode(topic), root)
        znodes.copy(zk, znodes.namespace_znode(topic), root)
        zk.delete(znodes.topic_znode(topic), recursive=True)
    return [Planted(ledger, "neighbour", "neighbour", topic) for ledger in ledgers]


def foreign(cluster: Cluster) -> list[Planted]:
    """A closed ledger without any tag, as another system on the same BookKeeper writes it."""
    with cluster.metadata() as zk:
        ledger = znodes.new_ledger(zk, znodes.ledger_metadata(cluster.bookies, {}))
    return [Planted(ledger, "foreign", "untagged")]


def young(cluster: Cluster, topic: str) -> list[Planted]:
    """A closed ledger that nothing refers to, made this moment; once the grace period is over it is an orphan."""
    with cluster.metadata() as zk:
        ledger = znodes.new_ledger(zk, znodes.ledger_metadata(cluster.bookies, znodes.managed_ledger_tags(topic)))
    return [Planted(ledger, "young", "young", topic)]


def open_ledger(cluster: Cluster, topic: str) -> list[Planted]:
    """An OPEN ledger that nothing refers to, as a broker that crashed before it listed the ledger leaves it."""
    metadata = znodes.ledger_metadata(cluster.bookies, znodes.managed_ledger_tags(topic), closed=False)
    with cluster.metadata() as zk:
        ledger = znodes.new_ledger(zk, metadata)
    return [Planted(ledger, "open", "open", topic)]


def empty(cluster: Cluster) -> list[Planted]:
    """A ledger z-node of 0 bytes."""
    with cluster.metadata() as zk:
        return [Planted(znodes.new_ledger(zk, b""), "empty", "empty")]


def _drop_cursor(zk: KazooClient, topic: str, subscription: str) -> list[Planted]:
    ledger = znodes.read_cursor(zk, topic, subscription).cursorsLedgerId
    zk.delete(znodes.cursor_znode(topic, subscription))
    return [] if ledger == -1 else [Planted(ledger, "cursor", "orphan", topic)]
