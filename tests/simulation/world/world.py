"""A cluster as the product meets it: what brokers answer and do on demand, time, damage, backup and restore.

Belongs here: answers to the product's ports. Nothing here asks the product. Not here: what brokers do to a topic
(``brokers.py``), the control plane (``operators``), faults (``faults``), and what must hold (``laws``).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from random import Random

from pulsar_lifecycle.errors import Failed, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH
from pulsar_lifecycle.formats.offload_object import data_key
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.values.topic_load import CompactionStatus
from tests.kit.simulated.cluster import BROKER
from tests.kit.simulated.offloaded import BUCKET
from tests.simulation.world.brokers import Brokers
from tests.simulation.world.model import COMPACTION, ONE_ENTRY, TOPICS, ModelTopic


class World(Brokers):
    """A cluster whose brokers answer and act."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.admin.memory, self.admin.compaction = self._internals, self._compaction_status
        self.admin.unloading = self._unload_on_demand
        self.admin.owning, self.admin.expiring = self._own_on_demand, self._expire_on_demand
        self.admin.trimming = self._trim_on_demand
        self.admin.using, self.admin.unsubscribing = self._used_on_demand, self._unsubscribe_on_demand
        self.admin.deleting = self._delete_on_demand
        self.admin.reading = self._read_on_demand
        self.admin.queued = lambda: len(self.deletion_topics.waiting)
        self.register_broker()
        for topic in TOPICS:
            self.put(f"/admin/policies/{topic.namespace}", b"{}")

    def _topic(self, name: Topic) -> ModelTopic:
        found = self.model.topics.get(name)
        if found is None or found.away:
            raise NotFound(f"{name}: no such topic")
        return found

    def _loaded(self, name: Topic) -> ModelTopic:
        """A topic that its broker is asked about: it is loaded for that."""
        found = self._topic(name)
        if not found.loaded:
            self.on_load(found)
            self.load(found)
        return found

    def _own_on_demand(self, name: Topic) -> None:
        """A namespace is one bundle here; the broker that takes it loads all its topics."""
        lock = f"/namespace/{name.namespace}/0x00000000_0xffffffff"
        if self.policies is None or self.zookeeper.stat(lock) is not None:
            return
        self.put(lock, json.dumps({"httpUrl": f"http://{BROKER}"}).encode())
        inside = [t for t in self.model.topics.values() if t.name.namespace == name.namespace and not t.away]
        if not any(topic.loaded for topic in inside):
            for topic in inside:
                self.on_load(topic)
                self.load(topic)

    def _expire_on_demand(self, name: Topic, subscription: str, seconds: int) -> None:
        topic = self._loaded(name)
        if subscription not in topic.cursors:
            raise NotFound(f"{name}: no subscription {subscription}")
        if self.policies:
            first, passed = self.policies.past(self, topic, subscription, seconds)
            self.on_expire(topic, subscription, passed)
            if passed:
                self.move_to(topic, subscription, first)

    def _trim_on_demand(self, name: Topic) -> None:
        topic = self._loaded(name)
        if self.policies:
            self.take_off(topic, len(self.policies.due(self, topic)))

    def _used_on_demand(self, name: Topic, subscription: str) -> int | None:
        topic = self._loaded(name)
        if subscription not in topic.cursors:
            raise NotFound(f"{name}: no subscription {subscription}")
        said = self.admin.clients.get(name)
        return None if said and said.consumers.get(subscription) else self.known_to_broker(topic, subscription)

    def _unsubscribe_on_demand(self, name: Topic, subscription: str) -> None:
        """A broker deletes a subscription without consumers, unless it fails; its answer may get lost."""
        topic, how = self._loaded(name), self.random.choice(["done", "done", "done", "lost", "refused"])
        if subscription not in topic.cursors:
            raise NotFound(f"{name}: no subscription {subscription}")
        said = self.admin.clients.get(name)
        if how == "refused" or (said and said.consumers.get(subscription)):
            raise StoreError(f"{name}: {subscription} has consumers")
        self.delete_cursor(topic, subscription)
        if how == "lost":
            raise Unavailable("no answer")

    def _internals(self, topic: Topic) -> TopicInternals:
        found = self._loaded(topic)
        compaction = found.cursors.get(COMPACTION)
        compacted = compaction.compacted if compaction else None
        properties: dict[str, dict[str, int]] = {encode_name(name): {} for name in found.cursors}
        properties |= {name: {} for name in found.readers}
        return TopicInternals(
            "LedgerOpened",
            (*found.ledgers, *sorted(found.memory)),
            {encode_name(name): c.ledger for name, c in found.cursors.items() if c.ledger >= 0},
            properties | ({COMPACTION: {"CompactedTopicLedger": compacted}} if compacted is not None else {}),
            compacted,
            (),
        )

    def _compaction_status(self, topic: Topic) -> CompactionStatus:
        found = self._loaded(topic)
        return CompactionStatus.SUCCESS if found.compacting is None else CompactionStatus.RUNNING

    def _unload_on_demand(self, topic: Topic) -> None:
        found = self._topic(topic)
        if not found.loaded and (self.unloads_exactly or self.unloads_load):
            self.loaded_to_unload = topic
            self.load(found)
            self.loaded_to_unload = None
        if found.loaded:
            self.unload(found)

    def _delete_on_demand(self, topic: Topic) -> None:
        """A broker is asked to delete a topic: it may refuse, stop half-way, or its answer may get lost."""
        found = self._topic(topic)
        how = self.random.choice(["done", "done", "done", "lost", "refused", "half", "again"])
        if how == "refused":
            raise StoreError(f"{topic}: it has connected clients")
        if how == "half":  # as ManagedLedgerImpl does it: cursors and ledgers first, the topic's own z-node last
            self.drop_cursors(found)
            for ledger in found.ledgers[: self.random.randint(0, len(found.ledgers))]:
                self.remove(self.path(ledger)) if self.exists(ledger) and not self._shadowed(found, ledger) else None
            raise StoreError("500: a ledger could not be deleted")
        self.delete_topic(found)
        if how in ("again", "lost") and self.random.random() < 0.7 and not self.full():
            self.model.topics[topic] = fresh = ModelTopic(topic)
            self.store(fresh)
            self.load(fresh)
        if how == "lost":
            raise Unavailable("no answer")

    def collect_garbage(self) -> int:
        """Bookies drop the entries of ledgers whose z-nodes are gone; how many ledgers that was."""
        gone = [i for i in self.reader.payloads if not self.exists(i)]
        for ledger in gone:
            del self.reader.payloads[ledger]
        return len(gone)

    def trimmed(self, path: str, left: Sequence[int]) -> str:
        """The product wrote a topic's z-node: why it must not have; else a broker that has it loaded goes on with
        what it has in memory.
        """
        topic = next((t for t in self.model.topics.values() if self.topic_path(t.name) == path and not t.away), None)
        if topic is None:
            return "no such topic"
        gone = [i for i in topic.ledgers if i not in left]
        for name, cursor in topic.cursors.items():
            if gone and not self.passed(cursor, max(gone)):
                return f"cursor {name} has not passed {gone}: it stands at {self.position(cursor)}"
        if topic.shadow_of:
            return "it is a shadow topic"
        if topic.loaded:
            topic.memory |= set(gone)
        topic.ledgers = [i for i in topic.ledgers if i in left]
        for ledger in gone:
            topic.offloaded.pop(ledger, None)
        self._overtake(topic, path)
        return ""

    def _overtake(self, topic: ModelTopic, path: str) -> None:
        """No broker can list any more what it has made since the write that the product's replaced."""
        before, now = self.zookeeper.replaced, self.zookeeper.stat(path)
        assert before is not None
        assert now is not None
        own = [i for i, made in self.model.ledgers.items() if (made.kind, made.topic) == ("data", topic.name)]
        for ledger in own:
            stat = self.zookeeper.stat(self.path(ledger))
            if stat and before.mzxid < stat.czxid < now.mzxid and self._is_open(ledger):
                self.model.overtaken[ledger] = now.czxid

    def damage(self) -> str | None:
        """An object of a ledger that BookKeeper has whole is not what it was: one byte, or it is gone.

        Once BookKeeper's copy is listed as deleted, nobody reads all of it again: then another ETag shows it.
        """
        found = [
            (context.uuid, ledger)
            for topic in self.model.topics.values()
            for ledger, context in topic.offloaded.items()
            if context.complete and context.uuid and self.in_bookkeeper(ledger)
        ]
        found = [(uuid, ledger) for uuid, ledger in found if self.whole(uuid, ledger)]
        if not found:
            return None
        uuid, ledger = self.random.choice(sorted(found))
        gone_dead = any((c := t.offloaded.get(ledger)) and c.bookkeeper_deleted for t in self.model.topics.values())
        ways = ["gone", "replaced"] if gone_dead else ["gone", "replaced", "rotten", "rotten"]
        key, how = data_key(uuid, ledger), self.random.choice(ways)
        if how == "gone":
            del self.buckets.objects[BUCKET][key], self.buckets.data[BUCKET, key]
        else:
            data = bytearray(self.buckets.data[BUCKET, key])
            data[DATA_HEADER_LENGTH + 12] ^= 1  # the first byte of the first entry
            head = self.buckets.objects[BUCKET][key]
            etag = head.etag if how == "rotten" else ""
            self.buckets.put(BUCKET, key, bytes(data), head.metadata, etag=etag)
        return f"an object of offloaded {ledger} is {how}"

    def _read_on_demand(self, topic: Topic, position: Position) -> None:
        """A broker reads an entry where the topic, as it has it, says that it is; it loads the topic for that."""
        found = self._loaded(topic)
        ledger, at = position.ledger_id, position.entry_id
        if ledger not in found.ledgers:
            raise Failed(f"{topic}: 500: no ledger {ledger}")
        context = found.stale.get(ledger, found.offloaded.get(ledger))
        if context is None or not context.complete or context.uuid is None:
            if not self.in_bookkeeper(ledger):
                raise Failed(f"{topic}: 500: ledger {ledger} cannot be read")
            return
        wanted = (self.model.ledgers[ledger].entries or ONE_ENTRY)[at : at + 1]
        there = not self.blind and self.entries_of(context.uuid, ledger)[at : at + 1] == wanted
        if self.trace:
            self.trace.read_badly |= not there
            self.trace.read_well = there and not self.trace.read_badly
            if there:
                self.trace.read.add(str(topic.namespace))
        if not there:
            raise Failed(f"{topic}: 500: {context.uuid} cannot be read")

    # ----------------------------------------------------------------------------------------------------------- time

    def wait_ms(self, wanted: int) -> None:
        """Let true time pass; what is due meanwhile happens when it is due."""
        end = self.time.now_ms() + wanted
        while True:
            model = self.model
            dues = [(at, "schema", i) for i, (_, at) in model.pending.items()]
            dues += [(at, "return", n) for n, (at, _) in enumerate(model.returns)]
            dues += [(at, "listing", n) for n, (at, _) in enumerate(model.listings)]
            dues = [due for due in dues if due[0] <= end]
            if not dues:
                break
            at, what, which = min(dues)
            self.time.advance(max(0, at - self.time.now_ms()) / 1000)
            if what == "schema":
                self._finish_schema(which)
            elif what == "return":
                self.come_back(model.returns.pop(which)[1])
            else:
                self._relist(model.listings.pop(which)[1])
        self.time.advance(max(0, end - self.time.now_ms()) / 1000)

    # -------------------------------------------------------------------------------------------------- back in time

    def take_backup(self) -> None:
        """What a later restore goes back to."""
        self.backup_at = self.time.now_ms()
        self.backup = (
            self.zookeeper.backup(),
            pickle.dumps(self.model),  # a tenth of the time of a deep copy
            {i: list(entries) for i, entries in self.reader.payloads.items()},
            self._last_id,
            self.zookeeper.zxid,
        )

    def restore(self) -> None:
        """The metadata store is restored from its backup and everything is started again: ids are issued anew."""
        assert self.backup is not None
        nodes, model, payloads, last, zxid = self.backup
        self.corrupted.clear()
        self.zookeeper.restore(nodes, zxid)
        self.model = pickle.loads(model)
        self.reader.payloads = {i: list(entries) for i, entries in payloads.items()}
        self._last_id = last
        self.restored += 1
        self.restored_at = self.time.now_ms()
        self.undone.append((self.backup_at, self.restored_at, None))
        for topic in self.model.topics.values():
            topic.loaded, topic.compacting = False, None
            topic.memory.clear()
            self._forget_snapshots(topic)
        for _, topic in self.model.listings:
            self._relist(topic)
        self.model.listings.clear()
        self.admin.loaded.clear()
        now = self.time.now_ms()
        self.model.returns = [(max(at, now), topic) for at, topic in self.model.returns]
        self.model.pending = {i: (sid, max(at, now)) for i, (sid, at) in self.model.pending.items()}
        for see_to in self.after_restore:
            see_to()
