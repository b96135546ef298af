"""Whether brokers can read what was offloaded: one of them reads a ledger, and that stands for a run.

Belongs here: when such a read shows anything, and of what; what was shown in this run and, by the journal, before it.
Not here: committing and taking back (``offloading.py``), giving up BookKeeper's copies (``release.py``).

A broker shows nothing of the bucket while it may read the ledger in BookKeeper: where it reads BookKeeper first, where
it has the topic as it was before it was written, or a handle of BookKeeper's copy still open, and where the topic's
metadata does not name this very offload. Before a commit one read stands for a namespace and place. Before copies in
BookKeeper are given up, one stands for a location and the broker that made it; one that fails speaks against the
location whatever the namespace, in the rest of its run, and until a later one works there.

A read loads its topic. The topic is unloaded right after it, whatever came out; a run that is killed owes the unload.
A read that fails holds its location (``unread_locations.py``) before anything else is done; one that works there, in a
later run, lets it go.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from pulsar_lifecycle.engine import control, standing, unread_locations
from pulsar_lifecycle.engine.attempts import Attempt
from pulsar_lifecycle.engine.control import OwedUnload
from pulsar_lifecycle.engine.decision import Place, Site, Tools
from pulsar_lifecycle.engine.inventory import MANAGED_LEDGERS_ROOT
from pulsar_lifecycle.engine.offload_words import POLICY, Offloaded, record
from pulsar_lifecycle.engine.ownership import Owners
from pulsar_lifecycle.engine.topic_write import FAILED, LEFT_TO_BROKER, STOPPING, Said, TopicRun, why_loaded
from pulsar_lifecycle.engine.unloads import Permit, is_gone
from pulsar_lifecycle.errors import AccessDenied, CorruptFormat, Failed, LifecycleError, Refused, Unavailable
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, message
from pulsar_lifecycle.formats.compression import Compression
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.plan.offload import BOOKKEEPER_FIRST
from pulsar_lifecycle.plan.outcomes import READ_THROUGH_BROKER, SEEN, UNANSWERED, UNSEEN
from pulsar_lifecycle.ports import Node, Unread

CANARY_UNLOADS = 3
"""Unloads that having a ledger read may take: before it or after its commit, after it, and after it is taken back."""

READ_FIRST = "its broker must read it first"

ASKED = 3
"""Topics that a broker could not be asked for, after which it is asked for no other in a run."""

LOOKED_AT = 20
"""Entries at each end of a ledger among which one must be that REST can show."""

HEADERS = 3_000
"""Bytes of a message's metadata that REST can show for certain: it puts them into headers, of 8 KiB in all."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A complete offload of a ledger, as its topic's metadata names it. ``metadata`` as in :class:`Attempt`."""

    ledger_id: int
    entries: int
    uuid: UUID
    driver: str
    metadata: tuple[tuple[str, str], ...]

    @classmethod
    def of_attempt(cls, attempt: Attempt, entries: int) -> Copy:
        """What an attempt's commit makes of it."""
        return cls(attempt.ledger_id, entries, attempt.uuid, attempt.driver, attempt.metadata)

    @classmethod
    def of_item(cls, item: LedgerInfo, entries: int) -> Copy | None:
        """What a topic's metadata says of a ledger; None if that is no complete offload."""
        offload = item.offload
        if offload is None or not (offload.complete and offload.uuid and offload.driver_name):
            return None
        return cls(item.ledger_id, entries, offload.uuid, offload.driver_name, tuple(offload.driver_metadata.items()))


def place_of(topic: Topic, one: Copy | Attempt) -> Place:
    """Where an offload of a topic is, or an attempt goes; one canary stands for all of a place."""
    return str(topic.namespace), one.driver.lower(), tuple(sorted(one.metadata))


def site_of(one: Copy | Attempt) -> Site:
    """The location of an offload, or where an attempt goes; other namespaces may have theirs there, too."""
    return site(one.driver, dict(one.metadata))


def site(driver: str, metadata: Mapping[str, str]) -> Site:
    """The location that a driver's properties name."""
    bucket, region, endpoint = (metadata.get(name, "") for name in ("bucket", "region", "serviceEndpoint"))
    return driver.lower(), bucket, region, endpoint.rstrip("/")


