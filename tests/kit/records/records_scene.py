"""Partitions whose records are to be deleted, on the simulated cluster, with the scans that a plan rests on.

Belongs here: what is there, what an operator does. Not here: what a test expects.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pulsar_lifecycle.delete_records.apply_run import NO_PATIENCE, Patience, apply_delete_records
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records
from pulsar_lifecycle.delete_records.request import PLAIN, DeleteRecordsResult, Offset, Options, parse_offset
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.run_settings import ConsumedRecordsSettings
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.progress import unsaid
from pulsar_lifecycle.settings import ObjectStoreSettings
from tests.kit.fakes.bookie_admin import FakeBookieAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.records.topic_times import BUCKET, sent
from tests.kit.simulated import pipeline
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import Policy

ENTRIES = 10
"""Of each ledger."""
BOOKIE = "bookie-1:3181"
"""Has every ledger."""
HOUR = 3_600_000
"""When (ms) the first message was published."""


def partition(number: int) -> Topic:
    return Topic.parse(f"persistent://acme/orders/placed-partition-{number}")


class RecordsScene:
    """Partitions of five closed ledgers each, left alone for a day; nobody has subscribed."""

    def __init__(self, partitions: int = 1, policy: Policy | None = None) -> None:
        self.cluster = SimulatedCluster()
        self.policy = policy or Policy()
        self.cluster.put("/admin/policies/acme/orders", b"{}")
        self.topics = [partition(n) for n in range(partitions)]
        self.published = 0
        """Messages so far, each a millisecond after the one before it."""
        self.ids = {topic: [self._ledger(topic) for _ in range(5)] for topic in self.topics}
        for topic in self.topics:
            for n in range(len(self.ids[topic]) + 1):  # as its broker wrote it, ledger by ledger
                self.cluster.topic(topic, self.ids[topic][:n], entries=ENTRIES)
        self.cluster.wait(8 * 24)
        self.scan()
        self.consumed: dict[str, tuple[str, ...]] = {}
        self.writes_loaded = False
        self.max_unloads = 500
        self.object_store: ObjectStoreSettings | None = None
        self.bookies = FakeBookieAdmin(BOOKIE)

    def with_bucket(self) -> FakeObjectStore:
        """The settings name a bucket; what is in it."""
        buckets = FakeBuckets(FakeClock(), part_minimum=1)
        buckets.create(BUCKET)
        self.object_store = ObjectStoreSettings.model_validate({"endpoint": "http://127.0.0.1:1", "buckets": [BUCKET]})
        found = FakeObjectStore(buckets, {BUCKET})
        self.cluster.objects = found  # type: ignore[attr-defined]
        return found

    def lose_lake(self) -> None:
        """Plans, journal and scans are gone; there are new scans."""
        self.cluster.journal = FakeJournal()
        self.scan()

    def scan(self) -> None:
        """Two scans, the later of which the earlier confirms."""
        self.scans = [pipeline.scan(self.cluster, self.policy)]
        self.cluster.wait(25)
        self.scans.append(pipeline.scan(self.cluster, self.policy, self.scans))
        self.lake = pipeline.lake_of(*self.scans)

    def _ledger(self, topic: Topic, **more: Any) -> int:
        self.published += ENTRIES
        times = range(self.published - ENTRIES, self.published)
        return self.cluster.ledger(data_tags(topic), entries=[sent(HOUR + at) for at in times], **more)

    # --------------------------------------------------------------------------------------------------- what is there

    @property
    def topic(self) -> Topic:
        return self.topics[0]

    def properties(self, topic: Topic | None = None) -> Mapping[str, str]:
        return managed_ledger.decode(self.cluster.zookeeper.data(self._path(topic))).properties

    def listed(self, topic: Topic | None = None) -> list[int]:
        info = managed_ledger.decode(self.cluster.zookeeper.data(self._path(topic)))
        return [item.ledger_id for item in info.ledgers]

    def _path(self, topic: Topic | None) -> str:
        return self.cluster.topic_path(topic or self.topic)

    def owned_by(self, broker: str, topic: Topic | None = None) -> None:
        """A broker has the bundle of one topic alone."""
        place = zlib.crc32(str(topic or self.topic).encode())
        path = f"/namespace/acme/orders/0x{place:08x}_0x{place + 1:08x}"
        self.cluster.put(path, json.dumps({"httpUrl": f"http://{broker}"}).encode())

    def cursor(self, name: str, ledger: int, entry: int, topic: Topic | None = None) -> None:
        """A durable cursor that has acknowledged everything up to an entry of the ledger at an index."""
        position = Position(self.ids[topic or self.topic][ledger], entry)
        info = cursor_format.ManagedCursorInfo(-1, position)
        self.cluster.put(f"{self._path(topic)}/{encode_name(name)}", cursor_format.encode(info))

    def load(self, topic: Topic | None = None, broker: str = "") -> None:
        """A broker has the topic, its last ledger open."""
        topic = topic or self.topic
        self.ids[topic].append(self.cluster.ledger(data_tags(topic), state=LedgerState.OPEN, entries=()))
        self.cluster.topic(topic, self.ids[topic], counts=dict.fromkeys(self.ids[topic][:-1], ENTRIES), entries=0)
        self.cluster.load(topic)
        if broker:
            self.cluster.admin.loaded[str(topic)] = broker

    def publish(self, topic: Topic, entries: int) -> None:
        """Its last ledger, which is closed, has more entries after all."""
        last = self.ids[topic][-1]
        more = [*self.cluster.reader.payloads[last], *[sent(2 * HOUR)] * entries]
        newest = self.cluster._last_id
        self.cluster.ledger(data_tags(topic), entries=more, ledger_id=last)
        self.cluster._last_id = newest
        self.cluster.topic(topic, self.ids[topic], counts=dict.fromkeys(self.ids[topic], ENTRIES) | {last: len(more)})

    def rolled(self, topic: Topic) -> None:
        """Its broker loaded it, as it was asked to unload it: another ledger follows, empty, and is closed."""
        data = self.cluster.zookeeper.data(self._path(topic))
        info = managed_ledger.decode(data)
        self.ids[topic].append(self.cluster.ledger(data_tags(topic), entries=()))
        item = managed_ledger.LedgerInfo(self.ids[topic][-1])
        self.cluster.put(self._path(topic), managed_ledger.encode(replace(info, ledgers=(*info.ledgers, item))))

    def created_again(self, topic: Topic | None = None) -> list[int]:
        """The topic was deleted, and another one has its name: its ledgers."""
        topic = topic or self.topic
        for i in self.ids[topic]:
            if self.cluster.exists(i):
                self.cluster.remove(self.cluster.path(i))
        self.cluster.remove(self._path(topic))
        own = [self._ledger(topic) for _ in range(2)]
        self.cluster.topic(topic, own, entries=ENTRIES)
        self.cluster.wait(1)
        return own

    # ------------------------------------------------------------------------------------------------ what is done

    @property
    def where(self) -> Any:
        where = pipeline.where(self.cluster, self.policy, self.lake, bookies=self.bookies)
        consumed = ConsumedRecordsSettings(subscriptions=self.consumed)
        unloads = {"loaded_topics": self.writes_loaded, "max_unloads": self.max_unloads}
        trimming = where.settings.trimming.model_copy(update=unloads)
        update = {"consumed_records": consumed, "trimming": trimming, "object_store": self.object_store}
        return replace(where, settings=where.settings.model_copy(update=update))

    def at(self, ledger: int, entry: int, topic: Topic | None = None) -> Offset:
        """A position in the ledger at an index."""
        return parse_offset(f"{self.ids[topic or self.topic][ledger]}:{entry}")

    def plan(self, *offsets: Offset, options: Options = PLAIN) -> list[dict[str, Any]]:
        """Rows of a plan, one for each of the first partitions."""
        self.summary, rows = plan_delete_records(self.where, dict(zip(self.topics, offsets, strict=False)), options)
        return sorted(rows.to_pylist(), key=lambda row: row["topic"])

    def apply(
        self, patience: Patience = NO_PATIENCE, *, dry_run: bool = False, heard: Callable[[str], None] = unsaid
    ) -> list[DeleteRecordsResult]:
        """Apply the newest plan; results by partition. ``said``: what it said of how far it is, also to ``heard``."""
        order, self.said = Order(self.summary.plan_id, self.summary.digest), list[str]()

        def say(text: str) -> None:
            self.said.append(text)
            heard(text)

        found = apply_delete_records(self.where, "records-run", order, dry_run=dry_run, patience=patience, progress=say)
        return [found[topic] for topic in sorted(found)]

    def delete(self) -> Sequence[Any]:
        """A scan, then a deletion run, once the messages are delivered."""
        self.cluster.wait(1)
        before = self.scans[0]
        newest = pipeline.scan(self.cluster, self.policy, self.scans)
        self.scans.append(newest)
        self.lake.begun |= pipeline.lake_of(newest).begun
        return pipeline.delete(self.cluster, newest, before, self.policy)
