"""Offloaded copies on a real S3 server and a real metadata store: exactly the unreferenced objects go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import boto3
import pytest
from botocore.config import Config
from kazoo.client import KazooClient

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Waiting
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import znodes
from sandbox.servers.state import CLUSTER
from tests.integration import pipeline as driving
from tests.integration.pipeline import Pipeline, new_namespace, object_store

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000


@dataclass
class Attempt:
    """One offload attempt, its objects two days old."""

    topic: Topic
    ledger_id: int
    uuid: UUID
    bucket: str = BUCKET

    @property
    def keys(self) -> set[str]:
        return {data_key(self.uuid, self.ledger_id), index_key(self.uuid, self.ledger_id)}

    def message(self) -> PendingDeleteLedgerInfo:
        """As a first phase two hours ago would have sent it: too old for a race."""
        half = 1 << 64
        msb, lsb = (n - half if n >= half >> 1 else n for n in (self.uuid.int >> 64, self.uuid.int % half))
        return PendingDeleteLedgerInfo(
            topic_name=str(self.topic),
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_id=self.ledger_id,
            ledger_type=LedgerType.OFFLOAD_LEDGER,
            offload_context=MessageOffloadContext(
                msb=msb, lsb=lsb, driver_name="aws-s3", metadata={"bucket": self.bucket}
            ),
            sent_at=int(time.time() * 1000) - 2 * HOUR_MS,
        )


@dataclass
class NamespaceLocation:
    """The sandbox's metadata store and its S3 server."""

    sandbox: Cluster
    zk: KazooClient
    s3: Any
    namespace: str

    def topic(self, name: str) -> Topic:
        return Topic.parse(f"persistent://{self.namespace}/{name}")

    def attempt(
        self, topic: Topic, *, owner: Topic | None = None, cluster: str = CLUSTER, origin: bool = True
    ) -> Attempt:
        """A ledger of a topic, and the objects of an attempt to offload it."""
        tags = znodes.managed_ledger_tags(str(topic))
        ledger_id = znodes.new_ledger(self.zk, znodes.ledger_metadata(self.sandbox.bookies, tags))
        made = Attempt(topic, ledger_id, uuid4())
        says = {"ManagedLedgerName": (owner or topic).managed_ledger, "PulsarClusterName": cluster}
        old = time.time() - 2 * 86_400
        for key in made.keys:
            self.s3.put_object(Bucket=BUCKET, Key=key, Body=b"x" * 100, Metadata=says if origin else {})
            os.utime(self.sandbox.data / "s3proxy" / BUCKET / key, (old, old))
        return made

    def list(self, topic: Topic, *ledgers: tuple[int, UUID | None, bool]) -> None:
        """The topic's z-node, as an unloaded topic has it: (ledger, attempt, complete)."""
        infos = tuple(
            LedgerInfo(i, 10, 1000, 1, uuid and OffloadContext(uuid, complete, False, 1, "aws-s3", {"bucket": BUCKET}))
            for i, uuid, complete in ledgers
        )
        data = managed_ledger.encode(ManagedLedgerInfo(infos))
        path = znodes.topic_znode(str(topic))
        if self.zk.exists(path):
            self.zk.set(path, data)
        else:
            self.zk.create(path, data, makepath=True)

    def there(self, attempt: Attempt) -> set[str]:
        """Those of an attempt's objects that exist."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=str(attempt.uuid))
        return {found["Key"] for page in pages for found in page.get("Contents", [])}


@pytest.fixture
def location(sandbox: Cluster) -> Iterator[NamespaceLocation]:
    secret = {name: (sandbox.data / f"s3-{name}-key").read_text() for name in ("access", "secret")}
    client = boto3.client(
        "s3",
        endpoint_url=sandbox.state.as_json()["s3"]["endpoint"],
        aws_access_key_id=secret["access"],
        aws_secret_access_key=secret["secret"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    with closing(client), sandbox.metadata() as zk:
        yield NamespaceLocation(sandbox, zk, client, new_namespace(sandbox, "offloaded"))


@pytest.fixture
def pipeline(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> Pipeline:
    return pipelines({"object_store": object_store(sandbox)})


def mark(pipeline: Pipeline, attempt: Attempt) -> None:
    """What our own first phase writes before it takes a ledger off its topic's list."""
    row = JournalRow(
        run_id="trim",
        cluster="sandbox",
        plan_id="",
        ledger_id=attempt.ledger_id,
        component="Managed-Ledger",
        topic=str(attempt.topic),
        action="delete-ledger",
        phase="mark",
        outcome="marked",
        reason="",
        bytes=0,
        checksum="",
        detail='{"czxid": -1}',
        at=int(time.time() * 1000),
    )
    FileJournal(pipeline.lake).record([row])


