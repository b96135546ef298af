"""What brokers do to topics, cursors, ledgers and copies.

Belongs here: acts that change the model and its z-nodes together. Nothing here asks the product. Not here: which act
comes when (``acts.py``), what brokers are asked (``world.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

from pulsar_lifecycle.formats.cursor import MessageRange
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import Upload
from tests.kit.fakes.object_store import OpenUpload
from tests.kit.simulated.cluster import BROKER
from tests.kit.simulated.offloaded import BUCKET, kept_objects_of, metadata
from tests.simulation.world.model import LISTING_LAG, ONE_ENTRY, Ledger, ModelTopic, tags_of
from tests.simulation.world.policies import DEDUPLICATION
from tests.simulation.world.truth import Truth


class Brokers(Truth):
    """A cluster whose brokers act."""

    def drop_cursors(self, topic: ModelTopic) -> None:
        """Delete every cursor of a topic."""
        cursors = list(topic.cursors.items())
        topic.cursors.clear()
        for name, cursor in cursors:
            path = f"{self.topic_path(topic.name)}/{encode_name(name)}"
            if self.zookeeper.stat(path) is not None:
                self.remove(path)
            for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
                self.drop(ledger)

    # ------------------------------------------------------------------------------------------------- offloaded copies

    def upload(
        self, topic: Topic, ledger: int, cluster: str, *, index: bool = True, entries: Sequence[bytes] = ()
    ) -> UUID:
        """The objects of a new offload attempt; one that was broken off has no index.

        They have the ``entries`` that bookies have, or those that are given.
        """
        uuid = UUID(int=self.random.getrandbits(128))
        stored, made = metadata(topic, cluster), self.model.ledgers[ledger]
        there = self.reader.payloads.get(ledger) if made.entries else None
        tags = {"application": "pulsar", **(tags_of(made) or {})} if self.tiered else {}
        data, body = kept_objects_of(tuple(entries or there or made.entries or ONE_ENTRY), *tags.items())
        self.buckets.put(BUCKET, data_key(uuid, ledger), data, {**stored, "role": "data"})
        if index:
            self.buckets.put(BUCKET, index_key(uuid, ledger), body, {**stored, "role": "index"})
        self.attempts[uuid] = topic, ledger
        return uuid

    def begin_upload(self, topic: Topic, ledger: int, uuid: UUID | None = None) -> UUID:
        """An upload of an attempt, or else of a broker's offloader."""
        uuid = uuid or UUID(int=self.random.getrandbits(128))
        listed = Upload(data_key(uuid, ledger), f"upload-of-others-{next(self.buckets.ids):06}", self.time.now_ms())
        self.buckets.uploads[listed.upload_id] = OpenUpload(BUCKET, listed, {**metadata(topic), "role": "data"}, "")
        return uuid

    def drop_copy(self, context: OffloadContext | None, ledger: int) -> None:
        """A broker deletes the objects of an attempt that it dropped, or one of them, or forgets them."""
        if context is None or context.uuid is None or context.uuid in self.reachable():
            return
        for key in (data_key(context.uuid, ledger), index_key(context.uuid, ledger)):
            if self.random.random() < 0.4:
                self.buckets.objects[BUCKET].pop(key, None)

    # --------------------------------------------------------------------------------------------------------- z-nodes

    def put(self, path: str, data: bytes) -> None:
        if path in getattr(self, "corrupted", {}):
            self.corrupted[path] = data
            return
        super().put(path, data)

    def remove(self, path: str) -> None:
        self.corrupted.pop(path, None)
        super().remove(path)

    def make(self, kind: str, topic: Topic, **more) -> int:
        """A ledger with the tags of its kind."""
        entries = more.pop("entries", ONE_ENTRY)
        made = Ledger(kind, topic, self.time.now_ms(), **more, entries=tuple(entries) if kind == "data" else ())
        ledger = self.ledger(tags_of(made), state=made.state, entries=entries)
        self.model.ledgers[ledger] = made
        return ledger

    def restate(self, ledger: int, state: LedgerState) -> None:
        """Rewrite a ledger's z-node with another state."""
        if not self.exists(ledger) or ledger not in self.reader.payloads:
            return
        made, last = self.model.ledgers[ledger], self._last_id
        made.state = state
        if state is LedgerState.CLOSED:
            self.model.busy.discard(ledger)
            self.closed_at.setdefault(ledger, self.time.now_ms())
        self.ledger(tags_of(made), state=state, entries=self.reader.payloads[ledger], ledger_id=ledger)
        self._last_id = last

    def drop(self, ledger: int | None, leak: float = 0.6) -> None:
        """A broker deletes a ledger that it dropped, or fails to and forgets it."""
        if ledger is None or ledger < 0 or not self.exists(ledger):
            return
        shadowed = ledger in self.live()
        if shadowed or self.random.random() < leak:
            if self.random.random() < 0.9:
                self.restate(ledger, LedgerState.CLOSED)
        else:
            self.remove(self.path(ledger))

    def store(self, topic: ModelTopic) -> None:
        """Write the topic's own z-node."""
        self.topic(
            topic.name,
            topic.ledgers,
            offloaded=topic.offloaded,
            terminated=Position(topic.ledgers[-1], 0) if topic.terminated and topic.ledgers else None,
            shadow_of=topic.shadow_of,
            counts={i: len(self.model.ledgers[i].entries) or 1 for i in topic.ledgers if i in self.model.ledgers},
            closed={i: self.closed(i) for i in topic.ledgers} if self.dates_ledgers else None,
            sizes={i: self.size(i) for i in topic.ledgers} if self.dates_ledgers else None,
        )

    def store_cursor(self, topic: ModelTopic, name: str) -> None:
        """Write a cursor's z-node."""
        cursor = topic.cursors[name]
        self.cursor(
            topic.name,
            name,
            ledger=cursor.ledger,
            compacted=cursor.noted,
            buckets=cursor.buckets,
            at=cursor.at,
            entry=cursor.exact.entry_id if cursor.exact and cursor.exact.ledger_id == cursor.at else -1,
            active=cursor.active,
            deleted=[
                MessageRange(Position(ledger, entry - 1), Position(ledger, entry))
                for ledger, entry in sorted(cursor.acked)
                if ledger >= cursor.at
            ],
        )

    def move_to(self, topic: ModelTopic, name: str, ledger: int) -> None:
        """A cursor stands at the beginning of a ledger, by its z-node alone."""
        cursor = topic.cursors[name]
        old, cursor.ledger, cursor.noted, cursor.at = cursor.ledger, -1, cursor.compacted, ledger
        self.store_cursor(topic, name)
        self.drop(old)

    def delete_cursor(self, topic: ModelTopic, name: str) -> None:
        """With what only it refers to."""
        cursor = topic.cursors.pop(name)
        path = f"{self.topic_path(topic.name)}/{encode_name(name)}"
        if self.zookeeper.stat(path) is not None:
            self.remove(path)
        for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
            self.drop(ledger)

    def take_off(self, topic: ModelTopic, count: int) -> list[int]:
        """A broker trims the first ledgers of a topic."""
        gone, topic.ledgers = topic.ledgers[:count], topic.ledgers[count:]
        self.store(topic)
        for ledger in gone:
            context = topic.offloaded.pop(ledger, None)
            self.drop(ledger)
            self.drop_copy(context, ledger)
        return gone

    def store_schema(self, schema_id: str) -> None:
        """Write a locator that names the newest two versions; entries name what is older."""
        self.schema(schema_id, self.model.schemas[schema_id][-2:])

    # ------------------------------------------------------------------------------------------------- load and unload

    def load(self, topic: ModelTopic) -> None:
        """A broker takes the topic: closes its last ledger, makes a new one, rewrites the z-node."""
        if topic.ledgers:
            last = topic.ledgers[-1]
            self.written_at.setdefault(last, self.closed(last))
            self.restate(last, LedgerState.CLOSED)
            if self.policies:  # whatever its age, it becomes one that was closed now
                self.closed_at[last] = self.time.now_ms()
        topic.loaded = True
        if topic.ledgers:  # ManagedLedgerImpl.initialize makes its info anew
            topic.offloaded.pop(topic.ledgers[-1], None)
        self._forget_snapshots(topic)
        if not topic.terminated and not topic.shadow_of:
            topic.ledgers.append(self.make("data", topic.name, state=LedgerState.OPEN, entries=topic.first))
        self.store(topic)
        self._list(topic.name)
        if self.policies and self.random.random() < 0.3:
            self.unsubscribe_expired(topic)
        self.evict(topic)
        self._act_at_first(topic)

    def _act_at_first(self, topic: ModelTopic) -> None:
        """A broker takes a topic's global policies before its local ones, and acts by them at once."""
        if self.policies and DEDUPLICATION in topic.cursors and self.policies.forgets(self, topic.name):
            self.on_undeduplicated(topic)
            self.delete_cursor(topic, DEDUPLICATION)
        seconds = self.policies.ttl_at_first(self, topic.name) if self.policies else 0
        for name in self.policies.subscriptions(topic) if self.policies and seconds else ():
            first, passed = self.policies.past(self, topic, name, seconds)
            if passed:
                self.on_skip(topic, name, passed)
                self.move_to(topic, name, first)

    def evict(self, topic: ModelTopic) -> None:
        """A broker drops unread messages that are beyond a backlog quota."""
        for name, (first, dropped) in (self.policies.beyond_quota(self, topic) if self.policies else {}).items():
            self.on_evict(topic, name, dropped)
            self.move_to(topic, name, first)

    def unsubscribe_expired(self, topic: ModelTopic) -> list[str]:
        """A broker deletes subscriptions that no client has been at for too long."""
        found = self.policies.abandoned(self, topic) if self.policies else []
        for name in found:
            self.on_unsubscribe(topic, name)
            self.delete_cursor(topic, name)
        return found

    def unload(self, topic: ModelTopic, *, graceful: bool = True) -> None:
        """A broker lets the topic go, or dies with it: what only its memory had is then a leak."""
        if graceful and topic.ledgers and not topic.shadow_of:
            self.restate(topic.ledgers[-1], LedgerState.CLOSED)
            if not self.unloads_exactly:
                self.store(topic)
        if graceful and self.policies:  # it writes each cursor as it closes it, and the ledger before
            self.wait_ms(1)
            for name, cursor in topic.cursors.items():
                cursor.active = self.time.now_ms()
                self.store_cursor(topic, name)
        for ledger in (*sorted(topic.memory), topic.compacting):
            if ledger is not None:
                self.restate(ledger, LedgerState.CLOSED)
        topic.loaded, topic.compacting = False, None
        topic.memory.clear()
        self._forget_snapshots(topic)
        if graceful:
            self._list(topic.name)
        else:  # a broker that died lists nothing
            self._relist(topic.name)

    def _forget_snapshots(self, topic: ModelTopic) -> None:
        self.on_forget(topic)
        topic.readers.clear()
        topic.unlisted.clear()
        topic.stale.clear()
        for cursor in topic.cursors.values():
            cursor.swallowed.clear()

    def restart_broker(self) -> list[ModelTopic]:
        """The broker dies with all its topics, which are returned, and registers anew."""
        loaded = [topic for topic in self.model.topics.values() if topic.loaded]
        for topic in loaded:
            self.unload(topic, graceful=False)
        self.register_broker()
        return loaded

    def register_broker(self) -> None:
        """The broker's z-node, as ModularLoadManagerImpl writes it."""
        path = f"/loadbalance/brokers/{BROKER}"
        if self.zookeeper.stat(path) is not None:
            self.remove(path)
        manager = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
        report = {"loadReportType": "LocalBrokerData", "loadManagerClassName": manager}
        self.put(path, json.dumps(report | {"startTimestamp": self.time.now_ms()}).encode())

    def _list(self, topic: Topic) -> None:
        lag = self.random.choice([0, 0, LISTING_LAG // 2, LISTING_LAG])
        if lag:
            self.model.listings.append((self.time.now_ms() + lag, topic))
        else:
            self._relist(topic)

    def _relist(self, topic: Topic) -> None:
        found = self.model.topics.get(topic)
        if found and found.loaded:
            self.admin.loaded[str(topic)] = BROKER
        else:
            self.admin.loaded.pop(str(topic), None)

    # ---------------------------------------------------------------------------------------------------- whole topics

    def vanish(self, topic: ModelTopic) -> None:
        """Remove the topic's z-nodes."""
        if self.zookeeper.stat(self.topic_path(topic.name)) is not None:
            self.remove(self.topic_path(topic.name))

    def delete_topic(self, topic: ModelTopic) -> None:
        """As a broker does it: no z-node goes before its ledgers did; those of cursors, or not."""
        if topic.loaded:
            self.unload(topic)
        self.vanish(topic)
        del self.model.topics[topic.name]
        self._relist(topic.name)
        for ledger in topic.ledgers:
            self.drop(ledger, leak=0)
            self.drop_copy(topic.offloaded.get(ledger), ledger)
        for cursor in topic.cursors.values():
            for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
                self.drop(ledger)

    def come_back(self, name: Topic) -> None:
        """The z-nodes of a topic that was away are there again."""
        topic = self.model.topics.get(name)
        if topic is not None and topic.away:
            topic.away = False
            self.store(topic)
            for cursor in topic.cursors:
                self.store_cursor(topic, cursor)

    def _finish_schema(self, ledger: int) -> None:
        schema_id, _ = self.model.pending.pop(ledger)
        self.model.schemas.setdefault(schema_id, []).append(ledger)
        self.store_schema(schema_id)
