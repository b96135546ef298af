"""A look before each request about one topic: what it would have brokers load besides.

Belongs here: what a broker reads for a topic that it loads, whether somebody owns the bundles of that, and having them
taken alone. Not here: whether the topic itself may be loaded (``topics/write.py``), and requests about none.

Who takes a bundle for a request to the admin API loads nothing else of it. Who takes it for a client loads all of it,
and its monitors trim, expire and delete there. For each topic that it loads a broker reads :data:`BY_THEMSELVES` of the
namespace, as a client, and makes those that are not there. So their bundles are asked for first, by requests.
Upstream: ``PulsarService.loadNamespaceTopics``, ``SystemTopicBasedTopicPoliciesService``, ``TopicTransactionBuffer``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from pulsar_lifecycle.bundles.placing import (
    BROKERS_ROOT,
    BY_THEMSELVES,
    LOCKS_ROOT,
    TRANSACTION_BUFFERS,
    LoadedAlong,
    bundles,
    covers,
    lockless,
    other_of_bundle,
    read_at_once,
)
from pulsar_lifecycle.errors import BundleShared, ConfigError, LifecycleError, NotFound, Overloaded, Unavailable
from pulsar_lifecycle.formats.partitioned_topic import partition_count, partitions_made
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PARTITIONED_ROOT, POLICIES_ROOT, Namespace, Topic
from pulsar_lifecycle.ports import BrokerAdmin, Clock, MetadataStore, Node, Unread
from pulsar_lifecycle.values.codes import Code, Why

BROKERS_OWN = "pulsar/system"
"""The namespace that brokers use for themselves, whatever anybody asks for."""
TAKEN_FOR = 120_000
"""Milliseconds for which a bundle counts as owned once it was asked for, where brokers keep no locks: lists lag. And
for which brokers are not asked for their configuration once one did not say it."""
TRIES = 3
"""How often all is looked up anew for one request."""
LONG = 5_000
"""Milliseconds after which what was looked up is looked up anew: a broker that hung may have lost its bundles."""


class BundleGuard:
    """Looks before each request of one process, in the metadata store and in the one of configuration.

    ``takes``: brokers may be asked for bundles; else nothing is asked.
    """

    def __init__(
        self,
        stores: Callable[[], tuple[MetadataStore, MetadataStore]],
        admin: BrokerAdmin,
        clock: Clock,
        *,
        takes: bool,
    ) -> None:
        self._open, self._admin, self._clock, self._takes = stores, admin, clock, takes
        self._said: Mapping[str, Mapping[str, str]] = {}
        """What each broker is configured with; nothing where they did not say it."""
        self._said_at = -TAKEN_FOR
        self._taken: dict[str, int] = {}
        """Bundles that were asked for, and when (ms)."""
        self._listed: dict[str, list[str]] = {}
        """What brokers list, by namespace and domain."""
        self._listed_at = -LONG

    def check(self, topic: Topic) -> None:
        """Before a request that may have ``topic`` loaded. Raises BundleShared, Overloaded, ConfigError."""
        try:
            self._look(topic, TRIES)
        except (BundleShared, Overloaded, ConfigError):
            raise
        except LifecycleError as error:
            text = f"whether others would be loaded with it is not known: {error}"
            raise BundleShared(f"{topic}: not asked for: {text}") from error

    def _look(self, topic: Topic, tries: int) -> None:
        if str(topic.namespace) == BROKERS_OWN:
            return
        if not tries:
            raise BundleShared(f"{topic}: not asked for: brokers kept us waiting {TRIES} times: run again")
        store, configuration = self._open()
        along = self._read_along(store, configuration, topic)
        names = self._locks(store, topic, along)
        if not self._takes and any(covers(name, topic) for name in names):
            return  # its owner has read all that
        unowned = [one for one in along if not any(covers(name, one) for name in names)]
        if not unowned:
            return
        if self._is_asked():
            self._look(topic, tries - 1)  # that may have taken LONG
            return
        said = self._said
        keeps_none = bool(said) and len(lockless(said)) == len(said)
        if keeps_none and not self._takes:
            return  # who has it is not known; what only looks asks about topics that brokers list
        place = bundles(store, [topic, *unowned])
        unowned = [one for one in unowned if _is_read(one, said)]
        if unowned and keeps_none:
            unowned = self._unlisted(store, topic.namespace, unowned, place)
        beside = {one: other_of_bundle(store, one, topic) for one in unowned}
        own = place[topic] if place[topic] != str(topic.namespace) else None  # without boundaries nobody knows it
        elsewhere = [one for one in unowned if place[one] != own and one != topic]
        shared = [LoadedAlong(one, other) for one in elsewhere if (other := beside[one])]
        if not shared:
            return
        if at_once := read_at_once(store, beside):
            raise BundleShared(f"{topic}: not asked for: {at_once.text}; it reads all partitions of that at once")
        if not self._takes:
            way = f"who only looks has no broker take it: `pulsar-admin topics subscriptions {shared[0].read}` does"
            raise BundleShared(f"{topic}: not asked for: {shared[0].text}; {way}")
        if unread := next((one for one in shared if isinstance(one.other, str)), None):
            raise BundleShared(f"{topic}: not asked for: {unread.text}")
        # Who takes a bundle reads the policies, as a client: these come first, also in the topic's own bundle.
        asked = [one for one in unowned if one in elsewhere or (one != topic and _is_policies(one))]
        if self._take(topic, asked, shared[0], place):
            self._look(topic, tries - 1)

    def _take(self, topic: Topic, along: Sequence[Topic], first: LoadedAlong, place: Mapping[Topic, str]) -> bool:
        """Have brokers take the bundles of these alone; whether that took LONG."""
        began = self._clock.now_ms()
        for one in along:
            try:
                self._admin.subscriptions(one)
            except NotFound:
                pass  # its bundle has an owner now, who makes it
            except LifecycleError as error:
                text = f"{first.text}; no broker takes it alone: {error}; run again once brokers answer"
                raise BundleShared(f"{topic}: not asked for: {text}") from error
            self._taken[place[one]] = self._clock.now_ms()
        return self._clock.now_ms() - began > LONG

    def _locks(self, store: MetadataStore, topic: Topic, along: Sequence[Topic]) -> list[str]:
        """The names of the locks on bundles of these topics. Raises BundleShared for one of a broker that died.

        Until its session ends a broker that is back takes such a bundle over with all that is in it, for a client.
        """
        folder = f"{LOCKS_ROOT}/{topic.namespace}"
        listings = store.children([folder, BROKERS_ROOT])
        if unread := next((one for one in listings if isinstance(one, Unread)), None):
            raise Unavailable(f"{folder}, {BROKERS_ROOT}: {unread.reason}")
        locks, brokers = ([] if one is None or isinstance(one, Unread) else one.names for one in listings)
        names = [name for name in locks if any(covers(name, one) for one in (topic, *along))]
        paths = [*(f"{folder}/{name}" for name in names), *(f"{BROKERS_ROOT}/{name}" for name in brokers)]
        nodes = _read(store, paths) if names else []
        sessions = {node.stat.ephemeral_owner for node in nodes[len(names) :] if node}
        for name, node in zip(names, nodes, strict=False):
            if node and node.stat.ephemeral_owner not in sessions:
                text = f"the broker that has bundle {name} of its namespace died, and its session has not ended"
                raise BundleShared(f"{topic}: not asked for: {text}: run again in a minute")
        return [name for name, node in zip(names, nodes, strict=False) if node is not None]

    def _unlisted(
        self, store: MetadataStore, namespace: Namespace, topics: Sequence[Topic], place: Mapping[Topic, str]
    ) -> list[Topic]:
        """Those in whose bundles no broker lists a topic, and which were not asked for a moment ago."""
        now = self._clock.now_ms()
        if now - self._listed_at > LONG:
            names, self._listed, self._listed_at = self._admin.loaded_topics(), {}, now
            for name in names:
                self._listed.setdefault(name.rpartition("/")[0], []).append(name)
        listed = [name for inside, some in self._listed.items() if inside.endswith(f"//{namespace}") for name in some]
        owned = {*bundles(store, [Topic.parse(name) for name in listed]).values()}
        owned.update(bundle for bundle, at in self._taken.items() if now - at < TAKEN_FOR)
        return [one for one in topics if place[one] not in owned]

    def _read_along(self, store: MetadataStore, configuration: MetadataStore, topic: Topic) -> list[Topic]:
        """What a broker reads for a topic, whether it is there or not; policies first. For system topics only these."""
        system = topic.partitioned_parent.local in BY_THEMSELVES
        topics = [Topic(topic.namespace, name) for name in (BY_THEMSELVES[:1] if system else BY_THEMSELVES)]
        paths = [f"{PARTITIONED_ROOT}/{one.managed_ledger}" for one in topics]
        *nodes, policies = _read(configuration, [*paths, f"{POLICIES_ROOT}/{topic.namespace}"])
        counts = [partition_count(path, node.data) if node else 0 for path, node in zip(paths, nodes, strict=True)]
        there = _read(store, [f"{MANAGED_LEDGERS_ROOT}/{one.managed_ledger}" for one in topics])
        if all(count or node for count, node in zip(counts, there, strict=True)):
            made = 0
        elif (own := partitions_made(policies.path, policies.data) if policies else None) is not None:
            made = own
        else:
            self._is_asked()
            made = _made_by(self._said)
        counts = [made if node is None and not count else count for count, node in zip(counts, there, strict=True)]
        return [part for one, count in zip(topics, counts, strict=True) for part in _parts(one, count)]

    def _is_asked(self) -> bool:
        """Ask brokers what they are configured with, unless they said it; after a failure not for a while."""
        now = self._clock.now_ms()
        if self._said or now - self._said_at < TAKEN_FOR:
            return False
        with contextlib.suppress(LifecycleError):
            self._said = self._admin.configurations()
        self._said_at = self._clock.now_ms()
        return True


def others_loaded(admin: BrokerAdmin, topic: Topic) -> Why | None:
    """Why no broker is to load a topic for us now; None once a request about it has nothing else loaded.

    Raises Overloaded, ConfigError.
    """
    try:
        admin.take_alone(topic)
    except BundleShared as error:
        return Why(Code.BUNDLE_SHARED, str(error))
    return None


def _read(store: MetadataStore, paths: Sequence[str]) -> list[Node | None]:
    """Z-nodes; None for one that is not there. Raises Unavailable for one that cannot be read."""
    nodes = store.read(paths)
    if unread := next((node for node in nodes if isinstance(node, Unread)), None):
        raise Unavailable(f"{unread.path} cannot be read: {unread.reason}")
    return [node for node in nodes if not isinstance(node, Unread)]


def _made_by(said: Mapping[str, Mapping[str, str]]) -> int:
    """How many partitions brokers give a topic that they make, where its namespace does not say so."""
    kinds = [one for one in said.values() if one.get("allowAutoTopicCreationType") == "partitioned"]
    return max((int(one.get("defaultNumPartitions") or 1) for one in kinds), default=0)


def _parts(topic: Topic, count: int) -> list[Topic]:
    return [Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(count)] or [topic]


def _is_policies(topic: Topic) -> bool:
    return topic.partitioned_parent.local == CHANGE_EVENTS


def _is_read(topic: Topic, said: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether some broker reads it for the topics that it loads; those that say nothing may."""
    local = topic.partitioned_parent.local
    if _is_policies(topic):
        return any(
            _on(one, "topicLevelPoliciesEnabled") and _on(one, "systemTopicEnabled") for one in said.values() or [{}]
        )
    segmented = local != TRANSACTION_BUFFERS[0]
    return any(
        _on(one, "transactionCoordinatorEnabled")
        and (not said or _on(one, "transactionBufferSegmentedSnapshotEnabled") is segmented)
        for one in said.values() or [{}]
    )


def _on(configuration: Mapping[str, str], name: str) -> bool:
    return configuration.get(name, "true") == "true"