@dataclass(slots=True)
class Canary:
    """What brokers have read. ``waived``: only the sandbox may. ``store``: the metadata store's fingerprint.

    ``tiered_first``: topics whose brokers are known to read an offloaded copy as soon as there is one. ``seen``:
    places of which the last word before this run was a read that worked, and when (ms) that was. ``unseen``: topics
    that a broker (of a location) could not be asked for in this run, and why. ``blocked``: locations that a broker
    could not read in this run, and what was said of that. ``loaded``: topics that were loaded to be read, in this run,
    and what last wrote their z-nodes then (mzxid): a broker that loads one anew for its clients writes it, too.
    ``unheld``: why deletion runs could not be told of a read that failed in this run; then it must stop.
    """

    waived: bool
    tiered_first: Collection[str] = ()
    seen: dict[Place, int] = field(default_factory=dict[Place, int])
    store: str = ""
    unseen: dict[tuple[Site, str], dict[Topic, Said]] = field(default_factory=dict[tuple[Site, str], dict[Topic, Said]])
    blocked: dict[Site, str] = field(default_factory=dict[Site, str])
    unheld: str = ""
    loaded: dict[Topic, int] = field(default_factory=dict[Topic, int])
    owners: Owners = field(default_factory=Owners)
    _passed: set[tuple[Place, bool]] = field(default_factory=set[tuple[Place, bool]])
    _read: set[tuple[Site, str]] = field(default_factory=set[tuple[Site, str]])

    def due(self, topic: Topic, one: Copy | Attempt) -> bool:
        """Whether this ledger must be read through its broker before any other is committed in this run."""
        return not self.waived and (place_of(topic, one), self.proves(topic)) not in self._passed

    def has_loaded(self, topic: Topic, node: Node) -> bool:
        """Whether nobody else has loaded a topic, whose z-node is ``node``, since it was loaded to be read."""
        return self.loaded.get(topic) == node.stat.mzxid

    def proves(self, topic: Topic) -> bool:
        """Whether a topic's broker reads the bucket, and not BookKeeper, where it can read both."""
        return str(topic) in self.tiered_first

    def has_seen(self, topic: Topic, attempt: Attempt) -> bool:
        """Whether the place of an attempt was read in this run, or last when the attempt was open, and it worked."""
        place = place_of(topic, attempt)
        return (place, True) in self._passed or self.seen.get(place, -1) >= attempt.since

    def reads(self, where: Site, broker: str) -> bool:
        """Whether this broker has read the location in this run; where none is known (empty), whether any has."""
        return (where, broker) in self._read or (not broker and any(one == where for one, _ in self._read))

    def passed(self, topic: Topic, copy: Copy, *, proves: bool, broker: str = "") -> None:
        """Its broker has read this ledger; ``proves``: in the bucket."""
        self._passed.add((place_of(topic, copy), proves))
        if proves:
            self._read.add((site_of(copy), broker))

    def failed(self, topic: Topic, copy: Copy, unread: Said) -> None:
        """Its broker did not read it; where it could not, nothing counts any more that was read at its location."""
        place = place_of(topic, copy)
        self.seen.pop(place, None)
        self._passed -= {(place, True), (place, False)}
        if unread.outcome == UNSEEN:
            self.blocked.setdefault(site_of(copy), f"{topic}: {unread.reason}")


class Unheard(Refused):
    """What a broker reads, or would read, shows nothing."""


class Unheld(Refused):
    """A broker could not read, and deletion runs that are under way could not be told: the run must stop."""


class Unshown(Unheard):
    """It can be asked for none of a ledger's entries."""


def entries_to_ask(run: TopicRun, tools: Tools, copy: Copy) -> list[int]:
    """An entry at each end of a ledger that its broker can be asked for. Raises Unheard where REST can show none.

    Entries that consumers read well may get an error or no answer there: a message's metadata goes into headers, and a
    chunk is decompressed as if it were the whole (PersistentTopicsBase.generateResponseWithEntry, 4.0.7).
    """
    try:
        node = tools.store.read([ledger_path.ledger_path(copy.ledger_id, run.ledgers_root)])[0]
        if node is None:
            return list(dict.fromkeys((0, copy.entries - 1)))
        if isinstance(node, Unread):
            raise Unheard(f"which of its entries its broker can be asked for is not known: {node.reason}")
        metadata = ledger_metadata.decode(node.data)

        def first_shown(ids: Iterable[int]) -> int | None:
            one = (tools.reader.read(copy.ledger_id, metadata, i, i)[0] for i in ids)
            return next((entry.entry_id for entry in one if _shown_by_rest(entry.payload)), None)

        last = copy.entries - 1
        first = first_shown(range(min(LOOKED_AT, copy.entries)))
        if first is None:
            raise Unshown(
                f"none of its first {LOOKED_AT} entries can be asked for by REST (chunks of compressed messages, or "
                f"properties of over {HEADERS} bytes): another ledger of its namespace must be offloaded first"
            )
        found = first_shown(range(last, max(first, last - LOOKED_AT), -1))
        return [first] if found is None else [first, found]
    except (*STOPPING, Unheard):
        raise
    except LifecycleError as error:
        raise Unheard(f"which of its entries its broker can be asked for is not known: {error}") from error


