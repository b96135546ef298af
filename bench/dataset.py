"""A cluster of any size, written straight into the ZooKeeper and the bookie of a running sandbox.

Per ten ledgers there is one topic: nine data ledgers and the cursor ledger of its one subscription. Of every hundred
topics one was deleted and left its ten ledgers behind (the orphans), and one has a schema and a ``__compaction``
cursor: a schema ledger, a compaction cursor ledger (real BookKeeper ledgers with one real entry each, written to the
bookie over the v2 protocol) and the compacted ledger that the cursor's entry names. With ``positions`` the cursor
ledger of every subscription is a real one too, and its entry says that the first :data:`ACKNOWLEDGED` ledgers are read.

Sizes nest: a larger data set holds the smaller one, so that one cluster can grow through all of them. Not here: what is
measured.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from ground import add_entries, kazoo
from kazoo.client import KazooClient

from pulsar_lifecycle.formats import cursor, ledger_metadata, managed_ledger, schema
from pulsar_lifecycle.formats.entry import StoredEntry
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import Position

LEDGERS_PER_TOPIC = 10
ACKNOWLEDGED = 6
"""Ledgers of each topic that its subscription has read to the end, by its cursor ledger."""
NAMESPACES = [f"bench/ns-{i}" for i in range(10)]
FIRST_ID = 1_000_000
"""Above every id that the sandbox itself takes from BookKeeper's generator."""
FIRST_EXTRA_ID = 500_000_000
PER_TRANSACTION = 1_000
IN_FLIGHT = 4
LOADERS = 2
_BOOKIES = ("bookie-a:3181", "bookie-b:3181", "bookie-c:3181")
_CLOSED_AT = 1_700_000_000_000


@dataclass(frozen=True)
class Contents:
    """What a data set of ``topics`` topics holds, by which the benchmark checks what was found."""

    topics: int

    @property
    def deleted(self) -> int:
        """Topics whose z-node is gone."""
        return self.topics // 100

    @property
    def special(self) -> int:
        """Topics with a schema and a ``__compaction`` cursor."""
        return self.topics // 100

    @property
    def ledgers(self) -> int:
        """Ledger z-nodes."""
        return self.topics * LEDGERS_PER_TOPIC + 3 * self.special

    @property
    def orphans(self) -> int:
        """Ledgers that nothing refers to."""
        return self.deleted * LEDGERS_PER_TOPIC

    @property
    def acknowledged(self) -> int:
        """Ledgers that every cursor has read, where subscriptions have positions; ``__compaction`` has read none."""
        return ACKNOWLEDGED * (self.topics - self.deleted - self.special)

    @property
    def references(self) -> int:
        """References: ten per topic, and per special topic its schema locator, its ``__compaction`` and its entry."""
        return (self.topics - self.deleted) * LEDGERS_PER_TOPIC + 3 * self.special


