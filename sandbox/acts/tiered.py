"""The demo's act about tiered storage: topics to be offloaded, an interrupted attempt, and what must hold after.

Belongs here: making the topics, and checking bucket, metadata and payloads independently of what the product says
it did. Not here: driving the jobs (:mod:`sandbox.demo`). The sandbox's brokers have no offloader, so nothing here is
read through them once it is offloaded.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import SparkSession

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources.spark_session import prepare
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import topics, znodes
from sandbox.planting.topics import digest

NAMESPACE = "shop/archive"
_SIZES = {"invoices": 230, "clicks": 130}
"""Topic -> messages; a ledger of the sandbox rolls over at 50."""


@dataclass(frozen=True)
class Tiered:
    """A topic whose closed ledgers are to go: how many messages each holds, and their digest, oldest first."""

    topic: str
    ledgers: dict[str, int]
    sha256: str

    @property
    def ids(self) -> list[int]:
        """The closed ledgers."""
        return sorted(map(int, self.ledgers))


def seed(cluster: Cluster, settings: Settings) -> list[Tiered]:
    """Make the topics, unloaded, an interrupted attempt on one of their ledgers, and a leaked copy."""
    made: list[Tiered] = []
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client:
        admin.create_namespace(NAMESPACE)
        for name, count in _SIZES.items():
            topic = f"persistent://{NAMESPACE}/{name}"
            payloads = topics.payloads(count, name)
            ledgers = topics.publish(client, topic, payloads)
            admin.unload(topic)
            closed = [ledger for ledger in ledgers if ledger != ledgers[-1]]
            counts = {str(ledger): closed.count(ledger) for ledger in dict.fromkeys(closed)}
            made.append(Tiered(topic, counts, digest(payloads[: len(closed)])))
    _interrupted_attempt(settings, made[0])
    _leak(cluster, settings, made[1])
    return made


def _interrupted_attempt(settings: Settings, tiered: Tiered) -> None:
    """As a run leaves it that was killed while it uploaded: its z-node, and an upload with one part."""
    assert settings.object_store is not None
    metadata = {
        "bucket": BUCKET,
        "managedLedgerOffloadDriver": "AWS_S3",
        "region": settings.object_store.region,
        "serviceEndpoint": "",
    }
    attempt = Attempt(
        tiered.ids[0],
        tiered.topic,
        uuid4(),
        "aws-s3",
        tuple(sorted(metadata.items())),
        settings.offload.block_size,
        "a run that was killed",
        int(time.time() * 1000),
    )
    with Connections(settings) as ports:
        store, objects = ports.store, ports.objects
        attempts.begin(store, attempt)
        upload = objects.begin_upload(BUCKET, data_key(attempt.uuid, attempt.ledger_id), {})
        objects.upload_part(BUCKET, data_key(attempt.uuid, attempt.ledger_id), upload, 1, b"interrupted")


def _leak(cluster: Cluster, settings: Settings, tiered: Tiered) -> None:
    """As a broker leaves it that forgot an attempt long ago: both objects of a copy that no metadata names."""
    assert settings.object_store is not None
    ledger = tiered.ids[0]
    location, name = Location(BUCKET, uuid4(), ledger), Topic.parse(tiered.topic).managed_ledger
    with Connections(settings, read_only=True) as ports:
        (node,) = ports.store.read([ledger_path(ledger)])
        assert isinstance(node, Node)
        source = Source(ledger_metadata.decode(node.data), node.stat.ctime)
        owner = settings.object_store.pulsar_cluster or settings.cluster
        copy_ledger(ports.reader, ports.objects, source, Target(location, owner, name, settings.offload.block_size))
    then = time.time() - 86_400
    for key in (data_key(location.uuid, ledger), index_key(location.uuid, ledger)):
        os.utime(cluster.data / "s3proxy" / BUCKET / key, (then, then))


def offloaded(cluster: Cluster, settings: Settings, tiered: list[Tiered]) -> list[str]:
    """Where metadata and bucket do not say that every closed ledger is offloaded, and nothing else is left."""
    assert settings.object_store is not None
    wrong: list[str] = []
    with Connections(settings) as ports:
        store, objects = ports.store, ports.objects
        wanted: set[str] = set()
        for one in tiered:
            contexts = {item.ledger_id: item.offload for item in _metadata(cluster, one.topic).ledgers}
            for ledger in one.ids:
                context = contexts.get(ledger)
                if not (context and context.complete and context.uuid):
                    wrong.append(f"ledger {ledger} of {one.topic} is not offloaded")
                else:
                    wanted |= {data_key(context.uuid, ledger), index_key(context.uuid, ledger)}
        found = {item.key for page in objects.list_objects(BUCKET) for item in page}
        wrong += [f"{key} is not in the bucket" for key in sorted(wanted - found)]
        wrong += [f"{key} is in the bucket, and nothing names it" for key in sorted(found - wanted)]
        wrong += [f"an upload of {upload.key} is left" for page in objects.list_uploads(BUCKET) for upload in page]
        wrong += [f"an attempt is left: {one}" for one in attempts.open_attempts(store)]
    return wrong


def in_bookkeeper(cluster: Cluster, tiered: list[Tiered]) -> list[int]:
    """The closed ledgers that BookKeeper still has."""
    with cluster.metadata() as zk:
        return [ledger for one in tiered for ledger in one.ids if zk.exists(znodes.ledger_znode(ledger))]


def read_back(spark: SparkSession, config: str, tiered: list[Tiered]) -> list[str]:
    """Where what Spark reads from the bucket is not what was produced."""
    wrong: list[str] = []
    for one in tiered:
        options = {"settings": config, "topic": one.topic, "as": "messages"}
        frame = prepare(spark).read.format("pulsar_offload").options(**options).load()
        rows = frame.select("ledger_id", "entry_id", "payload").collect()
        found = [bytes(row["payload"]) for row in sorted(rows, key=lambda row: (row["ledger_id"], row["entry_id"]))]
        if len(found) != sum(one.ledgers.values()):
            wrong.append(
                f"{one.topic}: {len(found)} messages in the bucket, {sum(one.ledgers.values())} were offloaded"
            )
        elif digest(found) != one.sha256:
            wrong.append(f"{one.topic}: the messages in the bucket are not those that were produced")
    return wrong


def _metadata(cluster: Cluster, topic: str) -> ManagedLedgerInfo:
    with cluster.metadata() as zk:
        data: bytes = zk.get(znodes.topic_znode(topic))[0]  # pyrefly: ignore[unsupported-operation]
    return managed_ledger.decode(data)
