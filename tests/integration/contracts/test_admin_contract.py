import time
import uuid

import pytest

from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.model import Namespace, Topic, encode_name
from pulsar_lifecycle.settings import PulsarSettings
from tests.kit.contracts.admin_contract import BrokerAdminContract, partition

pytestmark = pytest.mark.integration


@pytest.fixture
def admin(sandbox):
    admin = HttpBrokerAdmin(PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url))
    yield admin
    admin.close()


@pytest.fixture(params=["plain", "a+b c~%25*"])
def topic(request):
    return Topic(Namespace("pulsar", "system"), f"{request.param}-{uuid.uuid4().hex}")


class TestHttpBrokerAdmin(BrokerAdminContract):
    def test_a_touched_topic_is_listed_by_the_broker_that_loaded_it(self, admin, topic):
        admin.create_partitioned_topic(topic, 2)
        admin.subscriptions(partition(topic, 0))
        deadline = time.monotonic() + 120  # brokers refresh the list every statsUpdateFrequencyInSecs
        while str(partition(topic, 0)) not in admin.loaded_topics() and time.monotonic() < deadline:
            time.sleep(0.2)
        loaded = admin.loaded_topics()
        assert loaded[str(partition(topic, 0))] in admin.brokers()
        assert str(partition(topic, 1)) not in loaded

    def test_the_internals_name_the_ledgers_of_topic_and_cursors(self, admin, topic):
        admin.create_topic(topic)
        admin.create_subscription(topic, "a+b c~%25*")
        internals = admin.internal_stats(topic)
        assert len(internals.ledgers) == 1
        assert internals.cursor_ledgers[encode_name("a+b c~%25*")] not in internals.ledgers