def grow(hosts: str, bookie: str, before: int, topics: int, *, positions: bool = False) -> None:
    """Add topics ``before`` .. ``topics`` - 1; both multiples of 100."""
    with kazoo(hosts) as zk:
        for namespace in NAMESPACES:
            zk.ensure_path(f"/managed-ledgers/{namespace}/persistent")
            zk.ensure_path(f"/schemas/{namespace}")
            if not zk.exists(f"/admin/policies/{namespace}"):
                zk.create(f"/admin/policies/{namespace}", json.dumps({}).encode(), makepath=True)
        extra = [FIRST_EXTRA_ID + n for n in range(3 * before // 100, 3 * topics // 100)]
        ids = range(FIRST_ID + before * LEDGERS_PER_TOPIC, FIRST_ID + topics * LEDGERS_PER_TOPIC, 10)
        for parent in dict.fromkeys(ledger_path(i).rpartition("/")[0] for i in (*ids, *extra)):
            zk.ensure_path(parent)
    step = 1000 if topics - before >= 4000 else 100
    ranges = [(hosts, bookie, start, min(start + step, topics), positions) for start in range(before, topics, step)]
    with ProcessPoolExecutor(LOADERS, mp_context=get_context("spawn")) as pool:
        list(pool.map(_load, ranges))


def _load(work: tuple[str, str, int, int, bool]) -> None:
    hosts, bookie, start, end, positions = work
    with kazoo(hosts) as zk:
        _create_all(zk, (node for topic in range(start, end) for node in _znodes(topic, bookie, positions)))
    add_entries(bookie, (e for topic in range(start, end) if _is_special(topic) for e in _entries(topic)))
    if positions:
        add_entries(bookie, (_read_upto(topic) for topic in range(start, end)))


def _create_all(zk: KazooClient, nodes: Iterable[tuple[str, bytes]]) -> None:
    flying: deque[Any] = deque()
    transaction = zk.transaction()

    def await_oldest() -> None:
        for result in flying.popleft().get():
            if isinstance(result, Exception):
                raise result

    for path, data in nodes:
        transaction.create(path, data)
        if len(transaction.operations) >= PER_TRANSACTION:
            flying.append(transaction.commit_async())
            transaction = zk.transaction()
            if len(flying) >= IN_FLIGHT:
                await_oldest()
    if transaction.operations:
        flying.append(transaction.commit_async())
    while flying:
        await_oldest()


# ------------------------------------------------------------------------------------------------------- what is where


def _is_deleted(topic: int) -> bool:
    return topic % 100 == 99


def _is_special(topic: int) -> bool:
    return topic % 100 == 50


def _extra_ids(topic: int) -> tuple[int, int, int]:
    """Schema ledger, compaction cursor ledger, compacted ledger of a special topic."""
    first = FIRST_EXTRA_ID + 3 * (topic // 100)
    return first, first + 1, first + 2


def name_of(topic: int) -> str:
    """The full name of a topic."""
    return "persistent://{}/{}".format(*_names(topic))


def _names(topic: int) -> tuple[str, str]:
    """Namespace and local name; topics come in hundreds of one namespace."""
    return NAMESPACES[topic // 100 % len(NAMESPACES)], f"orders-topic-{topic:07d}"


def _znodes(topic: int, bookie: str, real: bool) -> Iterator[tuple[str, bytes]]:
    """Parents before children. ``real``: the subscription's cursor ledger is."""
    namespace, local = _names(topic)
    name = f"{namespace}/persistent/{local}"
    tags = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    *data, positions = range(FIRST_ID + topic * LEDGERS_PER_TOPIC, FIRST_ID + (topic + 1) * LEDGERS_PER_TOPIC)
    for ledger_id in data:
        yield ledger_path(ledger_id), _ledger(tags)
    yield ledger_path(positions), _ledger(tags | {"pulsar/cursor": b"subscription"}, bookie if real else "")
    if _is_deleted(topic):
        return
    info = ManagedLedgerInfo(tuple(LedgerInfo(i, 50_000, 50_000_000, _CLOSED_AT) for i in data))
    yield f"/managed-ledgers/{name}", managed_ledger.encode(info)
    yield f"/managed-ledgers/{name}/subscription", _cursor(positions, data[0])
    if _is_special(topic):
        schema_ledger, compaction_ledger, compacted_ledger = _extra_ids(topic)
        yield ledger_path(schema_ledger), _ledger(_schema_tags(topic), bookie)
        yield ledger_path(compaction_ledger), _ledger(tags | {"pulsar/cursor": b"__compaction"}, bookie)
        compacted = {"component": b"compacted-ledger", "pulsar/compactedTopic": f"persistent://{namespace}/{local}"}
        compacted = {k: v.encode() if isinstance(v, str) else v for k, v in compacted.items()}
        yield ledger_path(compacted_ledger), _ledger({"application": b"pulsar", **compacted})
        yield f"/managed-ledgers/{name}/__compaction", _cursor(compaction_ledger, data[0])
        locator = schema.SchemaLocator(_version(schema_ledger), (_version(schema_ledger),))
        yield f"/schemas/{namespace}/{local}", schema.encode_locator(locator)


def _schema_tags(topic: int) -> dict[str, bytes]:
    schema_id = "/".join(_names(topic)).encode()
    return {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": schema_id}


def _ledger(tags: dict[str, bytes], bookie: str = "") -> bytes:
    """A closed ledger: of one entry on the real bookie, or of 50,000 entries on bookies that nobody asks."""
    ensemble = (bookie,) if bookie else _BOOKIES
    copies = 1 if bookie else 2
    return ledger_metadata.encode(
        LedgerMetadata(
            LedgerState.CLOSED,
            len(ensemble),
            copies,
            copies,
            (Segment(0, ensemble),),
            length=64 if bookie else 50_000_000,
            last_entry_id=0 if bookie else 49_999,
            digest_type=DigestType.CRC32C,
            custom_metadata=tags,
        )
    )


def _cursor(ledger_id: int, first_ledger: int) -> bytes:
    return cursor.encode(cursor.ManagedCursorInfo(ledger_id, Position(first_ledger, -1), last_active=_CLOSED_AT))


def _version(ledger_id: int) -> schema.IndexEntry:
    return schema.IndexEntry(0, Position(ledger_id, 0 if ledger_id >= 0 else -1), hashlib.sha256(b"schema").digest())


def _entries(topic: int) -> Iterator[StoredEntry]:
    """The only entry of each real ledger."""
    schema_ledger, compaction_ledger, compacted_ledger = _extra_ids(topic)
    yield _only(schema_ledger, schema.encode_entry(schema.SchemaEntry(b'{"type":"string"}', (_version(-1),))))
    position = Position(FIRST_ID + topic * LEDGERS_PER_TOPIC, 10)
    properties = {cursor.COMPACTED_LEDGER_PROPERTY: compacted_ledger}
    yield _only(compaction_ledger, cursor.encode_position(cursor.PositionInfo(position, properties=properties)))


def _read_upto(topic: int) -> StoredEntry:
    """The only entry of a subscription's cursor ledger."""
    first = FIRST_ID + topic * LEDGERS_PER_TOPIC
    position = cursor.PositionInfo(Position(first + ACKNOWLEDGED - 1, 49_999))
    return _only(first + LEDGERS_PER_TOPIC - 1, cursor.encode_position(position))


def _only(ledger_id: int, payload: bytes) -> StoredEntry:
    return StoredEntry(ledger_id, 0, -1, len(payload), payload)
