"""The repair of one subscription, and its undo: snapshots are written, then its cursor's properties are exchanged.

Belongs here: whether a subscription is as planned and may be edited, the order of note, snapshots, edit. Not here:
beginning a launch (``repair_run.py``), the edit itself and why it is safe (``edit.py``). Nothing is deleted but new
snapshots that no cursor came to name: old ones are left to the plan of orphans. The lake keeps what they hold
(``archived_snapshots.py``): an undo writes anew those that are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.delayed_index.repair.archived_snapshots import NewLedger, had, keep, kept_of
from pulsar_lifecycle.delayed_index.repair.begun_snapshots import SNAPSHOT, BegunSnapshot, NewSnapshot, resolve
from pulsar_lifecycle.delayed_index.repair.edit import Edit, Edited, Keys, write_keys
from pulsar_lifecycle.delayed_index.repair.levels import RepairLevel, goal_of
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.index_reading import (
    IndexPorts,
    StoredTopic,
    read_entries,
    read_topic,
    snapshot_entries,
)
from pulsar_lifecycle.delayed_index.stored.subscription import StoredSubscription
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_BUCKET, LedgerMetadata
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import ArchivedSnapshot, JournalReader, LedgerWriter, Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer, details_of
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, STOPPING, TopicRun, checked_path, left_loaded, why_loaded
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

TRIES = 3
"""How often a topic is unloaded and its cursor tried to be edited."""
MAX_ENTRY_BYTES = 5 << 20
"""Pulsar's ``maxMessageSize``: what its bookies take (``nettyMaxFrameSizeBytes``) is little more."""
STEP = Step(Action.REPAIR_INDEX, Phase.REPAIR_INDEX)
UNDO = "undo"
"""In place of a repair's level, of what gave its buckets back."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of a subscription."""

    topic: str
    subscription: str
    level: str
    outcome: Outcome
    why: Why
    before: Keys
    after: Keys


@dataclass(frozen=True, slots=True)
class RepairDetail:
    """Details of a journal row: the subscription's cursor, and its bucket properties before and after."""

    subscription: str
    path: str
    czxid: int
    level: str
    before: Keys
    after: Keys


