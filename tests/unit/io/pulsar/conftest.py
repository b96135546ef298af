"""The real queue, with a client that is not."""

import pytest

from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.io.pulsar import pulsar_session
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.settings import PulsarSettings
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.queue_client import Client


@pytest.fixture
def admin():
    return FakeBrokerAdmin()


@pytest.fixture
def open_on(monkeypatch, admin):
    def open_queue(client: Client, **settings) -> PulsarDeletionQueue:
        monkeypatch.setattr(pulsar_session.pulsar, "Client", lambda *_, **__: client)
        urls = {"admin_url": "http://b1:8080", "service_url": "pulsar://b1:6650"}
        subscribed = Subscribed(admin, 4, lambda: subscriptions(admin))
        return PulsarDeletionQueue(PulsarSettings(**urls, **settings), admin, subscribed)

    return open_queue


def subscriptions(admin):
    """As the z-nodes have them: a subscription that was made anew is another one."""
    found = {}
    for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC):
        parts = [part for part in admin.topics if part.partitioned_parent == topic]
        wanted = [
            Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(admin.partition_counts.get(topic, 0))
        ]
        for part in wanted or parts or [topic]:
            own = admin.topics.get(part, {}).get(SUBSCRIPTION)
            found[part] = id(own) if own else None
    return found
