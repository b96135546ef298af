"""Offloading the ledgers of a topic: begun, committed once they are proven, taken back.

Belongs here: what may be offloaded as its topic is now, the order of steps, what a crash at any of them leaves. Not
here: which ledgers an operator wants (``plan/offload.py``), copying and verifying one (``offload_copy.py``), attempts
that earlier runs left open (``cut_off.py``).

Order: note the attempt, copy, read back, journal ``verified``, one compare-and-set per topic with its unload, journal
``offloaded``, forget the attempt. Killed anywhere, it repeats harmlessly: the next run finds the attempt, and finishes
it under the same UUID (the same ledger gives the same bytes), or removes its objects once no metadata can name them.
The first commit of a namespace and place is one ledger, the canary, that its brokers must then be able to read; if
they are not, it is taken back while BookKeeper has it, and the run stops. Its attempt stays open until they have read
it: a run that finds a committed ledger with an open attempt has its brokers read it first. Where brokers read
BookKeeper first, such a read shows nothing of the bucket, and stands for no topic where they do not.
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
from pulsar_lifecycle.engine.attempts import Attempt
from pulsar_lifecycle.engine.control import OwedUnload
from pulsar_lifecycle.engine.decision import Tools
from pulsar_lifecycle.engine.marking import GOES
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
from pulsar_lifecycle.errors import Conflict, LifecycleError, Refused, Unavailable
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.plan import trimming
from pulsar_lifecycle.plan.offload import BOOKKEEPER_FIRST
from pulsar_lifecycle.plan.outcomes import (
    OFFLOAD,
    OFFLOADED,
    PREPARED,
    READ_THROUGH_BROKER,
    REFUSED,
    ROLLED_BACK,
    SEEN,
)
from pulsar_lifecycle.ports import EntryBatch, JournalRow, MetadataStore, Node

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
    record(run, tools, [said_of(attempt, PREPARED, "its attempt is open") for attempt in begun])
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
        if why := of_context(item):
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


def of_context(item: LedgerInfo) -> str:
    """Why what its topic says of a ledger's offload leaves no place for another; empty if it does."""
    offload = item.offload
    if offload and offload.complete:
        return f"offloaded already, as {offload.uuid}"
    if offload and offload.bookkeeper_deleted:
        return "its topic's metadata gives up its copy in BookKeeper without a complete offload: it needs repair"
    if offload and offload.segments:
        return "streaming offload: which of its objects are whole is not known"
    return ""


# -------------------------------------------------------------------------------------------------------------- commit


Place = tuple[str, str, tuple[tuple[str, str], ...]]
"""A namespace, and by what its brokers read offloaded ledgers: driver (in lower case) and its properties."""


def place_of(topic: Topic, attempt: Attempt) -> Place:
    """Where an attempt of a topic goes; one canary stands for all of a place."""
    return str(topic.namespace), attempt.driver.lower(), attempt.metadata


@dataclass(slots=True)
class Canary:
    """What brokers have read. ``waived``: only the sandbox may. ``store``: the metadata store's fingerprint.

    ``tiered_first``: topics whose brokers are known to read an offloaded copy as soon as there is one. ``seen``:
    places that such topics were read from, by this run or any before it.
    """

    waived: bool
    tiered_first: Collection[str] = ()
    seen: set[Place] = field(default_factory=set[Place])
    store: str = ""
    unseen: dict[Place, list[str]] = field(default_factory=dict[Place, list[str]])
    """Places that brokers could not read in this run: topics, and why."""
    _passed: set[tuple[Place, bool]] = field(default_factory=set[tuple[Place, bool]])

    def due(self, topic: Topic, attempt: Attempt) -> bool:
        """Whether this ledger must be read through its broker before any other is committed in this run."""
        return not self.waived and self._key(topic, attempt) not in self._passed

    def passes(self, topic: Topic, attempt: Attempt) -> bool:
        """Its broker has read this ledger; whether that shows that the place can be read, for the first time."""
        place, proves = self._key(topic, attempt)
        self._passed.add((place, proves))
        new = proves and place not in self.seen
        if new:
            self.seen.add(place)
        return new

    def _key(self, topic: Topic, attempt: Attempt) -> tuple[Place, bool]:
        return place_of(topic, attempt), str(topic) in self.tiered_first


CANARY_UNLOADS = 2
"""Unloads that a canary may take: after its commit, and after it is taken back."""

