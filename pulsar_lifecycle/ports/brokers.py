"""What brokers are asked and told over their REST API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.values.topic_load import CompactionStatus, PendingAcks

BEFORE_ALL = Position(-1, -1)
"""The position before a topic's first message."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a cursor has behind it: all up to ``mark_delete``, and beyond it ``ranges`` (first excluded, last not)."""

    mark_delete: Position
    ranges: tuple[tuple[Position, Position], ...] = ()

    def __contains__(self, position: Position) -> bool:
        """Whether the message, or the whole batch, at a position is acknowledged."""
        return position <= self.mark_delete or any(first < position <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class TopicInternals:
    """What the owner broker holds in memory of one loaded topic (``internalStats``).

    Cursors are keyed by the name of their z-node, non-durable ones by that of their subscription; ``cursor_ledgers``
    has only those with a ledger of their own. ``last_confirmed`` is the position of the last message, or the one before
    the first. ``entries`` of each ledger, and how many were ``added`` since the load; -1: not said.
    """

    state: str
    ledgers: tuple[int, ...]
    cursor_ledgers: Mapping[str, int]
    cursor_properties: Mapping[str, Mapping[str, int]]
    compacted_ledger: int | None
    schema_ledgers: tuple[int, ...]
    acknowledged: Mapping[str, Acknowledged] = field(default_factory=dict[str, Acknowledged])
    last_confirmed: Position = BEFORE_ALL
    entries: Mapping[int, int] = field(default_factory=dict[int, int])
    added: int = -1

    def loaded_since(self, ledger_id: int) -> bool:
        """Whether the topic is loaded since it began this ledger, for sure: its entries count as added since the load.

        Each load begins another ledger, so entries of one that an earlier load began are not counted. A ledger that is
        not listed, or empty, proves nothing.
        """
        held = sum(count for one, count in self.entries.items() if one >= ledger_id)
        return self.entries.get(ledger_id, 0) > 0 and self.added >= held

    @property
    def cursors(self) -> frozenset[str]:
        """The names of all cursors: durable ones as their z-nodes', non-durable ones as their subscriptions'."""
        return frozenset({*self.cursor_ledgers, *self.cursor_properties, *self.acknowledged})


@dataclass(frozen=True, slots=True)
class TopicConnections:
    """Who is connected to a loaded topic, and how many messages clients have ``published`` since its load.

    ``consumers`` by the name of their subscription, durable or not, also those that have none connected.
    """

    producers: int
    consumers: Mapping[str, int]
    published: int

    def joined(self, other: TopicConnections | None) -> TopicConnections:
        """All that either says of the topic, which a broker may list for good that once had it loaded."""
        if other is None:
            return self
        names = {**self.consumers, **other.consumers}
        most = {name: max(self.consumers.get(name, 0), other.consumers.get(name, 0)) for name in names}
        return TopicConnections(max(self.producers, other.producers), most, max(self.published, other.published))


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What one broker says of the persistent topics it has loaded, how often (ms) it says it anew, and how it is set.

    ``configuration``: what broker.conf and dynamic settings come to, as text, ``replicatorPrefix`` among it.
    """

    topics: Mapping[str, TopicConnections]
    interval_ms: int
    configuration: Mapping[str, str]

    @property
    def cluster(self) -> str:
        """The name of its cluster, empty if it says none."""
        return self.configuration.get("clusterName", "")

    @property
    def replicator(self) -> str:
        """How cursors of replicators begin."""
        return self.configuration["replicatorPrefix"]


class BrokerAdmin(Protocol):
    """The admin REST API; only calls that do not load a topic, except where a docstring says so."""

    def brokers(self) -> list[str]:
        """Broker ids (``host:webport``) of the cluster."""
        ...

    def loaded_topics(self, brokers: Sequence[str] = ()) -> dict[str, str]:
        """Full topic name -> broker id, from every broker's ``/broker-stats/topics``.

        ``brokers``: those that there are, by :meth:`brokers`, which is asked otherwise.
        The list lags by ``statsUpdateFrequencyInSecs`` (60). Raises if any broker does not answer.
        """
        ...

    def connections(self) -> dict[str, TopicConnections]:
        """The clients of every loaded topic, by its full name; from where :meth:`loaded_topics` is, and as late."""
        ...

    def statistics(self, broker: str) -> BrokerStatistics:
        """What :meth:`loaded_topics`, :meth:`connections` and :meth:`stats_interval_ms` say, of one broker alone."""
        ...

    def check_admin(self, topic: Topic) -> None:
        """Raise AccessDenied unless our role is admin of the topic's tenant. Loads nothing. Raises NotFound."""
        ...

    def take_alone(self, topic: Topic) -> None:
        """Have brokers own what they read as they load a topic, so that a request about it loads nothing else.

        Each request about one topic does that first. Raises BundleShared where it cannot be done; of one that may only
        look also where it needs to be.
        """
        ...

    def set_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Have the broker add these to a topic's properties. Loads the topic. Raises NotFound, OutcomeUnknown."""
        ...

    def remove_property(self, topic: Topic, name: str) -> None:
        """Have the broker remove a topic's property, if it has it. Loads the topic. Raises NotFound, OutcomeUnknown."""
        ...

    def move_cursor(self, topic: Topic, subscription: str, past: Position) -> None:
        """Have a durable subscription acknowledge everything up to an entry. Loads the topic.

        It never goes back, keeps what it acknowledged beyond, and its consumers stay connected. The broker persists it
        within a minute. Raises NotFound, OutcomeUnknown, Conflict beyond the end and while messages expire anyhow.
        """
        ...

    def internal_stats(self, topic: Topic) -> TopicInternals:
        """Loads the topic: ask only for a topic that is loaded already."""
        ...

    def fails_at(self, broker: str, topic: Topic) -> bool:
        """Whether this very broker fails at the internals of a topic, and right after reads the topic's z-node for us.

        Asks as :meth:`internal_stats` does: only for a topic that this broker has loaded already. Raises if anything
        else is the answer.
        """
        ...

    def compaction_status(self, topic: Topic) -> CompactionStatus:
        """``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``. Loads the topic: ask only for a loaded one."""
        ...

    def stats_interval_ms(self, brokers: Sequence[str] = ()) -> int:
        """How often brokers refresh ``/broker-stats/topics`` (``statsUpdateFrequencyInSecs``), the longest of all.

        ``brokers`` as in :meth:`loaded_topics`.
        """
        ...

    def configurations(self) -> dict[str, Mapping[str, str]]:
        """Broker id -> its runtime configuration: what broker.conf and dynamic settings come to, as text."""
        ...

    def configuration_of(self, broker: str) -> Mapping[str, str]:
        """What :meth:`configurations` says, of one broker alone."""
        ...

    def usage(self, broker: str) -> float:
        """How much one broker uses of its scarcest resource: CPU, direct memory or network; 1.0 is all of it."""
        ...

    def owner(self, topic: Topic) -> str:
        """The broker id of who serves a topic's bundle. One without an owner gets one, which loads none of it."""
        ...

    def expire_messages(self, topic: Topic, subscription: str, seconds: int) -> None:
        """Have a subscription acknowledge all messages older than that; answers before it is done. Loads the topic.

        Where an expiry is under way, or nothing is to be expired, nothing is done. Raises NotFound, OutcomeUnknown.
        """
        ...

    def trim(self, topic: Topic) -> None:
        """Have a topic trimmed by its retention; answers before it is done. Loads the topic.

        Raises NotFound, OutcomeUnknown.
        """
        ...

    def read_entry(self, topic: Topic, position: Position) -> None:
        """Have the topic's broker read one stored entry. Loads the topic. Raises NotFound where it has no such one."""
        ...

    def create_partitioned_topic(self, topic: Topic, partitions: int) -> None:
        """Create a partitioned topic; an existing one with the same number is fine, another number raises Conflict."""
        ...

    def create_topic(self, topic: Topic) -> None:
        """Create a non-partitioned topic; an existing one is fine."""
        ...

    def partitions(self, topic: Topic) -> int | None:
        """Number of partitions; 0 for an existing non-partitioned topic, None where there is no such topic."""
        ...

    def create_subscription(self, topic: Topic, subscription: str, position: str = "earliest") -> None:
        """Create a durable subscription on one partition or topic; an existing one is fine. Loads the topic."""
        ...

    def subscriptions(self, topic: Topic) -> list[str]:
        """Names of the durable subscriptions. Loads the topic."""
        ...

    def backlog(self, topic: Topic, subscription: str) -> int:
        """``msgBacklog`` of one subscription of one partition or topic. Loads the topic."""
        ...

    def last_use(self, topic: Topic, subscription: str) -> int | None:
        """When a subscription was last read or acknowledged since its topic's load (ms); 0 for never, None for now.

        Now: consumers are connected. Loads the topic. Raises NotFound.
        """
        ...

    def pending_acks(self, topic: Topic, subscription: str) -> PendingAcks:
        """How far its broker is with a subscription's acknowledgements in transactions. Loads, and begins, nothing.

        Raises NotFound for a topic that is not loaded, Failed for a subscription that it has not got.
        """
        ...

    def delete_subscription(self, topic: Topic, subscription: str) -> None:
        """Delete a durable subscription, whose unread messages then go by retention. Loads the topic.

        The broker refuses one with connected consumers (StoreError). Raises NotFound, OutcomeUnknown.
        """
        ...

    def unload(self, topic: Topic) -> None:
        """Make its broker forget a topic, so that the next load reads its z-node afresh; may be repeated.

        Loads a topic that is not loaded, first. Raises NotFound for a missing topic, OutcomeUnknown.
        """
        ...

    def delete_topic(self, topic: Topic, force: bool) -> None:
        """The broker's own DELETE of one topic or partition with its cursors and ledgers.

        Without ``force`` the broker refuses a topic with connected clients (StoreError). Raises NotFound for a missing
        topic, Conflict for a partitioned one, OutcomeUnknown.
        """
        ...

    def close(self) -> None:
        """Close the connection pool."""
        ...
