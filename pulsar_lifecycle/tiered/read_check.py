"""Whether brokers can read what was offloaded: one of them reads a ledger, and that stands for a run.

Belongs here: when such a read shows anything, and of what; what was shown in this run and, by the journal, before it.
Not here: committing and reverting (``tiered/commit.py``), deleting BookKeeper's copies
(``tiered/bookkeeper_copies.py``).

A broker shows nothing of the bucket while it may read the ledger in BookKeeper: where it reads BookKeeper first, where
it has the topic as it was before it was written, or a handle of BookKeeper's copy still open, and where the topic's
metadata does not name this very offload. Before a commit one read stands for a namespace and location. Before copies in
BookKeeper are deleted, one stands for a location and the broker that made it; one that fails speaks against the
location whatever the namespace, in the rest of its run, and until a later one works there.

A read loads its topic. The topic is unloaded right after it, whatever came out; a run that is killed leaves it pending.
A read that fails holds its location (``unread_locations.py``) before anything else is done; one that works there, in a
later run, lets it go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.location import OffloadedCopy, location_of, namespace_location
from pulsar_lifecycle.errors import AccessDenied, Failed, LifecycleError, RefusedBy, Unavailable
from pulsar_lifecycle.journal.read_checks import ReadAt
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Position, Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.tiered.asked_entries import InconclusiveRead, entries_to_ask
from pulsar_lifecycle.tiered.outcome import POLICY, OffloadOutcome, record
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.bundle_owner import Owners
from pulsar_lifecycle.topics.offload_policy import BOOKKEEPER_FIRST
from pulsar_lifecycle.topics.unloads import RunGuard, UnloadAfter, is_gone
from pulsar_lifecycle.topics.write import STOPPING, EditOutcome, TopicRun, why_loaded
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import NamespaceLocation, OffloadLocation
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

READ_CHECK_UNLOADS = 3
"""Unloads that having a ledger read may take: before it or after its commit, after it, and after it is reverted."""

READ_FIRST = "its broker must read it first"

ASKED = 3
"""Topics that a broker could not be asked for, after which it is asked for no other in a run."""


@dataclass(slots=True)
class ReadCheck:
    """What brokers have read. ``waived``: only the sandbox may. ``store``: the metadata store's fingerprint.

    ``tiered_first``: topics whose brokers are known to read an offloaded copy as soon as there is one.
    ``passed_before``: locations of which the last word before this run was a read that worked, and when (ms) that was.
    ``not_asked``: topics that a broker (of a location) could not be asked for in this run, and why. ``blocked``:
    locations that a broker could not read in this run, and what was said of that. ``loaded_to_read``: topics that were
    loaded to be read, in this run, and what last wrote their z-nodes then (mzxid): a broker that loads one anew for its
    clients writes it, too. ``unheld``: why deletion runs could not be told of a read that failed in this run; then it
    must stop.
    """

    waived: bool
    tiered_first: Collection[str] = ()
    passed_before: dict[NamespaceLocation, int] = field(default_factory=dict[NamespaceLocation, int])
    store: str = ""
    not_asked: dict[tuple[OffloadLocation, str], dict[Topic, EditOutcome]] = field(
        default_factory=dict[tuple[OffloadLocation, str], dict[Topic, EditOutcome]]
    )
    blocked: dict[OffloadLocation, str] = field(default_factory=dict[OffloadLocation, str])
    unheld: str = ""
    loaded_to_read: dict[Topic, int] = field(default_factory=dict[Topic, int])
    owners: Owners = field(default_factory=Owners)
    _passed: set[tuple[NamespaceLocation, bool]] = field(default_factory=set[tuple[NamespaceLocation, bool]])
    _read: set[tuple[OffloadLocation, str]] = field(default_factory=set[tuple[OffloadLocation, str]])

    def due(self, topic: Topic, one: OffloadedCopy | Attempt) -> bool:
        """Whether this ledger must be read through its broker before any other is committed in this run."""
        return not self.waived and (namespace_location(topic, one), self.proves(topic)) not in self._passed

    def has_loaded(self, topic: Topic, node: Node) -> bool:
        """Whether nobody else has loaded a topic, whose z-node is ``node``, since it was loaded to be read."""
        return self.loaded_to_read.get(topic) == node.stat.mzxid

    def proves(self, topic: Topic) -> bool:
        """Whether a topic's broker reads the bucket, and not BookKeeper, where it can read both."""
        return str(topic) in self.tiered_first

    def has_passed(self, topic: Topic, attempt: Attempt) -> bool:
        """Whether the location of an attempt was read in this run, or last when the attempt was open, and it worked."""
        location = namespace_location(topic, attempt)
        return (location, True) in self._passed or self.passed_before.get(location, -1) >= attempt.since

    def reads(self, where: OffloadLocation, broker: str) -> bool:
        """Whether this broker has read the location in this run; where none is known (empty), whether any has."""
        return (where, broker) in self._read or (not broker and any(one == where for one, _ in self._read))

    def passed(self, topic: Topic, copy: OffloadedCopy, *, proves: bool, broker: str = "") -> None:
        """Its broker has read this ledger; ``proves``: in the bucket."""
        self._passed.add((namespace_location(topic, copy), proves))
        if proves:
            self._read.add((location_of(copy), broker))

    def failed(self, topic: Topic, copy: OffloadedCopy, unread: EditOutcome) -> None:
        """Its broker did not read it; where it could not, nothing counts any more that was read at its location."""
        location = namespace_location(topic, copy)
        self.passed_before.pop(location, None)
        self._passed -= {(location, True), (location, False)}
        if unread.outcome == Outcome.CHECK_FAILED:
            self.blocked.setdefault(location_of(copy), f"{topic}: {unread.reason}")


