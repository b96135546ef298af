"""Offload attempts that earlier runs left open: finished, reverted, or aborted: what they uploaded is removed.

Belongs here: which of these an attempt gets, by its topic's metadata and the plan at hand; removing its objects. Not
here: beginning and committing (``tiered/commit.py``), the z-nodes of attempts (``copies/attempts.py``). An attempt's
objects and uploads go only once no metadata can name them, and another copy of its ledger is known to be whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pulsar_lifecycle.copies import attempts, listed_ledgers
from pulsar_lifecycle.copies.attempts import Attempt, BrokenAttempt
from pulsar_lifecycle.copies.last_copy import CopyEvidence, UnnamedCopy, why_not_there, why_unlike
from pulsar_lifecycle.copies.location import OffloadedCopy, namespace_location
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import LifecycleError, NotFound, RefusedBy, StoreError
from pulsar_lifecycle.formats import managed_ledger, offload_object
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.metastore.load_state import still_listed
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import ObjectHead, ObjectStore, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.tiered.asked_entries import EntryNotReadable, entries_to_ask
from pulsar_lifecycle.tiered.commit import COMMITTED, OffloadRequest, Proven, is_ours, of_context, unread_by_broker
from pulsar_lifecycle.tiered.outcome import OffloadOutcome, outcome_of, record
from pulsar_lifecycle.tiered.read_check import READ_FIRST, ReadCheck
from pulsar_lifecycle.tiered.revert import LOOK_EVERY, not_whole_in_bookkeeper, without_bookkeeper
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import STOPPING, TopicRun, why_loaded
from pulsar_lifecycle.values.codes import Code, Why, why_failed
from pulsar_lifecycle.values.copies import NamespaceLocation
from pulsar_lifecycle.values.offload_uuids import NamedUuids
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.topic_load import LoadReason


@dataclass(frozen=True, slots=True)
class Ownership:
    """How to tell our own objects: the cluster's name that they carry, and what the newest scan found named."""

    cluster: str
    named: NamedUuids


def finish_attempts(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    wanted: Mapping[int, OffloadRequest],
    read_check: ReadCheck,
    ownership: Ownership,
    progress: Callable[[str], None],
) -> tuple[list[Attempt], list[OffloadOutcome]]:
    """What earlier runs left open: attempts to be finished (of ``wanted`` ledgers), and what became of the others.

    An attempt that its topic names as complete is done once its broker reads it, if no other ledger was read for it;
    what brokers cannot read is reverted. One that its topic's metadata has no room for, that the plan wants
    somewhere else, or that no plan has wanted for the grace period, is aborted: its objects and uploads are removed,
    if they are proven its own. Comes after ``unloads.finish_unloads``. An error that concerns one attempt is its
    outcome. Raises Paused, LeaseLost, Overloaded.
    """
    resumed: list[Attempt] = []
    outcomes: list[OffloadOutcome] = []
    committed: dict[NamespaceLocation, dict[str, list[Proven]]] = {}
    for attempt in attempts.open_attempts(ports.store):
        guard.check(ports.store)
        if isinstance(attempt, BrokenAttempt):
            outcomes.append(
                OffloadOutcome("", -1, Outcome.FAILED, Why(Code.ATTEMPT_UNREAD, f"{attempt.path}: {attempt.why}"))
            )
            continue
        try:
            topic = Topic.parse(attempt.topic)
            item, why = _state_of(run, ports, topic, attempt)
            if item and is_ours(item, attempt):
                there = committed.setdefault(namespace_location(topic, attempt), {}).setdefault(attempt.topic, [])
                there.append(Proven(attempt, item.entries or 1, item.size or 0, None))
                continue
            if not why and _may_be_requested_yet(run, ports, attempt, wanted):
                waits = "this plan does not name it: it stays open for one that does"
                outcomes.append(outcome_of(attempt, Outcome.LEFT, Why(Code.ATTEMPT_NOT_PLANNED, waits)))
                continue
            if not (why := why or _why_not_requested(attempt, wanted)):
                resumed.append(attempt)
                continue
            progress(f"ledger {attempt.ledger_id} of {topic}: its attempt is aborted, {why}")
            outcomes.append(_abort(run, ports, guard, topic, attempt, item, why, ownership))
        except STOPPING:
            raise
        except LifecycleError as error:
            outcomes.append(outcome_of(attempt, Outcome.FAILED, _not_now(error)))
    for topics in committed.values():
        for name, some in topics.items():
            guard.check(ports.store)
            try:
                outcomes += _finish_committed(run, ports, guard, Topic.parse(name), some, read_check)
            except STOPPING:
                raise
            except LifecycleError as error:
                outcomes += [outcome_of(one.attempt, Outcome.FAILED, _not_now(error)) for one in some]
    return resumed, outcomes


