"""The admin API in memory; passes the contract of tests/unit/io/pulsar/test_admin.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.errors import AccessDenied, Conflict, Failed, LifecycleError, NotFound, StoreError
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import BrokerStatistics, TopicConnections, TopicInternals
from pulsar_lifecycle.values.topic_load import CompactionStatus, PendingAcks


@dataclass
class FakeSubscription:
    backlog: int = 0


def _nothing_stored(topic: Topic, position: Position) -> None:
    raise NotFound(f"{topic}: no entry {position}")


class FakeBrokerAdmin:
    """Set the attributes to say what the cluster is like.

    ``failure``, when set, is raised by every call. ``touched`` lists the topics that a call has loaded, for tests that
    prove that looking does not touch; a touched topic then is in ``loaded``. ``connected`` are topics with clients.
    ``on_take`` is what :meth:`take_alone` does, ``asked`` the topics it was called with.
    ``on_load`` (of a topic that is not loaded), ``on_expire``, ``on_trim``, ``on_unload``, ``on_delete``,
    ``on_unsubscribe`` and ``on_read`` are called before the effect: they may fail, or be a test's own broker.
    ``clients`` by topic are what :meth:`connections` says of a loaded one that is not in ``connected``, ``used_at``
    what :meth:`last_use` says, ``acks`` what :meth:`pending_acks` does. ``owners`` of topics that another broker than
    the first serves; ``used`` by broker id is what :meth:`usage` says.
    ``configuration`` by broker id is what they say.
    ``internal_stats`` of ``unanswered`` topics raises their error. ``failing`` brokers fail at everything about those.
    Brokers that are ``unreachable`` tell nothing, and topics that they own fail; ``refusing`` ones answer 403 to all.
    ``denied`` are tenants that we are no admin of. Who is no ``superuser`` may not ask which brokers there are.
    ``on_properties``, ``on_removal`` and ``on_move`` are what the broker does then.
    """

    def __init__(
        self,
        brokers: Sequence[str] = ("broker-1:8080",),
        namespaces: Sequence[str] = ("public/default", "pulsar/system"),
    ) -> None:
        self.broker_ids = list(brokers)
        self.namespaces = set(namespaces)
        self.partition_counts: dict[Topic, int] = {}
        self.topics: dict[Topic, dict[str, FakeSubscription]] = {}
        self.internals: dict[Topic, TopicInternals] = {}
        self.compactions: dict[Topic, CompactionStatus] = {}
        self.loaded: dict[str, str] = {}
        self.touched: list[Topic] = []
        self.stats_interval = 60_000
        self.configuration: dict[str, Mapping[str, str]] = {}
        self.failure: LifecycleError | None = None
        self.unanswered: dict[Topic, LifecycleError] = {}
        self.failing: set[str] = set()
        self.connected: set[Topic] = set()
        self.clients: dict[Topic, TopicConnections] = {}
        self.used_at: dict[tuple[Topic, str], int] = {}
        self.acks: dict[tuple[Topic, str], PendingAcks] = {}
        self.on_unsubscribe: Callable[[Topic, str], None] = lambda topic, subscription: None
        self.on_unload: Callable[[Topic], None] = lambda topic: None
        self.on_delete: Callable[[Topic], None] = lambda topic: None
        self.on_take: Callable[[Topic], None] = lambda topic: None
        self.asked: list[Topic] = []
        self.on_load: Callable[[Topic], None] = lambda topic: None
        self.on_expire: Callable[[Topic, str, int], None] = lambda topic, subscription, seconds: None
        self.on_trim: Callable[[Topic], None] = lambda topic: None
        self.owners: dict[Topic, str] = {}
        self.used: dict[str, float] = {}
        self.unreachable: set[str] = set()
        self.refusing: set[str] = set()
        self.denied: set[str] = set()
        self.superuser = True
        self.on_properties: Callable[[Topic, Mapping[str, str]], None] = lambda topic, properties: None
        self.on_removal: Callable[[Topic, str], None] = lambda topic, name: None
        self.on_move: Callable[[Topic, str, Position], None] = lambda topic, subscription, past: None
        self.on_read: Callable[[Topic, Position], None] = _nothing_stored

    def brokers(self) -> list[str]:
        self._answer()
        if not self.superuser:
            raise AccessDenied("401: LIST_BROKERS")
        return list(self.broker_ids)

    def loaded_topics(self, brokers: Sequence[str] = ()) -> dict[str, str]:
        self._answer(*self.broker_ids)
        return dict(self.loaded)

    def connections(self) -> dict[str, TopicConnections]:
        self._answer(*self.broker_ids)
        return self._connections()

    def _connections(self) -> dict[str, TopicConnections]:
        nobody = TopicConnections(0, {}, 0)
        known = {name: self.clients.get(Topic.parse(name), nobody) for name in self.loaded}
        some = TopicConnections(1, {}, 0)
        return known | {str(topic): some for topic in self.connected if str(topic) in self.loaded}

    def statistics(self, broker: str) -> BrokerStatistics:
        said = self.configuration_of(broker)
        own = {name: one for name, one in self._connections().items() if self.loaded[name] == broker}
        if "replicatorPrefix" not in said:
            raise Failed(f"{broker}: says no replicatorPrefix")
        return BrokerStatistics(own, self.stats_interval, said)

    def check_admin(self, topic: Topic) -> None:
        self._answer()
        if topic.namespace.tenant in self.denied:
            raise AccessDenied(f"{topic}: 403")
        if "\0" in topic.local:
            raise StoreError(f"{topic}: 400")

    def take_alone(self, topic: Topic) -> None:
        self.asked.append(topic)
        self.on_take(topic)

    def set_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        self._load(topic)
        self.on_properties(topic, properties)

    def remove_property(self, topic: Topic, name: str) -> None:
        self._load(topic)
        self.on_removal(topic, name)

    def move_cursor(self, topic: Topic, subscription: str, past: Position) -> None:
        self._subscription(topic, subscription)
        self.on_move(topic, subscription, past)

    def internal_stats(self, topic: Topic) -> TopicInternals:
        self._load(topic)
        if topic in self.unanswered:
            raise self.unanswered[topic]
        return self.internals.get(topic) or TopicInternals("LedgerOpened", (), {}, {}, None, ())

    def fails_at(self, broker: str, topic: Topic) -> bool:
        self._load(topic)
        if broker in self.failing:
            raise Failed(f"{broker}: 500")
        return isinstance(self.unanswered.get(topic), Failed)

    def compaction_status(self, topic: Topic) -> CompactionStatus:
        self._load(topic)
        return self.compactions.get(topic, CompactionStatus.NOT_RUN)

    def configurations(self) -> dict[str, Mapping[str, str]]:
        return {broker: self.configuration_of(broker) for broker in self.broker_ids}

    def configuration_of(self, broker: str) -> Mapping[str, str]:
        self._answer(broker)
        unless = {"replicatorPrefix": "pulsar.repl"}
        return {"clusterName": "fake", **self.configuration.get(broker, unless)}

    def usage(self, broker: str) -> float:
        self._answer(broker)
        return self.used.get(broker, 0.0)

    def owner(self, topic: Topic) -> str:
        self._answer()
        return self.owners.get(topic, self.broker_ids[0])

    def expire_messages(self, topic: Topic, subscription: str, seconds: int) -> None:
        self._subscription(topic, subscription)
        self.on_expire(topic, subscription, seconds)

    def trim(self, topic: Topic) -> None:
        self._load(topic)
        self.on_trim(topic)

    def read_entry(self, topic: Topic, position: Position) -> None:
        self._load(topic)
        self.on_read(topic, position)

    def stats_interval_ms(self, brokers: Sequence[str] = ()) -> int:
        self._answer(*self.broker_ids)
        return self.stats_interval

    def partitions(self, topic: Topic) -> int | None:
        self._answer()
        if topic in self.partition_counts:
            return self.partition_counts[topic]
        return 0 if topic in self.topics else None

    def create_partitioned_topic(self, topic: Topic, partitions: int) -> None:
        self._in_namespace(topic)
        if self.partitions(topic) not in (None, partitions):
            raise Conflict(f"{topic}: it has {self.partitions(topic)} partitions")
        if self.partitions(topic) is None and any(str(one).startswith(f"{topic}-partition-") for one in self.topics):
            raise Conflict(f"{topic}: This topic already exists")
        self.partition_counts[topic] = partitions
        for n in range(partitions):
            self.topics.setdefault(Topic(topic.namespace, f"{topic.local}-partition-{n}"), {})

    def create_topic(self, topic: Topic) -> None:
        self._in_namespace(topic)
        if topic in self.partition_counts:
            raise Conflict(f"{topic}: it has {self.partition_counts[topic]} partitions")
        self.topics.setdefault(topic, {})

    def create_subscription(self, topic: Topic, subscription: str, position: str = "earliest") -> None:
        self._load(topic).setdefault(subscription, FakeSubscription())

    def subscriptions(self, topic: Topic) -> list[str]:
        return list(self._load(topic))

    def backlog(self, topic: Topic, subscription: str) -> int:
        return self._subscription(topic, subscription).backlog

    def last_use(self, topic: Topic, subscription: str) -> int | None:
        self._subscription(topic, subscription)
        connected = topic in self.clients and self.clients[topic].consumers.get(subscription, 0)
        return None if connected else self.used_at.get((topic, subscription), 0)

    def pending_acks(self, topic: Topic, subscription: str) -> PendingAcks:
        self._answer(self.owners.get(topic, self.broker_ids[0]))
        if str(topic) not in self.loaded:
            raise NotFound(f"{topic}: not loaded")
        if subscription not in self.topics.get(topic, {}):
            raise Failed(f"{topic}: no subscription {subscription}")
        return self.acks.get((topic, subscription), PendingAcks.NONE)

    def delete_subscription(self, topic: Topic, subscription: str) -> None:
        self._subscription(topic, subscription)
        if topic in self.clients and self.clients[topic].consumers.get(subscription, 0):
            raise StoreError(f"{topic}: {subscription} has consumers")
        self.on_unsubscribe(topic, subscription)
        del self.topics[topic][subscription]

    def unload(self, topic: Topic) -> None:
        self._load(topic)
        self.on_unload(topic)
        self.loaded.pop(str(topic), None)

    def delete_topic(self, topic: Topic, force: bool) -> None:
        self._answer()
        if topic in self.partition_counts:
            raise Conflict(f"{topic}: it has {self.partition_counts[topic]} partitions")
        self._load(topic)
        if topic in self.connected and not force:
            raise StoreError(f"{topic}: it has connected clients")
        self.on_delete(topic)
        del self.topics[topic]
        self.internals.pop(topic, None)
        self.loaded.pop(str(topic), None)

    def close(self) -> None:
        pass

    def _answer(self, *brokers: str) -> None:
        if self.failure:
            raise self.failure
        if unanswered := self.unreachable.intersection(brokers):
            raise Failed(f"{unanswered.pop()}: timed out")
        if refusing := self.refusing.intersection(brokers):
            raise AccessDenied(f"{refusing.pop()}: 403")

    def _in_namespace(self, topic: Topic) -> None:
        self._answer()
        if str(topic.namespace) not in self.namespaces:
            raise NotFound(f"{topic.namespace}: no such namespace")

    def _load(self, topic: Topic) -> dict[str, FakeSubscription]:
        self._answer(self.owners.get(topic, self.broker_ids[0]))
        if topic not in self.topics and topic not in self.internals:
            raise NotFound(f"{topic}: no such topic")
        self.touched.append(topic)
        if str(topic) not in self.loaded:
            self.on_load(topic)
        self.loaded.setdefault(str(topic), self.owners.get(topic, self.broker_ids[0]))
        return self.topics.setdefault(topic, {})

    def _subscription(self, topic: Topic, subscription: str) -> FakeSubscription:
        found = self._load(topic).get(subscription)
        if found is None:
            raise NotFound(f"{topic}: no subscription {subscription}")
        return found
