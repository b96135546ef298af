"""Offloading one topic's ledgers over the fakes: a bucket, a broker that can read it, and runs in a run's own order.

Belongs here: the scene and its runs. Not here: what must come out (``tests/unit/tiered/test_commit.py`` and others).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.errors import Failed, LifecycleError, NotFound
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import CLUSTER_NAME, MANAGED_LEDGER_NAME, data_key, index_key
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.tiered import commit as tiered_commit
from pulsar_lifecycle.tiered.commit import OffloadRequest, Proven
from pulsar_lifecycle.tiered.interrupted import Ownership, finish_attempts
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.read_check import ReadCheck
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.values.copies import NamespaceLocation, Verified
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from tests.kit.crash import Watched
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.scenes.topic_scene import OTHER, TOPIC, TopicBroker, TopicScene
from tests.kit.simulated.cluster import ENTRY_BYTES, data_tags

BUCKET = "tiered"
LOCATION = (
    ("bucket", BUCKET),
    ("managedLedgerOffloadDriver", "AWS_S3"),
    ("region", "r"),
    ("serviceEndpoint", "http://s3"),
)
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}), offload_buckets=frozenset({BUCKET}))
SAYS = {CLUSTER_NAME: "simulated", MANAGED_LEDGER_NAME: TOPIC.managed_ledger}

decoded = lru_cache(managed_ledger.decode)


@lru_cache(10_000)  # the law asks at every step
def pair_of(uuid: UUID, ledger_id: int) -> frozenset[str]:
    """The keys of both objects of an offload."""
    return frozenset((data_key(uuid, ledger_id), index_key(uuid, ledger_id)))


class OffloadBroker(TopicBroker):
    """``reads`` says whether it has an offloader for the bucket."""

    scene: OffloadScene

    def __init__(self, scene: OffloadScene, reads: bool) -> None:
        super().__init__(scene)
        self.reads = reads

    def read(self, topic: Topic, position: Position) -> None:
        """ManagedLedgerImpl.getLedgerHandle: an offload that is complete is read from its objects, and nowhere else."""
        if self.memory is None:
            self.load()
        assert self.memory is not None
        item = next(item for item in self.memory.ledgers if item.ledger_id == position.ledger_id)
        assert 0 <= position.entry_id < (item.entries or 0)
        if item.offload and item.offload.complete:
            if not self.reads or not self.scene.pair(item) <= self.scene.keys:
                raise Failed("500 UnsupportedOperationException")
        elif not self.scene.cluster.exists(item.ledger_id):
            raise NotFound(f"no ledger {item.ledger_id}")


class OffloadScene(TopicScene):
    """A topic of four ledgers that was left alone for an hour, a bucket, and a broker that can read it."""

    def __init__(self, *, loaded: bool = False, reads: bool = True) -> None:
        super().__init__()
        self.buckets = FakeBuckets(self.cluster.clock)
        self.buckets.create(BUCKET)
        self.objects = FakeObjectStore(self.buckets, [BUCKET])
        self.ids = [self.cluster.ledger(data_tags(TOPIC)) for _ in range(4)]
        self.wanted = self.ids[:3]
        self.cluster.topic(TOPIC, self.ids)
        self.cluster.admin.topics[TOPIC] = {}
        self.broker = OffloadBroker(self, reads)
        self.cluster.admin.on_read = self.broker.read
        self.cluster.admin.on_unload = self.broker.unload
        self.loaded_topics = loaded
        if loaded:
            self.broker.load()
        self.cluster.wait(1)
        self.new_session()
        self.waived = False
        self.tiered_first: Collection[str] = (str(TOPIC), str(OTHER))
        self.seen = dict[NamespaceLocation, int]()
        self.named = OffloadUuids()
        self.grace = 0
        self.error = ""

    @property
    def info(self) -> ManagedLedgerInfo:
        return decoded(self.cluster.zookeeper.data(self.path))

    @property
    def complete(self) -> list[int]:
        return sorted(i for i, item in self.items.items() if item.offload and item.offload.complete)

    @property
    def keys(self) -> set[str]:
        return self.buckets.keys(BUCKET)

    @property
    def open_attempts(self) -> list[int]:
        return [one.ledger_id for one in attempts.whole(attempts.open_attempts(self.cluster.open_store()))]

    @property
    def rows(self) -> list[tuple[int, str]]:
        return [(row.ledger_id, row.outcome) for row in self.cluster.journal.rows]

    @staticmethod
    def pair(item: LedgerInfo) -> frozenset[str]:
        assert item.offload
        assert item.offload.uuid
        return pair_of(item.offload.uuid, item.ledger_id)

    def law(self) -> None:
        """At every moment: what the topic lists is in BookKeeper, or is complete with both of its objects."""
        if self.path in self.cluster.zookeeper._nodes:
            for item in self.info.ledgers:
                if item.offload and item.offload.complete:
                    assert self.pair(item) <= self.keys
                else:
                    assert self.cluster.exists(item.ledger_id)

    # -------------------------------------------------------------------------------------------------------- running

    def ports(self) -> Ports:
        cluster = self.cluster
        store_, admin, journal, objects = (
            Watched(port, self.step) for port in (self.store, cluster.admin, cluster.journal, self.objects)
        )
        return Ports(store_, cluster.reader, admin, cluster.open_queue(), journal, cluster.clock, objects)  # type: ignore[arg-type]

    def run(self, ports: Ports, run_id: str = "run") -> TopicRun:
        run = self.topic_run(ports.store, replace(CONTEXT, grace=self.grace), 600_000, self.error)
        return replace(run, run_id=run_id)

    def read_check(self) -> ReadCheck:
        """``seen`` as the journal has it."""
        return ReadCheck(self.waived, self.tiered_first, dict(self.seen))

    def session(self) -> Session:
        """A run of its own, with its lease."""
        ports = self.ports()
        guard = self.guard(self.store)
        return Session(self, ports, guard, self.run(ports), self.read_check())

    def session_again(self) -> Session:
        """Another run; the one that :meth:`session` began is over."""
        self.new_session()
        return self.session()

    def finish_later(self) -> list[OffloadOutcome]:
        """Another run that only finishes what earlier ones began."""
        self.new_session()
        self.cluster.wait(1)
        return self.proceed(())

    def proceed(self, wanted: Sequence[int] | None = None) -> list[OffloadOutcome]:
        """One whole run, in the order that a run has, with objects that are put there and not read back."""
        wanted = self.wanted if wanted is None else wanted
        self.new_session()
        ports = self.ports()
        try:
            guard = self.guard(ports.store)
            session = Session(self, ports, guard, self.run(ports), self.read_check())
            try:
                outcomes = session.proceed(wanted)
            except LifecycleError:
                finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=True)
                raise
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=True)
            return outcomes
        finally:
            self.new_session()  # a process that is gone loses its session, too


@dataclass
class Session:
    scene: OffloadScene
    ports: Ports
    guard: RunGuard
    run: TopicRun
    read_check: ReadCheck
    uuids: list[UUID] = field(default_factory=list)

    def proceed(self, wanted: Sequence[int]) -> list[OffloadOutcome]:
        ports = self.ports
        pending = finish_unloads(ports.store, ports.admin, ports.clock, self.guard, wait=False)
        resumed, outcomes = self.finish_attempts(wanted)
        left = [i for i in wanted if i not in {one.ledger_id for one in resumed}]
        begun, refused = self.begin(left) if left else ([], [])
        todo = [] if str(TOPIC) in pending else [self.copy(one) for one in (*resumed, *begun)]
        return outcomes + refused + (self.commit(todo) if todo else [])

    def begin(self, ledger_ids: Sequence[int], **changes: Any) -> tuple[list[Attempt], list[OffloadOutcome]]:
        wanted = self.asked(ledger_ids, **changes)

        def new_uuid() -> UUID:
            self.uuids.append(uuid4())
            return self.uuids[-1]

        return tiered_commit.begin_topic(self.run, self.ports, self.guard, TOPIC, wanted, new_uuid, self.read_check)

    @staticmethod
    def asked(ledger_ids: Collection[int], **changes: Any) -> list[OffloadRequest]:
        """Rows of a plan."""
        return [replace(OffloadRequest(i, "aws-s3", LOCATION, 5 << 20), **changes) for i in ledger_ids]

    def copy(self, attempt: Attempt) -> Proven:
        """What ``tiered/upload.py`` and ``tiered/proof.py`` do, in short."""
        objects = self.ports.objects
        assert objects
        objects.put(BUCKET, data_key(attempt.uuid, attempt.ledger_id), b"d", SAYS)
        objects.put(BUCKET, index_key(attempt.uuid, attempt.ledger_id), b"i", SAYS)
        return Proven(attempt, 1, ENTRY_BYTES, Verified(0, "", 0, "", 1, ENTRY_BYTES, "sum"))

    def commit(self, proven: Sequence[Proven]) -> list[OffloadOutcome]:
        return tiered_commit.commit_topic(self.run, self.ports, self.guard, TOPIC, proven, self.read_check)

    def offload(self, ledger_ids: Sequence[int]) -> list[OffloadOutcome]:
        begun, refused = self.begin(ledger_ids)
        return refused + self.commit([self.copy(one) for one in begun])

    def finish_attempts(self, wanted: Collection[int] = ()) -> tuple[list[Attempt], list[OffloadOutcome]]:
        asked = {one.ledger_id: one for one in self.asked(wanted)}
        ownership = Ownership("simulated", self.scene.named)
        return finish_attempts(self.run, self.ports, self.guard, asked, self.read_check, ownership, lambda _: None)


def context(uuid: UUID | None = None, **changes: Any) -> OffloadContext:
    """An offload context of a broker's own."""
    return replace(OffloadContext(uuid or uuid4(), False, False, None, "aws-s3", {"bucket": BUCKET}), **changes)