def _not_now(error: LifecycleError) -> Why:
    return why_failed(error, Code.SERVER_FAILED).put(f"it cannot be finished now: {error}")


def _may_be_requested_yet(run: TopicRun, ports: Ports, attempt: Attempt, wanted: Mapping[int, OffloadRequest]) -> bool:
    """Whether a plan may still come that names an attempt which this one does not."""
    named = attempt.aborting or attempt.ledger_id in wanted
    return not named and ports.clock.now_ms() - attempt.since < run.context.grace


def _why_not_requested(attempt: Attempt, wanted: Mapping[int, OffloadRequest]) -> Why | None:
    """Why an attempt that its topic has room for is not to be finished; None if it is."""
    if attempt.aborting:
        return Why(Code.ABORT_BEGUN, "an earlier run had begun to remove its objects")
    asked = wanted.get(attempt.ledger_id)
    if asked is None:
        return Why(Code.ATTEMPT_NOT_PLANNED, "no plan has named it for the grace period")
    here = attempt.driver, attempt.metadata, attempt.block_size
    same = (asked.driver, asked.metadata, asked.block_size) == here
    return None if same else Why(Code.ATTEMPT_NOT_PLANNED, "the plan names another location or block size for it")


def _finish_committed(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, committed: Sequence[Proven], read_check: ReadCheck
) -> list[OffloadOutcome]:
    """A run ended between the commit of these ledgers and the end of their attempts; one may be the read check.

    They are of one location. If their broker cannot read the first that it can be asked for, all are reverted at once:
    it is the same for all. Where it can be asked for none, another of their location must have been read since they
    were begun. Beside an attempt of their broker's none is read: the topic is unloaded after a read.
    """
    if read_check.due(topic, committed[0].attempt):
        first = next((one for one in committed if _can_be_asked_for(run, ports, topic, one)), None)
        if first is None and all(read_check.has_passed(topic, one.attempt) for one in committed):
            return _done(run, ports, committed)
        committed = sorted(committed, key=lambda one: one is not first)
        if refusal := guard.unloads.lacks() or guard.unloads.doubt(topic):
            why = Why(Code.READ_CHECK_DUE, f"{READ_FIRST}, and {refusal}")
            return [outcome_of(one.attempt, Outcome.FAILED, why) for one in committed]
        node, info = snapshot.topic_node(ports.store, topic)
        if foreign := listed_ledgers.open_attempt(info):  # the read, and what may follow it, would end that attempt
            why = Why(Code.READ_CHECK_DUE, f"{READ_FIRST}, and {foreign}")
            left = [outcome_of(one.attempt, Outcome.FOREIGN_ATTEMPT, why) for one in committed]
            record(run, ports, left)
            return left
        loaded = why_loaded(ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
        # A broker that has it may have had BookKeeper's copy open since before the commit.
        if unread := unread_by_broker(run, ports, guard, topic, committed, read_check, proves=not loaded):
            return unread
    return _done(run, ports, committed)


def _can_be_asked_for(run: TopicRun, ports: Ports, topic: Topic, one: Proven) -> bool:
    with contextlib.suppress(EntryNotReadable):
        return bool(entries_to_ask(run, ports, topic, OffloadedCopy.of_attempt(one.attempt, one.entries)))
    return False


def _done(run: TopicRun, ports: Ports, committed: Sequence[Proven]) -> list[OffloadOutcome]:
    done = [outcome_of(one.attempt, Outcome.OFFLOADED, COMMITTED) for one in committed]
    record(run, ports, done)
    for one in committed:
        attempts.end(ports.store, one.attempt)
    return done


def _state_of(run: TopicRun, ports: Ports, topic: Topic, attempt: Attempt) -> tuple[LedgerInfo | None, Why | None]:
    """The ledger in its topic's metadata as it is now, and why it cannot be offloaded under this attempt any more.

    Raises Refused where that cannot be known, or the metadata names its UUID in a way of which we know nothing.
    """
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    ports.store.sync(path)
    node = ports.store.read([path])[0]
    if isinstance(node, Unread):
        raise RefusedBy(Code.TOPIC_UNREAD, f"{path} cannot be read: {node.reason}")
    if node is None:
        if unknown := run.brokers.unknown:
            text = f"{path} does not exist, and the brokers did not answer: {unknown.text}"
            raise RefusedBy(unknown.code, text)
        if broker := run.brokers.loaded.get(str(topic)):
            raise RefusedBy(LoadReason.LISTED, f"{path} does not exist, and {still_listed(broker)}")
        return None, Why(Code.TOPIC_GONE, "its topic is gone")
    info = managed_ledger.decode(node.data)
    item = next((item for item in info.ledgers if item.ledger_id == attempt.ledger_id), None)
    if attempt.uuid in managed_ledger.offload_uuids(info) and not (item and is_ours(item, attempt)):
        text = f"{path} names its UUID, but not as a complete offload of its ledger: look at it"
        raise RefusedBy(Code.STILL_IN_USE, text)
    if item is None:
        return None, Why(Code.DELISTED, "its topic does not list its ledger any more")
    if item.offload and item.offload.complete:
        other = Why(Code.COPY_DIFFERS, f"it is offloaded as {item.offload.uuid}")
        return item, None if item.offload.uuid == attempt.uuid else other
    return item, None


def _abort(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    attempt: Attempt,
    item: LedgerInfo | None,
    why: Why,
    ownership: Ownership,
) -> OffloadOutcome:
    """Remove what an attempt has uploaded of a ledger, which its topic may list as ``item``.

    It stays open if that fails, where that might be another's, and where no other copy is known to be whole. It is
    aborted first: an object store may carry out a deletion late, so that nothing may be written there again.
    """

    def last_look() -> None:
        """A run that took our lease over meanwhile may have finished the attempt."""
        ports.store.sync("/")
        guard.check(ports.store)
        now, _ = _state_of(run, ports, topic, attempt)
        if now and is_ours(now, attempt):
            raise RefusedBy(Code.CHANGED_MEANWHILE, "its topic names them by now")
        if attempts.of_ledgers(ports.store, [attempt.ledger_id]).get(attempt.ledger_id) != aborting:
            raise RefusedBy(Code.CHANGED_MEANWHILE, "it is not open any more")

    aborting = attempt
    removed = "its objects are removed"
    try:
        gone = _bucket_is_gone(_objects(ports), attempt)
    except RefusedBy as refusal:
        way_out = f"name it there again, or, if it is gone for good, delete {attempt.path}"
        left = f"{why}, and its objects are left alone: {refusal}; {way_out}"
        return outcome_of(attempt, Outcome.LEFT, Why(refusal.code, left))
    try:
        if doubt := _not_its_own(_objects(ports), attempt, ownership):
            left = f"{why}, and its objects are left alone: {doubt}; look at {attempt.path}"
            return outcome_of(attempt, Outcome.FAILED, Why(Code.NOT_OURS, left))
        if gone:
            removed = f"there is no bucket {attempt.bucket}"
        elif item and (problem := _without_another_copy(run, ports, guard, topic, attempt, item)):
            left = f"{why}, and its objects may be all that is left of its ledger: {problem}"
            return outcome_of(attempt, Outcome.FAILED, Why(Code.LAST_COPY, left))
        else:
            aborting = attempts.abort(ports.store, attempt)
            remove_objects(_objects(ports), attempt, last_look)
    except STOPPING:
        raise
    except LifecycleError as error:
        text = f"{why}; its objects could not be removed: {error}"
        return outcome_of(attempt, Outcome.FAILED, why_failed(error, Code.SERVER_FAILED).put(text))
    done = outcome_of(attempt, Outcome.ATTEMPT_ABORTED, why.put(f"{why}; {removed}"))
    record(run, ports, [done])
    attempts.end(ports.store, aborting)
    return done


def _without_another_copy(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, attempt: Attempt, item: LedgerInfo
) -> Why | None:
    """Why no copy but an attempt's may be there of a ledger that its topic lists; None if one is.

    That is another pair which the topic names, or BookKeeper's: read whole, if the attempt's own data object is there.
    """
    offload = item.offload
    data, _ = _heads(_objects(ports), attempt.bucket, attempt.uuid, item.ledger_id)
    if offload and offload.complete:
        unnamed = UnnamedCopy(item.ledger_id, topic, item)
        (unproven,) = why_not_there([unnamed], run.context.offload_buckets, _objects(ports))
        if not unproven and data:
            unproven = _unlike(run, ports, guard, unnamed, attempt)
        if not unproven:
            return None
        if offload.bookkeeper_deleted:
            text = f"{of_context(item)}, whose objects are not there or cannot be seen: {unproven}"
            return Why(Code.LAST_COPY, text)
    elif offload and offload.bookkeeper_deleted:
        return of_context(item)
    if data:
        return not_whole_in_bookkeeper(run, ports, topic, item, guard)
    return without_bookkeeper(run, ports, topic, item.ledger_id)


def _unlike(
    run: TopicRun, ports: Ports, guard: RunGuard, unnamed: UnnamedCopy, attempt: Attempt
) -> Why | LifecycleError | None:
    """Why the copy that a topic reads is not an attempt's own, entry by entry; None if it is."""
    looked = ports.clock.now_ms()

    def pace(size: int) -> None:
        nonlocal looked
        ports.pace(size)
        if ports.clock.now_ms() - looked >= LOOK_EVERY:
            guard.check(ports.store)
            looked = ports.clock.now_ms()

    return why_unlike(
        unnamed,
        Location(attempt.bucket, attempt.uuid, attempt.ledger_id),
        CopyEvidence(run.context.offload_buckets, run.ledgers_root, Referenced()),
        store=ports.store,
        reader=ports.reader,
        objects=_objects(ports),
        pace=pace,
    )


def _heads(objects: ObjectStore, bucket: str, uuid: UUID, ledger_id: int) -> list[ObjectHead | None]:
    """Of the data object and the index object of an offload; None where there is none, or not even a bucket."""
    found: list[ObjectHead | None] = []
    for head in objects.head_many(bucket, _keys(uuid, ledger_id)):
        if isinstance(head, LifecycleError) and not isinstance(head, NotFound):
            raise head
        found.append(None if isinstance(head, NotFound) else head)
    return found


def _keys(uuid: UUID, ledger_id: int) -> list[str]:
    return [offload_object.data_key(uuid, ledger_id), offload_object.index_key(uuid, ledger_id)]


def _bucket_is_gone(objects: ObjectStore, attempt: Attempt) -> bool:
    """Whether there is no such bucket, and so nothing in it. Raises Refused for one that the settings do not name."""
    (head,) = objects.head_many(attempt.bucket, [offload_object.data_key(attempt.uuid, attempt.ledger_id)])
    return isinstance(head, NotFound)


def _not_its_own(objects: ObjectStore, attempt: Attempt, ownership: Ownership) -> Why | None:
    """Why what lies under an attempt's keys may not be what it uploaded; None if it is, or nothing is there."""
    if ownership.named.named([attempt.uuid]):
        return Why(Code.NOT_OURS, "the newest scan found its UUID in a topic's metadata; scan again")
    topic = Topic.parse(attempt.topic).managed_ledger
    for head in _heads(objects, attempt.bucket, attempt.uuid, attempt.ledger_id):
        said = head and tuple(map(head.metadata.get, (offload_object.CLUSTER_NAME, offload_object.MANAGED_LEDGER_NAME)))
        if head and said != (ownership.cluster, topic):
            text = f"{head.key} does not say that it is of cluster {ownership.cluster} and {topic}"
            return Why(Code.NOT_OURS, text)
    return None


def remove_objects(objects: ObjectStore, attempt: Attempt, last_look: Callable[[], object]) -> None:
    """Drop the uploads of an attempt and, right after ``last_look``, delete both its objects. Raises what they do."""
    drop_uploads(objects, attempt)
    last_look()
    for one in objects.delete_many(attempt.bucket, _keys(attempt.uuid, attempt.ledger_id)):
        if one.error is not None:
            raise StoreError(f"{one.key}: {one.error}")


def drop_uploads(objects: ObjectStore, attempt: Attempt) -> None:
    """Drop what an earlier try of an attempt has uploaded in part."""
    key = offload_object.data_key(attempt.uuid, attempt.ledger_id)
    for page in objects.list_uploads(attempt.bucket, key):
        for upload in page:
            objects.abort_upload(attempt.bucket, upload.key, upload.upload_id)


def _objects(ports: Ports) -> ObjectStore:
    assert ports.objects is not None
    return ports.objects
