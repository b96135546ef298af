"""Brokers with delayed messages: they publish, seal buckets, recover them, merge, deliver, and trim what is consumed.

Belongs here: acts on topics that stand apart from acts of chance, and damage to their indexes. The brokers' tracker is
the project's own: the same as upstream's where a test plays both. Not here: what an operator does about it, and what
must hold (``operators/delaying.py``, ``laws/delayed_laws.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats import delayed_indexes
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.builders import entry
from tests.kit.simulated.cluster import bucket_key
from tests.simulation.world.model import HOUR, Cursor, ModelTopic
from tests.simulation.world.world import World

NAMESPACE = "acme/delayed"
PLAIN = entry(b"m")
"""What a ledger begins with: a message that is not delayed, and that everybody has acknowledged."""
MOST = 12 * 24 * HOUR
"""How late the last message is due."""
NO_LEDGER = 1 << 40
Place = tuple[int, int]


@dataclass
class Dispatcher:
    """A subscription in a broker's memory; ``tracker`` is None where its buckets could not be recovered."""

    tracker: BucketTracker | None
    waiting: dict[Place, int] = field(default_factory=dict)
    """In place of a tracker."""
    read: set[Place] = field(default_factory=set)


class DelayedBrokers:
    """Brokers of the topics with delayed messages; ``counts`` of what was done."""

    def __init__(self, world: World, settings: DelayedIndexSettings, counts: Counter[str]) -> None:
        self.world, self.settings, self.counts = world, settings, counts
        self.dispatchers: dict[tuple[Topic, str], Dispatcher] = {}
        self.on_early: Callable[[str], None] = lambda what: None
        """Called with a message that comes before it is due."""
        world.on_forget = self._forget

    def topics(self) -> list[ModelTopic]:
        """Those of them that are there, by name."""
        found = [t for t in self.world.model.topics.values() if t.apart and t.ledgers]
        return sorted(found, key=lambda t: str(t.name))

    def _forget(self, topic: ModelTopic) -> None:
        for key in [key for key in self.dispatchers if key[0] == topic.name]:
            del self.dispatchers[key]

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
        for _ in range(random.choice([2, 3, 4])):
            self.publish(random, topic, random.choice([3, 5, 8]))
            self.roll(topic)
        self.publish(random, topic, 1)
        world.unload(topic)
        return f"{topic.name} rests with {len(topic.due)} delayed messages in {topic.ledgers}"

    def act(self, random: Random) -> str:
        """Something that brokers do to one of the topics."""
        topics = self.topics()
        if not topics:
            return "no topic with delayed messages"
        topic = random.choice(topics)
        if not topic.loaded:
            return self.load(topic)
        what = random.choice(["unload", "publish", "roll", "deliver", "deliver", "trim", "merge"])
        if what == "unload":
            self.world.unload(topic, graceful=random.random() < 0.7)
            return f"{topic.name} is unloaded"
        if what == "publish":
            self.publish(random, topic, random.choice([1, 4]))
            return f"{topic.name} has {len(topic.due)} delayed messages"
        if what == "roll":
            self.publish(random, topic, random.choice([3, 4]))
            self.roll(topic)
            self.publish(random, topic, 1)
            return f"{topic.name} rolls over to ledger {topic.ledgers[-1]}"
        if what == "trim":
            consumed = [ledger for ledger in topic.ledgers if all(c.at > ledger for c in topic.cursors.values())]
            return f"{topic.name} trims {self.world.take_off(topic, len(consumed)) if consumed else []}"
        return f"{topic.name} delivers {self.deliver(topic)}"

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
        snapshots, now = Snapshots(self.world, topic, name), self.world.time.now_ms()
        try:
            rule = MergeRule.PIP_195
            return BucketTracker(self.settings, snapshots, snapshots, str(topic.name), name, now, rule)
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
            delayed = dispatcher.tracker.add_messages(ledgers, entries, due, now)
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


class Snapshots:
    """The buckets of a subscription as its broker stores them: ledgers, and properties of the cursor."""

    def __init__(self, world: World, topic: ModelTopic, name: str) -> None:
        self.world, self.topic, self.name = world, topic, name

    def read(self) -> Mapping[str, int]:
        return {bucket_key(*span): ledger for span, ledger in self.topic.cursors[self.name].buckets.items()}

    def put(self, key: str, bucket_id: int) -> None:
        self.topic.cursors[self.name].buckets[parse_bucket_key(key)] = bucket_id
        self.world.store_cursor(self.topic, self.name)

    def remove(self, key: str) -> None:
        self.topic.cursors[self.name].buckets.pop(parse_bucket_key(key), None)
        self.world.store_cursor(self.topic, self.name)

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        span = parse_bucket_key(bucket_key)
        return self.world.make("bucket", self.topic.name, cursor=self.name, span=span, entries=list(entries))

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return self._entries(bucket_id)[0]

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        return self._entries(bucket_id)[first_segment_entry_id : last_segment_entry_id + 1]

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return sum(map(len, self._entries(bucket_id)))

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        if self.world.exists(bucket_id) and bucket_id not in self.world.live():
            self.world.drop(bucket_id, leak=0.1)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _entries(self, bucket_id: int) -> list[bytes]:
        if not self.world.exists(bucket_id) or bucket_id not in self.world.reader.payloads:
            raise NotFound(f"snapshot {bucket_id} is gone")
        return self.world.reader.payloads[bucket_id]
