"""Offloading the ledgers of a topic: begun, committed once they are proven, rolled back, abandoned.

Belongs here: what may be offloaded as its topic is now, the order of steps, what a crash at any of them leaves. Not
here: which ledgers an operator wants (``plan/offload.py``), copying and verifying one (``offload_copy.py``).

Order: note the attempt, copy, read back, journal ``verified``, one compare-and-set per topic with its unload, journal
``offloaded``, forget the attempt. Killed anywhere, it repeats harmlessly: the next run finds the attempt, and finishes
it under the same UUID (the same ledger gives the same bytes), or removes its objects once no metadata can name them.
The first commit of a namespace and bucket is one ledger, the canary, that its brokers must then be able to read; if
they are not, it is taken back while BookKeeper has it, and the run stops. Its attempt stays open until they have read
it: a run that finds a committed ledger with an open attempt has its brokers read it first.
Source: PIP-17, ManagedLedgerImpl.offloadLoop (4.0.7).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from pulsar_lifecycle.engine import attempts, control, standing
from pulsar_lifecycle.engine.attempts import Attempt, BrokenAttempt
from pulsar_lifecycle.engine.control import OwedUnload
from pulsar_lifecycle.engine.decision import NamedUuids, Tools
from pulsar_lifecycle.engine.inventory import MANAGED_LEDGERS_ROOT
from pulsar_lifecycle.engine.marking import GOES
from pulsar_lifecycle.engine.other_copies import Spare, why_unproven
from pulsar_lifecycle.engine.topic_write import (
    FAILED,
    LEFT_TO_BROKER,
    SHADOWS_SEEN_FOR,
    STOPPING,
    Change,
    Said,
    TopicRun,
    edit_topic,
    why_loaded,
)
from pulsar_lifecycle.engine.unloads import Permit
from pulsar_lifecycle.errors import Conflict, LifecycleError, NotFound, Refused
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger, offload_object
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.plan import trimming
from pulsar_lifecycle.plan.outcomes import ABANDONED, LEFT, OFFLOAD, OFFLOADED, PREPARED, REFUSED, ROLLED_BACK
from pulsar_lifecycle.ports import EntryBatch, JournalRow, MetadataStore, Node, ObjectHead, ObjectStore, Unread

POLICY = "offload.loaded_topics"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What became of one ledger; ``ledger_id`` -1 speaks of the topic, or of an attempt that cannot be read."""

    topic: str
    ledger_id: int
    outcome: str
    reason: str
    bytes: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A ledger that a plan names, and where it is to go. ``metadata`` as in :class:`attempts.Attempt`."""

    ledger_id: int
    driver: str
    metadata: tuple[tuple[str, str], ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """How to tell our own objects: the cluster's name that they carry, and what the newest scan found named."""

    cluster: str
    named: NamedUuids


class CanaryFailed(Refused):
    """The brokers of a namespace cannot read what was offloaded: nothing more may be committed."""


# -------------------------------------------------------------------------------------------------------------- before


