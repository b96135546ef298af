"""The deletion queue's topics and subscriptions over the brokers' REST API."""

import pytest

from pulsar_lifecycle.deletion_queue.missing_topics import create_missing, subscribe_everywhere
from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    pending,
    topics_of,
)
from pulsar_lifecycle.errors import Conflict, NotFound
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import TopicInternals
from tests.kit.fakes.broker_admin import FakeBrokerAdmin


@pytest.fixture
def admin():
    return FakeBrokerAdmin()


def test_subscriptions_are_made_again_where_they_are_missing_and_topics_are_not(admin):
    assert subscribe_everywhere(admin) == []
    assert admin.topics == {}
    admin.create_partitioned_topic(DLQ_TOPIC, 2)
    one, other = topics_of(admin, DLQ_TOPIC)
    admin.create_subscription(one, "__compaction")
    del admin.topics[other]  # a partition that is only listed, as auto-creation leaves it
    assert subscribe_everywhere(admin) == [one, other]
    assert subscribe_everywhere(admin) == []
    assert admin.subscriptions(one) == ["__compaction", SUBSCRIPTION]


def test_pending_of_a_topic_that_lost_its_subscription_is_an_error(admin):
    admin.create_partitioned_topic(DELETION_TOPIC, 2)
    with pytest.raises(NotFound, match=SUBSCRIPTION):
        pending(admin)


def test_a_partition_without_its_topic_is_removed_where_it_keeps_nothing(admin):
    """A reader of ours made it, which connected again after a restore had taken the topic away."""
    stray = Topic(DELETION_TOPIC.namespace, f"{DELETION_TOPIC.local}-partition-1")
    admin.create_topic(stray)
    create_missing(admin, 2)
    assert admin.partitions(DELETION_TOPIC) == 2
    assert admin.subscriptions(stray) == [SUBSCRIPTION]


def test_a_partition_without_its_topic_that_may_keep_something_is_left(admin):
    stray = Topic(DELETION_TOPIC.namespace, f"{DELETION_TOPIC.local}-partition-1")
    admin.create_topic(stray)
    admin.create_subscription(stray, SUBSCRIPTION)
    with pytest.raises(Conflict, match=f"pulsar-admin topics delete -f {stray}"):
        create_missing(admin, 2)
    assert admin.subscriptions(stray) == [SUBSCRIPTION]


def test_a_partition_without_its_topic_that_has_entries_is_left(admin):
    """Retention of the namespace keeps what no subscription needs."""
    stray = Topic(DELETION_TOPIC.namespace, f"{DELETION_TOPIC.local}-partition-1")
    admin.create_topic(stray)
    admin.internals[stray] = TopicInternals("LedgerOpened", (5,), {}, {}, None, (), entries={5: 2})
    with pytest.raises(Conflict, match="with entries"):
        create_missing(admin, 2)
    assert admin.subscriptions(stray) == []


def test_the_topics_are_those_of_the_pip():
    assert str(DELETION_TOPIC) == "persistent://pulsar/system/__ledger_deletion"
    assert str(RETRY_TOPIC) == "persistent://pulsar/system/__ledger_deletion-RETRY"
    assert str(DLQ_TOPIC) == "persistent://pulsar/system/__ledger_deletion-DLQ"
    assert DELETION_TOPIC.namespace == Namespace("pulsar", "system")