def test_exactly_the_unreferenced_objects_go(location: NamespaceLocation, pipeline: Pipeline) -> None:
    began = time.time()
    a, b, shadow, empty = (location.topic(name) for name in ("a b+é", "b", "shadow", "empty"))
    live, leaked, under_way, listed_elsewhere = (location.attempt(a) for _ in range(4))
    trimmed = location.attempt(b)
    forged = location.attempt(a)
    foreign = location.attempt(a, cluster="another")
    unknown = location.attempt(a, origin=False)
    no_topic = location.attempt(empty)
    elsewhere = location.attempt(a)
    last = location.attempt(b)
    location.list(a, (live.ledger_id, live.uuid, True), (under_way.ledger_id, under_way.uuid, False))
    location.list(b, (trimmed.ledger_id, trimmed.uuid, True), (last.ledger_id, None, False))
    location.list(shadow, (listed_elsewhere.ledger_id, listed_elsewhere.uuid, True))
    pipeline.scan()
    mark(pipeline, trimmed)
    location.list(b, (last.ledger_id, None, False))
    messages = [
        one.message() for one in (live, leaked, under_way, listed_elsewhere, trimmed, foreign, unknown, no_topic)
    ]
    messages.append(replace(forged, topic=b).message())
    messages.append(replace(elsewhere, bucket="not-declared").message())
    driving.send(location.sandbox, messages)
    driving.wait_until_unloaded_counts(max(began, time.time()))
    pipeline.scan_and_delete()
    rows = {row["ledger_id"]: row for row in pipeline.journal()}
    found = {
        name: (rows[one.ledger_id]["outcome"], rows[one.ledger_id]["code"], len(location.there(one)))
        for name, one in {
            "live": live,
            "leaked": leaked,
            "under way": under_way,
            "listed elsewhere": listed_elsewhere,
            "trimmed": trimmed,
            "foreign": foreign,
            "unknown": unknown,
            "no topic": no_topic,
            "forged": forged,
            "elsewhere": elsewhere,
        }.items()
    }
    assert found == {
        "live": ("kept", Code.STILL_IN_USE, 2),
        "leaked": ("deleted", Code.UNREFERENCED, 0),
        "under way": ("kept", Code.STILL_IN_USE, 2),
        "listed elsewhere": ("kept", Code.STILL_IN_USE, 2),
        "trimmed": ("deleted", Code.UNREFERENCED, 0),
        "foreign": ("kept", Code.NOT_OURS, 2),
        "unknown": ("kept", Code.NOT_OURS, 2),
        "no topic": ("deleted", Code.UNREFERENCED, 0),
        "forged": ("kept", Code.NOT_OURS, 2),
        "elsewhere": ("refused", Code.MISMATCH, 2),
    }
    intended = [row for row in journal_rows(FileJournal(pipeline.lake)).to_pylist() if row["outcome"] == "deleting"]
    assert {row["ledger_id"] for row in intended} == {one.ledger_id for one in (leaked, trimmed, no_topic)}
    assert driving.emptied(location.sandbox)
    _clean(location, [live, under_way, listed_elsewhere, foreign, unknown, forged, elsewhere])


def _clean(location: NamespaceLocation, attempts: list[Attempt]) -> None:
    for key in {key for one in attempts for key in one.keys}:
        location.s3.delete_object(Bucket=BUCKET, Key=key)


def test_a_message_waits_where_no_object_store_is_declared(
    location: NamespaceLocation, pipelines: Callable[..., Pipeline], tmp_path: Path
) -> None:
    pipeline = pipelines()
    leaked = location.attempt(location.topic("a"))
    pipeline.scan()
    driving.send(location.sandbox, [leaked.message()])
    outcomes = pipeline.scan_and_delete()
    assert [(one.outcome, one.code) for one in outcomes] == [("waiting", Waiting.NO_OBJECT_STORE)]
    assert location.there(leaked) == leaked.keys
    driving.drain(location.sandbox)
    _clean(location, [leaked])