NO_UNLOADS = "its broker must read it first, and this run may unload no more (trimming.max_unloads)"


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
                outcomes.append(said_of(one.attempt, LEFT_TO_BROKER, NO_UNLOADS))
                record(run, tools, outcomes[-1:])
                continue
            committed = _commit(run, tools, permit, topic, [one], policy)
            outcomes += committed
            if committed[0].outcome == OFFLOADED:
                if unread := unread_by_broker(run, tools, permit, topic, [one], canary):
                    raise CanaryFailed(
                        f"{topic}: ledger {unread[0].ledger_id} was offloaded, and {unread[0].reason}; "
                        f"nothing else of {topic.namespace} was committed"
                    )
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
        replace(said_of(by_id[i].attempt, one.outcome, one.reason), bytes=by_id[i].bytes)
        for i, one in sorted(said.items())
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
            if attempt and not is_ours(item, attempt):
                why = obstacle(node, info, item.ledger_id, attempt.uuid)
                said[item.ledger_id] = Said(REFUSED, why) if why else Said(OFFLOADED, COMMITTED, changes=True)
                item = item if why else replace(item, offload=_complete(attempt, max(at, tools.clock.now_ms())))
            elif attempt:
                said[item.ledger_id] = Said(OFFLOADED, COMMITTED)
            ledgers.append(item)
        return replace(info, ledgers=tuple(ledgers)), said

    return change


COMMITTED = "its topic's metadata says so"


def is_ours(item: LedgerInfo, attempt: Attempt) -> bool:
    """Whether the topic names this attempt as complete."""
    return item.offload is not None and item.offload.complete and item.offload.uuid == attempt.uuid


def _complete(attempt: Attempt, now: int) -> OffloadContext:
    return OffloadContext(attempt.uuid, True, False, now, attempt.driver, dict(attempt.metadata))


def _forget(tools: Tools, proven: Sequence[Proven], committed: Sequence[Offloaded]) -> None:
    done = {one.ledger_id for one in committed if one.outcome == OFFLOADED}
    for one in proven:
        if one.attempt.ledger_id in done:
            attempts.end(tools.store, one.attempt)


def unread_by_broker(
    run: TopicRun,
    tools: Tools,
    permit: Permit,
    topic: Topic,
    committed: Sequence[Proven],
    canary: Canary,
    *,
    proves: bool = True,
) -> list[Offloaded]:
    """Nothing if its broker reads the first and the last entry of the first of these; else what became of them all.

    They are of one place. ``proves``: its broker loads the topic for that, so it cannot have opened BookKeeper's copy.
    """
    first = committed[0]
    attempt = first.attempt
    try:
        read_by_broker(run, tools, permit, topic, attempt.ledger_id, first.entries)
    except Unheard as unheard:
        return [said_of(one.attempt, FAILED, str(unheard)) for one in committed]
    except LifecycleError as error:
        why = unread(error, attempt)
    else:
        if proves and canary.passes(topic, attempt):
            record_seen(run, tools, topic, attempt, canary)
        return []
    uuids = {one.attempt.ledger_id: one.attempt.uuid for one in committed}
    try:
        said = edit_topic(run, tools, permit, topic, _taking_back(run, tools, topic, uuids, given_up=False), "")
    except STOPPING:
        raise
    except LifecycleError as failure:
        said = dict.fromkeys(uuids, Said(FAILED, f"whether it was taken back is not known, run again: {failure}"))
    taken_back = [
        replace(said_of(one.attempt, said[i].outcome, f"{why}; {said[i].reason}"), bytes=one.bytes)
        for i, one in ((one.attempt.ledger_id, one) for one in committed)
    ]
    record(run, tools, taken_back, {one.attempt.ledger_id: one.detail for one in committed})
    return taken_back


def why_unseen(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, attempt: Attempt, entries: int, canary: Canary
) -> Said | None:
    """Why no broker has shown that it can read the place of a complete offload; None once one has, in any run.

    If none has yet, its own broker reads this ledger, and its topic is loaded then. A few topics are asked in a run:
    one may be in trouble of its own. Raises Paused, LeaseLost.
    """
    place = place_of(topic, attempt)
    if canary.waived or place in canary.seen:
        return None
    asked = canary.unseen.setdefault(place, [])
    if len(asked) >= ASKED:
        return Said(FAILED, f"no broker has read its place yet, of {asked[0]}")
    permit.check(tools.store)
    try:
        if why := not_fresh(run, tools, permit, topic) or (NO_UNLOADS if permit.unloads.exhausted else ""):
            return Said(LEFT_TO_BROKER, f"no broker has read its place yet: {why}")
        read_by_broker(run, tools, permit, topic, attempt.ledger_id, entries)
    except STOPPING:
        raise
    except LifecycleError as error:
        why = unread(error, attempt)
        asked.append(f"{topic}: {why}")
        return Said(FAILED, why)
    if not canary.passes(topic, attempt):
        return Said(FAILED, BOOKKEEPER_FIRST)
    record_seen(run, tools, topic, attempt, canary)
    return None


