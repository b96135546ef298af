import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.formats.deletion_message import decode_deletion_message, encode_deletion_message
from tests.kit.builders import intents
from tests.kit.contracts.queue_contract import DeletionQueueContract

pytestmark = pytest.mark.integration


@pytest.fixture
def publish(client):
    def publish(raw, properties, topic=DELETION_TOPIC):
        producer = client.create_producer(str(topic))
        producer.send(raw, properties=properties)
        producer.close()

    return publish


class TestPulsarDeletionQueue(DeletionQueueContract):
    def test_topics_and_subscriptions_are_what_the_design_says(self, open_queue, admin):
        open_queue().ensure()
        assert [admin.partitions(topic) for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC)] == [4, 4, 0]
        parts = [part for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC) for part in topics_of(admin, topic)]
        assert all(SUBSCRIPTION in admin.subscriptions(part) for part in parts)

    def test_many_messages_over_all_partitions(self, open_queue):
        queue = open_queue()
        assert {one.error for one in queue.send(intents(1500), 0)} == {None}
        received = queue.receive(1500, 60_000)
        assert len({one.info.ledger_id for one in received}) == 1500
        assert len({one.topic for one in received}) == 4
        queue.acknowledge(received)
        queue.close()
        assert open_queue().backlog() == 0

    def test_the_retry_topic_is_received_too(self, open_queue, client):
        queue = open_queue()
        (info,) = intents(1)
        client.create_producer(str(RETRY_TOPIC)).send(encode_deletion_message(info), properties={"RECONSUMETIMES": "1"})
        assert queue.backlog() == 1
        (received,) = queue.receive(1, 60_000)
        assert received.info == info
        assert received.properties == {"RECONSUMETIMES": "1"}
        assert received.topic.startswith(str(RETRY_TOPIC))
        queue.acknowledge([received])
        queue.close()
        assert open_queue().backlog() == 0

    def test_any_client_reads_what_we_send(self, open_queue, client):
        (sent,) = open_queue().send(intents(1), 0)
        number = pulsar.MessageId.deserialize(sent.message_id).partition()
        reader = client.create_reader(f"{DELETION_TOPIC}-partition-{number}", pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            messages.append(reader.read_next(timeout_millis=60_000))
        assert decode_deletion_message(messages[-1].data()) == sent.info
        assert messages[-1].partition_key() == ""
        assert messages[-1].message_id().batch_index() == -1
        reader.close()

    def test_a_foreign_batch_is_taken_apart(self, open_queue, client):
        queue = open_queue()
        producer = client.create_producer(
            str(DELETION_TOPIC), batching_enabled=True, batching_max_publish_delay_ms=1000
        )
        for info in intents(12):
            producer.send_async(encode_deletion_message(info), lambda *_: None)
        producer.flush()
        first = queue.receive(5, 60_000)
        queue.acknowledge(first)
        rest = queue.receive(7, 60_000)
        queue.acknowledge(rest)
        assert sorted(one.info.ledger_id for one in first + rest) == list(range(12))
        queue.close()
        assert open_queue().receive(1, 1_000) == []
