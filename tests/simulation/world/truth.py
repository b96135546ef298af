"""The truth about which ledgers, copies and positions somebody needs.

Belongs here: the state of a simulated cluster and questions to it; none changes anything or asks the product. Not here:
what brokers do (``world.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from random import Random
from uuid import UUID

from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.owner_names import schema_owner
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeStore
from tests.kit.fakes.object_store import FakeBuckets
from tests.kit.simulated.cluster import BROKER, SimulatedCluster, bucket_key
from tests.kit.simulated.offloaded import BUCKET, copy_message, entries_in
from tests.simulation.world.interception import Interceptor, Trace
from tests.simulation.world.model import (
    BOOKKEEPER,
    COMPACTION,
    MOST_LEDGERS,
    ONE_ENTRY,
    Counters,
    Cursor,
    Model,
    ModelTopic,
)
from tests.simulation.world.policies import BrokerPolicies
from tests.simulation.world.ports import (
    SimAdmin,
    SimClock,
    SimJournal,
    SimObjectStore,
    SimReader,
    SimWriter,
    SimZooKeeper,
)
from tests.simulation.world.queue import SimQueue, SimTopics


class Truth(SimulatedCluster):
    """A cluster with its model, and what is true of it; every choice is ``random``'s."""

    zookeeper: SimZooKeeper
    clock: SimClock

    def __init__(self, random: Random) -> None:
        time = FakeClock()
        super().__init__(SimZooKeeper(time))
        self.random = random
        self.time = time
        self.clock = SimClock(time)
        self.reader = SimReader()
        self.admin = SimAdmin([BROKER])
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
        """Whether the brokers' offloader looks for every object at the wrong location."""
        self.corrupted: dict[str, bytes] = {}
        self.damaged: set[int] = set()
        """Ledgers with an entry that nobody can read any more."""
        self.listed: dict[str, set[int]] = {}
        """What the last covered scan saw each topic list."""
        self.most_listed = 0
        """How many ledgers it may have seen listed: those that topics came to list amid it as well."""
        self.roots: dict[str, SimulatedCluster] = {}
        self.declared: set[int] = set()
        """Ids that a topic of a declared cluster names, whatever our own store was restored to."""
        self.backup: tuple[dict, bytes, dict, int, int] | None = None
        self.backup_at = self.restored = 0
        self.undone: list[tuple[int, int, Counters | None]] = []
        """Spans of time that a restore of the metadata store took back, and its counters at the next scan."""
        self.restored_at = 0
        self.after_restore: list[Callable[[], None]] = []
        """What an operator sees to at once when the metadata store was restored."""
        self.dates_ledgers = False
        """Whether topics say when their ledgers were closed, and how big they are."""
        self.unloads_exactly = False
        """Whether an unload loads first what no broker has, and writes no topic's z-node, as by brokers 4.0.7. Else it
        writes that: more compare-and-sets fail."""
        self.unloads_load = False
        """Whether an unload loads first what no broker has, and writes the z-node, too."""
        self.loaded_to_unload: Topic | None = None
        """What a broker loads at this moment as it was told to unload it."""
        self.closed_at: dict[int, int] = {}
        self.written_at: dict[int, int] = {}
        """Of ledgers that a load has closed, or said to be closed then: when their messages were written."""
        self.policies: BrokerPolicies | None = None
        """By what brokers expire and trim, where they do."""
        self.on_load: Callable[[ModelTopic], None] = lambda topic: None
        """Called before the product has a broker load a topic."""
        self.on_expire: Callable[[ModelTopic, str, Sequence[int]], None] = lambda topic, subscription, ledgers: None
        """Called with the ledgers that a subscription has expired, as the product asked for it."""
        self.on_skip: Callable[[ModelTopic, str, Sequence[int]], None] = lambda topic, subscription, ledgers: None
        """Called with the ledgers that its broker has expired of a subscription as it loaded the topic."""
        self.on_evict: Callable[[ModelTopic, str, Sequence[int]], None] = lambda topic, subscription, ledgers: None
        """Called when its broker drops unread messages of a subscription, of these ledgers, by a quota."""
        self.on_unsubscribe: Callable[[ModelTopic, str], None] = lambda topic, subscription: None
        """Called when its broker deletes a subscription as it has expired."""
        self.on_undeduplicated: Callable[[ModelTopic], None] = lambda topic: None
        """Called when its broker deletes what a topic has for deduplication, as it loads it."""
        self.on_forget: Callable[[ModelTopic], None] = lambda topic: None
        """Called when a broker forgets what it has in memory of a topic."""
        self.known_to_broker: Callable[[ModelTopic, str], int] = lambda topic, subscription: 0
        """When (ms) clients were last at a subscription, as the broker that has its topic knows."""
        self.wire: Callable[[SimQueue], None] = lambda queue: None

    # ------------------------------------------------------------------------------------------------ product's ports

    def open_store(self, *, read_only: bool = False) -> FakeStore:
        if not hasattr(self, "interceptor"):
            return FakeStore(self.zookeeper, 0, False)  # the world's own hand: nothing watches it
        return self.zookeeper.connect(self.interceptor, read_only=read_only, trace=self.trace, lagging=self.lagging)

    def open_writer(self, store: FakeStore) -> SimWriter:
        def issued() -> int:
            self.zookeeper.issue_ledger_id()
            self._last_id += 1
            return self._last_id

        return SimWriter(store, self.reader, self.interceptor, issued)

    def open_queue(self) -> SimQueue:
        self.deletion_topics.now_ms = self.time.now_ms()
        self.deletion_topics.skew_ms = self.clock.skew_ms
        queue = SimQueue(self.deletion_topics, self.time, self.interceptor, self.trace)
        queue.forgetful = self.forgetful
        queue.latency = lambda: self.zookeeper.latency
        self.wire(queue)
        return queue

    def _shadowed(self, topic: ModelTopic, ledger: int) -> bool:
        return any(ledger in one.ledgers for one in self.model.topics.values() if one is not topic)

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
            return cursor.exact if cursor.exact and cursor.exact.ledger_id == cursor.at else Position(cursor.at, -1)
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

    def written(self, ledger: int) -> int:
        """When (ms) the newest message of a ledger was written, or a little later."""
        return self.written_at.get(ledger, self.closed(ledger))

    def closed(self, ledger: int) -> int:
        """When (ms) a ledger was closed."""
        made = self.model.ledgers.get(ledger)
        return self.closed_at.get(ledger, made.born if made else 1)

    def size(self, ledger: int) -> int:
        """How many bytes were written to a ledger."""
        made = self.model.ledgers.get(ledger)
        return sum(map(len, (made.entries if made else ()) or ONE_ENTRY))

    def full(self) -> bool:
        """Whether the cluster has as many ledgers as it may."""
        return len(self.model.ledgers) >= MOST_LEDGERS
