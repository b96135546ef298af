"""What must hold whenever a run has brokers load topics.

Belongs here: judging a load, an expiry of messages or of subscriptions and what brokers do meanwhile, by the
simulator's own truth. Not
here: what leaves a topic's list by our own hand (``laws.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.run_settings import LoadSettings
from pulsar_lifecycle.runs import control
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.policies import MINUTE, NO_SUBSCRIPTIONS, BrokerPolicies, events_of
from tests.simulation.world.world import World


class LoadLaws:
    """The judge of loads. ``ordered``: what the run that is at it may load, None where none is.

    ``counts``: what was done, by its name. ``used``: when (ms) a client was at a subscription last, as we know; the
    broker that had its topic may have died before it wrote that.
    """

    def __init__(self, world: World, policies: BrokerPolicies, settings: LoadSettings) -> None:
        self.world, self.policies, self.settings = world, policies, settings
        self.ordered: frozenset[str] | None = None
        self.loaded: set[str] = set()
        self.counts = Counter[str]()
        world.on_load, world.on_expire, world.on_unsubscribe = self.is_loaded, self.expires, self.unsubscribes
        world.on_evict, world.on_skip = self.evicts, self.expires_at_load
        world.on_undeduplicated = self.forgets
        self.used: dict[tuple[Topic, str], int] = {}
        world.admin.on_unsubscribe = self.deletes

    @contextmanager
    def run(self, *ordered: str) -> Iterator[None]:
        """A run is at it that may load these topics."""
        self.ordered, self.loaded = frozenset(ordered), set()
        try:
            yield
        finally:
            self.ordered = None

    def is_loaded(self, topic: ModelTopic) -> None:
        """No topic is loaded without order, by no run, nor without a note for whoever must unload it.

        A broker that loads a topic reads the policies of its namespace's topics, wherever these are.
        """
        if self.ordered is None:
            if not self.world.interceptor.fired:  # else a run may ask of one that a broker had a moment ago
                raise Violation(f"load: {topic.name} is loaded, and no run is at it that loads topics")
            return
        name, namespace = str(topic.name), str(topic.name.namespace)
        if topic.name == events_of(topic.name.namespace) and namespace in self.settings.namespaces:
            return
        if name not in self.ordered or namespace not in self.settings.namespaces:
            raise Violation(f"load: {name} is loaded without order")
        if not any(self.world.zookeeper.stat(path) for path in notes_of(topic)):
            raise Violation(f"load: {name} is loaded, and no note says that it must be unloaded")
        self.loaded.add(name)
        self.counts["loaded by order"] += 1

    def expires(self, topic: ModelTopic, subscription: str, ledgers: Sequence[int]) -> None:
        """No message counts as acknowledged unless the TTL in force says so."""
        self._past_ttl(topic, subscription, ledgers)
        if subscription in NO_SUBSCRIPTIONS or subscription in self.policies.system_cursors:
            raise Violation(f"load: {subscription} of {topic.name} is expired, which is no subscription")
        self.counts["expired by order"] += len(ledgers)

    def expires_at_load(self, topic: ModelTopic, subscription: str, ledgers: Sequence[int]) -> None:
        """No broker drops unread messages of a topic that we had it load by a TTL that is not in force."""
        if self._is_by_us(topic):
            self._past_ttl(topic, subscription, ledgers)
            self.counts["expired by global policies at loads"] += 1

    def _is_by_us(self, topic: ModelTopic) -> bool:
        """Whether we had it loaded: by order, or as an unload of ours found it without a broker."""
        by_order = self.ordered is not None and str(topic.name) in self.loaded
        return by_order or self.world.loaded_to_unload == topic.name

    def _past_ttl(self, topic: ModelTopic, subscription: str, ledgers: Sequence[int]) -> None:
        ttl = self.policies.ttl_of(self.world, topic.name)
        for ledger in ledgers:
            age = self.world.time.now_ms() - self.world.written(ledger)
            if not ttl or age <= ttl * 1000:
                raise Violation(
                    f"load: {subscription} of {topic.name} skips {ledger}, {age // 1000} s old, TTL {ttl} s"
                )

    def forgets(self, topic: ModelTopic) -> None:
        """No broker forgets what producers sent to a topic that we had it load, while deduplication is on."""
        if self._is_by_us(topic):
            if self.policies.deduplicates(self.world, topic.name):
                raise Violation(f"load: {topic.name} forgets what was sent to it, and its deduplication is on")
            self.counts["deduplication ended by loads"] += 1

    def evicts(self, topic: ModelTopic, subscription: str, ledgers: Sequence[int]) -> None:
        """No broker drops unread messages of a topic that we had it load, unless that is ordered, too."""
        if self.ordered is not None and str(topic.name) in self.loaded:
            if str(topic.name.namespace) not in self.settings.backlog_eviction:
                raise Violation(
                    f"load: {ledgers} of {topic.name} are dropped unread by {subscription}, as we loaded it"
                )
            self.counts["evicted by order"] += 1

    def unsubscribes(self, topic: ModelTopic, subscription: str) -> None:
        """No broker deletes a subscription in a topic that we had it load, unless that is ordered, too."""
        if self.ordered is not None and str(topic.name) in self.loaded:
            if str(topic.name.namespace) not in self.settings.subscription_expiry:
                raise Violation(f"load: {subscription} of {topic.name} is deleted by its broker, as we loaded it")
            self.counts["unsubscribed by order"] += 1

    def deletes(self, name: Topic, subscription: str) -> None:
        """No subscription goes by our request but by order, and none that was used within its time."""
        topic = self.world.model.topics.get(name)
        if topic is None or subscription not in topic.cursors:
            return
        if why := self._not_expired(topic, subscription):
            raise Violation(f"load: {subscription} of {name} is deleted: {why}")
        self.counts["expired subscriptions deleted"] += 1

    def _not_expired(self, topic: ModelTopic, subscription: str) -> str:
        namespace = str(topic.name.namespace)
        if self.ordered is None or str(topic.name) not in self.ordered:
            return "nobody ordered that"
        if namespace not in self.settings.subscription_expiry:
            return "the settings do not name it"
        if subscription in NO_SUBSCRIPTIONS or subscription in self.policies.system_cursors:
            return "it is no subscription"
        limit, now = self.policies.expiry.get(namespace, 0) * MINUTE, self.world.time.now_ms()
        used = max(topic.cursors[subscription].active or now, self.used.get((topic.name, subscription), 0))
        return "" if limit and now - used > limit else f"it was used {now - used} ms ago, and may rest for {limit}"


def notes_of(topic: ModelTopic) -> list[str]:
    """Where it is noted that a topic must be unloaded."""
    return [control._pending_path(topic.name, lease) for lease in control.PENDING_UNLOADS]