ASKED = 3
"""Topics whose brokers could not read a place, after which no other is asked in a run."""


def not_fresh(run: TopicRun, tools: Tools, permit: Permit, topic: Topic) -> str:
    """Why a broker may answer from what it opened before; empty once it must load the topic to read it.

    A handle of BookKeeper's copy, once opened, serves reads whatever is first by now (ManagedLedgerImpl.ledgerCache).
    A loaded topic is unloaded for that, where the policy lets it be written.
    """
    if why := _owed_unload(tools.store, topic):
        return why
    node, info = standing.topic_node(tools.store, topic)
    loaded = why_loaded(tools.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    if not loaded:
        return ""
    if not run.writes_loaded(topic):
        return f"its topic counts as loaded ({loaded}), and {POLICY} does not name it"
    if permit.unloads.exhausted:
        return NO_UNLOADS
    owed = OwedUnload(topic, True, tools.clock.now_ms(), permit.guard[0])
    control.owe_unload(tools.store, owed)
    if failure := permit.unloads.unload(tools.admin, topic):
        return f"its topic is owed an unload: {failure}"
    control.settle_unload(tools.store, owed)
    return ""


class Unheard(Refused):
    """A broker may have a topic as it was before it was written: nothing that it reads shows anything."""


def read_by_broker(run: TopicRun, tools: Tools, permit: Permit, topic: Topic, ledger_id: int, entries: int) -> None:
    """Have its broker read the first and the last entry of an offloaded ledger. Raises Unheard, and what it says.

    A broker that still has the topic as it was before it was written reads BookKeeper: that proves nothing. Where the
    policy does not let loaded topics be written, it must not stay loaded because of this: it is owed an unload.
    """
    if why := _owed_unload(tools.store, topic):
        raise Unheard(f"whether its broker can read it is not known: {why}")
    if not run.writes_loaded(topic):
        control.owe_unload(tools.store, OwedUnload(topic, False, tools.clock.now_ms(), permit.guard[0]))
    for entry_id in dict.fromkeys((0, entries - 1)):
        tools.admin.read_entry(topic, Position(ledger_id, entry_id))


def unread(error: LifecycleError, attempt: Attempt) -> str:
    """Why a read through a broker has not shown that it can read this place."""
    if isinstance(error, Unavailable):
        return f"its broker did not answer when it was to read it from bucket {attempt.bucket}: {error}"
    return (
        f"its broker cannot read it from bucket {attempt.bucket}: {error} (give the brokers an offloader for "
        f"driver {attempt.driver} and this bucket)"
    )


def _owed_unload(store: MetadataStore, topic: Topic) -> str:
    """Why some broker may have a topic as it was before it was written; empty if none does."""
    owing = [one for one in control.owed_unloads(store) if one.topic == topic]
    watched = all(isinstance(one, OwedUnload) and not one.loaded for one in owing)
    return "" if watched else "its topic is owed an unload"


def take_back_topic(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, ledger_ids: Collection[int]
) -> list[Offloaded]:
    """Let a topic read offloaded ledgers from BookKeeper again, where it has them whole: for objects that are damaged.

    The objects stay; nothing names them any more. A ledger may then be offloaded anew. The caller holds the deletion
    lease, too: BookKeeper may still have what its topic gave up. Raises as ``edit_topic``.
    """
    permit.check(tools.store)
    planned = plan_take_back(run, tools, topic, ledger_ids, permit)
    outcomes = [one for one in planned if one.outcome != GOES]
    going = {one.ledger_id: UUID(one.uuid) for one in planned if one.outcome == GOES}
    if going:
        said = edit_topic(run, tools, permit, topic, _taking_back(run, tools, topic, going, given_up=True), POLICY)
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
        else:
            why = not_whole_in_bookkeeper(run, tools, topic, item, permit)
        outcome, reason = (REFUSED, why) if why else (GOES, _TAKEN_BACK)
        found.append(Offloaded(str(topic), ledger_id, outcome, reason, uuid=str(uuid or "")))
    return found


_TAKEN_BACK = "its topic reads it from BookKeeper again"


LOOK_EVERY = 2_000
"""How long (ms) a ledger is read without a look at the pause z-node and the lease."""


def not_whole_in_bookkeeper(
    run: TopicRun, tools: Tools, topic: Topic, item: LedgerInfo, permit: Permit | None = None
) -> str:
    """Why BookKeeper's copy cannot stand for the offloaded one; empty once every entry was read and verified.

    With a ``permit`` raises Paused and LeaseLost meanwhile.
    """
    if problem := without_bookkeeper(run, tools, topic, item.ledger_id):
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


def _taking_back(run: TopicRun, tools: Tools, topic: Topic, uuids: Mapping[int, UUID], *, given_up: bool) -> Change:
    """Offloads by ledger id that its topic's metadata is to forget; ``given_up``: even where it gave BookKeeper up."""

    def one(item: LedgerInfo) -> Said:
        offload = item.offload
        if offload is None:
            return Said(ROLLED_BACK, _TAKEN_BACK)
        if not offload.complete or offload.uuid != uuids[item.ledger_id]:
            return Said(FAILED, f"its topic names another offload by now, {offload.uuid}")
        if offload.bookkeeper_deleted and not given_up:
            return Said(FAILED, "its copy in BookKeeper is given up: it stays offloaded")
        if problem := without_bookkeeper(run, tools, topic, item.ledger_id):
            return Said(FAILED, f"it stays offloaded: {problem}")
        return Said(ROLLED_BACK, _TAKEN_BACK, changes=True)

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, Said]]:
        said = dict.fromkeys(uuids, Said(FAILED, "its topic does not list it any more"))
        said |= {item.ledger_id: one(item) for item in info.ledgers if item.ledger_id in uuids}
        back = {ledger_id for ledger_id, word in said.items() if word.changes}
        ledgers = tuple(replace(item, offload=None) if item.ledger_id in back else item for item in info.ledgers)
        return replace(info, ledgers=ledgers), said

    return change


