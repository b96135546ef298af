"""Deleting one topic's copies in BookKeeper over the fakes: what is offloaded, a broker that reads, runs of each kind.

Belongs here: the scene and its runs. Not here: what must come out (``tests/unit/tiered/bookkeeper_copies/``).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.journal.offloads import copy_deletions
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.tiered import bookkeeper_copies
from pulsar_lifecycle.tiered.bookkeeper_copies import Due
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.read_check import ReadCheck
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import EditOutcome, TopicRun
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Watched
from tests.kit.scenes.topic_scene import TOPIC, TopicBroker, TopicScene
from tests.kit.simulated.cluster import ENTRY_BYTES, SimulatedCluster, data_tags
from tests.kit.simulated.offloaded import BUCKET, DATA, INDEX, Offloading, attempt

CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}))
LAG = 3_600_000
SITE = ("aws-s3", BUCKET, "", "")
BROKEN = b"\xff\xff"


class CopyDeletionBroker(TopicBroker):
    """It reads in BookKeeper what is not listed as deleted there."""

    def check(self) -> None:
        """It can read everything that it serves."""
        for item in self.memory.ledgers if self.memory else ():
            if not (item.offload and item.offload.bookkeeper_deleted):
                assert self.scene.cluster.exists(item.ledger_id)


class CopyDeletionScene(TopicScene):
    """A topic of ``due`` ledgers offloaded nine days ago and scanned a day ago, and two more."""

    def __init__(self, *, loaded: bool = False, due: int = 2, cluster: SimulatedCluster | None = None) -> None:
        self.off = Offloading(cluster or SimulatedCluster())
        super().__init__(self.off.cluster)
        self.ids = [self.cluster.ledger(data_tags(TOPIC)) for _ in range(due + 2)]
        self.due = self.ids[:due]
        self.uuids = {i: uuid4() for i in self.due}
        now = self.cluster.clock.now_ms()
        contexts = {i: replace(attempt(uuid), timestamp=now) for i, uuid in self.uuids.items()}
        for i, uuid in self.uuids.items():
            self.off.put(uuid, i, TOPIC)
        self.cluster.topic(TOPIC, self.ids, offloaded=contexts)
        self.cluster.admin.topics[TOPIC] = {}
        self.broker = CopyDeletionBroker(self)
        self.cluster.admin.on_unload = self.broker.unload
        self.loaded_topics = loaded
        if loaded:
            self.broker.load()
        self.off.age()
        self.new_session()
        self.refused: set[int] = set()
        self.read_check = ReadCheck(waived=True)

    # ---------------------------------------------------------------------------------------------------- what is there

    @property
    def contexts(self) -> dict[int, OffloadContext]:
        return {item.ledger_id: item.offload for item in self.info.ledgers if item.offload}

    @property
    def deleted_ids(self) -> list[int]:
        return sorted(i for i, context in self.contexts.items() if context.bookkeeper_deleted)

    @property
    def left(self) -> list[int]:
        """What may go and is in BookKeeper still."""
        return [i for i in self.due if self.cluster.exists(i)]

    @property
    def rows(self) -> list[tuple[int, str, str]]:
        rows = self.cluster.journal.rows
        return [(row.ledger_id, row.phase, row.outcome) for row in rows if row.ledger_id in self.due]

    @property
    def waiting(self) -> int:
        return len(self.cluster.deletion_topics.waiting)

    def whole(self, ledger_id: int, uuid: UUID) -> bool:
        """Whether both objects are there with the bytes that they were offloaded with."""
        data = self.off.buckets.data
        found = [data.get((BUCKET, key(uuid, ledger_id))) for key in (data_key, index_key)]
        return found == [DATA, INDEX]

    def law(self) -> None:
        """What the topic lists is in BookKeeper, or complete, listed as deleted, whole in the bucket, and read."""
        if self.path in self.cluster.zookeeper._nodes and self.cluster.zookeeper.data(self.path) != BROKEN:
            for item in self.info.ledgers:
                if not self.cluster.exists(item.ledger_id):
                    offload = item.offload
                    assert offload
                    assert offload.complete
                    assert offload.bookkeeper_deleted
                    assert offload.uuid
                    assert self.whole(item.ledger_id, offload.uuid)
        self.broker.check()

    # --------------------------------------------------------------------------------------------------- what others do

    def change(self, ledger_id: int, **changes: Any) -> None:
        self.write(ledger_id, replace(self.contexts[ledger_id], **changes))

    def list_only(self, ledger_ids: Sequence[int]) -> None:
        ledgers = tuple(item for item in self.info.ledgers if item.ledger_id in ledger_ids)
        self.cluster.put(self.path, managed_ledger.encode(replace(self.info, ledgers=ledgers)))

    def lose(self, ledger_id: int, key: Callable[[UUID, int], str] = data_key) -> None:
        name = key(self.uuids[ledger_id], ledger_id)
        del self.off.buckets.objects[BUCKET][name]
        del self.off.buckets.data[BUCKET, name]

    # ---------------------------------------------------------------------------------------------------------- running

    def watched(self, ports: Ports) -> Ports:
        names = ("store", "admin", "queue", "journal", "objects")
        return replace(ports, **{name: Watched(getattr(ports, name), self.step) for name in names})

    def proven(self, ledger_id: int, uuid: UUID | None = None, bucket: str = BUCKET) -> Due:
        """What reading both objects back finds."""
        uuid = uuid or self.uuids[ledger_id]
        heads = [self.off.buckets.objects[BUCKET][key(uuid, ledger_id)] for key in (data_key, index_key)]
        (data, index) = ((head.size, head.etag) for head in heads)
        verified = Verified(*data, *index, 1, ENTRY_BYTES, "sum")
        return Due(ledger_id, Location(bucket, uuid, ledger_id), verified, "http://s3", "r")

    def begin(self) -> tuple[TopicRun, Ports, RunGuard]:
        """A run of its own, with its lease."""
        self.new_session()
        queue = self.cluster.open_queue()
        queue.refused = self.refused
        cluster = self.cluster
        ports = self.watched(
            Ports(self.store, cluster.reader, cluster.admin, queue, cluster.journal, cluster.clock, self.off.store)
        )
        guard = self.guard(ports.store)
        return self.topic_run(ports.store, CONTEXT), ports, guard

    def on_write(self, act: Callable[[], object], when: str = "before", times: int = 1) -> None:
        """As above, in the session of the next run."""
        hook, real = self.at_write(act, times), self.cluster.open_store

        def opened(**given: bool) -> Any:
            store = real(**given)
            setattr(store, when, hook)
            return store

        self.cluster.open_store = opened  # type: ignore[method-assign]

    def begin_deletions(self, *due: Due, lag: int | None = LAG, **changes: Any) -> dict[int, OffloadOutcome]:
        """One whole run: of what was proven (``due``), or of every ledger that is offloaded, proven anew."""
        try:
            run, ports, guard = self.begin()
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
            found = list(due) or [
                self.proven(i, context.uuid) for i, context in self.contexts.items() if i in self.left
            ]
            said = bookkeeper_copies.begin_deletions(
                replace(run, **changes), ports, guard, TOPIC, found, lag, self.read_check
            )
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=True)
            return {one.ledger_id: one for one in said}
        finally:
            self.new_session()

    def scan(self) -> None:
        self.cluster.wait(0.5)
        self.off.rescan()

    def delete(self, wrap: Callable[[Ports], Ports] = lambda ports: ports, run_id: str = "") -> list[Decision]:
        """A deletion run over everything that waits, with the newest scan."""
        self.off.copy_deletions = copy_deletions(self.cluster.journal, "simulated")
        return self.off.delete(lambda ports: wrap(self.watched(ports)), run_id)

    def begin_and_scan(self) -> None:
        """A run that deletes copies, and a scan after it."""
        said = self.begin_deletions()
        assert {one.outcome for one in said.values()} == {Outcome.BOOKKEEPER_DELETED}
        self.scan()


def reading(scene: CopyDeletionScene, fail: Exception | None = None) -> list[Position]:
    """The topic's broker reads, or fails so, once it has loaded it; what it was asked for."""
    asked: list[Position] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append(position)
        if not scene.broker.memory:
            scene.broker.load()
        if fail:
            raise fail

    scene.cluster.admin.on_read = read
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    return asked