def begin_topic(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, wanted: Sequence[Wanted], new_uuid: Callable[[], UUID]
) -> tuple[list[Attempt], list[Offloaded]]:
    """Open an attempt on each ledger that may be offloaded now; the others come back with why not."""
    permit.check(tools.store)
    tools.store.sync("/")
    node, info = standing.topic_node(tools.store, topic)
    obstacle = _obstacles(run, tools, topic, [one.ledger_id for one in wanted])
    begun: list[Attempt] = []
    outcomes: list[Offloaded] = []
    loaded = why_loaded(tools.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    for one in wanted:
        why = obstacle(node, info, one.ledger_id, None)
        if not why and not dict(one.metadata).get("bucket"):
            why = "no bucket is named for it"
        if why:
            outcomes.append(Offloaded(str(topic), one.ledger_id, REFUSED, why))
            continue
        if loaded and not run.writes_loaded(topic):
            why = f"its topic counts as loaded ({loaded}), and {POLICY} does not name it"
            outcomes.append(Offloaded(str(topic), one.ledger_id, LEFT_TO_BROKER, why))
            continue
        attempt = Attempt(
            one.ledger_id,
            str(topic),
            new_uuid(),
            one.driver,
            one.metadata,
            one.block_size,
            run.run_id,
            tools.clock.now_ms(),
        )
        try:
            attempts.begin(tools.store, attempt)
        except Conflict as error:
            outcomes.append(Offloaded(str(topic), one.ledger_id, REFUSED, str(error)))
        else:
            begun.append(attempt)
    record(run, tools, [replace(_of(attempt, PREPARED, "its attempt is open")) for attempt in begun])
    return begun, outcomes


_Obstacle = Callable[[Node, ManagedLedgerInfo, int, UUID | None], str]
"""Why a ledger of a topic may not be offloaded (with this UUID of ours), as the topic is now; empty if it may."""


def _obstacles(run: TopicRun, tools: Tools, topic: Topic, ledger_ids: Collection[int]) -> _Obstacle:
    rows = standing.ledger_rows(tools.store, sorted(ledger_ids), run.ledgers_root)

    def obstacle(node: Node, info: ManagedLedgerInfo, ledger_id: int, ours: UUID | None) -> str:
        rule = run.topic_rule(topic, standing.shadow_source(tools.store, topic, info), SHADOWS_SEEN_FOR)
        listed = {item.ledger_id: item for item in info.ledgers}
        item, row = listed.get(ledger_id), rows[ledger_id]
        if rule:
            return rule
        if item is None:
            return "its topic does not list it any more"
        if ledger_id == max(listed):
            return "the last ledger of its topic"
        if why := _of_context(item):
            return why
        if problem := trimming.copy_of(ledger_id, row, topic).problem:
            return problem
        assert row is not None
        if not row["length"] or not row["entries"]:
            return "empty"
        if why := _unlike_bookkeeper(item, row["entries"], row["length"]):
            return why
        attempt = item.offload.uuid if item.offload else None
        if attempt and attempt != ours:
            loaded = why_loaded(tools.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
            return f"offload attempt {attempt} is its broker's: it may be running ({loaded})" if loaded else ""
        return ""

    return obstacle


def _unlike_bookkeeper(item: LedgerInfo, entries: int, length: int) -> str:
    """How BookKeeper's ledger differs from what its topic says of it; empty if it does not."""
    if (item.size or length, item.entries or entries) == (length, entries):
        return ""
    return f"its topic says {item.entries} entries of {item.size} bytes, BookKeeper {entries} of {length}"


def _of_context(item: LedgerInfo) -> str:
    offload = item.offload
    if offload and offload.complete:
        return f"offloaded already, as {offload.uuid}"
    if offload and offload.bookkeeper_deleted:
        return "its topic's metadata gives up its copy in BookKeeper without a complete offload: it needs repair"
    if offload and offload.segments:
        return "streaming offload: which of its objects are whole is not known"
    return ""


# -------------------------------------------------------------------------------------------------------------- commit


@dataclass(slots=True)
class Canary:
    """Which namespaces and buckets were proven readable in this run. ``waived``: only the sandbox may."""

    waived: bool
    passed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def due(self, topic: Topic, attempt: Attempt) -> bool:
        """Whether this ledger must be read through its broker before any other is committed."""
        return not self.waived and (str(topic.namespace), attempt.bucket) not in self.passed

    def passes(self, topic: Topic, attempt: Attempt) -> None:
        """Its broker has read this ledger."""
        self.passed.add((str(topic.namespace), attempt.bucket))


CANARY_UNLOADS = 2
"""Unloads that a canary may take: after its commit, and after it is taken back."""

_NO_UNLOADS = "its broker must read it first, and this run may unload no more (trimming.max_unloads)"


@dataclass(frozen=True, slots=True)
class Proven:
    """An attempt whose objects were read back whole. ``detail``: what they were then, for the journal."""

    attempt: Attempt
    entries: int
    bytes: int
    detail: Mapping[str, Any]


def commit_topic(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, proven: Sequence[Proven], canary: Canary
) -> list[Offloaded]:
    """Write into a topic's metadata that these ledgers are offloaded, all in one compare-and-set, and journal it.

    Once reading the canary has loaded its topic, the others follow whatever the policy says of loaded topics: it was
    unloaded until then, and is unloaded again. Raises CanaryFailed when a broker could not read the canary: then it was
    taken back, and nothing else was committed.
    """
    outcomes: list[Offloaded] = []
    rest = list(proven)
    policy = POLICY
    for one in proven:
        if canary.due(topic, one.attempt):
            rest.remove(one)
            if permit.unloads.left < CANARY_UNLOADS:
                outcomes.append(_of(one.attempt, LEFT_TO_BROKER, _NO_UNLOADS))
                record(run, tools, outcomes[-1:])
                continue
            committed = _commit(run, tools, permit, topic, [one], policy)
            outcomes += committed
            if committed[0].outcome == OFFLOADED:
                if unread := _unread_by_broker(run, tools, permit, topic, one):
                    raise CanaryFailed(
                        f"{topic}: ledger {unread.ledger_id} was offloaded, and {unread.reason}; "
                        f"nothing else of {topic.namespace} was committed"
                    )
                canary.passes(topic, one.attempt)
                policy = ""
                _forget(tools, [one], committed)
    if rest:
        committed = _commit(run, tools, permit, topic, rest, policy)
        _forget(tools, rest, committed)
        outcomes += committed
    return outcomes


def _commit(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, proven: Sequence[Proven], policy: str
) -> list[Offloaded]:
    by_id = {one.attempt.ledger_id: one for one in proven}
    permit.check(tools.store)
    at = attempts.touch(tools.store, proven[0].attempt)
    change = _completing(run, tools, topic, {i: one.attempt for i, one in by_id.items()}, at)
    said = edit_topic(run, tools, permit, topic, change, policy)
    outcomes = [
        replace(_of(by_id[i].attempt, one.outcome, one.reason), bytes=by_id[i].bytes) for i, one in sorted(said.items())
    ]
    record(run, tools, outcomes, {i: one.detail for i, one in by_id.items()})
    return outcomes


def _completing(run: TopicRun, tools: Tools, topic: Topic, ours: Mapping[int, Attempt], at: int) -> Change:
    """``at`` (ms): the metadata store's time. With our clock behind it, the deletion lag would be over too soon."""
    obstacle = _obstacles(run, tools, topic, ours)

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, Said]]:
        said = {i: Said(REFUSED, "its topic does not list it any more") for i in ours}
        ledgers: list[LedgerInfo] = []
        for item in info.ledgers:
            attempt = ours.get(item.ledger_id)
            if attempt and not _is_ours(item, attempt):
                why = obstacle(node, info, item.ledger_id, attempt.uuid)
                said[item.ledger_id] = Said(REFUSED, why) if why else Said(OFFLOADED, _COMMITTED, changes=True)
                item = item if why else replace(item, offload=_complete(attempt, max(at, tools.clock.now_ms())))
            elif attempt:
                said[item.ledger_id] = Said(OFFLOADED, _COMMITTED)
            ledgers.append(item)
        return replace(info, ledgers=tuple(ledgers)), said

    return change


