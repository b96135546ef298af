"""The topics of the deletion queue by name, and who has its subscription.

Belongs here: names, partitions, backlogs, the durable subscription, by its z-nodes too. Not here: messages
(``io/pulsar/queue.py``), making what is missing (``missing_topics.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.formats.partitioned_topic import partition_count
from pulsar_lifecycle.model import (
    MANAGED_LEDGERS_ROOT,
    PARTITIONED_ROOT,
    Namespace,
    Topic,
    encode_name,
)
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node, Unread

NAMESPACE = Namespace("pulsar", "system")
DELETION_TOPIC = Topic(NAMESPACE, "__ledger_deletion")
RETRY_TOPIC = Topic(NAMESPACE, "__ledger_deletion-RETRY")
DLQ_TOPIC = Topic(NAMESPACE, "__ledger_deletion-DLQ")
SUBSCRIPTION = "ledger-deletion"


def topics_of(admin: BrokerAdmin, topic: Topic) -> list[Topic]:
    """The partitions of a topic, itself if it has none, nothing where it does not exist."""
    count = admin.partitions(topic)
    if count is None:
        return []
    return [Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(count)] or [topic]


def pending(admin: BrokerAdmin) -> int:
    """Intents in flight: messages of the main and the retry topic that the subscription has not acknowledged.

    Creates nothing; topics that do not exist yet count as empty. Raises NotFound where a topic lacks the subscription.
    """
    return sum(waiting(admin, topic) for topic in (DELETION_TOPIC, RETRY_TOPIC))


def pending_where_subscribed(admin: BrokerAdmin) -> tuple[int, list[Topic]]:
    """:func:`pending`, and the partitions without the subscription, which count as empty: nothing is kept there."""
    count, unsubscribed = 0, list[Topic]()
    for part in (*topics_of(admin, DELETION_TOPIC), *topics_of(admin, RETRY_TOPIC)):
        try:
            count += admin.backlog(part, SUBSCRIPTION)
        except NotFound:
            unsubscribed.append(part)
    return count, unsubscribed


def waiting(admin: BrokerAdmin, topic: Topic) -> int:
    """:func:`pending` of one topic."""
    return sum(admin.backlog(part, SUBSCRIPTION) for part in topics_of(admin, topic))


Subscriptions = Mapping[Topic, int | None]
"""Each partition of the three topics, and what created its subscription (czxid of the cursor); None where it lacks it.

A topic that does not exist stands for itself.
"""


class KeptTopics(Protocol):
    """What sees to it that every partition of the queue's topics has the subscription; its rules are above io."""

    @property
    def look(self) -> Callable[[], Subscriptions]:
        """Who has the subscription by now."""
        ...

    def ensure(self) -> Subscriptions:
        """Make what is missing."""
        ...

    def of_deletion_topic(self) -> dict[Topic, int]:
        """Partitions of the deletion topic that keep what is sent, and what created their subscription (czxid)."""
        ...


def stored_subscriptions(store: MetadataStore, configuration: MetadataStore) -> Subscriptions:
    """Who has the subscription, by the z-nodes alone: no broker is asked, and one that does not answer hides nothing.

    A durable cursor's z-node is there as long as its subscription, loaded or not. Raises Unavailable where z-nodes
    cannot be read, CorruptFormat.
    """
    topics = (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC)
    paths = [f"{PARTITIONED_ROOT}/{topic.managed_ledger}" for topic in topics]
    configuration.sync("/")
    parts: list[Topic] = []
    for topic, path, node in zip(topics, paths, configuration.read(paths), strict=True):
        count = _count(path, node)
        parts += [Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(count)] or [topic]
    store.sync("/")
    cursors = [f"{MANAGED_LEDGERS_ROOT}/{part.managed_ledger}/{encode_name(SUBSCRIPTION)}" for part in parts]
    found: dict[Topic, int | None] = {}
    for part, cursor in zip(parts, store.read(cursors), strict=True):
        if isinstance(cursor, Unread):
            raise Unavailable(f"{cursor.path} cannot be read: {cursor.reason}")
        found[part] = cursor.stat.czxid if cursor else None
    return found


def _count(path: str, node: Node | Unread | None) -> int:
    if isinstance(node, Unread):
        raise Unavailable(f"{path} cannot be read: {node.reason}")
    return partition_count(path, node.data) if node else 0
