"""Whether brokers can read what was offloaded: one of them reads a ledger, and that stands for a place, for a while.

Belongs here: when such a read shows anything, and of what; what was shown in this run and, by the journal, before it.
Not here: committing and taking back (``offloading.py``), giving up BookKeeper's copies (``release.py``).

A broker shows nothing of the bucket while it may read the ledger in BookKeeper: where it reads BookKeeper first, where
it has the topic as it was before it was written, or a handle of BookKeeper's copy still open, and where the topic's
metadata does not name this very offload. A read that fails ends what was shown of its place, whoever showed it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pulsar_lifecycle.engine import control, standing
from pulsar_lifecycle.engine.attempts import Attempt
from pulsar_lifecycle.engine.control import OwedUnload
from pulsar_lifecycle.engine.decision import Place, Tools
from pulsar_lifecycle.engine.offload_words import POLICY, Offloaded, record
from pulsar_lifecycle.engine.topic_write import FAILED, LEFT_TO_BROKER, STOPPING, Said, TopicRun, why_loaded
from pulsar_lifecycle.engine.unloads import Permit
from pulsar_lifecycle.errors import AccessDenied, CorruptFormat, Failed, LifecycleError, Refused, Unavailable
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, message
from pulsar_lifecycle.formats.compression import Compression
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.plan.offload import BOOKKEEPER_FIRST
from pulsar_lifecycle.plan.outcomes import READ_THROUGH_BROKER, SEEN, UNANSWERED, UNSEEN
from pulsar_lifecycle.ports import Unread

CANARY_UNLOADS = 2
"""Unloads that having a ledger read may take: before it or after its commit, and after it is taken back."""

READ_FIRST = "its broker must read it first"

SEEN_FOR = 24 * 3_600_000
"""How long (ms) a read stands for its place: credentials expire, and brokers are replaced."""

ASKED = 3
"""Topics whose brokers could not read a place, after which no other is asked in a run."""

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


@dataclass(slots=True)
class Canary:
    """What brokers have read. ``waived``: only the sandbox may. ``store``: the metadata store's fingerprint.

    ``tiered_first``: topics whose brokers are known to read an offloaded copy as soon as there is one. ``seen``:
    places that such topics were read from, in this run or of late. ``unseen``: topics whose brokers could not read a
    place in this run, and what was said of that. ``loaded``: topics that were loaded to be read, in this run.
    """

    waived: bool
    tiered_first: Collection[str] = ()
    seen: set[Place] = field(default_factory=set[Place])
    store: str = ""
    unseen: dict[Place, dict[Topic, Said]] = field(default_factory=dict[Place, dict[Topic, Said]])
    loaded: set[Topic] = field(default_factory=set[Topic])
    _passed: set[tuple[Place, bool]] = field(default_factory=set[tuple[Place, bool]])

    def due(self, topic: Topic, one: Copy | Attempt) -> bool:
        """Whether this ledger must be read through its broker before any other is committed in this run."""
        return not self.waived and (place_of(topic, one), self.proves(topic)) not in self._passed

    def proves(self, topic: Topic) -> bool:
        """Whether a topic's broker reads the bucket, and not BookKeeper, where it can read both."""
        return str(topic) in self.tiered_first

    def passed(self, topic: Topic, copy: Copy, *, proves: bool) -> None:
        """Its broker has read this ledger; ``proves``: in the bucket."""
        self._passed.add((place_of(topic, copy), proves))
        if proves:
            self.seen.add(place_of(topic, copy))

    def failed(self, topic: Topic, copy: Copy) -> None:
        """Its broker could not."""
        place = place_of(topic, copy)
        self.seen.discard(place)
        self._passed -= {(place, True), (place, False)}


class Unheard(Refused):
    """What a broker reads, or would read, shows nothing."""


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

    Where the policy does not let loaded topics be written, the topic must not stay loaded because of this: it is owed
    an unload. Raises Unheard where the read was not made or shows nothing; Paused, LeaseLost.
    """

    def owe() -> None:
        """Once more after the read, which may have loaded it at its very end."""
        if not run.writes_loaded(topic):
            control.owe_unload(tools.store, OwedUnload(topic, False, tools.clock.now_ms(), permit.guard[0]))

    try:
        if why := _owed_unload(tools, topic):
            raise Unheard(f"whether its broker can read it is not known: {why}")
        owe()
    except (*STOPPING, Unheard):
        raise
    except LifecycleError as error:
        raise Unheard(f"whether its broker can read it is not known: {error}") from error
    unread: Said | None = None
    try:
        for entry_id in entries:
            tools.admin.read_entry(topic, Position(copy.ledger_id, entry_id))
    except STOPPING:
        raise
    except LifecycleError as error:
        unread = _unread(error, copy)
    with contextlib.suppress(LifecycleError):  # it is noted already
        owe()
    _check_named(tools, topic, copy)
    return unread


def record_seen(run: TopicRun, tools: Tools, topic: Topic, copy: Copy, canary: Canary, *, proves: bool = True) -> None:
    """Its broker has read this ledger. ``proves``: it cannot have had BookKeeper's copy open."""
    proves = proves and canary.proves(topic)
    if proves:
        _tell(run, tools, topic, copy, canary, SEEN, "its broker reads it in the object store")
    canary.passed(topic, copy, proves=proves)


def record_unseen(run: TopicRun, tools: Tools, topic: Topic, copy: Copy, canary: Canary, unread: Said) -> None:
    """Its broker did not read this ledger."""
    canary.failed(topic, copy)
    _tell(run, tools, topic, copy, canary, unread.outcome, unread.reason)