def _shown_by_rest(payload: bytes) -> bool:
    try:
        entry = message.decode(payload)
    except CorruptFormat:
        return True  # as a broker sees it: whatever it says of it
    compressed = entry.compression is not Compression.NONE and not entry.encrypted
    return not (entry.chunk and compressed) and len(message.split(payload).metadata) <= HEADERS


def read_by_broker(
    run: TopicRun, tools: Tools, permit: Permit, topic: Topic, copy: Copy, entries: Iterable[int]
) -> Said | None:
    """Why its broker does not read these entries of an offloaded ledger, ``unseen`` or ``unanswered``; None if it does.

    The read loads the topic, which is unloaded right after it, or stays owed that. One that fails holds its location
    first of all, whatever stops the run meanwhile. Only what the topic's metadata says by now discards it: that it
    names another offload, or none, or that there is no topic. Raises Unheard where the read was not made or shows
    nothing; Paused, LeaseLost, Overloaded.
    """
    owed = OwedUnload(topic, True, tools.clock.now_ms(), permit.guard[0])
    try:
        if why := _owed_unload(tools, topic):
            raise Unheard(f"whether its broker can read it is not known: {why}")
        control.owe_unload(tools.store, owed)
    except (*STOPPING, Unheard):
        raise
    except LifecycleError as error:
        raise Unheard(f"whether its broker can read it is not known: {error}") from error
    unread: Said | None = None
    try:
        with _unloaded_after(tools, permit, owed):
            for entry_id in entries:
                try:
                    tools.admin.read_entry(topic, Position(copy.ledger_id, entry_id))
                except STOPPING:
                    raise
                except LifecycleError as error:
                    unread = _unread(error, copy)
                    with contextlib.suppress(LifecycleError):  # record_unseen tries again, and tells where that fails
                        unread = _held(run, tools, topic, copy, unread)
                    raise
    except LifecycleError as error:
        if unread is None and isinstance(error, STOPPING):
            raise
        unread = unread or _unread(error, copy)
    try:
        why = _named_otherwise(tools, topic, copy)
    except LifecycleError as error:
        if unread:  # a failure is recorded whatever could not be looked at; what stops a run stops its next step
            return unread
        if isinstance(error, STOPPING):
            raise
        raise Unheard(f"where its broker looked for it is not known: {error}") from error
    if why:
        if isinstance(unread, HeldRead):
            with contextlib.suppress(LifecycleError):  # then the next read there that works lets it go
                unread_locations.withdraw(tools.store, site_of(copy), unread.hold)
        raise Unheard(f"where its broker looked for it is not known: its topic's metadata {why}")
    return unread


@dataclass(frozen=True, slots=True)
class HeldRead(Said):
    """A read that failed and holds its location by ``hold``."""

    hold: unread_locations.Hold = field(kw_only=True)


def _held(run: TopicRun, tools: Tools, topic: Topic, copy: Copy, unread: Said) -> Said:
    """A failed read whose location is held by now, where it says anything of that. Raises what the store raises."""
    if unread.outcome != UNSEEN or isinstance(unread, HeldRead):
        return unread
    made = unread_locations.hold(tools.store, site_of(copy), run.run_id, f"{topic}: {unread.reason}")
    return HeldRead(unread.outcome, unread.reason, unread.changes, hold=made)


@contextlib.contextmanager
def _unloaded_after(tools: Tools, permit: Permit, owed: OwedUnload) -> Iterator[None]:
    """Whatever loads a topic within, and whatever comes of it: the topic is unloaded, or stays ``owed`` that.

    A request that was given up may load it later: then it is looked at again at the end of the run.
    """
    try:
        yield
    except Exception:
        later = replace(owed, loaded=False, since=tools.clock.now_ms())
        if _unloaded(tools, permit, owed):
            with contextlib.suppress(LifecycleError):  # then it stays owed an unload at once
                control.owe_unload(tools.store, later)
        raise
    if _unloaded(tools, permit, owed):
        with contextlib.suppress(LifecycleError):  # one left behind is settled once more
            control.settle_unload(tools.store, owed)


