"""Whether brokers can read what was offloaded: one of them reads a ledger, and that stands for a run.

Belongs here: when such a read shows anything, and of what; what was shown in this run and, by the journal, before it.
Not here: committing and taking back (``tiered/commit.py``), giving up BookKeeper's copies
(``tiered/bookkeeper_copies.py``).

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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.location import Copy, place_of, site_of
from pulsar_lifecycle.errors import AccessDenied, Failed, LifecycleError, Refused, Unavailable
from pulsar_lifecycle.journal.read_checks import AFTER, HELD
from pulsar_lifecycle.metastore.walk import MANAGED_LEDGERS_ROOT
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.copies import Place, Site
from pulsar_lifecycle.records.outcomes import READ_THROUGH_BROKER, SEEN, UNANSWERED, UNSEEN
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import OwedUnload
from pulsar_lifecycle.tiered.asked_entries import InconclusiveRead, entries_to_ask
from pulsar_lifecycle.tiered.outcome import POLICY, Offloaded, record
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.offload_policy import BOOKKEEPER_FIRST
from pulsar_lifecycle.topics.ownership import Owners
from pulsar_lifecycle.topics.unloads import RunGuard, is_gone
from pulsar_lifecycle.topics.write import FAILED, LEFT_TO_BROKER, STOPPING, Said, TopicRun, why_loaded

READ_CHECK_UNLOADS = 3
"""Unloads that having a ledger read may take: before it or after its commit, after it, and after it is taken back."""

READ_FIRST = "its broker must read it first"

ASKED = 3
"""Topics that a broker could not be asked for, after which it is asked for no other in a run."""


@dataclass(slots=True)
class ReadCheck:
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


class Unheld(Refused):
    """A broker could not read, and deletion runs that are under way could not be told: the run must stop."""


def read_by_broker(
    run: TopicRun, tools: Ports, permit: RunGuard, topic: Topic, copy: Copy, entries: Iterable[int]
) -> Said | None:
    """Why its broker does not read these entries of an offloaded ledger, ``unseen`` or ``unanswered``; None if it does.

    The read loads the topic, which is unloaded right after it, or stays owed that. One that fails holds its location
    first of all, whatever stops the run meanwhile. Only what the topic's metadata says by now discards it: that it
    names another offload, or none, or that there is no topic. Raises InconclusiveRead where the read was not made or
    shows nothing; Paused, LeaseLost, Overloaded.
    """
    owed = OwedUnload(topic, True, tools.clock.now_ms(), permit.guard[0])
    try:
        if why := _owed_unload(tools, topic):
            raise InconclusiveRead(f"whether its broker can read it is not known: {why}")
        control.owe_unload(tools.store, owed)
    except (*STOPPING, InconclusiveRead):
        raise
    except LifecycleError as error:
        raise InconclusiveRead(f"whether its broker can read it is not known: {error}") from error
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
        raise InconclusiveRead(f"where its broker looked for it is not known: {error}") from error
    if why:
        if isinstance(unread, HeldRead):
            with contextlib.suppress(LifecycleError):  # then the next read there that works lets it go
                unread_locations.withdraw(tools.store, site_of(copy), unread.hold)
        raise InconclusiveRead(f"where its broker looked for it is not known: its topic's metadata {why}")
    return unread


@dataclass(frozen=True, slots=True)
class HeldRead(Said):
    """A read that failed and holds its location by ``hold``."""

    hold: unread_locations.Hold = field(kw_only=True)


def _held(run: TopicRun, tools: Ports, topic: Topic, copy: Copy, unread: Said) -> Said:
    """A failed read whose location is held by now, where it says anything of that. Raises what the store raises."""
    if unread.outcome != UNSEEN or isinstance(unread, HeldRead):
        return unread
    made = unread_locations.hold(tools.store, site_of(copy), run.run_id, f"{topic}: {unread.reason}")
    return HeldRead(unread.outcome, unread.reason, unread.changes, hold=made)


@contextlib.contextmanager
def _unloaded_after(tools: Ports, permit: RunGuard, owed: OwedUnload) -> Iterator[None]:
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


def _unloaded(tools: Ports, permit: RunGuard, owed: OwedUnload) -> bool:
    gone = partial(is_gone, tools.store, tools.admin, tools.clock, owed)
    return not permit.unloads.unload(tools.admin, owed.topic, gone, written=False)


def location_before(tools: Ports, copy: Copy) -> Node | None:
    """``unread_locations.look`` before an offload is read: what that read may let go. Raises InconclusiveRead."""
    try:
        return unread_locations.look(tools.store, site_of(copy))
    except STOPPING:
        raise
    except LifecycleError as error:
        raise InconclusiveRead(f"whether its broker can read it is not known: {error}") from error


def record_seen(
    run: TopicRun,
    tools: Ports,
    topic: Topic,
    copy: Copy,
    canary: ReadCheck,
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
        mark = {AFTER: before.stat.mzxid} if before else {}
        _tell(run, tools, topic, copy, canary, Said(SEEN, "its broker reads it in the object store"), broker, mark)
        if site_of(copy) not in canary.blocked:
            unread_locations.let_go(tools.store, site_of(copy), before)
    canary.passed(topic, copy, proves=proves, broker=broker)


def record_unseen(run: TopicRun, tools: Ports, topic: Topic, copy: Copy, canary: ReadCheck, unread: Said) -> None:
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
        mark = {HELD: unread.hold.mzxid} if isinstance(unread, HeldRead) else {}
        _tell(run, tools, topic, copy, canary, unread, _broker_of(run, tools, topic, canary), mark)
    except LifecycleError as error:
        if not canary.unheld:
            raise
        canary.unheld += f"; the journal does not say so either: {error}"
    if canary.unheld:
        raise Unheld(canary.unheld)


def _broker_of(run: TopicRun, tools: Ports, topic: Topic, canary: ReadCheck) -> str:
    """The broker that was asked for a topic just now, if that is known."""
    with contextlib.suppress(LifecycleError):
        tools.store.sync("/")
        return canary.owners.of(tools.store, run.brokers, topic)
    return ""


def why_unseen(
    run: TopicRun, tools: Ports, permit: RunGuard, topic: Topic, copy: Copy, canary: ReadCheck
) -> Said | None:
    """Why no broker has shown in this run that it can read the location of an offload; None once its own has.

    If it has not, it reads this ledger, and its topic is loaded for that. Of a few topics at most: a broker may not
    answer. Once one could not read, none is asked there any more in this run. The caller has looked at its topic:
    whatever else speaks against a release comes first. Raises Paused, LeaseLost, Unheld, and InconclusiveRead where
    another ledger of its topic may be asked for.
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
    if lack := permit.unloads.lacks(READ_CHECK_UNLOADS) or permit.unloads.doubt(topic):
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
            canary.loaded[topic] = snapshot.topic_node(tools.store, topic)[0].stat.mzxid
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


