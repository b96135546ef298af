"""By what brokers expire and trim the topics that they have loaded: TTL, subscription expiry, quotas, retention.

Belongs here: which policy is in force of a topic, and what is due of it now. Not here: doing it (``world.py``), who
sets policies (``operators/``), how topics' own are stored (``topic_policies.py``). Upstream:
``PersistentTopic.checkMessageExpiry``, ``checkInactiveSubscriptions``, ``ManagedLedgerImpl.internalTrimLedgers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_lifecycle.model import Namespace, Topic
from tests.simulation.world.model import COMPACTION, ModelTopic

if TYPE_CHECKING:
    from tests.simulation.world.truth import Truth

MINUTE, MIB = 60_000, 1 << 20
QUOTA = 60
"""Seconds after which a message is beyond a backlog quota."""
DEDUPLICATION = "pulsar.dedup"
"""The cursor that stands where deduplication has stored what producers sent."""
NO_SUBSCRIPTIONS = (COMPACTION, DEDUPLICATION, "pulsar.repl.west")

RETENTION, TTL, DEDUPLICATES = "retentionPolicies", "messageTTLInSeconds", "deduplicationEnabled"
"""What topics' own policies call them."""
Said = Mapping[str, Any]


class Retention(NamedTuple):
    """How long, and how much of the newest (MiB), brokers keep; below 0 without end, 0 in either keeps nothing."""

    minutes: int
    mb: int

    def said(self) -> dict[str, int]:
        """As policies say it."""
        return {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.mb}


FOREVER = Retention(-1, -1)


def events_of(namespace: Namespace) -> Topic:
    """The topic that has the policies of a namespace's topics."""
    return Topic(namespace, "__change_events")