_COMMITTED = "its topic's metadata says so"


def _is_ours(item: LedgerInfo, attempt: Attempt) -> bool:
    """Whether the topic names this attempt as complete."""
    return item.offload is not None and item.offload.complete and item.offload.uuid == attempt.uuid


def _complete(attempt: Attempt, now: int) -> OffloadContext:
    return OffloadContext(attempt.uuid, True, False, now, attempt.driver, dict(attempt.metadata))


def _forget(tools: Tools, proven: Sequence[Proven], committed: Sequence[Offloaded]) -> None:
    done = {one.ledger_id for one in committed if one.outcome == OFFLOADED}
    for one in proven:
        if one.attempt.ledger_id in done:
            attempts.end(tools.store, one.attempt)


def _unread_by_broker(run: TopicRun, tools: Tools, permit: Permit, topic: Topic, one: Proven) -> Offloaded | None:
    """None if its broker reads the first and the last entry of a committed ledger; else what became of it.

    A broker that still has the topic as it was before the commit reads BookKeeper: that proves nothing. Where the
    policy does not let loaded topics be written, it must not stay loaded because of this: it is owed an unload.
    """
    attempt = one.attempt
    if why := _owed_unload(tools.store, topic):
        return _of(attempt, FAILED, f"whether its broker can read it is not known: {why}")
    if not run.writes_loaded(topic):
        control.owe_unload(tools.store, OwedUnload(topic, False, tools.clock.now_ms(), permit.guard[0]))
    try:
        for entry_id in dict.fromkeys((0, one.entries - 1)):
            tools.admin.read_entry(topic, Position(attempt.ledger_id, entry_id))
    except LifecycleError as error:
        why = (
            f"its broker cannot read it from bucket {attempt.bucket}: {error} (give the brokers an offloader for "
            f"driver {attempt.driver} and this bucket)"
        )
        try:
            said = edit_topic(
                run, tools, permit, topic, _taking_back(run, tools, topic, {attempt.ledger_id: attempt.uuid}), ""
            )[attempt.ledger_id]
        except STOPPING:
            raise
        except LifecycleError as failure:
            said = Said(FAILED, f"whether it was taken back is not known, run again: {failure}")
        taken_back = replace(_of(attempt, said.outcome, f"{why}; {said.reason}"), bytes=one.bytes)
        record(run, tools, [taken_back], {attempt.ledger_id: one.detail})
        return taken_back
    return None


