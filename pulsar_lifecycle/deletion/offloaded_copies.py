"""``Offload-Ledger`` messages: which offloaded copies may go, and their deletion.

Belongs here: the rule for the data and index object of one offload attempt, and deleting the pair. Not here: the order
of a batch, its journal and its acknowledgements (``deletion/batch.py``). docs/reference/offloaded-copies.md has the
rule in words.

Nothing brings an object back, so everything must agree: no LedgerInfo names the attempt's UUID, in a covered scan and
in the owner's z-node as it is now; it is no open attempt of our own; the object itself says that it is of this cluster
and this topic; and either our own first phase took the ledger off its topic's list, or two scans a day apart agree on
an object older than both. Where a topic lists the ledger all the same, another copy of it must be there, and be the
same, entry by entry; where one of those scans found it listed and none does now, nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import BrokenAttempt
from pulsar_lifecycle.copies.last_copy import STOPPING, CopyEvidence, UnnamedCopy, is_listed, why_last, why_unlike
from pulsar_lifecycle.copies.object_pairs import CLOCK_SKEW_MS, foreign
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion.decision import Decision, ObjectSeen, Run
from pulsar_lifecycle.deletion.owner_check import STILL_IN_USE, BrokerMemory, ask_owners, first_sent, in_use, memory_of
from pulsar_lifecycle.deletion.run_evidence import NO_EARLIER_SCAN
from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, Refused
from pulsar_lifecycle.formats import managed_ledger, offload_object
from pulsar_lifecycle.formats.deletion_message import MessageOffloadContext
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_MANAGED_LEDGER
from pulsar_lifecycle.journal.in_doubt import NOT_KNOWN
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node, ObjectHead, ObjectStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.values import owner_names
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import bucket_of
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Waiting


def decide(run: Run, ports: Ports, copies: Sequence[Decision]) -> None:
    """Decide every message that must not lead to a deletion now; those left without outcome may go.

    The latter have what the bucket says of their objects in ``objects``, for the journal.
    """
    for d in copies:
        _look_at_message(run, ports, d)
    _look_at_scans(run, ports, _open(copies))
    if not _open(copies):
        return
    ports.store.sync("/")
    _look_at_attempts(run, ports, _open(copies))
    ask_owners(run, ports, _open(copies), _look_at_topic)
    _look_at_objects(run, ports, _open(copies))
    _look_for_another_copy(run, ports, _open(copies))
    if _compare_copies(run, ports, _open(copies)):
        _look_again(run, ports, _open(copies))


def delete(run: Run, ports: Ports, doomed: Sequence[Decision]) -> LifecycleError | None:
    """Delete the objects of decided messages, and give each its outcome by what is there afterwards.

    Returns what stops the run, if anything. Repeating it is harmless.
    """
    try:
        ports.store.sync("/")
        control.check_lease(ports.store, run.guard)
    except LifecycleError as error:
        for d in doomed:
            d.wait(Waiting.STOPPED, f"the run was stopped: {error}")
        return error
    for bucket, group in _by_bucket(doomed):
        keys = [key for d in group for key in _keys(d)]
        problems: dict[str, str] = {}
        markers: set[str] = set()
        try:
            for one in _objects(ports).delete_many(bucket, keys):
                if one.error is not None:
                    problems[one.key] = one.error
                if one.marker:
                    markers.add(one.key)
        except LifecycleError as error:
            problems = dict.fromkeys(keys, str(error))
        for d, pair in _heads(ports, bucket, group):
            _confirm(d, pair, problems, not markers.isdisjoint(_keys(d)))
    return None


def _confirm(
    d: Decision, pair: Sequence[ObjectHead | LifecycleError | None], problems: Mapping[str, str], marker: bool
) -> None:
    error = next((one for one in pair if isinstance(one, LifecycleError)), None)
    left = [one.key for one in pair if isinstance(one, ObjectHead)]
    if error:
        d.decide(Outcome.RETRYING, Code.OUTCOME_UNKNOWN, f"{NOT_KNOWN}: {error}")
    elif left:
        why = next((f": {problems[key]}" for key in left if key in problems), "")
        d.decide(Outcome.RETRYING, Code.STILL_THERE, f"it was not deleted{why}")
    elif marker:
        text = "nothing refers to it; the bucket is versioned: its bytes stay behind a delete marker"
        d.decide(Outcome.DELETED, Code.BYTES_STAY, text)
    else:
        d.decide(Outcome.DELETED, Code.UNREFERENCED, "nothing refers to it")


def _look_at_message(run: Run, ports: Ports, d: Decision) -> None:
    """What can be said without asking anybody."""
    context, bucket = _context(d), bucket_of(d.info)
    topic = Topic.parse(d.info.topic_name)
    namespace, owner = owner_names.owner_of(COMPONENT_MANAGED_LEDGER, topic.managed_ledger, None, None, None)
    d.path = f"s3://{bucket}/{_keys(d)[0]}"
    if context.driver_name.lower() not in offload_object.S3_DRIVERS:
        why = f"its driver is {context.driver_name}: only objects of aws-s3 and S3 can be deleted"
        d.decide(Outcome.KEPT, Code.OTHER_DRIVER, why)
    elif ports.objects is None or run.offload is None:
        d.wait(Waiting.NO_OBJECT_STORE, "object_store is not set: nothing can be said of offloaded copies")
    elif not bucket:
        d.decide(Outcome.REFUSED, Code.MISMATCH, "the message names no bucket")
    elif bucket not in run.offload.buckets:
        d.decide(Outcome.REFUSED, Code.MISMATCH, "the message names a bucket that is not one of object_store.buckets")
    elif not owner:
        d.decide(Outcome.REFUSED, Code.MISMATCH, f"the message says {d.info.topic_name}, which no topic can be called")
    elif rule := protection.owner_rule(namespace, owner, run.evidence.context.at(run.now)):
        d.decide(Outcome.KEPT, rule.code, rule.text)
    elif run.evidence.offloads.undecoded:
        d.wait(
            Waiting.UNDECODED_TOPICS,
            "the scan found topic z-nodes that could not be decoded: they may name any offloaded copy",
        )
    else:
        d.bucket = bucket


def _look_at_scans(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """The newest scan's word on every attempt, and the earlier one's on those that are not of our own first phase."""
    if not live or run.offload is None:
        return
    evidence = run.evidence
    foreign = [d for d in live if _marked_at(run, d) is None]
    try:
        now = evidence.offloads.now.named(_uuid(d) for d in live)
        earlier = evidence.offloads.earlier.named(_uuid(d) for d in foreign) if foreign else set[UUID]()
    except LifecycleError as error:
        for d in live:
            d.wait(Waiting.UNREAD_SCAN, f"the scans' offload UUIDs cannot be read, run the job scan again: {error}")
        return
    for d in live:
        marked_at = _marked_at(run, d)
        if marked_at is not None and marked_at >= evidence.started_at:
            d.wait(Waiting.NO_SCAN, "no covered scan has started since its ledger left its topic")
        elif _uuid(d) in now:
            in_use(run, ports, d, "the newest scan found its UUID in a topic's metadata", marked_at or 0)
        elif marked_at is not None:
            continue
        elif not run.offload.exclusive:
            why = "our own first phase did not ask for it, and object_store.exclusive is not set"
            d.decide(Outcome.KEPT, Code.NOT_OURS, why)
        elif evidence.earlier_started_at is None:
            d.wait(Waiting.NO_EARLIER_SCAN, f"not confirmed: {NO_EARLIER_SCAN}")
        elif _uuid(d) in earlier:
            why = "not confirmed: the earlier scan still found its UUID in a topic's metadata"
            d.decide(Outcome.KEPT, Code.NOT_CONFIRMED, why)


def _look_at_attempts(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Our own open attempts, before the topics: an attempt is open until its topic names it."""
    found = attempts.of_ledgers(ports.store, {d.info.ledger_id for d in live})
    for d in live:
        one = found.get(d.info.ledger_id)
        if isinstance(one, BrokenAttempt):
            d.wait(
                Waiting.UNREAD_ATTEMPT,
                f"whether it is an open offload attempt of ours cannot be known: {one.path}: {one.why}",
            )
        elif one is not None and one.uuid == _uuid(d):
            in_use(run, ports, d, "it is an open offload attempt of ours")