@dataclass
class BrokerPolicies:
    """Policies of namespaces: ``retention``, ``expiry`` in minutes, ``ttl`` in seconds.

    One that has none retains for ever, and expires nothing. ``of_topics``: whether topics have policies of their own.
    ``evicts``: namespaces with a backlog quota by the age of messages, of which brokers drop what is beyond it.
    ``system_cursors``: ``additionalSystemCursorNames``. ``deduplicated``: namespaces with deduplication; None: nobody
    switches that on or off.
    """

    retention: dict[str, Retention] = field(default_factory=dict)
    ttl: dict[str, int] = field(default_factory=dict)
    expiry: dict[str, int] = field(default_factory=dict)
    evicts: set[str] = field(default_factory=set)
    system_cursors: frozenset[str] = frozenset()
    of_topics: bool = False
    deduplicated: set[str] | None = None

    def own(self, world: Truth, topic: Topic) -> tuple[Said | None, Said | None]:
        """What a topic has of its own, and what it shares with other clusters; None for nothing.

        Its partitions share both. An event counts as long as its ledger is listed.
        """
        events, found = world.model.topics.get(events_of(topic.namespace)), dict[bool, Said | None]()
        for one in events.said if events and self.of_topics else ():
            if one.topic == topic.partitioned_parent and events and one.ledger in events.ledgers:
                found[one.everywhere] = one.policies
        return found.get(False), found.get(True)

    def retention_of(self, world: Truth, topic: Topic) -> Retention:
        """The retention in force of a topic: its own word, the one that it shares, that of its namespace."""
        for policies in self.own(world, topic):
            if said := (policies or {}).get(RETENTION):
                return Retention(said["retentionTimeInMinutes"], said["retentionSizeInMB"])
        return self.retention.get(str(topic.namespace), FOREVER)

    def ttl_of(self, world: Truth, topic: Topic) -> int:
        """The TTL in force of a topic, 0 for none."""
        return _said(TTL, self.own(world, topic), self.ttl.get(str(topic.namespace), 0))

    def ttl_at_first(self, world: Truth, topic: Topic) -> int:
        """The TTL by which a broker expires as it loads a topic that has local and global policies, 0 for none."""
        ttl = _said(TTL, self._at_first(world, topic), self.ttl.get(str(topic.namespace), 0))
        return ttl if all(one is not None for one in self.own(world, topic)) else 0

    def deduplicates(self, world: Truth, topic: Topic) -> bool:
        """Whether deduplication is on for a topic."""
        return _said(DEDUPLICATES, self.own(world, topic), str(topic.namespace) in (self.deduplicated or ()))

    def forgets(self, world: Truth, topic: Topic) -> bool:
        """Whether a broker that loads a topic finds deduplication off, and deletes its cursor."""
        by_namespace = str(topic.namespace) in (self.deduplicated or ())
        known = self.deduplicated is not None
        return known and not _said(DEDUPLICATES, self._at_first(world, topic), by_namespace)

    def _at_first(self, world: Truth, topic: Topic) -> tuple[Said | None, ...]:
        """A topic's own policies as a broker takes them that loads it: global ones first, then the local ones.

        Upstream: ``PersistentTopic.initTopicPolicy``.
        """
        local, everywhere = self.own(world, topic)
        return (local, everywhere) if local is None or everywhere is None else (everywhere,)

    def subscriptions(self, topic: ModelTopic) -> list[str]:
        """Those of its cursors whose messages brokers expire, and drop by quotas."""
        return [one for one in topic.cursors if one not in NO_SUBSCRIPTIONS and one not in self.system_cursors]

    def past(self, world: Truth, topic: ModelTopic, name: str, seconds: int) -> tuple[int, list[int]]:
        """Of what a cursor needs, the ledgers whose messages are older, and the ledger behind these."""
        cursor, found = topic.cursors[name], list[int]()
        for ledger in topic.ledgers[:-1]:
            if world.passed(cursor, ledger):
                continue
            if world.time.now_ms() - world.written(ledger) <= seconds * 1000:
                return ledger, found
            found.append(ledger)
        return topic.ledgers[-1], found

    def beyond_quota(self, world: Truth, topic: ModelTopic) -> dict[str, tuple[int, list[int]]]:
        """By subscription, where its broker moves it, and the ledgers with messages that it drops so."""
        if str(topic.name.namespace) not in self.evicts:
            return {}
        found = {name: self.past(world, topic, name, QUOTA) for name in self.subscriptions(topic)}
        return {name: (first, dropped) for name, (first, dropped) in found.items() if dropped}

    def due(self, world: Truth, topic: ModelTopic) -> list[int]:
        """The first ledgers, past their retention, that every cursor has passed; none of topics' policies.

        There brokers make the cursor of a compaction as they load it, and it holds what no compaction has.
        """
        if topic.name == events_of(topic.name.namespace):
            return []
        keep, found = self.retention_of(world, topic.name), list[int]()
        behind = sum(map(world.size, topic.ledgers))
        for ledger in topic.ledgers[:-1]:
            behind -= world.size(ledger)
            age = world.time.now_ms() - world.closed(ledger)
            past = 0 <= keep.minutes * MINUTE <= age or 0 <= keep.mb * MIB <= behind
            if not past or not all(world.passed(c, ledger) for c in topic.cursors.values()):
                break
            found.append(ledger)
        return found

    def abandoned(self, world: Truth, topic: ModelTopic) -> list[str]:
        """Subscriptions that no client has been at for too long."""
        limit, now = self.expiry.get(str(topic.name.namespace), 0) * MINUTE, world.time.now_ms()
        return [
            name
            for name, cursor in topic.cursors.items()
            if limit and name not in NO_SUBSCRIPTIONS and cursor.active and now - cursor.active > limit
        ]


def _said(name: str, own: Sequence[Said | None], inherited: Any) -> Any:
    """A policy by the first of a topic's own that has it, else as its namespace has it."""
    said = (one.get(name) for one in own if one is not None)
    return next((value for value in said if value is not None), inherited)