@dataclass
class SubscriptionRepairs:
    """Some subscriptions, one after the other, for one launch; without a ``guard`` a dry run."""

    run: TopicRun
    ports: Ports
    reading: IndexPorts
    writer: LedgerWriter
    broker: DelayedIndexSettings
    journal: Writer
    journal_reader: JournalReader
    guard: RunGuard | None
    unloaded: dict[Topic, tuple[int, int]] = field(default_factory=dict[Topic, tuple[int, int]])
    """Topics that were unloaded for this: czxid and version of the z-node that each had by then."""

    def one(self, row: Mapping[str, Any]) -> Repaired:
        """Repair a subscription of the plan."""
        before = dict(one.rpartition("=")[::2] for one in row["buckets"])
        subject = _Subject(Topic.parse(row["topic"]), row["subscription"], row["level"], before, row["bytes"])
        return self._guarded(subject, lambda: self._repaired(subject))

    def back(self, row: Mapping[str, Any]) -> Repaired:
        """Undo the repair that a row of the journal is of."""
        edit = details_of(RepairDetail, row["detail"])
        assert edit is not None  # of rows that have it
        subject = _Subject(Topic.parse(row["topic"]), edit.subscription, UNDO, edit.after, 0)
        if edit.level == UNDO:
            return self._said(subject, Outcome.NOTHING, Why(Code.NOT_THERE, "it has its buckets back already"))
        return self._guarded(subject, lambda: self._undone(subject, edit))

    def _guarded(self, subject: _Subject, work: Callable[[], Repaired]) -> Repaired:
        if self.guard:
            self.guard.check(self.ports.store)
        try:
            return work()
        except STOPPING:
            raise
        except RefusedBy as refusal:
            return self._said(subject, Outcome.LEFT, why_refused(refusal))
        except LifecycleError as error:
            return self._said(subject, Outcome.FAILED, Why(Code.SERVER_FAILED, str(error)))

    def _repaired(self, subject: _Subject) -> Repaired:
        self.ports.store.sync("/")
        stored = read_topic(
            self.reading, subject.topic, self.run.ledgers_root, subject.cursor, unbucketed=not subject.before
        )
        if why := self._kept(subject, stored):
            return self._said(subject, Outcome.LEFT, why)
        one = stored.subscriptions[0]
        subject = replace(subject, before={bucket.key: bucket.value for bucket in one.buckets})
        level = RepairLevel(subject.level)
        entries = read_entries(self.reading, stored, self.run.ledgers_root)
        if entries.unread:
            why = next(iter(entries.unread.values()))
            return self._said(subject, Outcome.LEFT, Why(Code.UNREAD, f"its topic cannot be read whole: {why}"))
        now = self.ports.clock.now_ms()
        found = judge(one, entries, now)
        goal = goal_of(level, one, found, entries, self.broker, now)
        kept = {bucket.key: bucket.value for bucket in goal.kept}
        if not goal.new and kept == dict(subject.before):
            return self._said(subject, Outcome.NOTHING, Why(Code.NOT_THERE, "by now it needs no repair"))
        if self.guard is None:
            keys = kept | {new.key: "(new)" for new in goal.new}
            return self._said(subject, Outcome.GOES, Why(Code.MAY_GO, "it is to be repaired"), keys)
        gone = [bucket for bucket in one.buckets if kept.get(bucket.key) != bucket.value]
        about = ArchivedSnapshot(
            self.journal.run_id, self.journal.cluster, str(subject.topic), subject.cursor, "", -1, b"", (), now
        )
        keep(self.ports.journal, self.reading, self.run.ledgers_root, gone, about)
        bookies = self._bookies(one, stored) if goal.new else (1, 1, 1)
        new = [(one.key, one.entries, bookies) for one in goal.new]
        after = self._written(subject, new, kept)
        return self._exchange(subject, Edit(one.path, one.czxid, subject.before, after), kept, self.guard)

    def _undone(self, subject: _Subject, edit: RepairDetail) -> Repaired:
        stored = read_topic(self.reading, subject.topic, self.run.ledgers_root, subject.cursor)
        if stored.unread:
            return self._said(subject, Outcome.LEFT, Why(Code.UNREAD, next(iter(stored.unread.values()))))
        before = edit.before
        current = {b.key: b.value for one in stored.subscriptions for b in one.buckets}
        if current == dict(before):
            return self._said(subject, Outcome.NOTHING, Why(Code.NOT_THERE, "it has the buckets that it had"), before)
        if why := self._protected(subject, stored):
            return self._said(subject, Outcome.LEFT, why)
        owner = str(subject.topic), subject.cursor
        kept = kept_of(self.journal_reader, self.journal.cluster, *owner, before)
        goal, new = had(self.reading, self.run.ledgers_root, kept, before, current, subject.before)
        if not new and goal == current:
            return self._said(subject, Outcome.NOTHING, Why(Code.NOT_THERE, "it has what it had"), goal)
        if current != dict(subject.before):
            why = Why(Code.CHANGED_MEANWHILE, "it has other buckets than the repair gave it")
            return self._said(subject, Outcome.LEFT, why)
        _check_ranges([*goal, *(key for key, _, _ in new)])
        if self.guard is None:
            keys = goal | {key: "(new)" for key, _, _ in new}
            return self._said(subject, Outcome.GOES, Why(Code.MAY_GO, "it is to get its buckets back"), keys)
        after = self._written(subject, new, goal)
        return self._exchange(subject, Edit(edit.path, edit.czxid, subject.before, after), goal, self.guard)

    # ------------------------------------------------------------------------------------------------------ may it be

    def _kept(self, subject: _Subject, stored: StoredTopic) -> Why | None:
        """Why a subscription is left alone; None if it may be repaired."""
        if stored.unread:
            return Why(Code.UNREAD, next(iter(stored.unread.values())))
        if not stored.subscriptions:
            text = "it has no buckets any more" if subject.before else "it is gone"
            return Why(Code.NOT_THERE, text)
        current = {bucket.key: str(bucket.ledger_id) for bucket in stored.subscriptions[0].buckets}
        if current != dict(subject.before):  # a plan has -1 where the property names no ledger
            return Why(Code.CHANGED_SINCE_PLAN, "it has other buckets than the plan says")
        return self._protected(subject, stored)

    def _protected(self, subject: _Subject, stored: StoredTopic) -> Why | None:
        source = snapshot.shadow_source(self.ports.store, subject.topic, stored.info)
        if why := self.run.topic_rule(subject.topic, source, SHADOWS_SEEN_FOR):
            return why
        return self._not_ours(subject.topic, stored.info, self._loaded(subject.topic, stored.node, stored.info))

    def _not_ours(self, topic: Topic, info: ManagedLedgerInfo, loaded: Why | None) -> Why | None:
        """Why a topic's cursors must not be written as it is now: true at one moment, and at the next perhaps not."""
        if info.terminated is not None:
            return Why(Protection.TERMINATED, "its topic is terminated: brokers load it without writing its z-node")
        if loaded is None:
            return None
        policy, guard = "delayed_index.loaded_topics", self.guard
        return left_loaded(self.run, self.ports, topic, loaded, policy, guard=guard, dry_run=guard is None)

    def _loaded(self, topic: Topic, node: Node, info: ManagedLedgerInfo) -> Why | None:
        """Why it counts as loaded; None also where its z-node is as it was when it was unloaded for this."""
        if self.unloaded.get(topic) == (node.stat.czxid, node.stat.version):
            return None
        return self._counts_as_loaded(topic, node, info)

    def _counts_as_loaded(self, topic: Topic, node: Node, info: ManagedLedgerInfo) -> Why | None:
        run = self.run
        return why_loaded(self.ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)

    # ----------------------------------------------------------------------------------------------------- effects

    def _written(self, subject: _Subject, wanted: Sequence[NewLedger], kept: Keys) -> dict[str, str]:
        """Write new snapshots, read each back, and return all keys that the cursor is to have."""
        keys, root = dict(kept), self.run.ledgers_root
        ports, made = self.ports, list[int]()
        try:
            for key, entries, bookies in wanted:
                assert self.guard is not None
                self.guard.check(ports.store)
                _check_sizes(key, entries)
                storage = BookKeeperBucketStorage(
                    ports.store, ports.reader, self.writer, bookies, root, lambda i: self._note_snapshot(subject, i)
                )
                ledger_id = storage.create_bucket_snapshot(entries, key, str(subject.topic), subject.cursor)
                made.append(ledger_id)
                keys[key] = str(ledger_id)
                (metadata,) = stored_references.metadata_of(ports.store, [ledger_id], root)
                if not isinstance(metadata, LedgerMetadata):
                    raise metadata
                if snapshot_entries(self.reading, ledger_id, metadata) != list(entries):
                    raise RefusedBy(
                        Code.SNAPSHOT_UNREAD, f"new snapshot {ledger_id} does not read back as it was written"
                    )
            _check_ranges(keys)
        except BaseException:
            self._discard(subject, made)
            raise
        return keys

    def _bookies(self, one: StoredSubscription, stored: StoredTopic) -> tuple[int, int, int]:
        """Ensemble and quorums for new snapshots: those of the old ones, else of the topic's newest ledger."""
        for bucket in one.buckets:
            if bucket.bookies is not None:
                return bucket.bookies
        ids = sorted((info.ledger_id for info in stored.info.ledgers), reverse=True)
        for known in stored_references.metadata_of(self.ports.store, ids, self.run.ledgers_root):
            if isinstance(known, LedgerMetadata):
                return known.ensemble_size, known.write_quorum, known.ack_quorum
        raise RefusedBy(Code.ENSEMBLE_UNKNOWN, "no ledger says on how many bookies a snapshot is to be")

    def _exchange(self, subject: _Subject, edit: Edit, kept: Keys, guard: RunGuard) -> Repaired:
        """Edit the cursor; what was written for that, unlike what is ``kept``, goes where it comes to nothing."""
        said = self._edited(subject, edit, guard)
        self._discard(subject, [int(value) for key, value in edit.after.items() if kept.get(key) != value])
        return said

    def _edited(self, subject: _Subject, edit: Edit, guard: RunGuard) -> Repaired:
        """Note it, then edit the cursor while no broker has the topic."""
        store = self.ports.store
        about = Why(Code.ABOUT_TO, "its bucket properties are exchanged next")
        self._record(subject, Outcome.BEGUN, about, edit)
        for _ in range(TRIES):
            guard.check(store)
            found = self._at_rest(subject.topic, guard)
            if isinstance(found, Why):
                return self._said(subject, Outcome.LEFT, found, edit=edit)
            node, checked = found
            snapshots = self._snapshots(edit.after)
            if None in store.read(snapshots):  # a broker that had the topic deletes one before its property
                why = Why(Code.CHANGED_MEANWHILE, "a snapshot that it is to have was deleted meanwhile")
                return self._said(subject, Outcome.LEFT, why, edit=edit)
            checks = [*((path, -1) for path in (*snapshots, checked)), guard.guard]
            edited = write_keys(store, edit, node, checks)
            if edited is Edited.DONE:
                return self._said(
                    subject, Outcome.DONE, Why(Code.REPAIRED, "its bucket properties were exchanged"), edit=edit
                )
            if edited is Edited.CHANGED:
                why = Why(Code.CHANGED_MEANWHILE, "its bucket properties changed meanwhile")
                return self._said(subject, Outcome.LEFT, why, edit=edit)
        why = Why(Code.CHANGED_MEANWHILE, f"its topic was loaded or written at each of {TRIES} tries")
        return self._said(subject, Outcome.LEFT, why, edit=edit)

    def _snapshots(self, keys: Keys) -> list[str]:
        """The z-nodes of the ledgers that bucket properties name."""
        return [ledger_path(int(one), self.run.ledgers_root) for one in keys.values()]

    def _at_rest(self, topic: Topic, guard: RunGuard) -> tuple[Node, str] | Why:
        """The z-node of a topic that no broker has, or had until it was made to unload it; and the ``checked_path``.

        No broker has it as long as nobody writes that z-node. Why not, where the topic is not to be unloaded or cannot.
        """
        store = self.ports.store
        store.sync("/")
        node, info = snapshot.topic_node(store, topic)
        loaded = self._loaded(topic, node, info)
        if why := self._not_ours(topic, info, loaded):
            return why
        if loaded:
            guard.unloads.wait()
            # An unload loads what no broker has, first, and that writes the z-node: so it is loaded before it is read.
            with contextlib.suppress(LifecycleError):  # what fails here fails the unload, too
                self.ports.admin.internal_stats(topic)
            store.sync("/")
            node, info = snapshot.topic_node(store, topic)
            if why := self._not_ours(topic, info, loaded):
                return why
        checked = checked_path(store, self.run.ledgers_root, topic, node, info)
        if loaded:
            if failure := guard.unloads.unload(self.ports.store, self.ports.admin, topic):
                return failure
            self.unloaded[topic] = node.stat.czxid, node.stat.version
        return node, checked

    def _discard(self, subject: _Subject, ledgers: Sequence[int]) -> None:
        """Delete new snapshots that no cursor came to name; what cannot be deleted now, the next run resolves."""
        with contextlib.suppress(LifecycleError):
            self.resolve([BegunSnapshot(one, subject.topic, subject.cursor) for one in ledgers], lambda _: False)

    def resolve(self, begun: Sequence[BegunSnapshot], is_loaded: Callable[[Topic], bool]) -> None:
        """Find out, and say, what became of new snapshots; see ``begun_snapshots.py``."""
        if begun and self.guard:
            self.guard.check(self.ports.store)
            for one, outcome, why in resolve(
                self.ports.store, self.run.ledgers_root, begun, self.guard.guard, is_loaded
            ):
                self._snapshot_row(one, outcome, why)

    def is_loaded(self, topic: Topic) -> bool:
        """Whether some broker may have a topic loaded; so it counts where that cannot be told."""
        try:
            node, info = snapshot.topic_node(self.ports.store, topic)
        except RefusedBy:
            return str(topic) in self.run.brokers.loaded
        return bool(self._counts_as_loaded(topic, node, info))

    # ------------------------------------------------------------------------------------------------------ saying so

    def _said(
        self, subject: _Subject, outcome: Outcome, why: Why, after: Keys | None = None, edit: Edit | None = None
    ) -> Repaired:
        found = edit.after if edit else after if after is not None else subject.before
        if self.guard:
            self._record(subject, outcome, why, edit)
        return Repaired(str(subject.topic), subject.cursor, subject.level, outcome, why, subject.before, found)

    def _record(self, subject: _Subject, outcome: Outcome, why: Why, edit: Edit | None) -> None:
        detail = RepairDetail(
            subject.cursor,
            edit.path if edit else "",
            edit.czxid if edit else 0,
            subject.level,
            subject.before,
            edit.after if edit else subject.before,
        )
        about = Subject(-1, COMPONENT_BUCKET, str(subject.topic), subject.bytes, details=(detail,))
        named = why.put(f"subscription {subject.cursor}: {why.text}")
        self.ports.journal.record([self.journal.row(STEP, about, outcome, named, self.ports.clock.now_ms())])

    def _note_snapshot(self, subject: _Subject, ledger_id: int) -> None:
        why = Why(Code.ABOUT_TO, "a new snapshot is written next")
        self._snapshot_row(BegunSnapshot(ledger_id, subject.topic, subject.cursor), Outcome.BEGUN, why)

    def _snapshot_row(self, one: BegunSnapshot, outcome: Outcome, why: Why) -> None:
        details = (NewSnapshot(one.subscription),)
        about = Subject(one.ledger_id, COMPONENT_BUCKET, str(one.topic), details=details)
        self.ports.journal.record([self.journal.row(SNAPSHOT, about, outcome, why, self.ports.clock.now_ms())])


