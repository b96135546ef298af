"""Buckets with offloaded ledgers, and an inventory of them, over the fakes.

Belongs here: what is in the buckets. Not here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from pulsar_lifecycle.copies import attempts, object_pairs
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.metastore import topics as metastore_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.tiered.buckets.bucket_listing import Inventory, look_below, look_between
from pulsar_lifecycle.tiered.buckets.bucket_rules import Rules
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, Offloading, attempt, metadata
from tests.kit.simulated.pipeline import GRACE

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
DATA, INDEX = b"d" * 1000, b"i" * 60
DAY = 86_400_000


class BucketScene(Offloading):
    """A live offloaded ledger, and the objects of one whose ledger left its topic more than a week ago."""

    def __init__(self) -> None:
        super().__init__()
        self.exclusive = True
        self.elsewhere: list[str] = []
        self.unproven: dict[tuple[UUID, int], str] = {}
        self.live, self.last, self.gone = (self.ledger(TOPIC) for _ in range(3))
        self.live_uuid, self.gone_uuid = uuid4(), uuid4()
        self.cluster.remove(self.cluster.path(self.gone))
        self.list()
        self.copy(self.live_uuid, self.live)
        self.copy(self.gone_uuid, self.gone)
        self.age()

    def list(self, others: Mapping[int, OffloadContext] | None = None, **live: Any) -> None:
        contexts = {self.live: attempt(self.live_uuid, **live), **(others or {})}
        self.cluster.topic(TOPIC, sorted({self.last, *contexts}), offloaded=contexts)

    def copy(
        self,
        uuid: UUID,
        ledger_id: int,
        *,
        data: bytes = DATA,
        index: bytes = INDEX,
        bucket: str = BUCKET,
        stored: Mapping[str, str] | None = None,
    ) -> None:
        says = metadata(TOPIC) if stored is None else stored
        for key, body in ((data_key(uuid, ledger_id), data), (index_key(uuid, ledger_id), index)):
            if body:
                self.buckets.put(bucket, key, body, says)

    def upload(self, uuid: UUID, ledger_id: int) -> str:
        return self.store.begin_upload(BUCKET, data_key(uuid, ledger_id), metadata(TOPIC))

    @property
    def rules(self) -> Rules:
        assert self.now is not None
        open_ones = attempts.whole(attempts.open_attempts(self.cluster.open_store()))
        return Rules(
            replace(self.now.context, now=self.cluster.clock.now_ms(), grace=GRACE, holds=self.policy.holds),
            CLUSTER,
            self.exclusive,
            self.now.epoch.started_at,
            self.before.epoch.started_at if self.before else None,
            frozenset(one.uuid for one in open_ones),
            self.unproven,
        )

    @property
    def inventory(self) -> Inventory:
        assert self.now is not None
        earlier = self.before.offload_uuids if self.before else OffloadUuids()
        listed = self.before.refs if self.before else Referenced()
        return Inventory(
            (BUCKET, "empty"), self.rules, self.now.offload_uuids, earlier, self.now.refs, listed, "/ledgers"
        )

    def scan(self) -> None:
        """The newest scan, and what it found topics to name."""
        self.rescan()
        store = self.cluster.open_store(read_only=True)
        topics = metastore_topics.read_managed_ledgers(store, metastore_topics.topic_units(store))
        self.named = object_pairs.by_uuid(
            row for batch in topics for row in object_pairs.offload_references(batch, "").to_pylist()
        )

    def look(self, digits: int = 1) -> dict[str, dict[str, Any]]:
        """Rows by key, of what the newest scan saw and the buckets have now."""
        store = self.cluster.open_store(read_only=True)
        rows: list[dict[str, Any]] = []
        prefixes = bucket_rules.prefixes(digits)
        for prefix in prefixes:
            named = {uuid: some for uuid, some in self.named.items() if str(uuid).startswith(prefix)}
            rows += look_below(self.inventory, store, self.cluster.reader, self.store, prefix, named)
        for gap in bucket_rules.gaps(prefixes):
            rows += look_between(self.store, BUCKET, gap)
        assert pa.Table.from_pylist(rows, tables.OBJECTS).num_rows == len(rows)
        return {row["key"]: row for row in rows}

    def said(self, uuid: UUID, ledger_id: int) -> tuple[str, str, str]:
        row = self.look()[data_key(uuid, ledger_id)]
        return row["kind"], row["action"], row["code"]

    def gone_is(self, kind: ObjectKind, code: Code | Protection) -> None:
        """The leaked copy is not planned, as this code says."""
        assert self.said(self.gone_uuid, self.gone) == (kind.value, "", code)


def begin(scene: BucketScene, uuid: UUID, ledger_id: int) -> Attempt:
    now = scene.cluster.clock.now_ms()
    one = Attempt(ledger_id, str(TOPIC), uuid, "aws-s3", (("bucket", BUCKET),), 5 << 20, "run", now)
    attempts.begin(scene.cluster.open_store(), one)
    return one
