"""The fakes with a switch in every port: metadata store, journal, objects, bookies, brokers, clock.

Belongs here: sessions that lag behind, listings that skip. Not here: the switch (``interception.py``), which faults
there are (``faults``), and what must hold (``laws``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pulsar_lifecycle.errors import Failed, LifecycleError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import (
    Archived,
    BrokerStatistics,
    Children,
    Entry,
    JournalRow,
    MetadataStore,
    ObjectHead,
    ObjectSummary,
    ReplicaCheck,
    Stat,
    TopicConnections,
    TopicInternals,
    Traces,
    Unread,
)
from pulsar_lifecycle.values.topic_load import CompactionStatus
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import MAIN, RETRY
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.ledger_reader import FakeLedgerReader, FakeLedgerWriter
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.simulation.world.interception import Interceptor, T, Trace


class SimZooKeeper(FakeZooKeeper):
    """Tells ``on_delete`` what a session of the product is about to delete, ``on_write`` what it has written."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.acting: SimStore | None = None
        self.on_delete: Callable[[SimStore, str, Stat, bytes], None] = lambda store, path, stat, data: None
        self.on_write: Callable[[SimStore, str, bytes, bytes], None] = lambda store, path, old, new: None
        self.open: list[SimStore] = []
        self.replaced: Stat | None = None
        """What a z-node was before its latest write."""
        self.skipped: dict[str, str] = {}
        self.latency = 1.0
        self._stats: dict[str, tuple[Any, tuple[int, ...], Stat]] = {}

    def stat(self, path: str) -> Stat | None:
        node = self._nodes.get(path)
        if node is None:
            return None
        state = node.mzxid, node.pzxid, node.cversion, node.ctime
        known = self._stats.get(path)
        if known is None or known[0] is not node or known[1] != state:
            stat = super().stat(path)
            assert stat is not None
            self._stats[path] = known = node, state, stat
        return known[2]

    def connect(self, interceptor: Interceptor, *, read_only: bool, trace: Trace | None, lagging: bool) -> SimStore:
        """A session of the product."""
        self.sessions += 1
        store = SimStore(self, self.sessions, read_only, interceptor)
        store.trace, store.lagging = trace, lagging
        self.open.append(store)
        return store

    def freeze(self) -> None:
        """What changes from here on is seen by no lagging session before its next sync."""
        stale: FakeZooKeeper | None = None
        for store in self.open:
            if store.lagging and store.frozen is None:
                if stale is None:
                    stale = FakeZooKeeper(self.clock)
                    stale.restore(self.backup(), self.zxid)
                    stale.unreadable = self.unreadable
                store.frozen = stale

    def delete(self, path: str, version: int) -> None:
        if self.acting is not None:
            stat = self.stat(path)
            if stat is not None and version in (-1, stat.version):
                self.on_delete(self.acting, path, stat, self.data(path))
        super().delete(path, version)

    def write(self, path: str, data: bytes, version: int) -> Stat:
        self.replaced = self.stat(path)
        old = self.data(path) if self.replaced is not None else b""
        stat = super().write(path, data, version)
        if self.acting is not None:
            self.on_write(self.acting, path, old, data)
        return stat

    def create(self, path: str, data: bytes, owner: int) -> Stat:
        if self.acting is not None:
            self.on_write(self.acting, path, b"", data)
        return super().create(path, data, owner)


