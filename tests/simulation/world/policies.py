"""By what brokers expire and trim the topics that they have loaded: TTL, subscription expiry, quotas, retention.

Belongs here: what is due of a topic now. Not here: doing it (``world.py``), and who sets policies
(``operators/loading.py``). Upstream: ``PersistentTopic.checkMessageExpiry``, ``checkInactiveSubscriptions``,
``ManagedLedgerImpl.internalTrimLedgers``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.world.model import COMPACTION, ModelTopic

if TYPE_CHECKING:
    from tests.simulation.world.truth import Truth

MINUTE = 60_000
QUOTA = 60
"""Seconds after which a message is beyond a backlog quota."""
NO_SUBSCRIPTIONS = (COMPACTION, "pulsar.dedup", "pulsar.repl.west")


@dataclass
class BrokerPolicies:
    """Policies in force by namespace: ``retention`` and ``expiry`` in minutes, ``ttl`` in seconds.

    One that has none retains for ever, and expires nothing. ``evicts``: namespaces with a backlog quota by the age of
    messages, of which brokers drop what is beyond it. ``system_cursors``: ``additionalSystemCursorNames``.
    """

    retention: dict[str, int] = field(default_factory=dict)
    ttl: dict[str, int] = field(default_factory=dict)
    expiry: dict[str, int] = field(default_factory=dict)
    evicts: set[str] = field(default_factory=set)
    system_cursors: frozenset[str] = frozenset()

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
        names = [one for one in topic.cursors if one not in NO_SUBSCRIPTIONS and one not in self.system_cursors]
        found = {name: self.past(world, topic, name, QUOTA) for name in names}
        return {name: (first, dropped) for name, (first, dropped) in found.items() if dropped}

    def due(self, world: Truth, topic: ModelTopic) -> list[int]:
        """The first ledgers, past their retention, that every cursor has passed."""
        minutes, found = self.retention.get(str(topic.name.namespace), -1), list[int]()
        for ledger in topic.ledgers[:-1]:
            age = world.time.now_ms() - world.closed(ledger)
            if (
                minutes < 0
                or age < minutes * MINUTE
                or not all(world.passed(c, ledger) for c in topic.cursors.values())
            ):
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
