"""What brokers and their operators do to a cluster, and the truth about which ledgers somebody needs.

Belongs here: the model of every topic, cursor and schema as its broker has it, in metadata and in memory, and the acts
that change it. Nothing here asks the product anything: ``live`` is the simulator's own ground truth. Not here: the
control plane (``operator.py``), faults (``faults.py``), and what must hold (``laws.py``).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.errors import CorruptFormat, Failed, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import TopicInternals, Upload
from pulsar_lifecycle.records.owner_names import schema_owner
from pulsar_lifecycle.runs import control
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeStore
from tests.kit.fakes.object_store import FakeBuckets, OpenUpload
from tests.simulation.cluster import (
    BROKER,
    ENTRY_BYTES,
    SimulatedCluster,
    bucket_key,
    bucket_tags,
    compacted_tags,
    confusable_topics,
    cursor_tags,
    data_tags,
    schema_tags,
)
from tests.simulation.offloaded import BUCKET, copy_message, entries_in, kept_objects_of, metadata
from tests.simulation.ports import (
    Interceptor,
    SimAdmin,
    SimClock,
    SimJournal,
    SimObjectStore,
    SimQueue,
    SimReader,
    SimTopics,
    SimZooKeeper,
    Trace,
)

HOUR = 3_600_000
MOST_LEDGERS = 40
LISTING_LAG = 60_000
BOOKKEEPER = "BookKeeper"
ONE_ENTRY = (b"x" * ENTRY_BYTES,)
"""What most ledgers have."""

TOPICS = confusable_topics("acme/orders/__change_events", "pulsar/system/__transaction_log_0")
ELSEWHERE = Topic.parse("persistent://foreign/app/t")
COMPACTION = "__compaction"


@dataclass
class Ledger:
    """What a ledger was made for; ``born`` is the true time (ms)."""

    kind: str
    topic: Topic
    born: int
    cursor: str = ""
    span: tuple[int, int] = (0, 0)
    state: LedgerState = LedgerState.CLOSED
    entries: tuple[bytes, ...] = ()
    """What was written to it, whatever has become of its copies; only of data."""


@dataclass
class Cursor:
    """A subscription. ``compacted`` is what the broker takes for the compacted ledger, ``noted`` the z-node's copy.

    ``at`` is the ledger it stands in, by the z-node: the last entry of its cursor ledger knows better.
    """

    ledger: int = -1
    compacted: int | None = None
    noted: int | None = None
    at: int = 0
    buckets: dict[tuple[int, int], int] = field(default_factory=dict)
    swallowed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Snapshots whose key was never stored: only the broker's memory has them."""


@dataclass
class ModelTopic:
    """A topic as its broker has it. ``away``: its z-nodes are gone for some hours and will be restored. ``moved``: they
    are not taken away, or given another name, any more. ``pinned``: nor are those of topics that shadow it. ``unseen``:
    a shadow topic that no covered scan saw: nobody outside could know of it, were it taken away.
    """

    name: Topic
    ledgers: list[int] = field(default_factory=list)
    offloaded: dict[int, OffloadContext] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    loaded: bool = False
    memory: set[int] = field(default_factory=set)
    readers: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Non-durable subscriptions and their snapshots: only the broker's memory has either."""
    unlisted: set[int] = field(default_factory=set)
    """Snapshots that a dispatcher goes on with whose cursor is no longer among the topic's."""
    compacting: int | None = None
    shadow_of: str = ""
    terminated: bool = False
    away: bool = False
    moved: bool = False
    pinned: bool = False
    unseen: bool = False
    stale: dict[int, OffloadContext | None] = field(default_factory=dict)
    """Offloads as its broker has them in memory, where we have written others since it loaded the topic."""