def _owed_unload(store: MetadataStore, topic: Topic) -> str:
    """Why some broker may have a topic as it was before it was written; empty if none does."""
    owing = [one for one in control.owed_unloads(store) if one.topic == topic]
    watched = all(isinstance(one, OwedUnload) and not one.loaded for one in owing)
    return "" if watched else "its topic is owed an unload"


def take_back_topic(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, ledger_ids: Collection[int]
) -> list[Offloaded]:
    """Let a topic read offloaded ledgers from BookKeeper again, where it has them whole: for objects that are damaged.

    The objects stay; nothing names them any more. A ledger may then be offloaded anew. Raises as ``edit_topic``.
    """
    permit.check(tools.store)
    planned = plan_take_back(run, tools, topic, ledger_ids, permit)
    outcomes = [one for one in planned if one.outcome != GOES]
    going = {one.ledger_id: UUID(one.uuid) for one in planned if one.outcome == GOES}
    if going:
        said = edit_topic(run, tools, permit, topic, _taking_back(run, tools, topic, going), POLICY)
        done = [
            Offloaded(str(topic), i, one.outcome, one.reason, uuid=str(going[i])) for i, one in sorted(said.items())
        ]
        record(run, tools, done)
        outcomes += done
    return outcomes


def plan_take_back(
    run: TopicRun, tools: Tools, topic: Topic, ledger_ids: Collection[int], permit: Permit | None = None
) -> list[Offloaded]:
    """What :func:`take_back_topic` would do; writes nothing. Reads whole in BookKeeper what may be taken back."""
    tools.store.sync("/")
    _, info = standing.topic_node(tools.store, topic)
    items = {item.ledger_id: item for item in info.ledgers}
    opened = attempts.of_ledgers(tools.store, ledger_ids)
    found: list[Offloaded] = []
    for ledger_id in sorted(set(ledger_ids)):
        item = items.get(ledger_id)
        uuid = item.offload.uuid if item and item.offload and item.offload.complete else None
        if item is None:
            why = "its topic does not list it"
        elif uuid is None:
            why = "it is not offloaded"
        elif ledger_id in opened:
            why = f"an attempt of ours is open: {attempts.path_of(ledger_id)}"
        elif item.offload and item.offload.bookkeeper_deleted:
            why = "its copy in BookKeeper was given up"
        else:
            why = _not_whole_in_bookkeeper(run, tools, topic, item, permit)
        outcome, reason = (REFUSED, why) if why else (GOES, _TAKEN_BACK)
        found.append(Offloaded(str(topic), ledger_id, outcome, reason, uuid=str(uuid or "")))
    return found


_TAKEN_BACK = "its topic reads it from BookKeeper again"


LOOK_EVERY = 2_000
"""How long (ms) a ledger is read without a look at the pause z-node and the lease."""


def _not_whole_in_bookkeeper(
    run: TopicRun, tools: Tools, topic: Topic, item: LedgerInfo, permit: Permit | None = None
) -> str:
    """Why BookKeeper's copy cannot stand for the offloaded one; empty once every entry was read and verified.

    With a ``permit`` raises Paused and LeaseLost meanwhile.
    """
    if problem := _without_bookkeeper(run, tools, topic, item.ledger_id):
        return problem
    node = tools.store.read([ledger_path.ledger_path(item.ledger_id, run.ledgers_root)])[0]
    if not isinstance(node, Node):
        return "its z-node in BookKeeper cannot be read"
    looked = tools.clock.now_ms()
    try:
        metadata = ledger_metadata.decode(node.data)
        last = metadata.last_entry_id
        if problem := _unlike_bookkeeper(item, last + 1, metadata.length):
            return problem
        stream = cast(Generator[EntryBatch, None, None], tools.reader.stream(item.ledger_id, metadata, 0, last))
        with contextlib.closing(stream):
            for _ in stream:
                if permit and tools.clock.now_ms() - looked >= LOOK_EVERY:
                    permit.check(tools.store)
                    looked = tools.clock.now_ms()
    except STOPPING:
        raise
    except LifecycleError as error:
        return f"BookKeeper cannot give it whole: {error}"
    return ""


