"""The deletion queue's topics and subscriptions over the brokers' REST API."""

import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    pending,
    subscribe_everywhere,
    topics_of,
)
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.model import Namespace
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


def test_the_topics_are_those_of_the_pip():
    assert str(DELETION_TOPIC) == "persistent://pulsar/system/__ledger_deletion"
    assert str(RETRY_TOPIC) == "persistent://pulsar/system/__ledger_deletion-RETRY"
    assert str(DLQ_TOPIC) == "persistent://pulsar/system/__ledger_deletion-DLQ"
    assert DELETION_TOPIC.namespace == Namespace("pulsar", "system")