def why_unseen(run: TopicRun, tools: Tools, permit: Permit, topic: Topic, copy: Copy, canary: Canary) -> Said | None:
    """Why no broker has shown of late that it can read the place of an offload; None once one has, in any run.

    If none has, its own broker reads this ledger, and its topic is loaded then. A few topics are asked in a run: one
    may be in trouble of its own. The caller has looked at its topic: whatever else speaks against a release comes
    first. Raises Paused, LeaseLost, and Unheard where another ledger of its topic may be asked for.
    """
    place = place_of(topic, copy)
    if canary.waived or place in canary.seen:
        return None
    asked = canary.unseen.setdefault(place, {})
    if topic in asked:
        return asked[topic]
    if len(asked) >= ASKED:
        first, said = next(iter(asked.items()))
        return Said(FAILED, f"no broker has read its place yet, of {first}: {said.reason}")
    if not canary.proves(topic):
        return Said(FAILED, BOOKKEEPER_FIRST)
    permit.check(tools.store)
    if lack := permit.unloads.lacks(CANARY_UNLOADS) or permit.unloads.doubt(topic):
        return Said(LEFT_TO_BROKER, f"no broker has read its place yet: {lack}")
    entries = entries_to_ask(run, tools, copy)
    try:
        if why := _not_fresh(run, tools, permit, topic):
            return Said(LEFT_TO_BROKER, f"no broker has read its place yet: {why}")
        unread = read_by_broker(run, tools, permit, topic, copy, entries)
        if unread:
            asked[topic] = Said(FAILED, unread.reason)
        else:
            canary.loaded.add(topic)
    except STOPPING:
        raise
    except LifecycleError as error:
        return Said(FAILED, f"no broker has read its place yet: {error}")
    try:
        if unread:
            record_unseen(run, tools, topic, copy, canary, unread)
        else:
            record_seen(run, tools, topic, copy, canary)
    except STOPPING:
        raise
    except LifecycleError as error:
        asked[topic] = Said(FAILED, f"no broker has read its place yet: {error}")
    return asked.get(topic)


def _not_fresh(run: TopicRun, tools: Tools, permit: Permit, topic: Topic) -> str:
    """Why a broker may answer from what it opened before; empty once it must load the topic to read it.

    A handle of BookKeeper's copy, once opened, serves reads whatever is first by now (ManagedLedgerImpl.ledgerCache).
    A loaded topic is unloaded for that, where the policy lets it be written.
    """
    if why := _owed_unload(tools, topic):
        return why
    node, info = standing.topic_node(tools.store, topic)
    loaded = why_loaded(tools.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    if not loaded:
        return ""
    if not run.writes_loaded(topic):
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


def _check_named(tools: Tools, topic: Topic, copy: Copy) -> None:
    """Raises Unheard unless a topic's metadata names this very offload, once its broker was asked for the ledger."""
    try:
        tools.store.sync("/")
        _, info = standing.topic_node(tools.store, topic)
    except LifecycleError as error:
        raise Unheard(f"where its broker looked for it is not known: {error}") from error
    item = next((item for item in info.ledgers if item.ledger_id == copy.ledger_id), None)
    named = item and Copy.of_item(item, copy.entries)
    if named is None or (named.uuid, place_of(topic, named)) != (copy.uuid, place_of(topic, copy)):
        what = "names another offload or none by now" if item else "does not list it any more"
        raise Unheard(f"where its broker looked for it is not known: its topic's metadata {what}")


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


def _tell(run: TopicRun, tools: Tools, topic: Topic, copy: Copy, canary: Canary, outcome: str, reason: str) -> None:
    """The runs after this one may know what a read has shown of a place."""
    namespace, driver, metadata = place_of(topic, copy)
    detail = {"store": canary.store, "namespace": namespace, "driver": driver, "metadata": metadata}
    said = Offloaded(str(topic), copy.ledger_id, outcome, reason, uuid=str(copy.uuid))
    named = {copy.ledger_id: detail}
    record(run, tools, [said], named, action=READ_THROUGH_BROKER, phase=READ_THROUGH_BROKER)


def seen_of_late(rows: Iterable[Mapping[str, Any]], store: str, now: int) -> set[Place]:
    """The places that brokers of this metadata store read last, and not too long before ``now`` (ms).

    ``rows`` are the journal's of action ``read-through-broker``.
    """
    sound = (row for row in rows if row["outcome"] != SEEN or row["at"] <= now)
    return {place for place, (at, unseen) in _last_words(sound, store).items() if not unseen and now - SEEN_FOR <= at}


def unseen_still(
    rows: Iterable[Mapping[str, Any]], store: str, now: int, noes: Collection[str] = (UNSEEN,)
) -> frozenset[Place]:
    """The places of which the last word of a broker of this metadata store is one of ``noes``; as above.

    Other words than these and ``seen`` do not count.
    """
    sound = (row for row in rows if row["outcome"] in noes or (row["outcome"] == SEEN and row["at"] <= now))
    return frozenset(place for place, (_, unseen) in _last_words(sound, store).items() if unseen)


def _last_words(rows: Iterable[Mapping[str, Any]], store: str) -> dict[Place, tuple[int, bool]]:
    """When (ms) each place was spoken of last, and whether that said no."""
    last: dict[Place, tuple[int, bool]] = {}
    for row in rows:
        if place := _place_in(row["detail"], store):
            word = row["at"], row["outcome"] != SEEN  # of two at once the one that says no
            last[place] = max(last.get(place, word), word)
    return last


def _place_in(detail: str, store: str) -> Place | None:
    """The place in the detail of a row; None if it is another store's, or not ours."""
    try:
        found = json.loads(detail)
        if found["store"] != store:
            return None
        pairs = tuple((str(name), str(value)) for name, value in found["metadata"])
        return str(found["namespace"]), str(found["driver"]), tuple(sorted(pairs))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