@dataclass
class Model:
    """Everything that a restore of the metadata store takes back."""

    topics: dict[Topic, ModelTopic] = field(default_factory=dict)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    schemas: dict[str, list[int]] = field(default_factory=dict)
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Schema ledgers whose locator is not written yet: ledger -> (schema id, when it will be)."""
    returns: list[tuple[int, Topic]] = field(default_factory=list)
    listings: list[tuple[int, Topic]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    elsewhere: dict[int, str] = field(default_factory=dict)
    """Ledgers that another system on the same BookKeeper needs."""


@dataclass(frozen=True)
class Counters:
    """What only ever grows: transactions, ledger ids that were issued, and leases that were taken.

    ``lease_born`` is the transaction that created the lease's z-node, 0 if there is none.
    """

    zxid: int
    ids: int
    lease_born: int
    lease: int

    def can_follow(self, then: Counters) -> bool:
        """Whether these may be of the same history, later."""
        same_lease = not then.lease_born or self.lease_born == then.lease_born
        return same_lease and self.zxid >= then.zxid and self.ids >= then.ids and self.lease >= then.lease


class World(SimulatedCluster):
    """A cluster with its model; every choice is ``random``'s."""

    zookeeper: SimZooKeeper
    clock: SimClock

    def __init__(self, random: Random) -> None:
        time = FakeClock()
        super().__init__(SimZooKeeper(time))
        self.random = random
        self.time = time
        self.clock = SimClock(time)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.reader = SimReader()
        self.admin = SimAdmin([BROKER])
        self.admin.memory, self.admin.compaction = self._internals, self._compaction_status
        self.admin.unloading = self._unload_on_demand
        self.admin.deleting = self._delete_on_demand
        self.admin.reading = self._read_on_demand
        self.admin.queued = lambda: len(self.deletion_topics.waiting)
        self.journal = SimJournal()
        self.deletion_topics = SimTopics()
        self.buckets = FakeBuckets(time)
        self.buckets.create(BUCKET)
        self.objects = SimObjectStore(self.buckets, [BUCKET])
        self.attempts: dict[UUID, tuple[Topic, int]] = {}
        self.attempts_elsewhere: set[UUID] = set()
        self.model = Model()
        self.interceptor = Interceptor()
        self.trace: Trace | None = None
        self.lagging = False
        self.forgetful = False
        self.tiered = False
        self.blind = False
        """Whether the brokers' offloader looks for every object in the wrong place."""
        self.corrupted: dict[str, bytes] = {}
        self.damaged: set[int] = set()
        """Ledgers with an entry that nobody can read any more."""
        self.listed: dict[str, set[int]] = {}
        """What the last covered scan saw each topic list."""
        self.roots: dict[str, SimulatedCluster] = {}
        self.declared: set[int] = set()
        """Ids that a topic of a declared cluster names, whatever our own store was restored to."""
        self.backup: tuple[dict, bytes, dict, int, int] | None = None
        self.backup_at = self.restored = 0
        self.undone: list[tuple[int, int, Counters | None]] = []
        """Spans of time that a restore of the metadata store took back, and its counters at the next scan."""
        self.restored_at = 0
        self.dates_ledgers = False
        """Whether topics say when their ledgers were closed."""
        self.closed_at: dict[int, int] = {}
        self.wire: Callable[[SimQueue], None] = lambda queue: None
        self.register_broker()
        for topic in TOPICS:
            self.put(f"/admin/policies/{topic.namespace}", b"{}")

    # ------------------------------------------------------------------------------------------------ product's ports

    def open_store(self, *, read_only: bool = False) -> FakeStore:
        if not hasattr(self, "interceptor"):
            return FakeStore(self.zookeeper, 0, False)  # the world's own hand: nothing watches it
        return self.zookeeper.connect(self.interceptor, read_only=read_only, trace=self.trace, lagging=self.lagging)

    def open_queue(self) -> SimQueue:
        self.deletion_topics.now_ms = self.time.now_ms()
        self.deletion_topics.skew_ms = self.clock.skew_ms
        queue = SimQueue(self.deletion_topics, self.time, self.interceptor, self.trace)
        queue.forgetful = self.forgetful
        queue.latency = lambda: self.zookeeper.latency
        self.wire(queue)
        return queue

    def _internals(self, topic: Topic) -> TopicInternals:
        found = self.model.topics.get(topic)
        if found is None or found.away:
            raise NotFound(f"{topic}: no such topic")
        if not found.loaded:
            self.load(found)
        compaction = found.cursors.get(COMPACTION)
        compacted = compaction.compacted if compaction else None
        properties: dict[str, dict[str, int]] = {encode_name(name): {} for name in found.cursors}
        properties |= {name: {} for name in found.readers}
        return TopicInternals(
            "LedgerOpened",
            (*found.ledgers, *sorted(found.memory)),
            {encode_name(name): c.ledger for name, c in found.cursors.items() if c.ledger >= 0},
            properties | ({COMPACTION: {"CompactedTopicLedger": compacted}} if compacted is not None else {}),
            compacted,
            (),
        )

    def _compaction_status(self, topic: Topic) -> str:
        found = self.model.topics.get(topic)
        if found is None or found.away:
            raise NotFound(f"{topic}: no such topic")
        if not found.loaded:
            self.load(found)
        return "RUNNING" if found.compacting is not None else "SUCCESS"

    def _unload_on_demand(self, topic: Topic) -> None:
        found = self.model.topics.get(topic)
        if found is None or found.away:
            raise NotFound(f"{topic}: no such topic")
        if found.loaded:
            self.unload(found)

    def _delete_on_demand(self, topic: Topic) -> None:
        """A broker is asked to delete a topic: it may refuse, stop half-way, or its answer may get lost."""
        found = self.model.topics.get(topic)
        if found is None or found.away:
            raise NotFound(f"{topic}: no such topic")
        how = self.random.choice(["done", "done", "done", "lost", "refused", "half", "again"])
        if how == "refused":
            raise StoreError(f"{topic}: it has connected clients")
        if how == "half":  # as ManagedLedgerImpl does it: cursors and ledgers first, the topic's own z-node last
            self.drop_cursors(found)
            for ledger in found.ledgers[: self.random.randint(0, len(found.ledgers))]:
                self.remove(self.path(ledger)) if self.exists(ledger) and not self._shadowed(found, ledger) else None
            raise StoreError("500: a ledger could not be deleted")
        self.delete_topic(found)
        if how in ("again", "lost") and self.random.random() < 0.7 and not self.full():
            self.model.topics[topic] = fresh = ModelTopic(topic)
            self.store(fresh)
            self.load(fresh)
        if how == "lost":
            raise Unavailable("no answer")

    def _shadowed(self, topic: ModelTopic, ledger: int) -> bool:
        return any(ledger in one.ledgers for one in self.model.topics.values() if one is not topic)

    def drop_cursors(self, topic: ModelTopic) -> None:
        """Delete every cursor of a topic."""
        cursors = list(topic.cursors.items())
        topic.cursors.clear()
        for name, cursor in cursors:
            path = f"{self.topic_path(topic.name)}/{encode_name(name)}"
            if self.zookeeper.stat(path) is not None:
                self.remove(path)
            for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
                self.drop(ledger)

    def collect_garbage(self) -> int:
        """Bookies drop the entries of ledgers whose z-nodes are gone; how many ledgers that was."""
        gone = [i for i in self.reader.payloads if not self.exists(i)]
        for ledger in gone:
            del self.reader.payloads[ledger]
        return len(gone)

    def trimmed(self, path: str, left: Sequence[int]) -> str:
        """The product wrote a topic's z-node: why it must not have; else a broker that has it loaded goes on with
        what it has in memory.
        """
        topic = next((t for t in self.model.topics.values() if self.topic_path(t.name) == path and not t.away), None)
        if topic is None:
            return "no such topic"
        gone = [i for i in topic.ledgers if i not in left]
        for name, cursor in topic.cursors.items():
            if gone and not self.passed(cursor, max(gone)):
                return f"cursor {name} has not passed {gone}: it stands at {self.position(cursor)}"
        if topic.shadow_of:
            return "it is a shadow topic"
        if topic.loaded:
            topic.memory |= set(gone)
        topic.ledgers = [i for i in topic.ledgers if i in left]
        for ledger in gone:
            topic.offloaded.pop(ledger, None)
        return ""

    def passed(self, cursor: Cursor, ledger: int) -> bool:
        """Whether a cursor has every entry of a ledger, and of those before it, behind it."""
        at = self.position(cursor)
        return at.ledger_id > ledger or at == Position(ledger, len(self.model.ledgers[ledger].entries) - 1)

    def stands(self, cursor: Cursor) -> int:
        """The ledger that a cursor's persisted position is in; 0 where no one can say."""
        return self.position(cursor).ledger_id

    def position(self, cursor: Cursor) -> Position:
        """A cursor's persisted position; in ledger 0 where no one can say."""
        entries = self.reader.payloads.get(cursor.ledger) if cursor.ledger >= 0 else None
        if cursor.ledger < 0:
            return Position(cursor.at, -1)
        try:
            return cursor_format.decode_position(entries[-1]).mark_delete if entries else Position(0, -1)
        except CorruptFormat:
            return Position(0, -1)

    def counters(self) -> Counters:
        """What only ever grows, now."""
        ids, lease = (self.zookeeper.stat(path) for path in ("/ledgers/idgen", control.LEASE))
        born, version = (lease.czxid, lease.version) if lease else (0, -1)
        return Counters(self.zookeeper.zxid, ids.cversion if ids else 0, born, version)

    def happened(self, at: int, counters: Counters) -> bool:
        """Whether what was seen then (ms) is of this history: no restore took it back, as far as counters can tell.

        After a new election a store looks like a later one once it has issued more ledger ids than it had lost, unless
        a lease was taken in between: ours is another one then, or an older one.
        """
        return not any(
            first <= at < last and not (after or self.counters()).can_follow(counters)
            for first, last, after in self.undone
        )

    # ---------------------------------------------------------------------------------------------------------- truth

    def live(self, *, memory: bool = True) -> dict[int, str]:
        """Every ledger that somebody needs, and who; without ``memory`` only what metadata says."""
        found: dict[int, str] = dict(self.model.elsewhere)
        for topic in self.model.topics.values():
            self._live_of(topic, found, memory)
        for schema_id, versions in self.model.schemas.items():
            found.update(dict.fromkeys(versions, f"schema {schema_id} has it"))
        for ledger, (schema_id, _) in self.model.pending.items() if memory else ():
            found[ledger] = f"schema {schema_id} is about to name it"
        return {ledger: why for ledger, why in found.items() if self.exists(ledger)}

    def _live_of(self, topic: ModelTopic, found: dict[int, str], memory: bool) -> None:
        for ledger in topic.ledgers:
            context = topic.offloaded.get(ledger)
            if not (context and context.complete and context.bookkeeper_deleted):
                found[ledger] = f"{topic.name} lists it"
            elif memory and topic.loaded and ledger in topic.stale and topic.stale[ledger] is None:
                found[ledger] = f"the broker of {topic.name} reads it in BookKeeper still"
        for name, cursor in topic.cursors.items():
            for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
                if ledger is not None and ledger >= 0:
                    found[ledger] = f"cursor {name} of {topic.name} names it"
            for ledger in cursor.swallowed.values() if memory and topic.loaded else ():
                found[ledger] = f"the broker of {topic.name} holds this snapshot in memory"
        if memory and topic.loaded:
            for name, buckets in topic.readers.items():
                found |= dict.fromkeys(buckets.values(), f"{name} of {topic.name}, which no z-node knows, reads it")
            found |= dict.fromkeys(topic.unlisted, f"a dispatcher of {topic.name} reads it")
            for ledger in topic.memory:
                found[ledger] = f"the broker of {topic.name} has it in memory alone"
            if topic.compacting is not None:
                found[topic.compacting] = f"a compaction of {topic.name} writes it"

    def hidden(self) -> bool:
        """Whether a cluster that nobody declared is on the ZooKeeper."""
        return self.zookeeper.stat("/two") is not None

    def damaged_owners(self) -> frozenset[str]:
        """Topics whose references were in an entry that is damaged, also as whose their schemas go.

        So are those of which their broker does not say what it has in memory, with all partitions.
        """
        topics = {self.model.ledgers[i].topic for i in self.damaged if i in self.model.ledgers}
        mute = set(map(schema_owner, self.admin.mute))
        topics |= {t for t in self.model.topics if schema_owner(str(t)) in mute}
        names = {self.topic_path(t.name): t for t in self.model.topics.values()}
        for topic in names.values():
            if topic.name in topics or any(cursor.ledger in self.damaged for cursor in topic.cursors.values()):
                topics |= {topic.name, *(self.model.ledgers[i].topic for i in topic.ledgers if i in self.model.ledgers)}
        return frozenset(str(t) for t in topics) | {schema_owner(str(t)) for t in topics}

    def mute(self) -> list[str]:
        """Loaded topics with a compaction of which their broker does not say what it holds.

        As a scan sees them: listed, with an open last ledger.
        """
        model = self.model.topics
        listed = [model[t] for t in map(Topic.parse, self.admin.loaded) if t in model and not model[t].away]
        there = [t for t in listed if t.ledgers and self._is_open(max(t.ledgers))]
        return [str(t.name) for t in there if COMPACTION in t.cursors and str(t.name) in self.admin.mute]

    def _is_open(self, ledger: int) -> bool:
        made = self.model.ledgers.get(ledger)
        return made is not None and made.state is LedgerState.OPEN and self.exists(ledger)

    def leaks(self) -> list[int]:
        """Ledgers of the model that exist and that nobody needs, lowest first."""
        live = self.live()
        return [i for i in sorted(self.model.ledgers) if i not in live and self.exists(i)]

    def queued(self) -> set[int]:
        """Ledgers that some message of the queue is about."""
        found: set[int] = set()
        for _, _, raw, _ in self.deletion_topics.waiting.values():
            try:
                found.add(int(json.loads(raw)["ledgerId"]))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def message(self, ledger: int) -> PendingDeleteLedgerInfo:
        """The intent that a two-phase broker would send about a ledger."""
        made = self.model.ledgers[ledger]
        component = {
            "data": LedgerComponent.MANAGED_LEDGER,
            "cursor": LedgerComponent.MANAGED_CURSOR,
            "schema": LedgerComponent.SCHEMA_STORAGE,
            "compacted": LedgerComponent.COMPACTED_LEDGER,
            "bucket": LedgerComponent.DELAYED_INDEX_BUCKET,
        }.get(made.kind, LedgerComponent.MANAGED_LEDGER)
        return PendingDeleteLedgerInfo(
            topic_name=str(made.topic),
            component=component,
            ledger_id=ledger,
            cursor_name=made.cursor,
            schema_id=made.topic.schema_id if made.kind == "schema" else "",
            bucket_key=bucket_key(*made.span) if made.kind == "bucket" else "",
        )

    # ------------------------------------------------------------------------------------------------- offloaded copies

    def upload(
        self, topic: Topic, ledger: int, cluster: str, *, index: bool = True, entries: Sequence[bytes] = ()
    ) -> UUID:
        """The objects of a new offload attempt; one that was broken off has no index.

        They have the ``entries`` that bookies have, or those that are given.
        """
        uuid = UUID(int=self.random.getrandbits(128))
        stored, made = metadata(topic, cluster), self.model.ledgers[ledger]
        there = self.reader.payloads.get(ledger) if made.entries else None
        tags = {"application": "pulsar", **(_tags(made) or {})} if self.tiered else {}
        data, body = kept_objects_of(tuple(entries or there or made.entries or ONE_ENTRY), *tags.items())
        self.buckets.put(BUCKET, data_key(uuid, ledger), data, {**stored, "role": "data"})
        if index:
            self.buckets.put(BUCKET, index_key(uuid, ledger), body, {**stored, "role": "index"})
        self.attempts[uuid] = topic, ledger
        return uuid

    def begin_upload(self, topic: Topic, ledger: int, uuid: UUID | None = None) -> UUID:
        """An upload of an attempt, or else of a broker's offloader."""
        uuid = uuid or UUID(int=self.random.getrandbits(128))
        listed = Upload(data_key(uuid, ledger), f"upload-of-others-{next(self.buckets.ids):06}", self.time.now_ms())
        self.buckets.uploads[listed.upload_id] = OpenUpload(BUCKET, listed, {**metadata(topic), "role": "data"}, "")
        return uuid

    def drop_copy(self, context: OffloadContext | None, ledger: int) -> None:
        """A broker deletes the objects of an attempt that it dropped, or one of them, or forgets them."""
        if context is None or context.uuid is None or context.uuid in self.reachable():
            return
        for key in (data_key(context.uuid, ledger), index_key(context.uuid, ledger)):
            if self.random.random() < 0.4:
                self.buckets.objects[BUCKET].pop(key, None)

    def reachable(self) -> dict[UUID, str]:
        """Every offload attempt that some topic's metadata names, and which."""
        found: dict[UUID, str] = dict.fromkeys(self.attempts_elsewhere, "another cluster needs it")
        for topic in self.model.topics.values():
            for context in topic.offloaded.values():
                if context.uuid:
                    found[context.uuid] = f"{topic.name} names it"
            for context in topic.stale.values():
                if context and context.uuid and context.complete:
                    found.setdefault(context.uuid, f"the broker of {topic.name} reads it still")
        found |= {uuid: "our attempt is open" for uuid, aborting in self.opened().items() if not aborting}
        return found

    def opened(self) -> dict[UUID, bool]:
        """Our open offload attempts, and whether each is aborted."""
        nodes = self.zookeeper._nodes
        if attempts.ATTEMPTS not in nodes:
            return {}
        paths = [f"{attempts.ATTEMPTS}/{name}" for name in self.zookeeper.names(attempts.ATTEMPTS)]
        found = (json.loads(self.zookeeper.data(path)) for path in paths)
        return {UUID(one["uuid"]): one.get("aborting", False) for one in found}

    def held(self) -> list[str]:
        """Locations of which the metadata store says that a broker could not read there."""
        root = unread_locations.UNREAD_LOCATIONS
        if root not in self.zookeeper._nodes:
            return []
        return [name for name in self.zookeeper.names(root) if self.zookeeper.data(f"{root}/{name}")]

    def entries_of(self, uuid: UUID, ledger: int) -> tuple[bytes, ...]:
        """The entries that the objects of an attempt have."""
        keys = data_key(uuid, ledger), index_key(uuid, ledger)
        if not all(key in self.buckets.objects[BUCKET] for key in keys):
            return ()
        data, index = (self.buckets.data[BUCKET, key] for key in keys)
        return entries_in(data, index)

    def whole(self, uuid: UUID, ledger: int) -> bool:
        """Whether the objects of an attempt have what was written to a ledger."""
        return self.entries_of(uuid, ledger) == (self.model.ledgers[ledger].entries or ONE_ENTRY)

    def in_bookkeeper(self, ledger: int) -> bool:
        """Whether BookKeeper has what was written to a ledger."""
        there = self.exists(ledger) and self.reader.payloads.get(ledger)
        return bool(there) and tuple(there or ()) == (self.model.ledgers[ledger].entries or ONE_ENTRY)

    def damage(self) -> str | None:
        """An object of a ledger that BookKeeper has whole is not what it was: one byte, or it is gone.

        Once BookKeeper's copy is released, nobody reads all of it again: then another ETag shows it.
        """
        found = [
            (context.uuid, ledger)
            for topic in self.model.topics.values()
            for ledger, context in topic.offloaded.items()
            if context.complete and context.uuid and self.in_bookkeeper(ledger)
        ]
        found = [(uuid, ledger) for uuid, ledger in found if self.whole(uuid, ledger)]
        if not found:
            return None
        uuid, ledger = self.random.choice(sorted(found))
        gone_dead = any((c := t.offloaded.get(ledger)) and c.bookkeeper_deleted for t in self.model.topics.values())
        ways = ["gone", "replaced"] if gone_dead else ["gone", "replaced", "rotten", "rotten"]
        key, how = data_key(uuid, ledger), self.random.choice(ways)
        if how == "gone":
            del self.buckets.objects[BUCKET][key], self.buckets.data[BUCKET, key]
        else:
            data = bytearray(self.buckets.data[BUCKET, key])
            data[DATA_HEADER_LENGTH + 12] ^= 1  # the first byte of the first entry
            head = self.buckets.objects[BUCKET][key]
            etag = head.etag if how == "rotten" else ""
            self.buckets.put(BUCKET, key, bytes(data), head.metadata, etag=etag)
        return f"an object of offloaded {ledger} is {how}"

    def _read_on_demand(self, topic: Topic, position: Position) -> None:
        """A broker reads an entry where the topic, as it has it, says that it is; it loads the topic for that."""
        found = self.model.topics.get(topic)
        if found is None or found.away:
            raise NotFound(f"{topic}: no such topic")
        if not found.loaded:
            self.load(found)
        ledger, at = position.ledger_id, position.entry_id
        if ledger not in found.ledgers:
            raise Failed(f"{topic}: 500: no ledger {ledger}")
        context = found.stale.get(ledger, found.offloaded.get(ledger))
        if context is None or not context.complete or context.uuid is None:
            if not self.in_bookkeeper(ledger):
                raise Failed(f"{topic}: 500: ledger {ledger} cannot be read")
            return
        wanted = (self.model.ledgers[ledger].entries or ONE_ENTRY)[at : at + 1]
        there = not self.blind and self.entries_of(context.uuid, ledger)[at : at + 1] == wanted
        if self.trace:
            self.trace.read_badly |= not there
            self.trace.read_well = there and not self.trace.read_badly
            if there:
                self.trace.read.add(str(topic.namespace))
        if not there:
            raise Failed(f"{topic}: 500: {context.uuid} cannot be read")

    def copies(self, ledger: int, without: Collection[str] = ()) -> dict[str, Sequence[bytes]]:
        """Whatever has entries of a ledger: BookKeeper, and pairs of objects, neither one of ``without``."""
        found: dict[str, Sequence[bytes]] = {}
        if self.exists(ledger) and (payloads := self.reader.payloads.get(ledger)):
            found[BOOKKEEPER] = payloads
        there = self.buckets.objects[BUCKET]
        for uuid, (_, whose) in self.attempts.items():
            keys = (data_key(uuid, ledger), index_key(uuid, ledger))
            if whose == ledger and all(key in there and key not in without for key in keys):
                found[keys[0]] = self.entries_of(uuid, ledger)
        return found

    def copy_message(self, uuid: UUID, topic: Topic | None = None) -> PendingDeleteLedgerInfo:
        """An intent about an attempt, perhaps under another topic's name."""
        owner, ledger = self.attempts[uuid]
        return copy_message(uuid, ledger, topic or owner)

    # ----------------------------------------------------------------------------------------------------------- time

    def wait_ms(self, wanted: int) -> None:
        """Let true time pass; what is due meanwhile happens when it is due."""
        end = self.time.now_ms() + wanted
        while True:
            model = self.model
            dues = [(at, "schema", i) for i, (_, at) in model.pending.items()]
            dues += [(at, "return", n) for n, (at, _) in enumerate(model.returns)]
            dues += [(at, "listing", n) for n, (at, _) in enumerate(model.listings)]
            dues = [due for due in dues if due[0] <= end]
            if not dues:
                break
            at, what, which = min(dues)
            self.time.advance(max(0, at - self.time.now_ms()) / 1000)
            if what == "schema":
                self._finish_schema(which)
            elif what == "return":
                self.come_back(model.returns.pop(which)[1])
            else:
                self._relist(model.listings.pop(which)[1])
        self.time.advance(max(0, end - self.time.now_ms()) / 1000)

    # --------------------------------------------------------------------------------------------------------- z-nodes

    def put(self, path: str, data: bytes) -> None:
        if path in getattr(self, "corrupted", {}):
            self.corrupted[path] = data
            return
        super().put(path, data)

    def remove(self, path: str) -> None:
        self.corrupted.pop(path, None)
        super().remove(path)

    def make(self, kind: str, topic: Topic, **more) -> int:
        """A ledger with the tags of its kind."""
        entries = more.pop("entries", ONE_ENTRY)
        made = Ledger(kind, topic, self.time.now_ms(), **more, entries=tuple(entries) if kind == "data" else ())
        ledger = self.ledger(_tags(made), state=made.state, entries=entries)
        self.model.ledgers[ledger] = made
        return ledger

    def restate(self, ledger: int, state: LedgerState) -> None:
        """Rewrite a ledger's z-node with another state."""
        if not self.exists(ledger) or ledger not in self.reader.payloads:
            return
        made, last = self.model.ledgers[ledger], self._last_id
        made.state = state
        if state is LedgerState.CLOSED:
            self.model.busy.discard(ledger)
            self.closed_at.setdefault(ledger, self.time.now_ms())
        self.ledger(_tags(made), state=state, entries=self.reader.payloads[ledger], ledger_id=ledger)
        self._last_id = last

    def closed(self, ledger: int) -> int:
        """When (ms) a ledger was closed."""
        made = self.model.ledgers.get(ledger)
        return self.closed_at.get(ledger, made.born if made else 1)

    def drop(self, ledger: int | None, leak: float = 0.6) -> None:
        """A broker deletes a ledger that it dropped, or fails to and forgets it."""
        if ledger is None or ledger < 0 or not self.exists(ledger):
            return
        shadowed = ledger in self.live()
        if shadowed or self.random.random() < leak:
            if self.random.random() < 0.9:
                self.restate(ledger, LedgerState.CLOSED)
        else:
            self.remove(self.path(ledger))

    def store(self, topic: ModelTopic) -> None:
        """Write the topic's own z-node."""
        self.topic(
            topic.name,
            topic.ledgers,
            offloaded=topic.offloaded,
            terminated=Position(topic.ledgers[-1], 0) if topic.terminated and topic.ledgers else None,
            shadow_of=topic.shadow_of,
            counts={i: len(self.model.ledgers[i].entries) or 1 for i in topic.ledgers if i in self.model.ledgers},
            closed={i: self.closed(i) for i in topic.ledgers} if self.dates_ledgers else None,
        )

    def store_cursor(self, topic: ModelTopic, name: str) -> None:
        """Write a cursor's z-node."""
        cursor = topic.cursors[name]
        self.cursor(
            topic.name, name, ledger=cursor.ledger, compacted=cursor.noted, buckets=cursor.buckets, at=cursor.at
        )

    def store_schema(self, schema_id: str) -> None:
        """Write a locator that names the newest two versions; entries name what is older."""
        self.schema(schema_id, self.model.schemas[schema_id][-2:])

    def full(self) -> bool:
        """Whether the cluster has as many ledgers as it may."""
        return len(self.model.ledgers) >= MOST_LEDGERS

    # ------------------------------------------------------------------------------------------------- load and unload

    def load(self, topic: ModelTopic) -> None:
        """A broker takes the topic: closes its last ledger, makes a new one, rewrites the z-node."""
        if topic.ledgers:
            self.restate(topic.ledgers[-1], LedgerState.CLOSED)
        topic.loaded = True
        if topic.ledgers:  # ManagedLedgerImpl.initialize makes its info anew
            topic.offloaded.pop(topic.ledgers[-1], None)
        self._forget_snapshots(topic)
        if not topic.terminated and not topic.shadow_of:
            topic.ledgers.append(self.make("data", topic.name, state=LedgerState.OPEN))
        self.store(topic)
        self._list(topic.name)

    def unload(self, topic: ModelTopic, *, graceful: bool = True) -> None:
        """A broker lets the topic go, or dies with it: what only its memory had is then a leak."""
        if graceful and topic.ledgers and not topic.shadow_of:
            self.restate(topic.ledgers[-1], LedgerState.CLOSED)
            self.store(topic)
        for ledger in (*sorted(topic.memory), topic.compacting):
            if ledger is not None:
                self.restate(ledger, LedgerState.CLOSED)
        topic.loaded, topic.compacting = False, None
        topic.memory.clear()
        self._forget_snapshots(topic)
        if graceful:
            self._list(topic.name)
        else:  # a broker that died lists nothing
            self._relist(topic.name)

    def _forget_snapshots(self, topic: ModelTopic) -> None:
        topic.readers.clear()
        topic.unlisted.clear()
        topic.stale.clear()
        for cursor in topic.cursors.values():
            cursor.swallowed.clear()

    def restart_broker(self) -> list[ModelTopic]:
        """The broker dies with all its topics, which are returned, and registers anew."""
        loaded = [topic for topic in self.model.topics.values() if topic.loaded]
        for topic in loaded:
            self.unload(topic, graceful=False)
        self.register_broker()
        return loaded

    def register_broker(self) -> None:
        """The broker's z-node, as ModularLoadManagerImpl writes it."""
        path = f"/loadbalance/brokers/{BROKER}"
        if self.zookeeper.stat(path) is not None:
            self.remove(path)
        manager = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
        report = {"loadReportType": "LocalBrokerData", "loadManagerClassName": manager}
        self.put(path, json.dumps(report | {"startTimestamp": self.time.now_ms()}).encode())

    def _list(self, topic: Topic) -> None:
        lag = self.random.choice([0, 0, LISTING_LAG // 2, LISTING_LAG])
        if lag:
            self.model.listings.append((self.time.now_ms() + lag, topic))
        else:
            self._relist(topic)

    def _relist(self, topic: Topic) -> None:
        found = self.model.topics.get(topic)
        if found and found.loaded:
            self.admin.loaded[str(topic)] = BROKER
        else:
            self.admin.loaded.pop(str(topic), None)

    # ---------------------------------------------------------------------------------------------------- whole topics

    def vanish(self, topic: ModelTopic) -> None:
        """Remove the topic's z-nodes."""
        if self.zookeeper.stat(self.topic_path(topic.name)) is not None:
            self.remove(self.topic_path(topic.name))

    def delete_topic(self, topic: ModelTopic) -> None:
        """As a broker does it: no z-node goes before its ledgers did; those of cursors, or not."""
        if topic.loaded:
            self.unload(topic)
        self.vanish(topic)
        del self.model.topics[topic.name]
        self._relist(topic.name)
        for ledger in topic.ledgers:
            self.drop(ledger, leak=0)
            self.drop_copy(topic.offloaded.get(ledger), ledger)
        for cursor in topic.cursors.values():
            for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
                self.drop(ledger)

    def come_back(self, name: Topic) -> None:
        """The z-nodes of a topic that was away are there again."""
        topic = self.model.topics.get(name)
        if topic is not None and topic.away:
            topic.away = False
            self.store(topic)
            for cursor in topic.cursors:
                self.store_cursor(topic, cursor)

    def _finish_schema(self, ledger: int) -> None:
        schema_id, _ = self.model.pending.pop(ledger)
        self.model.schemas.setdefault(schema_id, []).append(ledger)
        self.store_schema(schema_id)

    # -------------------------------------------------------------------------------------------------- back in time

    def take_backup(self) -> None:
        """What a later restore goes back to."""
        self.backup_at = self.time.now_ms()
        self.backup = (
            self.zookeeper.backup(),
            pickle.dumps(self.model),  # a tenth of the time of a deep copy
            {i: list(entries) for i, entries in self.reader.payloads.items()},
            self._last_id,
            self.zookeeper.zxid,
        )

    def restore(self) -> None:
        """The metadata store is restored from its backup and everything is started again: ids are issued anew."""
        assert self.backup is not None
        nodes, model, payloads, last, zxid = self.backup
        self.corrupted.clear()
        self.zookeeper.restore(nodes, zxid)
        self.model = pickle.loads(model)
        self.reader.payloads = {i: list(entries) for i, entries in payloads.items()}
        self._last_id = last
        self.restored += 1
        self.restored_at = self.time.now_ms()
        self.undone.append((self.backup_at, self.restored_at, None))
        for topic in self.model.topics.values():
            topic.loaded, topic.compacting = False, None
            topic.memory.clear()
            self._forget_snapshots(topic)
        for _, topic in self.model.listings:
            self._relist(topic)
        self.model.listings.clear()
        self.admin.loaded.clear()
        now = self.time.now_ms()
        self.model.returns = [(max(at, now), topic) for at, topic in self.model.returns]
        self.model.pending = {i: (sid, max(at, now)) for i, (sid, at) in self.model.pending.items()}


def _tags(made: Ledger) -> Mapping[str, str] | None:
    topic = made.topic
    if made.kind == "foreign":
        return None
    if made.kind == "data":
        return data_tags(topic)
    if made.kind == "cursor":
        return cursor_tags(topic, made.cursor)
    if made.kind == "schema":
        return schema_tags(topic.schema_id)
    if made.kind == "compacted":
        return compacted_tags(topic)
    return bucket_tags(topic, made.cursor, *made.span)
