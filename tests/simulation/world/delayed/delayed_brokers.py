"""Brokers with delayed messages: they publish, seal buckets, recover them, merge, deliver, and trim what is consumed.

Belongs here: acts on topics that stand apart from acts of chance, and damage to their indexes. The brokers' tracker is
the project's own: the same as upstream's where a test plays both; merging is as upstream has it
(``merging_tracker.py``). Not here: what an operator does about it, and what must hold (``operators/delaying.py``,
``laws/delayed_laws.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import delayed_indexes
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.builders import entry
from tests.simulation.world.delayed.merging_tracker import Merge, MergeThrewError, MergingTracker
from tests.simulation.world.delayed.stored_buckets import Place, StoredBuckets
from tests.simulation.world.model import HOUR, Cursor, ModelTopic
from tests.simulation.world.world import World

NAMESPACE = "acme/delayed"
PLAIN = entry(b"m")
"""What a ledger begins with: a message that is not delayed, and that everybody has acknowledged."""
MOST = 12 * 24 * HOUR
"""How late the last message is due."""
NO_LEDGER = 1 << 40
GOES_ON = 60_000
"""How long (ms) a merge may go on after its topic was unloaded."""


@dataclass
class Dispatcher:
    """A subscription in a broker's memory; ``tracker`` is None where its buckets could not be recovered."""

    tracker: BucketTracker | None
    waiting: dict[Place, int] = field(default_factory=dict)
    """In place of a tracker."""
    read: set[Place] = field(default_factory=set)


@dataclass
class GoingOn:
    """A merge whose broker has let the topic go, until (ms) and as long as the cursor's z-node has this version."""

    merge: Merge
    until: int
    version: int


