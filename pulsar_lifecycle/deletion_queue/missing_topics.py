"""Making what is missing of the deletion queue's topics, through the brokers' REST API, so that nothing sent is lost.

Belongs here: which topics, partitions and subscriptions are made, and which stray partition goes before. Not here:
their names (``queue_topics.py``), messages (``io/pulsar/queue.py``): no adapter imports this module. A topic without
the subscription drops what is sent to it within seconds, because the broker trims what nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    Subscriptions,
    topics_of,
)
from pulsar_lifecycle.errors import Conflict, LifecycleError, NotFound
from pulsar_lifecycle.model import COMPACTION_CURSOR, Topic
from pulsar_lifecycle.ports import BrokerAdmin


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
        count = admin.partitions(topic)
        if count is None:
            _remove_strays(admin, topic, parallelism)
        admin.create_partitioned_topic(topic, count or parallelism)
    if not admin.partitions(DLQ_TOPIC):
        admin.create_topic(DLQ_TOPIC)
    subscribe_everywhere(admin)


def _remove_strays(admin: BrokerAdmin, topic: Topic, count: int) -> None:
    """Remove partitions of a topic that does not exist: with one of them there, brokers refuse to create it.

    A reader of ours that was connected when somebody deleted the topic, or a restore took it away, makes its partition
    anew as it connects again. Raises Conflict for one with a subscription, or with entries: retention may keep some.
    """
    for part in (Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(count)):
        try:
            has = [f"subscription {name}" for name in sorted({*admin.subscriptions(part)} - {COMPACTION_CURSOR})]
            internals = admin.internal_stats(part)
        except NotFound:
            continue
        if any(internals.entries.values()) or internals.last_confirmed.entry_id >= 0:  # not said (-1) counts, too
            has.append("entries")
        if has:
            raise Conflict(
                f"{part} is there, with {', '.join(has)}, and {topic} is not, so it cannot be created: "
                f"look what waits there, then `pulsar-admin topics delete -f {part}`"
            )
        admin.delete_topic(part, force=False)


def make_sure(admin: BrokerAdmin, parallelism: int, look: Callable[[], Subscriptions]) -> Subscriptions:
    """:func:`create_missing` where ``look`` says that something is missing: the brokers are asked only then."""
    found = look()
    if None not in found.values():
        return found
    create_missing(admin, parallelism)
    return look()


class Subscribed:
    """Whether every partition of the queue's topics has the subscription: what lacks it gets it.

    ``look`` says who has it by now.
    """

    def __init__(self, admin: BrokerAdmin, parallelism: int, look: Callable[[], Subscriptions]) -> None:
        self._admin, self._parallelism, self.look = admin, parallelism, look

    def ensure(self) -> Subscriptions:
        """:func:`make_sure`."""
        return make_sure(self._admin, self._parallelism, self.look)

    def of_deletion_topic(self) -> dict[Topic, int]:
        """Partitions of the deletion topic that keep what is sent, and what created their subscription (czxid).

        What cannot be made, as its broker does not answer, is left out. Raises what :meth:`ensure` raises if it is all.
        """
        problem: LifecycleError = NotFound(f"no partition of {DELETION_TOPIC} has the subscription")
        try:
            found = self.ensure()
        except LifecycleError as error:
            found, problem = self.look(), error
        main = {
            part: czxid
            for part, czxid in found.items()
            if part.partitioned_parent == DELETION_TOPIC and part.partition is not None and czxid is not None
        }
        if not main:
            raise problem
        return main
