"""What one task of an offload run does: it copies or proves a share of the ledgers; and spreading them over tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import (
    Conflict,
    CorruptFormat,
    LifecycleError,
    NotFound,
    RefusedBy,
)
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Clock, ClusterPorts, Connect, MetadataStore, Node
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Writer
from pulsar_lifecycle.runs.progress import of_ledgers, reporting
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.tiered.commit import OffloadRequest
from pulsar_lifecycle.tiered.interrupted import drop_uploads
from pulsar_lifecycle.tiered.outcome import journal_row, outcome_of
from pulsar_lifecycle.tiered.planning.run_selection import (
    Row,
    driver_metadata,
)
from pulsar_lifecycle.tiered.proof import Origin, OriginalUnread, disproves, find_copy, verify
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from pulsar_lifecycle.values.codes import Code, Why, why_failed
from pulsar_lifecycle.values.copies import Verified
from pulsar_lifecycle.values.outcomes import Outcome

TASK_BYTES = 128 << 20
"""Small ledgers share a task until they are so many bytes; connections are opened once for each task."""
LOOK_EVERY = 2.0
"""Seconds between two looks of a task at the pause z-node and the lease."""
READ_BACK = Why(Code.READ_BACK, "read back whole, every entry agrees")


@dataclass(frozen=True, slots=True)
class Item:
    """One ledger for a task: its attempt, or the copy that is to be proven again before BookKeeper's goes.

    ``known``: what our journal says of an earlier proof of it.
    """

    attempt: Attempt
    again: bool
    copy_deletion: bool
    known: Verified | None = None

    @property
    def location(self) -> Location:
        """Where its objects are."""
        return Location(self.attempt.bucket, self.attempt.uuid, self.attempt.ledger_id)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task says of one ledger; ``verified`` is None where it failed, and ``why`` says why.

    ``disproved``: because of the objects, and not because they or BookKeeper's copy could not be read. ``refused``:
    doing the same once more fails, too.
    """

    item: Item
    verified: Verified | None
    why: Why
    disproved: bool = False
    refused: bool = False


def bundled(items: Sequence[Item], sizes: Mapping[int, int]) -> Iterator[list[Item]]:
    """A task for each large ledger; small ones share one."""
    bundle: list[Item] = []
    size = 0
    for item in items:
        bundle.append(item)
        size += sizes[item.attempt.ledger_id]
        if size >= TASK_BYTES:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle


