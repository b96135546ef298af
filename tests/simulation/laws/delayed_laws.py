"""What must hold whenever the product checks or repairs an index of delayed messages.

Belongs here: judging each write and each deletion of a repair as it happens, by the simulator's own truth: what the
topic holds, what its subscriptions have acknowledged, who has it loaded; and what a check tells. Nothing here calls a
rule of the product. Not here: that all is delivered in the end (``operators/delaying.py``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.delayed_index.keys import bucket_key, parse_bucket_key
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.stored.rows import WAITING
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic, cursor_name
from pulsar_lifecycle.ports import Stat
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.world.delayed.delayed_brokers import DelayedBrokers
from tests.simulation.world.delayed.stored_buckets import Place
from tests.simulation.world.model import Ledger, ModelTopic
from tests.simulation.world.ports import SimStore
from tests.simulation.world.world import World

REBUILD, UNDO = "rebuild", "undo"


@dataclass(frozen=True)
class Index:
    """What a broker that loads the topic would make of some buckets."""

    unreadable: frozenset[str]
    """Keys at which its recovery fails: then it takes every message from the topic."""
    indexed: frozenset[Place]
    wrong: Mapping[Place, str]
    """Messages that it would not deliver once and in time, and why."""


class DelayedLaws:
    """The judge of repairs; ``levels``: what the plan does about each subscription.

    ``loads``: whether a repair may have a topic unloaded, which a broker may have to load for that.
    """

    def __init__(self, world: World, brokers: DelayedBrokers, counts: Counter[str], *, loads: bool) -> None:
        self.world, self.brokers, self.counts, self.loads = world, brokers, counts, loads
        self.levels: dict[tuple[str, str], str] = {}
        self.planned: dict[tuple[str, str], frozenset[str]] = {}
        """``KEY=VALUE`` of the buckets that the plan says each subscription has."""
        self.repairing = ""
        """What is at it: a level, or :data:`UNDO`; empty: nothing."""
        self.there: Mapping[Topic, frozenset[Place]] = {}
        """The messages of closed ledgers when it began: others may not be committed, or come meanwhile."""
        self.ours: set[int] = set()
        """Snapshots that repairs began."""
        self._judge_write, self._judge_deletion = world.zookeeper.on_write, world.zookeeper.on_delete
        world.zookeeper.on_write, world.zookeeper.on_delete = self.about_to_write, self.about_to_delete
        self._judge_load, world.on_load = world.on_load, self.is_loaded
        brokers.on_early = self.is_early

    @contextmanager
    def run(self, what: str) -> Iterator[None]:
        """A repair, or an undo of one, is at it."""
        was = self.repairing, self.there
        self.repairing, self.there = what, {topic.name: self._closed(topic) for topic in self.brokers.topics()}
        try:
            yield
        finally:
            self.repairing, self.there = was

    def _closed(self, topic: ModelTopic) -> frozenset[Place]:
        open_ = {i for i in topic.ledgers if self.world.model.ledgers[i].state is not LedgerState.CLOSED}
        return frozenset(place for place in topic.due if place[0] not in open_)

    def is_loaded(self, topic: ModelTopic) -> None:
        """No topic is loaded but to be unloaded by a repair, or an undo of one, whose plan names it."""
        ordered = self.loads and self.repairing and any(str(topic.name) == name for name, _ in self.planned)
        if not ordered:
            self._judge_load(topic)

    def is_early(self, what: str) -> None:
        """No message comes before it is due."""
        raise Violation(f"delayed: {what}, too early")

    # --------------------------------------------------------------------------------------------------------- writing

    def about_to_write(self, store: SimStore, path: str, old: bytes, new: bytes) -> None:
        """Judge what a repair writes: new snapshots, and one cursor's bucket properties."""
        if self.repairing and path.startswith("/ledgers/"):
            self._snapshot(path, old, new)
        elif self.repairing and path.startswith("/managed-ledgers/") and path.count("/persistent/") == 1:
            self._cursor(path, old, new)
        else:
            self._judge_write(store, path, old, new)

    def _snapshot(self, path: str, old: bytes, new: bytes) -> None:
        if not new:  # a folder above it
            return
        ledger, made = ledger_path.parse_ledger_path(path), ledger_metadata.decode(new)
        tags = {name: value.decode() for name, value in made.custom_metadata.items()}
        if tags.get("component") != "delayed-index-bucket":
            raise Violation(f"I8: a repair writes {path}, which is no snapshot: {tags}")
        if not old:
            topic, cursor = Topic.parse(tags["pulsar/delayedIndexTopic"]), tags["pulsar/delayedIndexCursor"]
            span, now = parse_bucket_key(tags["pulsar/delayedIndexBucketKey"]), self.world.time.now_ms()
            self.world.model.ledgers[ledger] = Ledger("bucket", topic, now, cursor, span)
            self.ours.add(ledger)
        elif ledger not in self.ours:
            raise Violation(f"I8: a repair writes {path}, which it did not make")
        self.world.model.ledgers[ledger].state = made.state

    def about_to_delete(self, store: SimStore, path: str, stat: Stat, data: bytes) -> None:
        """No snapshot of a live key goes; a repair deletes nothing but what it made itself."""
        if not self.repairing or not path.startswith("/ledgers/") or path.startswith("/ledgers/idgen"):
            self._judge_deletion(store, path, stat, data)
            return
        ledger = ledger_path.parse_ledger_path(path)
        if why := self.world.live().get(ledger):
            raise Violation(f"I1: a repair deletes {ledger}: {why}")
        if ledger not in self.ours:
            raise Violation(f"I1: a repair deletes {ledger}, which it did not make")
        self.counts["new snapshots discarded"] += 1

    def _cursor(self, path: str, old: bytes, new: bytes) -> None:
        parent, _, name = path.rpartition("/")
        topic = next((t for t in self.brokers.topics() if self.world.topic_path(t.name) == parent), None)
        name = cursor_name(name)
        if topic is None or name not in topic.cursors or not old:
            raise Violation(f"I8: a repair writes {path}")
        before, after = cursor_format.decode(old), cursor_format.decode(new)
        if replace(after, cursor_properties={}) != replace(before, cursor_properties={}):
            raise Violation(f"delayed: a repair changes more than the buckets in {path}")
        if topic.loaded:
            raise Violation(f"delayed: a repair writes {path}, and a broker has loaded the topic")
        keys, had = dict(after.cursor_properties), {"=".join(one) for one in before.cursor_properties.items()}
        if self.repairing != UNDO and had != self.planned.get((str(topic.name), name)):
            raise Violation(f"delayed: a repair of {path} changes {sorted(had)}, of which the plan says nothing")
        self._overlaps(path, keys)
        self._judge(topic, name, dict(before.cursor_properties), keys)
        cursor = topic.cursors[name]
        cursor.buckets = {parse_bucket_key(key): int(value) for key, value in keys.items()}
        cursor.broken = self.repairing == UNDO
        self.counts[f"{self.levels.get((str(topic.name), name), '')} repairs" if not cursor.broken else "undone"] += 1

    def _overlaps(self, path: str, keys: Mapping[str, str]) -> None:
        reached = -1
        for start, end in sorted(map(parse_bucket_key, keys)):
            if start <= reached and self.repairing != UNDO:
                raise Violation(f"delayed: a repair makes buckets that overlap, in {path}: {sorted(keys)}")
            reached = end

    def _judge(self, topic: ModelTopic, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """A repair never loses or repeats a delivery, and what was indexed stays indexed."""
        if self.repairing == UNDO:
            return
        was, is_now = self._index(topic, name, before), self._index(topic, name, after)
        where = f"{name} of {topic.name}"
        if new := sorted(is_now.unreadable - set(before)):
            raise Violation(f"delayed: a repair has {where} name a snapshot that cannot be read: {new}")
        if is_now.wrong:
            place, why = min(is_now.wrong.items())
            raise Violation(f"delayed: after a repair of {where}, {place} {why}")
        if self.world.clock.skew_ms:  # what is due is by our clock
            return
        cutoff = self.world.time.now_ms() + 60_000
        left = self.there.get(topic.name, frozenset()).intersection(self.brokers.left(topic, name))
        later = {place for place in left if topic.due[place] > cutoff}
        level = self.levels.get((str(topic.name), name), "")
        wanted = later if level == REBUILD else later & was.indexed
        if lacking := sorted(wanted - is_now.indexed):
            raise Violation(f"delayed: a {level} of {where} leaves {lacking} out")

    # -------------------------------------------------------------------------------------------------------- checking

    def checked(self, buckets: Iterable[Mapping[str, Any]], findings: Iterable[Mapping[str, Any]]) -> None:
        """A check says of every message that a merge lost, as long as it is not due and no other bucket has it."""
        read: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for row in buckets:
            read[row["topic"], row["subscription"]][row["ledger_id"]] = row["state"]
        said, unread = Counter[tuple[str, str]](), set[str]()
        for row in findings:
            if row["code"] in (IndexFinding.LOST, IndexFinding.MERGED_AND_LOST):
                said[row["topic"], row["subscription"]] += row["messages"]
            elif row["code"] == IndexFinding.UNREAD:
                unread.add(row["topic"])
        for topic in self.brokers.topics():
            for name, cursor in topic.cursors.items():
                states = read[str(topic.name), name]
                if str(topic.name) in unread or states.keys() != set(cursor.buckets.values()):
                    continue
                lost = self._lost(topic, name, [ledger for ledger, state in states.items() if state == WAITING])
                if len(lost) > said[str(topic.name), name]:
                    raise Violation(f"delayed: merges of {name} of {topic.name} lost {lost}, and a check tells less")
                self.counts["messages lost by merges and found"] += len(lost)

    def _lost(self, topic: ModelTopic, name: str, ledgers: Iterable[int]) -> list[Place]:
        """What merges left out of these snapshots and no bucket has, of closed ledgers and not due by any clock."""
        later = max(self.world.time.now_ms(), self.world.clock.now_ms()) + 60_000
        missing = frozenset[Place]().union(*(self.brokers.lost.get(ledger, ()) for ledger in ledgers))
        missing &= self._closed(topic).intersection(self.brokers.left(topic, name))
        if not missing:
            return []
        keys = {bucket_key(*span): str(ledger) for span, ledger in topic.cursors[name].buckets.items()}
        indexed = self._index(topic, name, keys).indexed
        return sorted(place for place in missing - indexed if topic.due[place] > later)

    def _index(self, topic: ModelTopic, name: str, keys: Mapping[str, str]) -> Index:
        """By what the ledgers hold, whatever a rule says of it."""
        world, now = self.world, self.world.time.now_ms()
        unreadable: set[str] = set()
        tracked: set[Place] = set()
        handed: Counter[Place] = Counter()
        times: dict[Place, int] = {}
        for key, value in keys.items():
            ledger = int(value)
            made = world.model.ledgers.get(ledger)
            if made is None or not world.exists(ledger) or made.state is not LedgerState.CLOSED:
                unreadable.add(key)
                continue
            try:
                table, indexes, bounds = read_whole(world.reader.payloads.get(ledger) or [b""])
            except LifecycleError:
                unreadable.add(key)
                continue
            for number, (bitmaps, last) in enumerate(zip(table.bitmaps, table.maximums, strict=True)):
                if last > now:  # a broker passes over the others
                    tracked |= {(one, at) for one, bits in bitmaps.items() for at in bits}
                    for due, *place in indexes[int(bounds[number]) : int(bounds[number + 1])].triples():
                        handed[place[0], place[1]] += 1
                        times[place[0], place[1]] = due
        wrong: dict[Place, str] = {}
        if not unreadable:
            for place in self.brokers.left(topic, name):
                if place in tracked and not handed[place]:
                    wrong[place] = "never comes"
                elif handed[place] > 1:
                    wrong[place] = f"comes {handed[place]} times"
                elif place in handed and times[place] != topic.due[place]:
                    wrong[place] = f"is due at {topic.due[place]}, and comes at {times[place]}"
        return Index(frozenset(unreadable), frozenset(tracked & set(handed)), wrong)