class SimStore(FakeStore):
    """One session of the product; ``frozen`` is the past that it still sees."""

    server: SimZooKeeper

    def __init__(self, server: SimZooKeeper, session: int, read_only: bool, interceptor: Interceptor) -> None:
        super().__init__(server, session, read_only)
        self.interceptor = interceptor
        self.trace: Trace | None = None
        self.lagging = False
        self.frozen: FakeZooKeeper | None = None
        self.effects = 0

    def __enter__(self) -> SimStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.interceptor.dead:  # the session of a killed process ends by itself, later
            if self in self.server.open:
                self.server.open.remove(self)
            super().close()

    def sync(self, path: str = "/") -> None:
        super().sync(path)
        self.frozen = None

    def zxid(self) -> int:
        found = super().zxid()
        self.frozen = None
        return found

    def latency_ms(self) -> float:
        self.interceptor.before("store.latency_ms")
        return self.server.latency

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        found = super().children(paths)
        if not self.server.skipped:
            return found
        return [self._skipping(one) if isinstance(one, Children) else one for one in found]

    def _skipping(self, listing: Children) -> Children:
        name = self.server.skipped.get(listing.path)
        return Children(listing.path, tuple(n for n in listing.names if n != name), listing.num_children)

    def _effect(self, name: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        def acting() -> T:
            self.effects += 1
            was, self.server.acting = self.server.acting, self
            if name == "delete_many" and self.trace:
                self.trace.transactions += 1
            try:
                return act()
            finally:
                self.server.acting = was
                self.frozen = None

        return super()._effect(name, paths, acting)

    def _run(self, name: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        call = f"store.{name}"
        self.interceptor.before(call)
        if self.frozen is not None and name in ("read", "children", "scan"):
            server, self.server = self.server, self.frozen
            try:
                result = act()
            finally:
                self.server = server
        else:
            result = act()
        self.interceptor.after(call)
        return result


class SimJournal(FakeJournal):
    """``lost`` says whether the next store fails, and whether its object is durable all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.interceptor = Interceptor()
        self.on_record: Callable[[Sequence[JournalRow]], None] = lambda rows: None

    def record(self, rows: Sequence[JournalRow]) -> str:
        self.interceptor.before("journal.record")
        self.on_record(rows)
        where = super().record(rows)
        self.interceptor.after("journal.record")
        return where

    def archive(self, nodes: Sequence[Archived]) -> str:
        self.interceptor.before("journal.archive")
        where = super().archive(nodes)
        self.interceptor.after("journal.archive")
        return where


class SimObjectStore(FakeObjectStore):
    """The bucket of offloaded ledgers; ``on_delete`` is told which keys are about to go.

    ``on_write`` is told which key is written, in whole or part, ``on_drop`` which upload is dropped. ``stale`` is what
    listings show, where they lag behind.
    """

    WRITES = frozenset({"put", "begin_upload", "upload_part", "complete_upload"})

    def __init__(self, service: FakeBuckets, allowed: Sequence[str]) -> None:
        super().__init__(service, allowed)
        self.interceptor = Interceptor()
        self.on_delete: Callable[[str, Sequence[str]], None] = lambda bucket, keys: None
        self.on_write: Callable[[str], None] = lambda key: None
        self.on_drop: Callable[[str], None] = lambda key: None
        self.stale: dict[str, ObjectHead] | None = None
        self.before, self.after = self._before, self._after

    def _before(self, name: str, bucket: str, keys: Sequence[str]) -> None:
        self.interceptor.before(f"objects.{name}")
        if name == "delete_many":
            self.on_delete(bucket, keys)
        elif name in self.WRITES:
            self.on_write(keys[0])
        elif name == "abort_upload":
            self.on_drop(keys[0])

    def _list_objects(self, bucket: str, prefix: str, page: int, after: str) -> Iterator[list[ObjectSummary]]:
        if self.stale is None:
            yield from super()._list_objects(bucket, prefix, page, after)
            return
        self._ask("list_objects", bucket, [prefix])
        shown = [head for key, head in sorted(self.stale.items()) if key.startswith(prefix) and key > after]
        yield [ObjectSummary(head.key, head.size, head.etag, head.last_modified) for head in shown]

    def _after(self, name: str, bucket: str, keys: Sequence[str]) -> None:
        self.interceptor.after(f"objects.{name}")


class SimReader(FakeLedgerReader):
    """Bookies: ``down`` answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.interceptor = Interceptor()

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        self.interceptor.before("reader.last_entries")
        return super().last_entries(ledgers)

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        self.interceptor.before("reader.check_replicas")
        found = super().check_replicas(ledgers)
        self.interceptor.after("reader.check_replicas")
        return found

    def find_traces(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Traces]:
        self.interceptor.before("reader.find_traces")
        found = super().find_traces(ledgers)
        self.interceptor.after("reader.find_traces")
        return found


class SimWriter(FakeLedgerWriter):
    """New ledgers on the bookies, whose ids ``issued`` gives."""

    def __init__(
        self, store: MetadataStore, reader: FakeLedgerReader, interceptor: Interceptor, issued: Callable[[], int]
    ) -> None:
        super().__init__(store, reader)
        self.interceptor = interceptor
        self.issued = issued

    def reserve(self) -> int:
        self.interceptor.before("writer.reserve")
        ledger_id = self.issued()
        self.interceptor.after("writer.reserve")
        return ledger_id


class SimAdmin(FakeBrokerAdmin):
    """Brokers; ``memory`` says what the owner holds of a topic, ``denied`` topics are answered with an error.

    Of ``mute`` topics they never say what they hold.
    """

    def __init__(self, brokers: Sequence[str]) -> None:
        super().__init__(brokers)
        self.interceptor = Interceptor()
        self.denied: dict[str, LifecycleError] = {}
        self.mute: set[str] = set()
        self.memory: Callable[[Topic], TopicInternals] = lambda topic: TopicInternals("", (), {}, {}, None, ())
        self.compaction: Callable[[Topic], CompactionStatus] = lambda topic: CompactionStatus.NOT_RUN
        self.deleting: Callable[[Topic], None] = lambda topic: None
        self.on_delete_topic: Callable[[Topic], None] = lambda topic: None
        self.unloading: Callable[[Topic], None] = lambda topic: None
        self.reading: Callable[[Topic, Position], None] = lambda topic, position: None
        self.queued: Callable[[], int] = lambda: 0
        self.owning: Callable[[Topic], None] = lambda topic: None
        self.expiring: Callable[[Topic, str, int], None] = lambda topic, subscription, seconds: None
        self.trimming: Callable[[Topic], None] = lambda topic: None
        self.using: Callable[[Topic, str], int | None] = lambda topic, subscription: 0
        self.unsubscribing: Callable[[Topic, str], None] = lambda topic, subscription: None

    def loaded_topics(self, brokers: Sequence[str] = ()) -> dict[str, str]:
        self.interceptor.before("admin.loaded_topics")
        return super().loaded_topics(brokers)

    def connections(self) -> dict[str, TopicConnections]:
        self.interceptor.before("admin.connections")
        return super().connections()

    def statistics(self, broker: str) -> BrokerStatistics:
        self.interceptor.before("admin.connections")
        return super().statistics(broker)

    def stats_interval_ms(self, brokers: Sequence[str] = ()) -> int:
        self.interceptor.before("admin.stats_interval_ms")
        return super().stats_interval_ms(brokers)

    def internal_stats(self, topic: Topic) -> TopicInternals:
        self.interceptor.before("admin.internal_stats")
        self._answer_for(topic)
        found = self.memory(topic)
        if str(topic) in self.mute:
            raise Failed(f"GET {topic}/internalStats: 500: the test says no")
        return found

    def fails_at(self, broker: str, topic: Topic) -> bool:
        self.interceptor.before("admin.fails_at")
        self._answer_for(topic)
        return str(topic) in self.mute

    def compaction_status(self, topic: Topic) -> CompactionStatus:
        self.interceptor.before("admin.compaction_status")
        self._answer_for(topic)
        return self.compaction(topic)

    def unload(self, topic: Topic) -> None:
        self.interceptor.before("admin.unload")
        self._answer_for(topic)
        self.unloading(topic)
        self.interceptor.after("admin.unload")

    def move_cursor(self, topic: Topic, subscription: str, past: Position) -> None:
        self.interceptor.before("admin.move_cursor")
        self._answer_for(topic)
        self.on_move(topic, subscription, past)
        self.interceptor.after("admin.move_cursor")

    def owner(self, topic: Topic) -> str:
        self.interceptor.before("admin.owner")
        self._answer()
        self.owning(topic)
        return super().owner(topic)

    def expire_messages(self, topic: Topic, subscription: str, seconds: int) -> None:
        self.interceptor.before("admin.expire_messages")
        self._answer_for(topic)
        self.expiring(topic, subscription, seconds)
        self.interceptor.after("admin.expire_messages")

    def trim(self, topic: Topic) -> None:
        self.interceptor.before("admin.trim")
        self._answer_for(topic)
        self.trimming(topic)
        self.interceptor.after("admin.trim")

    def last_use(self, topic: Topic, subscription: str) -> int | None:
        self.interceptor.before("admin.last_use")
        self._answer_for(topic)
        return self.using(topic, subscription)

    def delete_subscription(self, topic: Topic, subscription: str) -> None:
        self.interceptor.before("admin.delete_subscription")
        self._answer_for(topic)
        self.on_unsubscribe(topic, subscription)
        self.unsubscribing(topic, subscription)
        self.interceptor.after("admin.delete_subscription")

    def read_entry(self, topic: Topic, position: Position) -> None:
        self.interceptor.before("admin.read_entry")
        self._answer_for(topic)
        self.reading(topic, position)
        self.interceptor.after("admin.read_entry")

    def backlog(self, topic: Topic, subscription: str) -> int:
        if topic in (MAIN, RETRY):
            self._answer()
            return self.queued() if topic == MAIN else 0
        return super().backlog(topic, subscription)

    def delete_topic(self, topic: Topic, force: bool) -> None:
        self.interceptor.before("admin.delete_topic")
        self._answer_for(topic)
        self.on_delete_topic(topic)
        self.deleting(topic)
        self.interceptor.after("admin.delete_topic")

    def _answer_for(self, topic: Topic) -> None:
        self._answer()
        if str(topic) in self.denied:
            raise self.denied[str(topic)]
        self.touched.append(topic)


class SimClock:
    """The control plane's own clock, ``skew_ms`` off the true time."""

    def __init__(self, time: FakeClock) -> None:
        self.time = time
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self.time.now_ms() + self.skew_ms

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)

    def advance(self, seconds: float) -> None:
        self.time.advance(seconds)