def _unloaded(tools: Tools, permit: Permit, owed: OwedUnload) -> bool:
    gone = partial(is_gone, tools.store, tools.admin, tools.clock, owed)
    return not permit.unloads.unload(tools.admin, owed.topic, gone, written=False)


def location_before(tools: Tools, copy: Copy) -> Node | None:
    """``unread_locations.look`` before an offload is read: what that read may let go. Raises Unheard."""
    try:
        return unread_locations.look(tools.store, site_of(copy))
    except STOPPING:
        raise
    except LifecycleError as error:
        raise Unheard(f"whether its broker can read it is not known: {error}") from error


def record_seen(
    run: TopicRun,
    tools: Tools,
    topic: Topic,
    copy: Copy,
    canary: Canary,
    before: Node | None,
    *,
    proves: bool = True,
) -> None:
    """Its broker has read this ledger. ``proves``: it cannot have had BookKeeper's copy open.

    ``before``: :func:`location_before` the read. A location that could not be read in this run
    stays held until a later one: another broker's read says nothing of that failure.
    """
    proves = proves and canary.proves(topic)
    broker = _broker_of(run, tools, topic, canary)
    if proves:
        mark = {_AFTER: before.stat.mzxid} if before else {}
        _tell(run, tools, topic, copy, canary, Said(SEEN, "its broker reads it in the object store"), broker, mark)
        if site_of(copy) not in canary.blocked:
            unread_locations.let_go(tools.store, site_of(copy), before)
    canary.passed(topic, copy, proves=proves, broker=broker)


def record_unseen(run: TopicRun, tools: Tools, topic: Topic, copy: Copy, canary: Canary, unread: Said) -> None:
    """Its broker did not read this ledger. Raises Unheld where deletion runs that are under way could not be told."""
    canary.failed(topic, copy, unread)
    try:
        unread = _held(run, tools, topic, copy, unread)
    except LifecycleError as error:
        canary.unheld = (
            f"{topic}: {unread.reason}; deletion runs that are under way could not be told ({error}), and may delete "
            "copies in BookKeeper of what is offloaded there: end them with `pulsar-lifecycle pause`; this run stopped"
        )
    try:
        mark = {_HELD: unread.hold.mzxid} if isinstance(unread, HeldRead) else {}
        _tell(run, tools, topic, copy, canary, unread, _broker_of(run, tools, topic, canary), mark)
    except LifecycleError as error:
        if not canary.unheld:
            raise
        canary.unheld += f"; the journal does not say so either: {error}"
    if canary.unheld:
        raise Unheld(canary.unheld)


def _broker_of(run: TopicRun, tools: Tools, topic: Topic, canary: Canary) -> str:
    """The broker that was asked for a topic just now, if that is known."""
    with contextlib.suppress(LifecycleError):
        tools.store.sync("/")
        return canary.owners.of(tools.store, run.brokers, topic)
    return ""


def why_unseen(run: TopicRun, tools: Tools, permit: Permit, topic: Topic, copy: Copy, canary: Canary) -> Said | None:
    """Why no broker has shown in this run that it can read the location of an offload; None once its own has.

    If it has not, it reads this ledger, and its topic is loaded for that. Of a few topics at most: a broker may not
    answer. Once one could not read, none is asked there any more in this run. The caller has looked at its topic:
    whatever else speaks against a release comes first. Raises Paused, LeaseLost, Unheld, and Unheard where another
    ledger of its topic may be asked for.
    """
    where = site_of(copy)
    if canary.waived:
        return None
    if said := canary.blocked.get(where):
        return Said(FAILED, f"its location could not be read in this run, of {said}")
    owner = canary.owners.of(tools.store, run.brokers, topic)
    if canary.reads(where, owner):
        return None
    asked = canary.unseen.setdefault((where, owner), {})
    if topic in asked:
        return asked[topic]
    if len(asked) >= ASKED:
        first, said = next(iter(asked.items()))
        return Said(FAILED, f"no broker has read its location yet, of {first}: {said.reason}")
    if not canary.proves(topic):
        return Said(FAILED, BOOKKEEPER_FIRST)
    permit.check(tools.store)
    if lack := permit.unloads.lacks(CANARY_UNLOADS) or permit.unloads.doubt(topic):
        return Said(LEFT_TO_BROKER, f"no broker has read its location yet: {lack}")
    entries = entries_to_ask(run, tools, copy)
    try:
        if why := _not_fresh(run, tools, permit, topic, canary):
            return Said(LEFT_TO_BROKER, f"no broker has read its location yet: {why}")
        before = location_before(tools, copy)
        unread = read_by_broker(run, tools, permit, topic, copy, entries)
        if unread:
            asked[topic] = Said(FAILED, unread.reason)
        else:
            canary.loaded[topic] = standing.topic_node(tools.store, topic)[0].stat.mzxid
    except STOPPING:
        raise
    except LifecycleError as error:
        return Said(FAILED, f"no broker has read its location yet: {error}")
    try:
        if unread:
            record_unseen(run, tools, topic, copy, canary, unread)
        else:
            record_seen(run, tools, topic, copy, canary, before)
    except (*STOPPING, Unheld):
        raise
    except LifecycleError as error:
        asked[topic] = Said(FAILED, f"no broker has read its location yet: {error}")
    return asked.get(topic)


