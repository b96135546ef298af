"""Offload runs as the tests drive them: settings with the sandbox's bucket, plan and run, what is where afterwards.

Belongs here: what several test modules do. Not here: what must come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
from botocore.config import Config
from pyspark.sql.types import StructType

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger, offload_object
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources.offloaded import PulsarOffload
from pulsar_lifecycle.tiered.offload_run import OffloadOrder, offload_now
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.planning.offload_planning import make_offload_plan
from pulsar_lifecycle.tiered.proof import verify
from pulsar_lifecycle.tiered.upload import Source
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import znodes
from tests.integration.pipeline import Pipeline, object_store

BROKERS = {
    "managedLedgerOffloadDriver": "aws-s3",
    "s3ManagedLedgerOffloadBucket": BUCKET,
    "s3ManagedLedgerOffloadRegion": "us-east-1",
    "managedLedgerOffloadDeletionLagMs": "-1",
}
"""What brokers with an offloader would say of themselves."""


def with_bucket(sandbox: Cluster, **offload: Any) -> dict[str, dict[str, Any]]:
    """Sections of settings: the sandbox's bucket, and ``offload`` beside what offloading needs there."""
    return {
        "object_store": {**object_store(sandbox), "sign_payload": False},
        "offload": {
            "brokers": BROKERS,
            "bookkeeper_copies": "ours",
            "deletion_lag": 0,
            "waive_read_check": True,
            **offload,
        },
    }


@contextmanager
def s3_client(sandbox: Cluster) -> Iterator[Any]:
    """A client of the sandbox's S3 server that is not the product's."""
    client = boto3.client(
        "s3",
        endpoint_url=sandbox.state.as_json()["s3"]["endpoint"],
        aws_access_key_id=(sandbox.data / "s3-access-key").read_text(),
        aws_secret_access_key=(sandbox.data / "s3-secret-key").read_text(),
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    with closing(client):
        yield client


def planned(
    pipeline: Pipeline, *namespaces: str, epoch: Epoch | None = None
) -> tuple[OffloadPlan, list[dict[str, Any]]]:
    """A plan for all that is eligible in these namespaces, by ``epoch`` or a scan made now."""
    plan, rows = make_offload_plan(pipeline.where, epoch or pipeline.scan(), namespaces, everything=True)
    return plan, rows.to_pylist()


def offload(pipeline: Pipeline, plan: OffloadPlan, run_id: str = "offload") -> dict[int, OffloadOutcome]:
    """Ledger -> what became of it, at last."""
    outcomes = offload_now(pipeline.where, run_id, OffloadOrder(plan.plan_id, plan.digest), lambda _: None)
    return {one.ledger_id: one for one in outcomes}


def contexts(sandbox: Cluster, topic: str) -> dict[int, Any]:
    """What a topic's metadata says of the offload of each ledger; None if nothing."""
    with sandbox.metadata() as zk:
        found = zk.get(znodes.topic_znode(topic))
    assert found is not None
    return {item.ledger_id: item.offload for item in managed_ledger.decode(found[0]).ledgers}


def messages(pipeline: Pipeline, topic: str) -> list[bytes]:
    """What the reader of ``pulsar_offload`` gives of a topic from the bucket, in this process."""
    reader = PulsarOffload({"settings": str(pipeline.file), "topic": topic, "as": "messages"}).reader(StructType())
    found = [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]
    return [
        bytes(row["payload"])
        for row in sorted(found, key=lambda r: (r["ledger_id"], r["entry_id"], r["batch_index"] or 0))
    ]


def all_keys(s3: Any) -> list[str]:
    """Every object of the bucket."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


def keys(s3: Any, ledger_id: int) -> list[str]:
    """All objects of all copies of a ledger."""
    parsed = {name: offload_object.parse_key(name) for name in all_keys(s3)}
    return sorted(name for name, key in parsed.items() if key and key.ledger_id == ledger_id)


def uploads(s3: Any) -> list[str]:
    """Keys of the uploads that were begun and are still there."""
    return [found["Key"] for found in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


def object_file(sandbox: Cluster, key: str) -> Path:
    """Where the sandbox's S3 server keeps an object."""
    return sandbox.data / "s3proxy" / BUCKET / key


def flip(file: Path, at: int) -> None:
    """Change one bit."""
    with file.open("r+b") as stream:
        stream.seek(at)
        (byte,) = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


def open_attempts(settings: Settings) -> dict[int, UUID]:
    """Ledger -> UUID of its open attempt."""
    with KazooStore(settings.zookeeper, read_only=True) as store:
        return {one.ledger_id: one.uuid for one in attempts.whole(attempts.open_attempts(store))}


def check_ledgers(settings: Settings, topic: str) -> None:
    """Every ledger of a topic but the last can be read whole from BookKeeper; what is offloaded is the same."""
    assert settings.object_store is not None
    with (
        KazooStore(settings.zookeeper, read_only=True) as store,
        BookieReader(store, settings.bookkeeper) as reader,
        closing(S3ObjectStore(settings.object_store)) as objects,
    ):
        (node,) = store.read([znodes.topic_znode(topic)])
        assert isinstance(node, Node)
        listed = sorted(managed_ledger.decode(node.data).ledgers, key=lambda item: item.ledger_id)
        for item in listed[:-1]:
            (ledger,) = store.read([ledger_path(item.ledger_id)])
            assert isinstance(ledger, Node), f"ledger {item.ledger_id} is gone"
            metadata = ledger_metadata.decode(ledger.data)
            assert len(reader.read(item.ledger_id, metadata, 0, metadata.last_entry_id)) == item.entries
            if item.offload is not None:
                assert item.offload.complete
                assert item.offload.uuid is not None
                location = Location(BUCKET, item.offload.uuid, item.ledger_id)
                verify(objects, location, Source(metadata, ledger.stat.ctime), reader=reader)


def check_finished(sandbox: Cluster, settings: Settings, topic: str, ledgers: list[int], s3: Any) -> None:
    """These ledgers are offloaded, each with one pair of objects, and no run has anything left to do for them."""
    check_ledgers(settings, topic)
    made = contexts(sandbox, topic)
    assert {ledger for ledger, context in made.items() if context and context.complete} == set(ledgers)
    found = Counter(len(keys(s3, ledger)) for ledger in ledgers)
    assert found == {2: len(ledgers)}, "not one pair of objects per ledger"
    assert uploads(s3) == []
    assert open_attempts(settings).keys().isdisjoint(ledgers)
    with KazooStore(settings.zookeeper, read_only=True) as store:
        assert [
            left_pending for left_pending in control.pending_unloads(store) if str(left_pending.topic) == topic
        ] == []
