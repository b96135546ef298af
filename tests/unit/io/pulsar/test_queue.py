"""The queue, real and faked, by one contract; and what the real one makes of what the client gives."""

import _pulsar
import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    pending,
    topics_of,
)
from pulsar_lifecycle.errors import AccessDenied, NotFound, Unavailable
from pulsar_lifecycle.formats.deletion_message import (
    encode_deletion_message,
)
from pulsar_lifecycle.io.pulsar import pulsar_session
from pulsar_lifecycle.io.pulsar.queue import ENCRYPTED, NOT_TEXT, PulsarQueueReader
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Acknowledged, TopicInternals
from pulsar_lifecycle.settings import PulsarSettings
from tests.kit.builders import intents
from tests.kit.contracts.queue_contract import DeletionQueueContract
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionQueue, FakeDeletionTopics, FakeQueueReader
from tests.kit.queue_client import Client


class TestFakeDeletionQueue(DeletionQueueContract):
    @pytest.fixture
    def topics(self):
        return FakeDeletionTopics()

    @pytest.fixture
    def open_queue(self, topics):
        return lambda: FakeDeletionQueue(topics)

    @pytest.fixture
    def open_letters(self, topics):
        return lambda: FakeDeadLetterQueue(topics)

    @pytest.fixture
    def reader(self, topics):
        return FakeQueueReader(topics)

    @pytest.fixture
    def publish(self, topics):
        return topics.publish


@pytest.mark.parametrize(
    ("vendor", "ours"),
    [
        (_pulsar.AuthenticationError("a"), AccessDenied),
        (_pulsar.AuthorizationError("a"), AccessDenied),
        (_pulsar.TopicNotFound("t"), NotFound),
        (_pulsar.ConnectError("c"), Unavailable),
        (_pulsar.Timeout("t"), Unavailable),
    ],
)
def test_the_clients_errors_become_ours(open_on, vendor, ours):
    with pytest.raises(ours):
        open_on(Client(failure=vendor)).send(intents(1), 0)
    with pytest.raises(ours):
        open_on(Client(failure=vendor)).receive(1, 0)


class Message:
    def __init__(self, topic: Topic, position: Position, batch_index: int = -1, raw: bytes = b"", context=None):
        self._topic, self._id = topic, _pulsar.MessageId(-1, position.ledger_id, position.entry_id, batch_index)
        self._raw, self._context = raw, context

    def data(self):
        return self._raw

    def encryption_context(self):
        return self._context

    def message_id(self):
        return self._id

    def topic_name(self):
        return str(self._topic)

    def properties(self):
        return {}

    def publish_timestamp(self):
        return 0


def test_an_encrypted_message_is_handed_out_as_no_intent_whatever_its_bytes(open_on, admin):
    part = Topic(DELETION_TOPIC.namespace, "__ledger_deletion-partition-0")
    raw = encode_deletion_message(intents(1)[0])
    client = Client(messages=[Message(part, Position(5, n), raw=raw, context=(object(), None)[n]) for n in range(2)])
    queue = open_on(client)
    received = queue.receive(2, 1000)
    assert [(one.info, one.problem) for one in received] == [(None, ENCRYPTED), (intents(1)[0], "")]
    queue.acknowledge(received)
    assert len(client.consumer.acknowledged) == 2
    urls = {"admin_url": "http://b1:8080", "service_url": "pulsar://b1:6650"}
    admin.internals[part] = TopicInternals(
        "LedgerOpened",
        (),
        {},
        {},
        None,
        (),
        acknowledged={SUBSCRIPTION: Acknowledged(Position(5, -1))},
        last_confirmed=Position(5, 1),
    )
    page = PulsarQueueReader(PulsarSettings(**urls), admin).waiting(part, None, 10)
    assert [one.problem for one in page.messages] == [ENCRYPTED, ""]
    assert page.upto == Position(5, 1)