class Unheld(RefusedBy):
    """A broker could not read, and deletion runs that are under way could not be told: the run must stop."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNTOLD, message)


def read_by_broker(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, copy: OffloadedCopy, entries: Iterable[int]
) -> EditOutcome | None:
    """Why its broker does not read these entries of an offloaded ledger: it cannot, or gave no answer. None if it does.

    The read loads the topic, which is unloaded right after it, or that unload stays pending. One that fails holds its
    location first of all, whatever stops the run meanwhile. Only what the topic's metadata says by now discards it:
    that it names another offload, or none, or that there is no topic. Raises InconclusiveRead where the read was not
    made or shows nothing; Paused, LeaseLost, Overloaded.
    """
    pending = PendingUnload(topic, True, ports.clock.now_ms(), guard.guard[0])
    try:
        if why := _pending_unload(ports, topic):
            raise InconclusiveRead(f"whether its broker can read it is not known: {why}")
        control.note_unload(ports.store, pending)
    except (*STOPPING, InconclusiveRead):
        raise
    except LifecycleError as error:
        raise InconclusiveRead(f"whether its broker can read it is not known: {error}") from error
    unread: EditOutcome | None = None
    try:
        with _unloaded_after(ports, guard, pending):
            for entry_id in entries:
                try:
                    ports.admin.read_entry(topic, Position(copy.ledger_id, entry_id))
                except STOPPING:
                    raise
                except LifecycleError as error:
                    unread = _unread(error, copy)
                    with contextlib.suppress(LifecycleError):  # record_failed tries again, and tells where that fails
                        unread = _held(run, ports, topic, copy, unread)
                    raise
    except LifecycleError as error:
        if unread is None and isinstance(error, STOPPING):
            raise
        unread = unread or _unread(error, copy)
    try:
        why = _named_otherwise(ports, topic, copy)
    except LifecycleError as error:
        if unread:  # a failure is recorded whatever could not be looked at; what stops a run stops its next step
            return unread
        if isinstance(error, STOPPING):
            raise
        raise InconclusiveRead(f"where its broker looked for it is not known: {error}") from error
    if why:
        if isinstance(unread, HeldRead):
            with contextlib.suppress(LifecycleError):  # then the next read there that works lets it go
                unread_locations.withdraw(ports.store, location_of(copy), unread.hold)
        raise InconclusiveRead(f"where its broker looked for it is not known: its topic's metadata {why}")
    return unread


@dataclass(frozen=True, slots=True)
class HeldRead(EditOutcome):
    """A read that failed and holds its location by ``hold``."""

    hold: unread_locations.Hold = field(kw_only=True)


def _held(run: TopicRun, ports: Ports, topic: Topic, copy: OffloadedCopy, unread: EditOutcome) -> EditOutcome:
    """A failed read whose location is held by now, where it says anything of that. Raises what the store raises."""
    if unread.outcome != Outcome.CHECK_FAILED or isinstance(unread, HeldRead):
        return unread
    made = unread_locations.hold(ports.store, location_of(copy), run.run_id, f"{topic}: {unread.reason}")
    return HeldRead(unread.outcome, unread.why, unread.changes, hold=made)


@contextlib.contextmanager
def _unloaded_after(ports: Ports, guard: RunGuard, pending: PendingUnload) -> Iterator[None]:
    """Whatever loads a topic within, and whatever comes of it: the topic is unloaded, or stays ``pending`` that.

    A request without an answer may load it later: then it is looked at again at the end of the run.
    """
    try:
        yield
    except Exception:
        later = replace(pending, loaded=False, since=ports.clock.now_ms())
        if _unloaded(ports, guard, pending):
            with contextlib.suppress(LifecycleError):  # then it stays pending an unload at once
                control.note_unload(ports.store, later)
        raise
    if _unloaded(ports, guard, pending):
        with contextlib.suppress(LifecycleError):  # one left behind is ended once more
            control.finish_unload(ports.store, pending)


def _unloaded(ports: Ports, guard: RunGuard, pending: PendingUnload) -> bool:
    gone = partial(is_gone, ports.store, ports.admin, ports.clock, pending)
    return not guard.unloads.unload(ports.store, ports.admin, pending.topic, gone, UnloadAfter.OTHERS)


def location_before(ports: Ports, copy: OffloadedCopy) -> Node | None:
    """``unread_locations.look`` before an offload is read: what that read may let go. Raises InconclusiveRead."""
    try:
        return unread_locations.look(ports.store, location_of(copy))
    except STOPPING:
        raise
    except LifecycleError as error:
        raise InconclusiveRead(f"whether its broker can read it is not known: {error}") from error


def record_passed(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    copy: OffloadedCopy,
    read_check: ReadCheck,
    before: Node | None,
    *,
    proves: bool = True,
) -> None:
    """Its broker has read this ledger. ``proves``: it cannot have had BookKeeper's copy open.

    ``before``: :func:`location_before` the read. A location that could not be read in this run
    stays held until a later one: another broker's read says nothing of that failure.
    """
    proves = proves and read_check.proves(topic)
    broker = _broker_of(run, ports, topic, read_check)
    if proves:
        why = Why(Code.READ_CHECK_PASSED, "its broker reads it in the object store")
        where = replace(_read_at(topic, copy, read_check, broker), after=before.stat.mzxid if before else None)
        _tell(run, ports, topic, copy, EditOutcome(Outcome.CHECK_PASSED, why), where)
        if location_of(copy) not in read_check.blocked:
            unread_locations.let_go(ports.store, location_of(copy), before)
    read_check.passed(topic, copy, proves=proves, broker=broker)


def record_failed(
    run: TopicRun, ports: Ports, topic: Topic, copy: OffloadedCopy, read_check: ReadCheck, unread: EditOutcome
) -> None:
    """Its broker did not read this ledger. Raises Unheld where deletion runs that are under way could not be told."""
    read_check.failed(topic, copy, unread)
    try:
        unread = _held(run, ports, topic, copy, unread)
    except LifecycleError as error:
        read_check.unheld = (
            f"{topic}: {unread.reason}; deletion runs that are under way could not be told ({error}), and may delete "
            "copies in BookKeeper of what is offloaded there: end them with `pulsar-lifecycle pause`; this run stopped"
        )
    try:
        held = unread.hold.mzxid if isinstance(unread, HeldRead) else None
        where = _read_at(topic, copy, read_check, _broker_of(run, ports, topic, read_check))
        _tell(run, ports, topic, copy, unread, replace(where, held=held))
    except LifecycleError as error:
        if not read_check.unheld:
            raise
        read_check.unheld += f"; the journal does not say so either: {error}"
    if read_check.unheld:
        raise Unheld(read_check.unheld)


def _broker_of(run: TopicRun, ports: Ports, topic: Topic, read_check: ReadCheck) -> str:
    """The broker that was asked for a topic just now, if that is known."""
    with contextlib.suppress(LifecycleError):
        ports.store.sync("/")
        return read_check.owners.of(ports.store, run.brokers, topic)
    return ""


def why_unread(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, copy: OffloadedCopy, read_check: ReadCheck
) -> EditOutcome | None:
    """Why no broker has shown in this run that it can read the location of an offload; None once its own has.

    If it has not, it reads this ledger, and its topic is loaded for that. Of a few topics at most: a broker may not
    answer. Once one could not read, none is asked there any more in this run. The caller has looked at its topic:
    whatever else speaks against the deletion comes first. Raises Paused, LeaseLost, Unheld, and InconclusiveRead where
    another ledger of its topic may be asked for.
    """
    where = location_of(copy)
    if read_check.waived:
        return None
    if said := read_check.blocked.get(where):
        return _location_unread(Outcome.FAILED, f"its location could not be read in this run, of {said}")
    owner = read_check.owners.of(ports.store, run.brokers, topic)
    if read_check.reads(where, owner):
        return None
    asked = read_check.not_asked.setdefault((where, owner), {})
    if topic in asked:
        return asked[topic]
    if len(asked) >= ASKED:
        first, said = next(iter(asked.items()))
        return _location_unread(Outcome.FAILED, f"no broker has read its location yet, of {first}: {said.reason}")
    if not read_check.proves(topic):
        return EditOutcome(Outcome.FAILED, Why(Code.BOOKKEEPER_FIRST, BOOKKEEPER_FIRST))
    guard.check(ports.store)
    if lack := guard.unloads.lacks(READ_CHECK_UNLOADS) or guard.unloads.doubt(topic):
        return _location_unread(Outcome.LEFT_TO_BROKER, f"no broker has read its location yet: {lack}")
    entries = entries_to_ask(run, ports, topic, copy)
    try:
        if why := _not_fresh(run, ports, guard, topic, read_check):
            return _location_unread(Outcome.LEFT_TO_BROKER, f"no broker has read its location yet: {why}")
        before = location_before(ports, copy)
        unread = read_by_broker(run, ports, guard, topic, copy, entries)
        if unread:
            asked[topic] = EditOutcome(Outcome.FAILED, unread.why)
        else:
            read_check.loaded_to_read[topic] = snapshot.topic_node(ports.store, topic)[0].stat.mzxid
    except STOPPING:
        raise
    except LifecycleError as error:
        return _location_unread(Outcome.FAILED, f"no broker has read its location yet: {error}")
    try:
        if unread:
            record_failed(run, ports, topic, copy, read_check, unread)
        else:
            record_passed(run, ports, topic, copy, read_check, before)
    except (*STOPPING, Unheld):
        raise
    except LifecycleError as error:
        asked[topic] = _location_unread(Outcome.FAILED, f"no broker has read its location yet: {error}")
    return asked.get(topic)


def _location_unread(outcome: Outcome, text: str) -> EditOutcome:
    return EditOutcome(outcome, Why(Code.LOCATION_UNREAD, text))


def _not_fresh(run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, read_check: ReadCheck) -> Why | None:
    """Why a broker may answer from what it opened before; None once it must load the topic to read it.

    A handle of BookKeeper's copy, once opened, serves reads whatever is first by now (ManagedLedgerImpl.ledgerCache).
    A loaded topic is unloaded for that, where the policy lets it be written, or it was loaded to be read before.
    """
    if why := _pending_unload(ports, topic):
        return why
    node, info = snapshot.topic_node(ports.store, topic)
    loaded = why_loaded(ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    if not loaded:
        return None
    if not run.writes_loaded(topic) and not read_check.has_loaded(topic, node):
        return Why(Code.TOPIC_LOADED, f"its topic counts as loaded ({loaded}), and {POLICY} does not name it")
    pending = PendingUnload(topic, True, ports.clock.now_ms(), guard.guard[0])
    control.note_unload(ports.store, pending)
    if failure := guard.unloads.unload(ports.store, ports.admin, topic):
        return Why(Code.UNLOAD_PENDING, f"an unload of its topic is pending: {failure}")
    control.finish_unload(ports.store, pending)
    return None


def _pending_unload(ports: Ports, topic: Topic) -> Why | None:
    """Why some broker may have a topic as it was before it was written; None if none does."""
    pending = [one for one in control.pending_unloads(ports.store) if one.topic == topic]
    watched = all(isinstance(one, PendingUnload) and not one.loaded for one in pending)
    return None if watched else Why(Code.UNLOAD_PENDING, "an unload of its topic is pending")


def _named_otherwise(ports: Ports, topic: Topic, copy: OffloadedCopy) -> Why | None:
    """What a topic's metadata says, if not this very offload, once its broker was asked for the ledger; else None.

    Raises what the store raises.
    """
    ports.store.sync("/")
    if ports.store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"])[0] is None:
        return Why(Code.TOPIC_GONE, "is not there any more")
    _, info = snapshot.topic_node(ports.store, topic)
    item = next((item for item in info.ledgers if item.ledger_id == copy.ledger_id), None)
    named = OffloadedCopy.of_item(item, copy.entries) if item else None
    if named and (named.uuid, namespace_location(topic, named)) == (copy.uuid, namespace_location(topic, copy)):
        return None
    if item is None:
        return Why(Code.DELISTED, "does not list it any more")
    return Why(Code.COPY_DIFFERS, "names another offload or none by now")


def _unread(error: LifecycleError, copy: OffloadedCopy) -> EditOutcome:
    """What a failed read through a broker shows of this location."""
    bucket = dict(copy.metadata).get("bucket", "")
    if isinstance(error, Unavailable) and not isinstance(error, Failed):
        why = f"its broker did not answer when it was to read it from bucket {bucket}: {error}"
        return EditOutcome(Outcome.CHECK_UNANSWERED, Why(Code.READ_CHECK_UNANSWERED, why))
    if isinstance(error, AccessDenied):
        why = f"its broker could not be asked to read it from bucket {bucket}: {error} (see pulsar.token)"
        return EditOutcome(Outcome.CHECK_UNANSWERED, Why(Code.READ_CHECK_UNANSWERED, why))
    why = (
        f"its broker cannot read it from bucket {bucket}: {error} (give the brokers an offloader for "
        f"driver {copy.driver} and this bucket)"
    )
    return EditOutcome(Outcome.CHECK_FAILED, Why(Code.READ_CHECK_FAILED, why))


def _read_at(topic: Topic, copy: OffloadedCopy, read_check: ReadCheck, broker: str) -> ReadAt:
    return ReadAt(read_check.store, *namespace_location(topic, copy), broker)


def _tell(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    copy: OffloadedCopy,
    said: EditOutcome,
    where: ReadAt,
) -> None:
    """The runs after this one may know what a read has shown of a location."""
    what = OffloadOutcome(str(topic), copy.ledger_id, said.outcome, said.why, uuid=str(copy.uuid))
    record(run, ports, [what], {copy.ledger_id: (where,)}, action=Action.READ_CHECK, phase=Phase.READ_CHECK)