def _look_at_topic(run: Run, ports: Ports, topic: Topic, node: Node | None, group: Sequence[Decision]) -> None:
    """The z-node of an owner as it is now, and the broker that holds it."""
    info = managed_ledger.decode(node.data) if node else managed_ledger.decode(b"")
    named = managed_ledger.offload_uuids(info)
    listed = {item.ledger_id: item for item in info.ledgers}
    memory = BrokerMemory()
    if any(d.info.ledger_id not in listed for d in group):
        memory = memory_of(run, ports, topic, node, info)
    for d in group:
        item = listed.get(d.info.ledger_id)
        if _uuid(d) in named:
            in_use(run, ports, d, "its topic's z-node names its UUID")
        elif item is not None and _marked_at(run, d) is not None:
            in_use(run, ports, d, "its topic's z-node lists the ledger")
        elif item is None and memory.unsure:
            d.decide(Outcome.RETRYING, Code.NOT_KNOWN_YET, memory.unsure.text)
        elif item is None and d.info.ledger_id in memory.ledgers:
            d.decide(Outcome.RETRYING, Code.STILL_IN_USE, f"{STILL_IN_USE}its broker holds it in memory")
        else:
            d.listed = item


def _look_at_objects(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """What the bucket says of both objects: where they come from, and when."""
    for bucket, group in _by_bucket(live):
        for d, pair in _heads(ports, bucket, group):
            error = next((one for one in pair if isinstance(one, LifecycleError)), None)
            found = [one for one in pair if isinstance(one, ObjectHead)]
            if error:
                _not_shown(d, error, "its objects")
            elif not found:
                d.decide(Outcome.GONE, Code.NOT_THERE, "neither of its objects exists any more")
            else:
                _judge(run, d, found)


def _not_shown(d: Decision, error: LifecycleError, what: str) -> None:
    if isinstance(error, (AccessDenied, NotFound, Refused)):
        d.wait(Waiting.OBJECT_STORE_DENIES, f"object_store may not look at {what}: {error}")
    else:
        d.decide(Outcome.RETRYING, Code.OBJECTS_UNREAD, f"{what} could not be looked at: {error}")


def _judge(run: Run, d: Decision, found: Sequence[ObjectHead]) -> None:
    evidence = run.evidence
    newest = max(one.last_modified for one in found)
    d.length = sum(one.size for one in found)
    d.checksum = found[0].etag
    d.objects = tuple(ObjectSeen(bucket_of(d.info), h.key, h.size, h.etag, h.last_modified) for h in found)
    why = next((why for one in found if (why := _not_ours(run, d, one))), None)
    if why:
        d.decide(Outcome.KEPT, Code.NOT_OURS, why.text)
    elif newest > first_sent(run, d) + CLOCK_SKEW_MS:
        d.decide(Outcome.KEPT, Code.NOT_OURS, "younger than the message: another attempt's")
    elif _marked_at(run, d) is not None:
        return
    elif evidence.earlier_started_at is None or newest + CLOCK_SKEW_MS >= evidence.earlier_started_at:
        d.decide(Outcome.KEPT, Code.NOT_CONFIRMED, "not confirmed: younger than the earlier of two scans")
    elif run.now - newest < evidence.context.grace:
        d.decide(Outcome.KEPT, Finding.TOO_YOUNG, "younger than the grace period")


def _not_ours(run: Run, d: Decision, head: ObjectHead) -> Why | None:
    """Why an object's own metadata does not make it the message's; None if it does."""
    assert run.offload is not None
    if why := foreign(head.metadata, run.offload.cluster):
        return why
    name = head.metadata[offload_object.MANAGED_LEDGER_NAME]
    if name != Topic.parse(d.info.topic_name).managed_ledger:
        return Why(Code.NOT_OURS, f"the message says {d.info.topic_name}, the object is of {name}")
    return None


def _look_for_another_copy(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Where some topic lists the ledger, without this attempt, its data must be somewhere else.

    A broker that loads a topic forgets the attempt of its last ledger: these objects may then be all that is left.
    """
    unnamed = [_unnamed_copy(run, d) for d in live]
    last = why_last(unnamed, _copy_evidence(run), store=ports.store, reader=ports.reader, objects=_objects(ports))
    for d, why in zip(live, last, strict=True):
        if isinstance(why, LifecycleError):
            _not_shown(d, why, "the objects that its topic reads")
        elif why:
            d.decide(Outcome.KEPT, Code.LAST_COPY, why.text)


def _compare_copies(run: Run, ports: Ports, live: Sequence[Decision]) -> bool:
    """Where some topic lists the ledger, read both copies whole: a sample would prove nothing of the rest.

    Comes last, as it may take long: whatever else speaks against a deletion costs no reading. Whether any was read.
    What a run reads and is stopped before it acts is read again, so a batch reads :data:`COMPARED_AT_ONCE` at most.
    """
    pace = _Watch(run, ports)
    read = 0
    for n, d in enumerate(live):
        unnamed, location = _unnamed_copy(run, d), Location(bucket_of(d.info), _uuid(d), d.info.ledger_id)
        if not is_listed(unnamed, _copy_evidence(run)):
            continue
        if read and read + d.length > COMPARED_AT_ONCE:
            d.wait(Waiting.TURN, "other copies of its batch were compared whole first")
            continue
        read += max(d.length, 1)
        try:
            why = why_unlike(
                unnamed,
                location,
                _copy_evidence(run),
                store=ports.store,
                reader=ports.reader,
                objects=_objects(ports),
                pace=pace,
            )
        except STOPPING as error:
            for left in live[n:]:
                left.wait(Waiting.STOPPED, f"the run was stopped: {error}")
            break
        if isinstance(why, LifecycleError):
            _not_shown(d, why, "the copies of its ledger")
        elif why:
            d.decide(Outcome.KEPT, Code.LAST_COPY, why.text)
    return read > 0


COMPARED_AT_ONCE = 1 << 32
"""Bytes of objects that one batch compares whole, at most; the first copy is compared however large it is."""

LOOK_EVERY = 2_000
"""How long (ms) copies are read without a look at the pause z-node and the lease."""


class _Watch:
    """Paces what is read whole, and ends it where the run is paused or has lost its lease."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self._run, self._ports = run, ports
        self._looked = ports.clock.now_ms()

    def __call__(self, size: int) -> None:
        ports = self._ports
        ports.pace(size)
        if ports.clock.now_ms() - self._looked >= LOOK_EVERY:
            control.check_not_paused(ports.store)
            control.check_lease(ports.store, self._run.guard)
            self._looked = ports.clock.now_ms()


def _look_again(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Reading took its time: what names these copies, and where the other ones are, is asked once more."""
    before = [(d, d.listed, d.objects) for d in live]
    ports.store.sync("/")
    _look_at_attempts(run, ports, live)
    ask_owners(run, ports, _open(live), _look_at_topic)
    _look_at_objects(run, ports, _open(live))
    _look_for_another_copy(run, ports, _open(live))
    for d, listed, objects in before:
        if (d.listed, d.objects) != (listed, objects):
            why = "it, or what its topic says of its ledger, changed while its copies were read"
            d.decide(Outcome.RETRYING, Code.CHANGED_MEANWHILE, why)


def _unnamed_copy(run: Run, d: Decision) -> UnnamedCopy:
    delisted = _marked_at(run, d) is not None
    return UnnamedCopy(d.info.ledger_id, Topic.parse(d.info.topic_name), d.listed, delisted)


def _copy_evidence(run: Run) -> CopyEvidence:
    assert run.offload is not None
    return CopyEvidence(run.offload.buckets, run.ledgers_root, run.evidence.refs, run.evidence.earlier)


def _marked_at(run: Run, d: Decision) -> int | None:
    """When (ms) our own first phase took this ledger, with this copy, off this topic's list; None if it did not."""
    return run.evidence.offloads.marked_at(d.info.ledger_id, d.info.topic_name, _uuid(d), bucket_of(d.info))


def _context(d: Decision) -> MessageOffloadContext:
    assert d.info.offload_context is not None
    return d.info.offload_context


def _uuid(d: Decision) -> UUID:
    return offload_object.uuid_of(_context(d).msb, _context(d).lsb)


def _keys(d: Decision) -> tuple[str, str]:
    uuid, ledger_id = _uuid(d), d.info.ledger_id
    return offload_object.data_key(uuid, ledger_id), offload_object.index_key(uuid, ledger_id)


def _open(copies: Sequence[Decision]) -> list[Decision]:
    return [d for d in copies if not d.outcome]


def _by_bucket(copies: Iterable[Decision]) -> list[tuple[str, list[Decision]]]:
    groups: dict[str, list[Decision]] = {}
    for d in copies:
        groups.setdefault(bucket_of(d.info), []).append(d)
    return list(groups.items())


def _objects(ports: Ports) -> ObjectStore:
    assert ports.objects is not None
    return ports.objects


def _heads(
    ports: Ports, bucket: str, group: Sequence[Decision]
) -> list[tuple[Decision, list[ObjectHead | LifecycleError | None]]]:
    """What the bucket says of each message's two objects; what it would raise stands in their places."""
    keys = [key for d in group for key in _keys(d)]
    found: list[ObjectHead | LifecycleError | None]
    try:
        found = _objects(ports).head_many(bucket, keys)
    except LifecycleError as error:
        found = [error] * len(keys)
    return [(d, found[2 * n : 2 * n + 2]) for n, d in enumerate(group)]