class DelayedBrokers:
    """Brokers of the topics with delayed messages; ``counts`` of what was done.

    They merge the buckets of a subscription that has more than ``delayedDeliveryMaxNumBuckets``.
    """

    def __init__(self, world: World, settings: DelayedIndexSettings, counts: Counter[str]) -> None:
        self.world, self.settings, self.counts = world, settings, counts
        self.dispatchers: dict[tuple[Topic, str], Dispatcher] = {}
        self.throws = False
        """Whether merges throw exceptions where upstream's do."""
        self.lost: dict[int, frozenset[Place]] = {}
        """What a merged snapshot lacked when it was made, by its ledger: segments that its broker had loaded."""
        self.going_on: list[GoingOn] = []
        self.on_early: Callable[[str], None] = lambda what: None
        """Called with a message that comes before it is due."""
        world.on_forget = self._forget
        world.after_restore.append(self._ids_are_issued_anew)

    def topics(self) -> list[ModelTopic]:
        """Those of them that are there, by name."""
        found = [t for t in self.world.model.topics.values() if t.apart and t.ledgers]
        return sorted(found, key=lambda t: str(t.name))

    @property
    def merges(self) -> bool:
        """Whether they merge buckets."""
        return self.settings.delayed_delivery_max_num_buckets > 0

    def _ids_are_issued_anew(self) -> None:
        for ledger in self.lost.keys() - self.world.model.ledgers.keys():
            del self.lost[ledger]

    def _forget(self, topic: ModelTopic) -> None:
        """Of a merge that is under way nothing more comes, or all in a moment."""
        self.going_on = [one for one in self.going_on if one.merge.stored.topic.name != topic.name]
        for key in [key for key in self.dispatchers if key[0] == topic.name]:
            tracker = self.dispatchers.pop(key).tracker
            if isinstance(tracker, MergingTracker) and (merge := tracker.merge):
                self.counts["merges amid which a topic was unloaded"] += 1
                restored = merge.stored.topic is not topic
                if merge.named and not restored and self.world.random.random() < 0.5:
                    until = self.world.time.now_ms() + GOES_ON
                    self.going_on.append(GoingOn(merge, until, merge.stored.version))

    # ------------------------------------------------------------------------------------------------------------ acts

    def grow(self, random: Random, name: str) -> str:
        """A topic that rests, with delayed messages in a few ledgers and an index of all but the last."""
        world = self.world
        topic = ModelTopic(Topic.parse(f"persistent://{NAMESPACE}/{name}"), apart=True, first=(PLAIN,))
        world.put(f"/admin/policies/{NAMESPACE}", b"{}")
        world.model.topics[topic.name] = topic
        world.store(topic)
        world.load(topic)
        for cursor in random.choice([("one",), ("one", "two")]):
            topic.cursors[cursor] = Cursor(at=topic.ledgers[0])
            world.store_cursor(topic, cursor)
        for _ in range(random.choice([6, 7]) if self.merges else random.choice([2, 3, 4])):
            self.publish(random, topic, random.choice([3, 5, 8]))
            self.roll(topic)
        self.publish(random, topic, 1)
        if self.merges and random.random() < 0.5:
            return f"{topic.name} has {len(topic.due)} delayed messages in {topic.ledgers}"
        world.unload(topic)
        return f"{topic.name} rests with {len(topic.due)} delayed messages in {topic.ledgers}"

    def act(self, random: Random) -> str:
        """Something that brokers do to one of the topics."""
        topics = self.topics()
        if not topics:
            return "no topic with delayed messages"
        if self.going_on and random.random() < 0.7:
            return self._go_on(random)
        topic = random.choice(topics)
        if not topic.loaded:
            return self.load(topic)
        if self._under_way(topic) and random.random() < 0.5:
            return f"{topic.name} merges: {self._merge(random, topic)}"
        what = random.choice(["unload", "publish", "roll", "deliver", "deliver", "trim", "merge"])
        if what == "unload":
            self.world.unload(topic, graceful=random.random() < 0.7)
            return f"{topic.name} is unloaded"
        if what == "publish":
            self.publish(random, topic, random.choice([1, 4]))
            return f"{topic.name} has {len(topic.due)} delayed messages"
        if what == "roll":
            for _ in range(random.choice([1, 2, 3]) if self.merges else 1):
                self.publish(random, topic, random.choice([3, 4]))
                self.roll(topic)
            self.publish(random, topic, 1)
            return f"{topic.name} rolls over to ledger {topic.ledgers[-1]}"
        if what == "trim":
            consumed = [ledger for ledger in topic.ledgers if all(c.at > ledger for c in topic.cursors.values())]
            return f"{topic.name} trims {self.world.take_off(topic, len(consumed)) if consumed else []}"
        return f"{topic.name} delivers {self.deliver(topic)}"

    def press(self, random: Random) -> list[str]:
        """Topics that brokers have get more buckets, until those are merged; merges go on, to their end or not."""
        done: list[str] = []
        while self.going_on and random.random() < 0.8:
            done.append(self._go_on(random))
        for topic in self.topics():
            if topic.loaded and not self._under_way(topic):
                for _ in range(2):
                    self.publish(random, topic, 4)
                    self.roll(topic)
                self.publish(random, topic, 1)
                done.append(f"{topic.name} rolls over twice")
            if topic.loaded:
                done.append(f"{topic.name} merges: {self._merge(random, topic)}")
        return done

    def _under_way(self, topic: ModelTopic) -> list[MergingTracker]:
        """Trackers of a topic that are merging, but for those whose subscription is gone."""
        trackers = [dispatcher.tracker for (of, _), dispatcher in self.dispatchers.items() if of == topic.name]
        merging = [one for one in trackers if isinstance(one, MergingTracker) and one.merge]
        return [one for one in merging if one.stored.topic is topic and one.stored.name in topic.cursors]

    def _merge(self, random: Random, topic: ModelTopic) -> str:
        """Some steps of the merges that are under way."""
        steps = [one.step(random) for one in self._under_way(topic) for _ in range(random.choice([1, 2, 9]))]
        return "; ".join(filter(None, steps))

    def _go_on(self, random: Random) -> str:
        """One step of a merge whose topic was unloaded meanwhile: its broker does not know, or does not care."""
        one = self.going_on[0]
        stored = one.merge.stored
        there = self.world.model.topics.get(stored.topic.name) is stored.topic and stored.name in stored.topic.cursors
        if one.merge.ended or self.world.time.now_ms() > one.until or not there:
            self.going_on.pop(0)
            return "a merge ends with its broker"
        if one.merge.gone and stored.version != one.version:  # it has another version of the cursor
            one.merge.old.popleft()
            one.merge.gone = False
            return f"a merge of {stored.name} of {stored.topic.name} comes too late"
        done = one.merge.step(random)
        one.version = stored.version
        self.counts["steps of merges after an unload"] += 1
        return f"a merge of {stored.name} of {stored.topic.name} goes on: {done}"

    def load(self, topic: ModelTopic) -> str:
        """A broker takes the topic, and its dispatchers read what there is."""
        self.world.load(topic)
        self._each(topic)
        return f"{topic.name} is loaded"

    def publish(self, random: Random, topic: ModelTopic, count: int) -> None:
        """Delayed messages to a loaded topic, which its dispatchers read."""
        world, ledger = self.world, topic.ledgers[-1]
        made = world.model.ledgers[ledger]
        entries = list(made.entries)
        for _ in range(count):
            due = world.time.now_ms() + random.randrange(2 * HOUR, MOST)
            topic.due[ledger, len(entries)] = due
            entries.append(entry(b"m", deliver_at_time=due))
        made.entries = tuple(entries)
        world.reader.payloads[ledger] = entries
        self._each(topic)

    def roll(self, topic: ModelTopic) -> None:
        """The topic goes on in a new ledger."""
        world = self.world
        world.restate(topic.ledgers[-1], LedgerState.CLOSED)
        topic.ledgers.append(world.make("data", topic.name, state=LedgerState.OPEN, entries=topic.first))
        world.store(topic)

    def deliver(self, topic: ModelTopic) -> int:
        """Hand out what is due, and acknowledge it; how many messages that was."""
        return sum(self._hand_out(topic, name, dispatcher) for name, dispatcher in self._each(topic))

    def left(self, topic: ModelTopic, name: str) -> list[Place]:
        """What a subscription has not acknowledged, in order."""
        cursor, listed = topic.cursors[name], set(topic.ledgers)
        return [p for p in sorted(topic.due) if p[0] in listed and p[0] >= cursor.at and p not in cursor.acked]

    # ------------------------------------------------------------------------------------------------------ dispatchers

    def _each(self, topic: ModelTopic) -> list[tuple[str, Dispatcher]]:
        """The dispatchers of a loaded topic, once each has read what there is."""
        found: list[tuple[str, Dispatcher]] = []
        for name in topic.cursors:
            key = topic.name, name
            if key not in self.dispatchers:
                self.dispatchers[key] = Dispatcher(self._tracker(topic, name))
            self._read(topic, name, self.dispatchers[key])
            found.append((name, self.dispatchers[key]))
        return found

    def _tracker(self, topic: ModelTopic, name: str) -> BucketTracker | None:
        stored, now = StoredBuckets(self.world, topic, name), self.world.time.now_ms()
        try:
            if self.merges:
                return MergingTracker(self.settings, stored, now, self.lost, throws=self.throws)
            return BucketTracker(self.settings, stored, stored, str(topic.name), name, now)
        except LifecycleError:
            self.counts["recoveries that fell back"] += 1
            return None

    def _read(self, topic: ModelTopic, name: str, dispatcher: Dispatcher) -> None:
        places = [place for place in self.left(topic, name) if place not in dispatcher.read]
        if not places:
            return
        dispatcher.read.update(places)
        now = self.world.time.now_ms()
        ledgers, entries = np.array(places, np.int64).T
        due = np.array([topic.due[place] for place in places], np.int64)
        if dispatcher.tracker:
            merged = len(self.lost)
            try:
                delayed = dispatcher.tracker.add_messages(ledgers, entries, due, now)
            except MergeThrewError:  # the rest of what was read comes once the topic is loaded anew
                self.counts["merges that threw"] += 1
                return
            self.counts["merges of buckets"] += len(self.lost) - merged
        else:
            delayed = due > self.settings.cutoff(now)
            dispatcher.waiting |= {p: topic.due[p] for p, later in zip(places, delayed, strict=True) if later}
        self._acknowledge(topic, name, [place for place, later in zip(places, delayed, strict=True) if not later])

    def _hand_out(self, topic: ModelTopic, name: str, dispatcher: Dispatcher) -> int:
        now = self.world.time.now_ms()
        if dispatcher.tracker:
            found = dispatcher.tracker.get_scheduled_messages(1_000, now)
            places = list(zip(found.ledgers.tolist(), found.entries.tolist(), strict=True))
        else:
            places = [place for place, due in dispatcher.waiting.items() if due <= self.settings.cutoff(now)]
            for place in places:
                del dispatcher.waiting[place]
        left = set(self.left(topic, name))
        return self._acknowledge(topic, name, [place for place in places if place in left])

    def _acknowledge(self, topic: ModelTopic, name: str, places: Sequence[Place]) -> int:
        """A consumer gets these, and acknowledges them."""
        cursor, cutoff = topic.cursors[name], self.settings.cutoff(self.world.time.now_ms())
        if not places:
            return 0
        if early := [place for place in places if topic.due[place] > cutoff]:
            self.on_early(f"{name} of {topic.name} gets {early[0]}, which is due at {topic.due[early[0]]}")
        cursor.acked.update(places)
        left = self.left(topic, name)
        cursor.at = max(cursor.at, left[0][0] if left else topic.ledgers[-1])
        cursor.acked = {place for place in cursor.acked if place[0] >= cursor.at}
        self.world.store_cursor(topic, name)
        self.counts["delayed messages delivered"] += len(places)
        return len(places)

    # ----------------------------------------------------------------------------------------------------------- damage

    def damage(self, random: Random) -> str:
        """Somebody breaks the index of a subscription whose topic rests."""
        resting = [t for t in self.topics() if not t.loaded]
        found = [(t, n) for t in resting for n, c in sorted(t.cursors.items()) if c.buckets]
        if not found:
            return "no index to break"
        topic, name = random.choice(found)
        cursor, world = topic.cursors[name], self.world
        spans = sorted(cursor.buckets)
        span, how = random.choice(spans), random.choice(["gone", "nowhere", "lossy", "lossy", "overlap"])
        ledger = cursor.buckets[span]
        if how == "gone":
            if world.exists(ledger):
                world.remove(world.path(ledger))
        elif how == "nowhere":
            cursor.buckets[span] = NO_LEDGER + span[0]
        else:
            try:
                _, indexes, bounds = read_whole(world.reader.payloads.get(ledger) or [b""])
            except LifecycleError:
                return "no snapshot to break"
            if not len(indexes):  # bookies have dropped it
                return "no snapshot to break"
            sealed = seal(indexes, self.settings.time_step_ms, self.settings.max_indexes_per_segment, *span)
            if how == "lossy":  # as a merge of upstream's that loses a segment's messages
                bounds = sealed.bounds.copy()
                bounds[-1] -= 1
                segments = delayed_indexes.encode_segments(sealed.indexes[: bounds[-1]], bounds)
                cursor.buckets[span] = self._made(topic, name, span, [sealed.entries[0], *segments])
            else:
                wide = span[0], max(topic.ledgers[-1], span[1] + 1)
                cursor.buckets[wide] = self._made(topic, name, wide, sealed.entries)
        cursor.broken = True
        world.store_cursor(topic, name)
        self.counts["indexes broken"] += 1
        return f"the index of {name} of {topic.name} is broken at {span}: {how}"

    def _made(self, topic: ModelTopic, name: str, span: Place, entries: Sequence[bytes]) -> int:
        return self.world.make("bucket", topic.name, cursor=name, span=span, entries=list(entries))
