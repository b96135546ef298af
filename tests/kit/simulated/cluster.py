"""A Pulsar cluster in memory, as its metastore, bookies, brokers and deletion queue show it.

Belongs here: putting topics, cursors, schemas and ledgers there in the forms a broker writes. Not here: what the
product does with them (``pipeline.py``) and what a test expects.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from pulsar_lifecycle.bundles.placing import BUNDLES_ROOT
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger, schema
from pulsar_lifecycle.formats.cursor import MessageRange
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Namespace, Position, Topic, encode_name
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import FakeDeletionQueue, FakeDeletionTopics
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.ledger_reader import FakeLedgerReader, FakeLedgerWriter
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper

ENTRY_BYTES = 10
BROKER = "broker-1:8080"

CURSORS = ["s", "a+b c~%*é/x", "pulsar.dedup"]


def confusable_topics(*more: str) -> list[Topic]:
    """Persistent topics whose names are easily confused, and ``more``: ``T/NS/NAME`` or ``T/C/NS/NAME``."""
    names = (
        "acme/orders/placed",
        "acme/orders/placed-partition-0",
        "acme/orders/placed-partition-1",
        "acme/orders/a+b c~%25*é",
        "acme/other/placed",
        "acme/dc1/orders/placed",
        *more,
    )
    return [Topic.parse(f"persistent://{name}") for name in names]


def data_tags(topic: Topic) -> dict[str, str]:
    """Tags of a data ledger."""
    return {"component": "managed-ledger", "pulsar/managed-ledger": topic.managed_ledger}


def cursor_tags(topic: Topic, cursor: str) -> dict[str, str]:
    """Tags of a cursor ledger."""
    return {**data_tags(topic), "pulsar/cursor": encode_name(cursor)}


def schema_tags(schema_id: str) -> dict[str, str]:
    """Tags of a schema ledger."""
    return {"component": "schema", "pulsar/schemaId": schema_id}


def compacted_tags(topic: Topic) -> dict[str, str]:
    """Tags of a compacted-topic ledger."""
    return {"component": "compacted-ledger", "pulsar/compactedTopic": str(topic)}


def half_of(topic: Topic | str) -> int:
    """1 where its bundle is the upper one of two (:meth:`SimulatedCluster.halve`)."""
    return zlib.crc32(str(topic).encode()) >> 31


def bucket_key(start: int, end: int) -> str:
    """Cursor property of a delayed-index bucket."""
    return f"{cursor_format.BUCKET_PREFIX}_{start}_{end}"


def bucket_tags(topic: Topic, cursor: str, start: int, end: int) -> dict[str, str]:
    """Tags of a delayed-index snapshot."""
    return {
        "component": "delayed-index-bucket",
        "pulsar/delayedIndexBucketKey": bucket_key(start, end),
        "pulsar/delayedIndexTopic": str(topic),
        "pulsar/delayedIndexCursor": cursor,
    }


def deleted_copy(*, complete: bool = True, bookkeeper_deleted: bool = True) -> OffloadContext:
    """An offload context."""
    return OffloadContext(None, complete, bookkeeper_deleted, None, None, {})


def another_cluster() -> SimulatedCluster:
    """A cluster that was made a second after the others."""
    clock = FakeClock()
    clock.advance(1)
    return SimulatedCluster(FakeZooKeeper(clock))


class SimulatedCluster:
    """The servers; ``open_store`` and ``open_queue`` are sessions on them. Ledger ids count up from 1."""

    def __init__(self, zookeeper: FakeZooKeeper | None = None) -> None:
        self.clock = FakeClock()
        self.zookeeper = zookeeper or FakeZooKeeper(self.clock)
        self.reader = FakeLedgerReader()
        self.admin = FakeBrokerAdmin([BROKER])
        self.deletion_topics = FakeDeletionTopics()
        self.journal = FakeJournal()
        self.roots: dict[str, SimulatedCluster] = {}
        self._last_id = 0
        self._store = self.open_store()
        for path in ("/ledgers/available", "/ledgers/idgen", MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, "/admin/policies"):
            self.put(path, b"")

    def open_store(self, *, read_only: bool = False) -> FakeStore:
        """A session with the metadata store."""
        return self.zookeeper.session(read_only=read_only)

    def open_writer(self, store: FakeStore) -> FakeLedgerWriter:
        """A writer of ledgers, by a session's store."""
        return FakeLedgerWriter(store, self.reader)

    def open_queue(self) -> FakeDeletionQueue:
        """A session with the deletion queue, at the cluster's time."""
        self.deletion_topics.now_ms = self.clock.now_ms()
        return FakeDeletionQueue(self.deletion_topics)

    def put(self, path: str, data: bytes) -> None:
        """Create or overwrite a z-node."""
        if path not in self.zookeeper._nodes:
            self._store.create(path, data, parents=True)
        else:
            self._store.write(path, data, -1)

    def remove(self, path: str) -> None:
        """Delete a z-node and everything below it."""
        for name in self.zookeeper.names(path):
            self.remove(f"{path}/{name}")
        self._store.delete(path, -1)

    # ------------------------------------------------------------------------------------------------------- ledgers

    def ledger(
        self,
        tags: Mapping[str, str] | None,
        *,
        state: LedgerState = LedgerState.CLOSED,
        entries: Sequence[bytes] = (b"x" * ENTRY_BYTES,),
        ledger_id: int | None = None,
    ) -> int:
        """A ledger with a z-node and entries; ``tags`` None: not one of Pulsar's. Returns its id."""
        with self.zookeeper.lock:  # brokers open ledgers side by side
            if ledger_id is None:
                self.zookeeper.issue_ledger_id()
                ledger_id = self._last_id + 1
            self._last_id = ledger_id
        custom = {"application": "pulsar", **tags} if tags is not None else {}
        closed = state is LedgerState.CLOSED
        metadata = LedgerMetadata(
            state,
            1,
            1,
            1,
            (Segment(0, ("bookie-1:3181",)),),
            sum(map(len, entries)) if closed else 0,
            len(entries) - 1 if closed else -1,
            DigestType.CRC32C,
            custom_metadata={name: value.encode() for name, value in custom.items()},
        )
        self.put(self.path(ledger_id), ledger_metadata.encode(metadata))
        self.reader.payloads[ledger_id] = list(entries)
        return ledger_id

    def replicate(self, ledgers: Iterable[int], copies: int, length: int) -> None:
        """Let these ledgers have so many copies of so many bytes, by their z-nodes."""
        for ledger_id in ledgers:
            one = ledger_metadata.decode(self.zookeeper.data(self.path(ledger_id)))
            quorums = dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), copies)
            bookies = Segment(0, tuple(f"bookie-{n + 1}:3181" for n in range(copies)))
            more = replace(one, **quorums, segments=(bookies,), length=length)
            self.put(self.path(ledger_id), ledger_metadata.encode(more))

    @staticmethod
    @lru_cache
    def path(ledger_id: int) -> str:
        """The ledger's z-node."""
        return ledger_path.ledger_path(ledger_id)

    def exists(self, ledger_id: int) -> bool:
        """Whether the ledger's z-node is there."""
        return self.path(ledger_id) in self.zookeeper._nodes

    def ledger_ids(self) -> set[int]:
        """Every ledger that has a z-node."""
        return {i for i in self.reader.payloads if self.exists(i)}

    # -------------------------------------------------------------------------------------------------------- topics

    @staticmethod
    def topic_path(topic: Topic) -> str:
        """The topic's z-node."""
        return f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"

    def topic(
        self,
        topic: Topic,
        ledgers: Sequence[int] = (),
        *,
        offloaded: Mapping[int, OffloadContext] | None = None,
        terminated: Position | None = None,
        shadow_of: str = "",
        entries: int = 1,
        counts: Mapping[int, int] | None = None,
        closed: Mapping[int, int] | None = None,
        sizes: Mapping[int, int] | None = None,
    ) -> Topic:
        """The topic's z-node, listing ``ledgers``; 0 bytes for a topic that was never loaded.

        A ledger has as many ``entries`` as its own of ``counts`` says, as many bytes as of ``sizes``, and was
        ``closed`` then (ms). A low watermark that is there stays, as brokers keep all properties.
        """
        many = [(i, (counts or {}).get(i, entries)) for i in ledgers]
        said = sizes or {}
        infos = tuple(
            LedgerInfo(i, n, said.get(i, n * ENTRY_BYTES), (closed or {}).get(i, 1), (offloaded or {}).get(i))
            for i, n in many
        )
        path = self.topic_path(topic)
        properties = {SHADOW_SOURCE: shadow_of} if shadow_of else {}
        before = self.zookeeper.data(path) if self.zookeeper.stat(path) else b""
        if managed_ledger.LOW_WATERMARK.encode() in before:
            properties |= managed_ledger.low_watermarks(managed_ledger.decode(before).properties)
        info = ManagedLedgerInfo(infos, terminated, properties)
        self.put(path, managed_ledger.encode(info) if ledgers or shadow_of else b"")
        return topic

    def cursor(
        self,
        topic: Topic,
        name: str,
        *,
        ledger: int = -1,
        compacted: int | None = None,
        buckets: Mapping[tuple[int, int], int] | None = None,
        at: int = 0,
        entry: int = -1,
        active: int | None = None,
        deleted: Sequence[MessageRange] = (),
    ) -> None:
        """A cursor's z-node, which stands at ``entry`` of ledger ``at``, with a client at it last at ``active`` (ms).

        ``compacted`` is its own copy of the compacted ledger, ``buckets`` by topic ledgers,
        ``deleted`` what is acknowledged beyond where it stands.
        """
        info = cursor_format.ManagedCursorInfo(
            ledger,
            Position(at, entry),
            tuple(deleted),
            properties={} if compacted is None else {cursor_format.COMPACTED_LEDGER_PROPERTY: compacted},
            cursor_properties={bucket_key(*span): str(i) for span, i in (buckets or {}).items()},
            last_active=active,
        )
        self.put(f"{self.topic_path(topic)}/{encode_name(name)}", cursor_format.encode(info))

    @staticmethod
    def position_entry(compacted: int | None = None, at: int = 1) -> bytes:
        """An entry of a cursor ledger, which says where the cursor stands and names a compacted ledger."""
        properties = {} if compacted is None else {cursor_format.COMPACTED_LEDGER_PROPERTY: compacted}
        return cursor_format.encode_position(cursor_format.PositionInfo(Position(at, 0), properties=properties))

    def schema(self, schema_id: str, ledgers: Sequence[int]) -> None:
        """A schema's locator, naming one ledger per version."""
        index = tuple(schema.IndexEntry(n, Position(i, 0), b"h") for n, i in enumerate(ledgers))
        self.put(f"{SCHEMAS_ROOT}/{schema_id}", schema.encode_locator(schema.SchemaLocator(index[-1], index)))

    @staticmethod
    def schema_entry(ledgers: Sequence[int] = ()) -> bytes:
        """The entry of a schema ledger, whose index names earlier versions' ledgers."""
        index = tuple(schema.IndexEntry(n, Position(i, 0), b"h") for n, i in enumerate(ledgers))
        return schema.encode_entry(schema.SchemaEntry(b"", index))

    def load(self, topic: Topic) -> None:
        """A broker lists the topic as loaded."""
        self.admin.topics.setdefault(topic, {})
        self.admin.loaded[str(topic)] = BROKER

    def halve(self, namespace: Namespace | str) -> None:
        """A namespace has two bundles of one size."""
        halves = {"bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}}
        self.put(f"{BUNDLES_ROOT}/{namespace}", json.dumps(halves).encode())

    def wait(self, hours: float) -> None:
        """Let time pass."""
        self.clock.advance(hours * 3600)