def written(**fields: tuple[str | bytes | int, ...]) -> pulsar.Message:
    """A message as the client's own library makes it."""
    builder = _pulsar.MessageBuilder()
    builder.content(encode_deletion_message(intents(1)[0]))
    for name, values in fields.items():
        getattr(builder, name)(*values)
    return pulsar.Message._wrap(builder.build())


@pytest.mark.parametrize("pair", [("mine", b"\xff"), (b"\xff", "mine")])
def test_what_the_client_cannot_show_of_a_message_is_its_problem_and_no_other_messages(open_on, pair):
    queue = open_on(Client(messages=[written(property=pair), written(property=("mine", "text"))]))
    odd, good = queue.receive(2, 1000)
    assert (odd.info, odd.properties, odd.problem) == (None, {}, NOT_TEXT)
    assert (good.info, good.properties, good.problem) == (intents(1)[0], {"mine": "text"}, "")
    queue.acknowledge([odd])


@pytest.mark.parametrize("key", ["partition_key", "ordering_key"])
def test_a_key_that_is_no_text_keeps_no_message_from_its_retry(key):
    kept = {"event_timestamp": 7, ({"partition_key", "ordering_key"} - {key}).pop(): "other"}
    original = written(**{key: (b"\xff",)}, **{name: (value,) for name, value in kept.items()})
    assert pulsar_session.Outgoing(RETRY_TOPIC, b"", original=original).options() == {"properties": {}, **kept}


def test_an_acknowledgement_asks_nothing_of_the_admin_api(open_on, admin):
    part = Topic(DELETION_TOPIC.namespace, "__ledger_deletion-partition-0")
    client = Client(messages=[Message(part, Position(5, n)) for n in range(3)])
    queue = open_on(client)
    messages = queue.receive(3, 1000)
    admin.failure = AccessDenied("no")
    queue.acknowledge(messages[:2])
    assert client.consumer.acknowledged == [message.handle for message in messages[:2]]


def test_after_close_nothing_is_acknowledged(open_on, admin):
    part = Topic(DELETION_TOPIC.namespace, "__ledger_deletion-partition-0")
    queue = open_on(Client(messages=[Message(part, Position(5, 1))]))
    messages = queue.receive(1, 1000)
    queue.close()
    with pytest.raises(Unavailable):
        queue.acknowledge(messages)


def test_a_dead_letter_topic_that_somebody_partitioned_is_taken_as_it_is(open_on, admin):
    admin.create_partitioned_topic(DLQ_TOPIC, 3)
    open_on(Client()).ensure()
    parts = topics_of(admin, DLQ_TOPIC)
    assert len(parts) == 3
    assert all(SUBSCRIPTION in admin.subscriptions(part) for part in parts)


def test_a_retry_topic_that_cannot_be_opened_fails_each_message_once(open_on, admin):
    part = Topic(DELETION_TOPIC.namespace, "__ledger_deletion-partition-0")
    client = Client(messages=[Message(part, Position(5, n)) for n in range(3)])
    queue = open_on(client)
    messages = queue.receive(3, 1000)
    client.failure = _pulsar.Timeout("t")
    postponed = queue.reconsume_later(messages, 10, 3)
    assert all("Timeout" in one.error for one in postponed)
    assert client.opened == [str(RETRY_TOPIC)]


def test_pending_is_the_backlog_of_main_and_retry_and_creates_nothing(open_on, admin):
    assert pending(admin) == 0
    assert admin.topics == {}
    open_on(Client()).ensure()
    for topic, backlog in ((DELETION_TOPIC, 3), (RETRY_TOPIC, 2), (DLQ_TOPIC, 100)):
        admin.topics[topics_of(admin, topic)[0]][SUBSCRIPTION].backlog = backlog
        admin.topics[topics_of(admin, topic)[-1]][SUBSCRIPTION].backlog = backlog
    assert pending(admin) == 10