@dataclass(frozen=True)
class Task:
    """One task; it may be repeated: the same attempt writes the same bytes."""

    settings: Settings
    writer: Writer
    guard: tuple[str, int]
    tasks: int
    connect: Connect

    def work(self, bundle: Iterable[Item]) -> Iterator[TaskResult]:
        """Copy and prove each ledger; its journal row is durable before its answer."""
        settings = self.settings
        assert settings.object_store is not None
        reads = settings.zookeeper.reads_per_second / self.tasks
        with self.connect(settings, read_only=True, reads_per_second=reads) as ports:
            share = max(1, settings.offload.read_bytes_per_second // self.tasks)
            pace = TaskPace(ports.store, ports.clock, self.guard, share)
            for item in bundle:
                try:
                    yield TaskResult(item, self._one(item, ports, pace), READ_BACK)
                except LifecycleError as error:  # of a run that may go on no more, the driver finds out by itself
                    why = why_failed(error, Code.OBJECTS_UNREAD if item.copy_deletion else Code.NOT_COPIED)
                    disproved = item.copy_deletion and disproves(error)
                    yield TaskResult(item, None, why, disproved=disproved, refused=isinstance(error, RefusedBy))

    def _one(self, item: Item, ports: ClusterPorts, pace: Callable[[int], None]) -> Verified:
        attempt, declared = item.attempt, self.settings.object_store
        store, reader, objects = ports.store, ports.reader, ports.objects
        assert declared is not None
        source = _source(store, attempt.ledger_id, self.settings.bookkeeper.ledgers_root)
        name = Topic.parse(attempt.topic).managed_ledger
        cluster = declared.pulsar_cluster or self.settings.cluster
        target = Target(item.location, cluster, name, attempt.block_size)
        origin = Origin(cluster, name)
        verified: Verified | None = None
        if item.copy_deletion:
            verified = verify(objects, item.location, source, known=item.known, reader=reader, origin=origin, pace=pace)
        elif item.again and not find_copy(objects, item.location, source, origin):
            with suppress(CorruptFormat, NotFound, Conflict):  # no metadata names it: it is made anew, over it
                verified = verify(objects, item.location, source, reader=reader, origin=origin, pace=pace)
        if verified is None:
            copied = copy_ledger(reader, objects, source, target, pace=pace)
            verified = verify(objects, item.location, source, copied=copied, origin=origin)
        if not item.copy_deletion:  # a try that was killed, or the answer to whose beginning got lost, leaves an upload
            drop_uploads(objects, attempt)
        said = replace(outcome_of(attempt, Outcome.VERIFIED, READ_BACK), bytes=verified.length)
        row = journal_row(self.writer, said, (verified,), ports.clock.now_ms())
        ports.journal.record([row])
        return verified


def _source(store: MetadataStore, ledger_id: int, root: str) -> Source:
    """The ledger as BookKeeper describes it. Raises OriginalUnread: that says nothing of its offloaded copy."""
    path = ledger_path.ledger_path(ledger_id, root)
    node = store.read([path])[0]
    if not isinstance(node, Node):
        raise OriginalUnread(f"{path}: BookKeeper does not have it any more, or it cannot be read")
    try:
        metadata = ledger_metadata.decode(node.data)
    except CorruptFormat as error:
        raise OriginalUnread(f"{path}: {error}") from error
    if metadata.state is not LedgerState.CLOSED:  # somebody recovers it: what it says now is no reason to doubt a copy
        raise OriginalUnread(f"{path}: it is {metadata.state.name}, not closed")
    return Source(metadata, node.stat.ctime)


class TaskPace:
    """Keeps a task to its share of the budget, and stops it when it may go on no more."""

    def __init__(self, store: MetadataStore, clock: Clock, guard: tuple[str, int], bytes_per_second: int) -> None:
        self._store, self._guard = store, guard
        self._budget = RateBudget(max(1, bytes_per_second), clock)
        self._looked = 0.0

    def __call__(self, size: int) -> None:
        """Wait until ``size`` bytes may be read. Raises Paused, LeaseLost."""
        if time.monotonic() - self._looked >= LOOK_EVERY:
            control.check_not_paused(self._store)
            control.check_lease(self._store, self._guard)
            self._looked = time.monotonic()
        self._budget.take(size)


def offload_request(row: Row, settings: Settings) -> OffloadRequest:
    """Where a planned ledger is to go, as a broker's offloader would describe it."""
    return OffloadRequest(
        row["ledger_id"], row["driver"], driver_metadata(row), row["block_size"] or settings.offload.block_size
    )


def as_attempt(row: Row, settings: Settings) -> Attempt:
    """A complete offload in the form of an attempt, to be proven again."""
    return Attempt(
        row["ledger_id"],
        row["topic"],
        UUID(row["uuid"]),
        row["driver"],
        driver_metadata(row),
        settings.offload.block_size,
        "",
        0,
    )


def spread(
    cluster: Cluster,
    writer: Writer,
    guard: tuple[str, int],
    items: Sequence[Item],
    sizes: Mapping[int, int],
    progress: Callable[[str], None],
) -> list[TaskResult]:
    """Work on all items in tasks, the large ones first. ``sizes``: ledger id -> bytes."""
    if not items:
        return []
    tasks = cluster.tasks
    bundles = list(bundled(sorted(items, key=lambda i: -sizes[i.attempt.ledger_id]), sizes))
    done, moved = tasks.counter(), tasks.counter()
    task = Task(cluster.settings, writer, guard, tasks.at_once, cluster.connect)

    def work(bundle: Sequence[Item]) -> list[TaskResult]:
        answers: list[TaskResult] = []
        for answer in task.work(bundle):
            answers.append(answer)
            done.add(1)
            moved.add(answer.verified.length if answer.verified else 0)
        return answers

    total = sum(sizes[item.attempt.ledger_id] for item in items)
    with reporting(progress, of_ledgers(lambda: (done.value, moved.value), len(items), total), at_end=True):
        return [answer for answers in tasks.map(work, bundles) for answer in answers]