def lock_of(topic: Topic) -> str:
    """The z-node of a bundle with this topic alone."""
    place = zlib.crc32(str(topic).encode())
    return f"/namespace/{topic.namespace}/0x{place:08x}_0x{min(place + 1, 0xFFFFFFFF):08x}"


def own(cluster: SimulatedCluster, topic: Topic, broker: str) -> None:
    """This broker has the lock of the topic's bundle."""
    cluster.put(lock_of(topic), json.dumps({"httpUrl": f"http://{broker}"}).encode())


def disown(cluster: SimulatedCluster, topic: Topic) -> None:
    """No broker has the topic's bundle."""
    cluster.put(lock_of(topic), b"")


def theirs() -> OffloadContext:
    return OffloadContext(uuid4(), False, False, None, "aws-s3", {"bucket": BUCKET})


def outcomes_and_codes(decisions: Sequence[Decision]) -> set[tuple[str | None, str | None]]:
    return {(d.outcome, d.code) for d in decisions}


def finished(scene: CopyDeletionScene) -> None:
    """Whatever came before: runs of the usual kinds end it."""
    scene.scan()
    scene.delete()
    scene.law()
    for _ in range(3):
        if scene.left:
            scene.begin_deletions()
        scene.scan()
        scene.delete()
    assert scene.left == []
    assert scene.deleted_ids == scene.due
    assert (scene.waiting, scene.left_pending) == (0, [])
    scene.law()


FAR = Topic.parse("persistent://acme/else/t")
NO = EditOutcome(Outcome.CHECK_FAILED, Why(Code.READ_CHECK_FAILED, "its broker cannot read it"))


def copy_of(scene: CopyDeletionScene, ledger_id: int) -> OffloadedCopy:
    item = next(item for item in scene.info.ledgers if item.ledger_id == ledger_id)
    copy = OffloadedCopy.of_item(item, 1)
    assert copy
    return copy


def beside(scene: CopyDeletionScene) -> tuple[TopicRun, Ports]:
    """An offload run in another process, and so with a session and a journal of its own."""
    run, ports, _ = scene.begin()
    return run, replace(ports, store=scene.cluster.open_store(), journal=scene.cluster.journal)
