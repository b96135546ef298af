import time

import _pulsar
import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed
from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    pending,
    topics_of,
)
from pulsar_lifecycle.errors import AccessDenied, Conflict, NotFound, Unavailable
from pulsar_lifecycle.formats.deletion_message import (
    encode_deletion_message,
)
from pulsar_lifecycle.io.pulsar import pulsar_session
from pulsar_lifecycle.io.pulsar.intent_sender import SHUT_FOR
from pulsar_lifecycle.io.pulsar.queue import ENCRYPTED, NOT_TEXT, PulsarDeletionQueue, PulsarQueueReader
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Acknowledged, TopicInternals
from pulsar_lifecycle.settings import PulsarSettings
from tests.kit.builders import intents
from tests.kit.contracts.queue_contract import DeletionQueueContract
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionQueue, FakeDeletionTopics, FakeQueueReader


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


class Producer:
    """A client's producer: ``script`` says what becomes of each message, in order."""

    def __init__(self, script):
        self.script = list(script)
        self.sent = []

    def send_async(self, content, callback, **options):
        self.sent.append((content, options))
        result = self.script.pop(0) if self.script else _pulsar.Result.Ok
        if isinstance(result, Exception):
            raise result
        callback(result, _pulsar.MessageId(-1, 1, len(self.sent), -1))


class Consumer:
    def __init__(self, messages):
        self.messages = list(messages)
        self.acknowledged = []

    def receive(self, timeout_millis):
        return self.messages.pop(0)

    def acknowledge(self, message_id):
        self.acknowledged.append(message_id)


class Reader(Consumer):
    def has_message_available(self):
        return bool(self.messages)

    def read_next(self, timeout_millis):
        return self.messages.pop(0)

    def close(self):
        pass


class Client:
    """``not_answering`` partitions take no producer; ``before`` is called with each message that goes out."""

    def __init__(self, script=(), messages=(), failure=None, not_answering=()):
        self.producer, self.consumer, self.failure = Producer(script), Consumer(messages), failure
        self.opened = []
        self.not_answering = set(not_answering)
        self.reader = Reader(messages)

    def create_producer(self, topic, **options):
        self.opened.append(topic)
        if self.failure:
            raise self.failure
        if topic in self.not_answering:
            raise _pulsar.Timeout("t")
        assert options["batching_enabled"] is False
        return self.producer

    def subscribe(self, topics, subscription, **options):
        if self.failure:
            raise self.failure
        return self._unhindered(self.consumer, options)

    def create_reader(self, topic, start, **options):
        return self._unhindered(self.reader, options)

    def _unhindered(self, whose, options):
        """As the client does: by default it hands out no message that is encrypted, nor says that there was one."""
        if options.get("crypto_failure_action") != pulsar.ConsumerCryptoFailureAction.CONSUME:
            whose.messages = [one for one in whose.messages if one.encryption_context() is None]
        return whose

    def close(self):
        pass


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


def parts_of(topic, count=4):
    return [f"{topic}-partition-{n}" for n in range(count)]


def test_every_partition_of_all_three_topics_has_the_subscription_before_the_first_send(open_on, admin):
    open_on(Client()).send(intents(1), 0)
    assert [admin.partitions(topic) for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC)] == [4, 4, 0]
    parts = [part for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC) for part in topics_of(admin, topic)]
    assert len(parts) == 9
    assert all(SUBSCRIPTION in admin.subscriptions(part) for part in parts)


def test_a_lost_subscription_is_made_again_before_the_next_send(open_on, admin):
    queue = open_on(Client())
    queue.send(intents(1), 0)
    part = topics_of(admin, RETRY_TOPIC)[3]
    del admin.topics[part][SUBSCRIPTION]
    queue.send(intents(1), 0)
    assert SUBSCRIPTION in admin.subscriptions(part)


def test_many_sends_ask_the_brokers_once(open_on, admin):
    queue = open_on(Client())
    queue.send(intents(1), 0)
    admin.failure = Unavailable("the brokers are asked once")
    for _ in range(19):
        queue.send(intents(1), 0)


def test_what_was_sent_while_the_subscription_was_lost_is_sent_again(open_on, admin):
    client = Client()
    queue = open_on(client)
    queue.ensure()
    sends = client.producer.send_async

    def lose_it(content, callback, **options):
        if not client.producer.sent:
            admin.topics[topics_of(admin, DELETION_TOPIC)[1]].pop(SUBSCRIPTION)
        sends(content, callback, **options)

    client.producer.send_async = lose_it
    sent = queue.send(intents(4), 0)
    assert {one.error for one in sent} == {None}
    assert len(client.producer.sent) == 5
    assert SUBSCRIPTION in admin.subscriptions(topics_of(admin, DELETION_TOPIC)[1])


def test_what_is_lost_again_and_again_was_not_sent(open_on, admin):
    client = Client()
    queue = open_on(client)
    queue.ensure()
    sends = client.producer.send_async

    def lose_all(content, callback, **options):
        for part in topics_of(admin, DELETION_TOPIC):
            admin.topics[part].pop(SUBSCRIPTION, None)
        sends(content, callback, **options)

    client.producer.send_async = lose_all
    (sent,) = queue.send(intents(1), 0)
    assert "lost its subscription" in sent.error
    assert sent.message_id == b""