@dataclass(frozen=True, slots=True)
class _Subject:
    """A subscription, what is to be done about it, and the bucket properties that it must have for that."""

    topic: Topic
    cursor: str
    level: str
    before: Keys
    bytes: int


def _check_sizes(key: str, entries: Sequence[bytes]) -> None:
    """Raise Refused for an entry that no bookie takes, rather than having each of them refuse it."""
    largest = max(map(len, entries))
    if largest > MAX_ENTRY_BYTES:
        raise RefusedBy(
            Code.SNAPSHOT_TOO_LARGE,
            f"{key}: an entry of its new snapshot would have {largest:,} bytes, and bookies take {MAX_ENTRY_BYTES:,}: "
            "lower delayedDeliveryMaxIndexesPerBucketSnapshotSegment (delayed_index.brokers) if it is a segment; too "
            "many messages of one ledger are delayed if it is entry 0",
        )


def _check_ranges(keys: Iterable[str]) -> None:
    """Raise Refused for ranges that overlap: no cursor may ever have such keys."""
    reached = -1
    for start, end in sorted(parse_bucket_key(key) for key in keys):
        if start <= reached:
            raise RefusedBy(Code.SNAPSHOT_OVERLAPS, f"the new buckets would overlap at ledger {start}")
        reached = end