def _taking_back(run: TopicRun, tools: Tools, topic: Topic, uuids: Mapping[int, UUID]) -> Change:
    """Offloads by ledger id that its topic's metadata is to forget."""

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, Said]]:
        said = dict.fromkeys(uuids, Said(ROLLED_BACK, _TAKEN_BACK))
        ledgers: list[LedgerInfo] = []
        for item in info.ledgers:
            offload = item.offload
            if offload and offload.complete and offload.uuid == uuids.get(item.ledger_id):
                problem = _without_bookkeeper(run, tools, topic, item.ledger_id)
                if offload.bookkeeper_deleted:
                    said[item.ledger_id] = Said(FAILED, "its copy in BookKeeper is given up: it stays offloaded")
                elif problem:
                    said[item.ledger_id] = Said(FAILED, f"it stays offloaded: {problem}")
                else:
                    said[item.ledger_id] = Said(ROLLED_BACK, _TAKEN_BACK, changes=True)
                    item = replace(item, offload=None)
            ledgers.append(item)
        return replace(info, ledgers=tuple(ledgers)), said

    return change


def _without_bookkeeper(run: TopicRun, tools: Tools, topic: Topic, ledger_id: int) -> str:
    """Why the copy in BookKeeper cannot be relied on; empty if it can."""
    row = standing.ledger_rows(tools.store, [ledger_id], run.ledgers_root)[ledger_id]
    return trimming.copy_of(ledger_id, row, topic).problem


# ------------------------------------------------------------------------------------------- attempts that were cut off


def settle_attempts(
    run: TopicRun,
    tools: Tools,
    permit: Permit,
    wanted: Mapping[int, Wanted],
    canary: Canary,
    ownership: Ownership,
) -> tuple[list[Attempt], list[Offloaded]]:
    """What earlier runs left open: attempts to be finished (of ``wanted`` ledgers), and what became of the others.

    An attempt that its topic names as complete is done once its broker reads it, if no other ledger was its canary;
    what brokers cannot read is taken back. One that its topic's metadata has no place for, that the plan wants
    somewhere else, or that no plan has wanted for the grace period, is abandoned: its objects and uploads are removed,
    if they are proven its own. Comes after ``unloads.settle_unloads``. An error that concerns one attempt is its
    outcome. Raises Paused, LeaseLost, Overloaded.
    """
    resumed: list[Attempt] = []
    outcomes: list[Offloaded] = []
    for attempt in attempts.open_attempts(tools.store):
        permit.check(tools.store)
        if isinstance(attempt, BrokenAttempt):
            outcomes.append(Offloaded("", -1, FAILED, f"{attempt.path}: {attempt.reason}"))
            continue
        try:
            found = _settle(run, tools, permit, attempt, wanted, canary, ownership)
        except STOPPING:
            raise
        except LifecycleError as error:
            found = _of(attempt, FAILED, f"it cannot be settled now: {error}")
        if found:
            outcomes.append(found)
        else:
            resumed.append(attempt)
    return resumed, outcomes


def _settle(
    run: TopicRun,
    tools: Tools,
    permit: Permit,
    attempt: Attempt,
    wanted: Mapping[int, Wanted],
    canary: Canary,
    ownership: Ownership,
) -> Offloaded | None:
    """What became of an open attempt; None if it is to be finished."""
    topic = Topic.parse(attempt.topic)
    item, why = _place_of(run, tools, topic, attempt)
    if item and _is_ours(item, attempt):
        return _settle_committed(run, tools, permit, topic, attempt, item, canary)
    if not why:
        asked = wanted.get(attempt.ledger_id)
        if asked and (asked.driver, asked.metadata, asked.block_size) == (
            attempt.driver,
            attempt.metadata,
            attempt.block_size,
        ):
            return None
        if not asked and tools.clock.now_ms() - attempt.since < run.context.grace:
            return _of(attempt, LEFT, "this plan does not name it: its attempt stays open for one that does")
        why = (
            "the plan names another place or block size for it"
            if asked
            else "no plan has named it for the grace period"
        )
    return _abandon(run, tools, permit, topic, attempt, item, why, ownership)