def _not_fresh(run: TopicRun, tools: Tools, permit: Permit, topic: Topic, canary: Canary) -> str:
    """Why a broker may answer from what it opened before; empty once it must load the topic to read it.

    A handle of BookKeeper's copy, once opened, serves reads whatever is first by now (ManagedLedgerImpl.ledgerCache).
    A loaded topic is unloaded for that, where the policy lets it be written, or it was loaded to be read before.
    """
    if why := _owed_unload(tools, topic):
        return why
    node, info = standing.topic_node(tools.store, topic)
    loaded = why_loaded(tools.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    if not loaded:
        return ""
    if not run.writes_loaded(topic) and not canary.has_loaded(topic, node):
        return f"its topic counts as loaded ({loaded}), and {POLICY} does not name it"
    owed = OwedUnload(topic, True, tools.clock.now_ms(), permit.guard[0])
    control.owe_unload(tools.store, owed)
    if failure := permit.unloads.unload(tools.admin, topic):
        return f"its topic is owed an unload: {failure}"
    control.settle_unload(tools.store, owed)
    return ""


def _owed_unload(tools: Tools, topic: Topic) -> str:
    """Why some broker may have a topic as it was before it was written; empty if none does."""
    owing = [one for one in control.owed_unloads(tools.store) if one.topic == topic]
    watched = all(isinstance(one, OwedUnload) and not one.loaded for one in owing)
    return "" if watched else "its topic is owed an unload"


def _named_otherwise(tools: Tools, topic: Topic, copy: Copy) -> str:
    """What a topic's metadata says, if not this very offload, once its broker was asked for the ledger; else empty.

    Raises what the store raises.
    """
    tools.store.sync("/")
    if tools.store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"])[0] is None:
        return "is not there any more"
    _, info = standing.topic_node(tools.store, topic)
    item = next((item for item in info.ledgers if item.ledger_id == copy.ledger_id), None)
    named = item and Copy.of_item(item, copy.entries)
    if named and (named.uuid, place_of(topic, named)) == (copy.uuid, place_of(topic, copy)):
        return ""
    return "names another offload or none by now" if item else "does not list it any more"


def _unread(error: LifecycleError, copy: Copy) -> Said:
    """What a failed read through a broker shows of this place."""
    bucket = dict(copy.metadata).get("bucket", "")
    if isinstance(error, Unavailable) and not isinstance(error, Failed):
        why = f"its broker did not answer when it was to read it from bucket {bucket}: {error}"
        return Said(UNANSWERED, why)
    if isinstance(error, AccessDenied):
        return Said(
            UNANSWERED, f"its broker could not be asked to read it from bucket {bucket}: {error} (see pulsar.token)"
        )
    return Said(
        UNSEEN,
        f"its broker cannot read it from bucket {bucket}: {error} (give the brokers an offloader for "
        f"driver {copy.driver} and this bucket)",
    )


# -------------------------------------------------------------------------------------------------------- the journal


_HELD, _AFTER = "held", "after"
"""In the detail of a row: the mzxid with which a failed read held its location, and the one that a read that worked
found there before it began. They tell which was first, whatever the clocks say."""


def _tell(
    run: TopicRun,
    tools: Tools,
    topic: Topic,
    copy: Copy,
    canary: Canary,
    said: Said,
    broker: str,
    mark: Mapping[str, int],
) -> None:
    """The runs after this one may know what a read has shown of a place."""
    namespace, driver, metadata = place_of(topic, copy)
    place = {"namespace": namespace, "driver": driver, "metadata": metadata}
    detail = {"store": canary.store, **place, "broker": broker, **mark}
    what = Offloaded(str(topic), copy.ledger_id, said.outcome, said.reason, uuid=str(copy.uuid))
    record(run, tools, [what], {copy.ledger_id: detail}, action=READ_THROUGH_BROKER, phase=READ_THROUGH_BROKER)


def seen_places(rows: Iterable[Mapping[str, Any]], store: str, now: int) -> dict[Place, int]:
    """The places that brokers of this metadata store read when they were asked last, and when (ms) that was.

    ``rows`` are the journal's of action ``read-through-broker``; what a clock dated later than ``now`` (ms) shows
    nothing.
    """
    last: dict[Place, tuple[int, bool]] = {}
    for row in _sound(rows, now):
        if found := _place_in(row["detail"], store):
            word = row["at"], row["outcome"] != SEEN  # of two at once the one that says no
            last[found[0]] = max(last.get(found[0], word), word)
    return {place: at for place, (at, unseen) in last.items() if not unseen}


def unseen_sites(
    rows: Iterable[Mapping[str, Any]], store: str, now: int, noes: Collection[str] = (UNSEEN,)
) -> frozenset[Site]:
    """The locations of which a broker of this metadata store has said one of ``noes``, and that none has read since.

    A read in the same run by another broker does not count: what it could read the first one could not. Other words
    than these and ``seen`` do not count; ``rows`` as above. What is dated later than ``now`` was said by a clock that
    was ahead: such an ``unseen`` stands until a read that began after its location was held, an ``unanswered``, which
    holds none, not at all.
    """
    words = [row for row in _sound(rows, now) if row["outcome"] in (*noes, SEEN)]
    left: dict[Site, set[_No]] = {}
    reads: dict[Site, list[_Read]] = {}
    for row in sorted(words, key=lambda row: (row["at"], row["outcome"] != SEEN)):  # of two at once the no stands
        if not (found := _place_in(row["detail"], store)) or (row["outcome"] == UNANSWERED and row["at"] > now):
            continue
        (_, driver, metadata), broker = found
        where = site(driver, dict(metadata))
        noes_there = left.setdefault(where, set())
        if row["outcome"] == SEEN:
            read = _Read(row["run_id"], broker, _mark(row["detail"], _AFTER))
            reads.setdefault(where, []).append(read)
            noes_there -= {no for no in noes_there if read.speaks_for(no)}
        else:
            noes_there.add(_No(row["run_id"], broker, _mark(row["detail"], _HELD)))
    for where, some in reads.items():
        left[where] -= {
            no for no in left[where] if any(0 < no.held <= one.after and one.speaks_for(no) for one in some)
        }
    return frozenset(where for where, noes_there in left.items() if noes_there)


@dataclass(frozen=True, slots=True)
class _No:
    """A read that failed; ``held``: the mzxid of the z-node that says so, 0 if none does."""

    run_id: str
    broker: str
    held: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that worked; ``after``: the mzxid of its location's z-node when it began, 0 if there was none."""

    run_id: str
    broker: str
    after: int

    def speaks_for(self, no: _No) -> bool:
        """Whether it says anything of what that one could not read."""
        return no.run_id != self.run_id or bool(self.broker and no.broker == self.broker)


def _mark(detail: str, name: str) -> int:
    """One of the marks in the detail of a row that :func:`_place_in` has decoded."""
    mark = json.loads(detail).get(name, 0)
    return mark if type(mark) is int else 0


def _sound(rows: Iterable[Mapping[str, Any]], now: int) -> Iterator[Mapping[str, Any]]:
    return (row for row in rows if row["outcome"] != SEEN or row["at"] <= now)


def _place_in(detail: str, store: str) -> tuple[Place, str] | None:
    """The place and the broker in the detail of a row; None if it is another store's, or not ours."""
    try:
        found = json.loads(detail)
        if found["store"] != store:
            return None
        pairs = tuple((str(name), str(value)) for name, value in found["metadata"])
        place = str(found["namespace"]), str(found["driver"]), tuple(sorted(pairs))
        return place, str(found.get("broker", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
