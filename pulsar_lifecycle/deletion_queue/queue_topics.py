"""The topics of the deletion queue by name, and making sure, through the brokers' REST API, that nothing sent is lost.

Belongs here: names, partitions, backlogs, the durable subscription. Not here: messages (``queue.py``). A topic without
the subscription drops what is sent to it within seconds, because the broker trims what nobody waits for.
"""

from __future__ import annotations

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import BrokerAdmin

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


def subscribe_everywhere(admin: BrokerAdmin) -> list[Topic]:
    """Give every partition of the three topics the durable subscription, from its first message that is left.

    Returns those that lacked it: what they held before may be gone. Creates no topic, but completes a partitioned one.
    """
    mended: list[Topic] = []
    for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC):
        for part in topics_of(admin, topic):
            try:
                found = admin.subscriptions(part)
            except NotFound:  # a partition that nobody has written to yet
                if part == topic:
                    continue
                admin.create_partitioned_topic(topic, admin.partitions(topic) or 0)
                found = admin.subscriptions(part)
            if SUBSCRIPTION not in found:
                admin.create_subscription(part, SUBSCRIPTION, "earliest")
                mended.append(part)
    return mended


def create_missing(admin: BrokerAdmin, parallelism: int) -> None:
    """Create what is missing of topics and subscriptions; idempotent.

    ``parallelism`` is the number of partitions a new main and retry topic get; the dead-letter topic has none, unless
    somebody's auto-creation was first. Raises NotFound when the namespace ``pulsar/system`` does not exist, Conflict
    when the main or the retry topic is there and not partitioned.
    """
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        admin.create_partitioned_topic(topic, admin.partitions(topic) or parallelism)
    if not admin.partitions(DLQ_TOPIC):
        admin.create_topic(DLQ_TOPIC)
    subscribe_everywhere(admin)