def _settle_committed(
    run: TopicRun,
    tools: Tools,
    permit: Permit,
    topic: Topic,
    attempt: Attempt,
    item: LedgerInfo,
    canary: Canary,
) -> Offloaded:
    """A run was cut off between the commit of a ledger and the end of its attempt: it may have been the canary."""
    if canary.due(topic, attempt):
        if permit.unloads.exhausted:
            return _of(attempt, FAILED, _NO_UNLOADS)
        if unread := _unread_by_broker(
            run, tools, permit, topic, Proven(attempt, item.entries or 1, item.size or 0, {})
        ):
            return unread
        canary.passes(topic, attempt)
    done = _of(attempt, OFFLOADED, _COMMITTED)
    record(run, tools, [done])
    attempts.end(tools.store, attempt)
    return done


def _place_of(run: TopicRun, tools: Tools, topic: Topic, attempt: Attempt) -> tuple[LedgerInfo | None, str]:
    """The ledger in its topic's metadata as it is now, and why it cannot be offloaded under this attempt any more.

    Raises Refused where that cannot be known, or the metadata names its UUID in a way of which we know nothing.
    """
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    tools.store.sync(path)
    node = tools.store.read([path])[0]
    if isinstance(node, Unread):
        raise Refused(f"{path} cannot be read: {node.reason}")
    if node is None:
        if run.brokers.silence:
            raise Refused(f"{path} does not exist, and the brokers were not heard: {run.brokers.silence}")
        if broker := run.brokers.loaded.get(str(topic)):
            raise Refused(f"{path} does not exist, and {broker} still lists the topic")
        return None, "its topic is gone"
    info = managed_ledger.decode(node.data)
    item = next((item for item in info.ledgers if item.ledger_id == attempt.ledger_id), None)
    if attempt.uuid in managed_ledger.offload_uuids(info) and not (item and _is_ours(item, attempt)):
        raise Refused(f"{path} names its UUID, but not as a complete offload of its ledger: look at it")
    if item is None:
        return None, "its topic does not list its ledger any more"
    if item.offload and item.offload.complete:
        return item, "" if item.offload.uuid == attempt.uuid else f"it is offloaded as {item.offload.uuid}"
    return item, ""


def _abandon(
    run: TopicRun,
    tools: Tools,
    permit: Permit,
    topic: Topic,
    attempt: Attempt,
    item: LedgerInfo | None,
    why: str,
    ownership: Ownership,
) -> Offloaded:
    """Remove what an attempt has uploaded of a ledger, which its topic may list as ``item``.

    It stays open if that fails, where that might be another's, and where no other copy is known to be whole.
    """

    def last_look() -> None:
        """A run that took our lease over meanwhile may have finished the attempt."""
        tools.store.sync("/")
        permit.check(tools.store)
        now, _ = _place_of(run, tools, topic, attempt)
        if now and _is_ours(now, attempt):
            raise Refused("its topic names them by now")
        if attempts.of_ledgers(tools.store, [attempt.ledger_id]).get(attempt.ledger_id) != attempt:
            raise Refused("it is not open any more")

    removed = "its objects are removed"
    try:
        gone = _bucket_is_gone(_objects(tools), attempt)
    except Refused as refusal:
        way_out = f"name it there again, or, if it is gone for good, delete {attempt.path}"
        return _of(attempt, LEFT, f"{why}, and its objects are left alone: {refusal}; {way_out}")
    try:
        if doubt := _not_its_own(_objects(tools), attempt, ownership):
            return _of(attempt, FAILED, f"{why}, and its objects are left alone: {doubt}; look at {attempt.path}")
        if gone:
            removed = f"there is no bucket {attempt.bucket}"
        elif item and (problem := _without_another_copy(run, tools, permit, topic, attempt, item)):
            return _of(attempt, FAILED, f"{why}, and its objects may be all that is left of its ledger: {problem}")
        else:
            remove_objects(_objects(tools), attempt, last_look)
    except STOPPING:
        raise
    except LifecycleError as error:
        return _of(attempt, FAILED, f"{why}; its objects could not be removed: {error}")
    done = _of(attempt, ABANDONED, f"{why}; {removed}")
    record(run, tools, [done])
    attempts.end(tools.store, attempt)
    return done