def without_bookkeeper(run: TopicRun, tools: Tools, topic: Topic, ledger_id: int) -> str:
    """Why the copy in BookKeeper cannot be relied on; empty if it can."""
    row = standing.ledger_rows(tools.store, [ledger_id], run.ledgers_root)[ledger_id]
    return trimming.copy_of(ledger_id, row, topic).problem


# -------------------------------------------------------------------------------------------------------- the journal


def said_of(attempt: Attempt, outcome: str, reason: str) -> Offloaded:
    """What became of an attempt."""
    return Offloaded(attempt.topic, attempt.ledger_id, outcome, reason, uuid=str(attempt.uuid))


def record(
    run: TopicRun, tools: Tools, outcomes: Sequence[Offloaded], details: Mapping[int, Mapping[str, Any]] | None = None
) -> None:
    """One journal row per ledger; ``details`` by ledger id go beside its UUID."""
    now = tools.clock.now_ms()
    tools.journal.record(
        [journal_row(run.run_id, run.cluster, one, (details or {}).get(one.ledger_id, {}), now) for one in outcomes]
    )


def record_seen(run: TopicRun, tools: Tools, topic: Topic, attempt: Attempt, canary: Canary) -> None:
    """A broker was seen to read this ledger where it was offloaded to: the runs after this one may know that place."""
    namespace, driver, metadata = place_of(topic, attempt)
    detail = {"store": canary.store, "namespace": namespace, "driver": driver, "metadata": metadata}
    said, now = said_of(attempt, SEEN, "its broker reads it in the object store"), tools.clock.now_ms()
    row = journal_row(run.run_id, run.cluster, said, detail, now, action=READ_THROUGH_BROKER, phase=READ_THROUGH_BROKER)
    tools.journal.record([row])


def seen_place(detail: str, store: str) -> Place | None:
    """The place in the detail of a row of :func:`record_seen`; None if it is another store's, or not ours."""
    try:
        found = json.loads(detail)
        if found["store"] != store:
            return None
        pairs = tuple((str(name), str(value)) for name, value in found["metadata"])
        return str(found["namespace"]), str(found["driver"]), pairs
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


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