def _not_fresh(run: TopicRun, tools: Ports, permit: RunGuard, topic: Topic, canary: ReadCheck) -> str:
    """Why a broker may answer from what it opened before; empty once it must load the topic to read it.

    A handle of BookKeeper's copy, once opened, serves reads whatever is first by now (ManagedLedgerImpl.ledgerCache).
    A loaded topic is unloaded for that, where the policy lets it be written, or it was loaded to be read before.
    """
    if why := _owed_unload(tools, topic):
        return why
    node, info = snapshot.topic_node(tools.store, topic)
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


def _owed_unload(tools: Ports, topic: Topic) -> str:
    """Why some broker may have a topic as it was before it was written; empty if none does."""
    owing = [one for one in control.owed_unloads(tools.store) if one.topic == topic]
    watched = all(isinstance(one, OwedUnload) and not one.loaded for one in owing)
    return "" if watched else "its topic is owed an unload"


def _named_otherwise(tools: Ports, topic: Topic, copy: Copy) -> str:
    """What a topic's metadata says, if not this very offload, once its broker was asked for the ledger; else empty.

    Raises what the store raises.
    """
    tools.store.sync("/")
    if tools.store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"])[0] is None:
        return "is not there any more"
    _, info = snapshot.topic_node(tools.store, topic)
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


def _tell(
    run: TopicRun,
    tools: Ports,
    topic: Topic,
    copy: Copy,
    canary: ReadCheck,
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