def _without_another_copy(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, attempt: Attempt, item: LedgerInfo
) -> str:
    """Why no copy but an attempt's may be there of a ledger that its topic lists; empty if one is.

    That is another pair which the topic names, or BookKeeper's: read whole, if the attempt's own pair is there.
    """
    offload = item.offload
    if offload and offload.complete:
        spare = Spare(item.ledger_id, topic, item)
        (unproven,) = why_unproven([spare], run.context.offload_buckets, _objects(tools))
        if not unproven:
            return ""
        if offload.bookkeeper_deleted:
            return f"{_of_context(item)}, whose objects are not there or cannot be seen: {unproven}"
    elif offload and offload.bookkeeper_deleted:
        return _of_context(item)
    if all(_heads(_objects(tools), attempt.bucket, attempt.uuid, item.ledger_id)):
        return _not_whole_in_bookkeeper(run, tools, topic, item, permit)
    return _without_bookkeeper(run, tools, topic, item.ledger_id)


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


def _not_its_own(objects: ObjectStore, attempt: Attempt, ownership: Ownership) -> str:
    """Why what lies under an attempt's keys may not be what it uploaded; empty if it is, or nothing is there."""
    if ownership.named.named([attempt.uuid]):
        return "the newest scan found its UUID in a topic's metadata; scan again"
    topic = Topic.parse(attempt.topic).managed_ledger
    for head in _heads(objects, attempt.bucket, attempt.uuid, attempt.ledger_id):
        said = head and tuple(map(head.metadata.get, (offload_object.CLUSTER_NAME, offload_object.MANAGED_LEDGER_NAME)))
        if head and said != (ownership.cluster, topic):
            return f"{head.key} does not say that it is of cluster {ownership.cluster} and {topic}"
    return ""


def remove_objects(objects: ObjectStore, attempt: Attempt, last_look: Callable[[], object]) -> None:
    """Drop the uploads of an attempt and, right after ``last_look``, delete both its objects. Raises what they do."""
    drop_uploads(objects, attempt)
    last_look()
    for one in objects.delete_many(attempt.bucket, _keys(attempt.uuid, attempt.ledger_id)):
        if one.error:
            raise Refused(f"{one.key}: {one.error}")


def drop_uploads(objects: ObjectStore, attempt: Attempt) -> None:
    """Drop what an earlier try of an attempt has uploaded in part."""
    key = offload_object.data_key(attempt.uuid, attempt.ledger_id)
    for page in objects.list_uploads(attempt.bucket, key):
        for upload in page:
            objects.abort_upload(attempt.bucket, upload.key, upload.upload_id)


def _objects(tools: Tools) -> ObjectStore:
    assert tools.objects is not None
    return tools.objects


# -------------------------------------------------------------------------------------------------------- the journal


def _of(attempt: Attempt, outcome: str, reason: str) -> Offloaded:
    return Offloaded(attempt.topic, attempt.ledger_id, outcome, reason, uuid=str(attempt.uuid))


def record(
    run: TopicRun, tools: Tools, outcomes: Sequence[Offloaded], details: Mapping[int, Mapping[str, Any]] | None = None
) -> None:
    """One journal row per ledger; ``details`` by ledger id go beside its UUID."""
    now = tools.clock.now_ms()
    tools.journal.record(
        [journal_row(run.run_id, run.cluster, one, (details or {}).get(one.ledger_id, {}), now) for one in outcomes]
    )


def journal_row(
    run_id: str,
    cluster: str,
    one: Offloaded,
    detail: Mapping[str, Any],
    now: int,
    *,
    action: str = OFFLOAD,
    phase: str = OFFLOAD,
) -> JournalRow:
    """The journal's row of a step of offloading a ledger, or of another ``action`` about its offload."""
    return JournalRow(
        run_id=run_id,
        cluster=cluster,
        plan_id="",
        ledger_id=one.ledger_id,
        component=LedgerComponent.MANAGED_LEDGER.value,
        topic=one.topic,
        action=action,
        phase=phase,
        outcome=one.outcome,
        reason=one.reason,
        bytes=one.bytes,
        checksum=str(detail.get("checksum", "")),
        detail=json.dumps({**detail, "uuid": one.uuid}, sort_keys=True),
        at=now,
    )