def test_partitions_whose_broker_does_not_answer_leave_their_share_to_the_others(open_on):
    not_answering = parts_of(DELETION_TOPIC)[:3]
    client = Client(not_answering=not_answering)
    queue = open_on(client)
    for _ in range(2):
        sent = queue.send(intents(5), 0)
        assert {one.error for one in sent} == {None}
        assert {pulsar.MessageId.deserialize(one.message_id).partition() for one in sent} == {3}
    assert sorted(client.opened) == parts_of(DELETION_TOPIC)  # each was asked for once


def test_a_broker_that_stops_answering_costs_no_message(open_on):
    client = Client([_pulsar.Result.Ok, _pulsar.Result.Timeout])
    sent = open_on(client).send(intents(4), 60_000)
    assert {one.error for one in sent} == {None}
    assert len(client.producer.sent) == 5


def test_what_a_broker_that_does_not_answer_keeps_from_being_made_hinders_no_other(open_on, admin):
    queue = open_on(Client())
    queue.ensure()
    admin.topics[topics_of(admin, DELETION_TOPIC)[0]].pop(SUBSCRIPTION)
    admin.failure = Unavailable("no broker")
    assert {one.error for one in queue.send(intents(4), 0)} == {None}


def test_a_look_that_failed_is_no_look(open_on, admin):
    queue = open_on(Client())
    admin.failure = Unavailable("no broker")
    with pytest.raises(Unavailable):
        queue.send(intents(1), 0)
    admin.failure = None
    queue.send(intents(1), 0)
    assert SUBSCRIPTION in admin.subscriptions(topics_of(admin, RETRY_TOPIC)[3])


def test_topics_with_another_number_of_partitions_are_taken_as_they_are(open_on, admin):
    admin.create_partitioned_topic(DELETION_TOPIC, 7)
    open_on(Client()).ensure()
    assert admin.partitions(DELETION_TOPIC) == 7
    assert all(SUBSCRIPTION in admin.subscriptions(part) for part in topics_of(admin, DELETION_TOPIC))


@pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC])
def test_a_topic_that_is_not_partitioned_is_refused(open_on, admin, topic):
    admin.create_topic(topic)
    client = Client()
    with pytest.raises(Conflict):
        open_on(client).send(intents(1), 0)
    assert client.producer.sent == []


def test_without_the_namespace_nothing_is_sent(open_on, admin):
    admin.namespaces.clear()
    with pytest.raises(NotFound, match="pulsar/system"):
        open_on(Client()).send(intents(1), 0)


def test_without_the_admin_api_nothing_is_sent(open_on, admin):
    admin.failure = Unavailable("no broker")
    client = Client()
    with pytest.raises(Unavailable):
        open_on(client).send(intents(1), 0)
    assert client.producer.sent == []


def test_one_failed_send_loses_no_other_outcome(open_on):
    failures = [_pulsar.Result.Ok, _pulsar.Result.MessageTooBig, ValueError(""), _pulsar.Result.Ok]
    sent = open_on(Client(failures)).send(intents(5), 60_000)
    assert [one.error for one in sent] == [None, "MessageTooBig", "", None, None]
    assert [bool(one.message_id) for one in sent] == [True, False, False, True, True]
    assert [one.info.ledger_id for one in sent] == list(range(5))


def test_after_a_time_out_the_rest_is_not_sent(open_on):
    client = Client([_pulsar.Result.Timeout] * 12)
    sent = open_on(client).send(intents(12), 60_000)
    assert {one.error.split(",")[0] for one in sent} == {"Timeout", "not sent"}
    assert len(client.producer.sent) == 12  # one for each partition, three times


def test_once_no_partition_stores_anything_the_next_send_waits_for_none(open_on, monkeypatch):
    """As while no bookie takes entries: each topic that is trimmed sends its own intents."""
    client = Client([_pulsar.Result.Timeout] * 12)
    queue = open_on(client)
    queue.send(intents(12), 60_000)
    with pytest.raises(Unavailable, match="bookies take entries"):
        queue.send(intents(1), 60_000)
    assert len(client.producer.sent) == 12
    later = time.monotonic() + SHUT_FOR
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert [one.error for one in queue.send(intents(1), 60_000)] == [None]


def test_partitions_that_store_messages_again_in_the_same_send_take_the_next_one(open_on):
    """As while brokers restart, or bundles move: each partition lets one message time out."""
    client = Client([_pulsar.Result.Timeout] * 4)
    queue = open_on(client)
    for _ in range(2):
        assert {one.error for one in queue.send(intents(8), 60_000)} == {None}


def test_more_messages_than_may_be_in_flight(open_on):
    client = Client()
    sent = open_on(client).send(intents(pulsar_session.IN_FLIGHT * 2 + 1), 0)
    assert len(sent) == len(client.producer.sent) == pulsar_session.IN_FLIGHT * 2 + 1


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
