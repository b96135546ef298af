import _pulsar
import pulsar
import pytest

from pulsar_lifecycle.errors import AccessDenied, Conflict, NotFound, Unavailable
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.retry_letter import WAITING_FOR, WAITING_RUN, WAITING_SINCE, due_at
from pulsar_lifecycle.io.pulsar import session as pulsar_session
from pulsar_lifecycle.io.pulsar.queue import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    ENCRYPTED,
    NOT_TEXT,
    RETRY_TOPIC,
    SUBSCRIPTION,
    PulsarDeletionQueue,
    PulsarQueueReader,
    pending,
    subscribe_everywhere,
    topics_of,
)
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.ports import Acknowledged, TopicInternals
from pulsar_lifecycle.settings import PulsarSettings
from tests.fakes.broker_admin import FakeBrokerAdmin
from tests.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionQueue, FakeDeletionTopics, FakeQueueReader


def intents(count: int, first: int = 0) -> list[PendingDeleteLedgerInfo]:
    return [
        PendingDeleteLedgerInfo(
            topic_name="persistent://acme/orders/placed",
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_id=first + n,
            plan_id="plan-1",
        )
        for n in range(count)
    ]


class DeletionQueueContract:
    """What the real adapter and the fake have in common.

    Needs the fixtures ``open_queue`` and ``open_letters`` (functions; every queue they return is another session on the
    same, initially empty topics), ``reader`` and ``publish`` (a function that puts bytes and properties on the main
    topic, or on another, as anyone may).
    """

    def test_what_is_sent_is_received_once_and_acknowledged(self, open_queue):
        queue = open_queue()
        infos = intents(30)
        sent = queue.send(infos, 0)
        assert [one.info for one in sent] == infos
        assert {one.error for one in sent} == {""}
        assert len({one.message_id for one in sent}) == len(infos)
        assert queue.backlog() == 30
        first = queue.receive(20, 60_000)
        second = queue.receive(10, 60_000)
        assert len(first) == 20
        assert sorted(one.info.ledger_id for one in first + second) == list(range(30))
        assert {one.problem for one in first + second} == {""}
        assert {one.message_id for one in first + second} == {one.message_id for one in sent}
        assert queue.receive(1, 100) == []
        queue.acknowledge(first + second)
        queue.close()
        assert open_queue().backlog() == 0

    def test_acknowledgements_are_sent_before_the_queue_is_closed(self, open_queue):
        open_queue().send(intents(30), 0)
        queue = open_queue()
        received = queue.receive(30, 60_000)
        queue.acknowledge(received[::2])
        queue.close()
        other = open_queue()
        assert other.backlog() == 15
        again = other.receive(15, 60_000)
        assert {one.message_id for one in again} == {one.message_id for one in received[1::2]}
        assert other.receive(1, 100) == []

    def test_nothing_is_sent_and_acknowledged(self, open_queue):
        queue = open_queue()
        assert queue.send([], 0) == []
        queue.acknowledge([])
        assert queue.backlog() == 0

    def test_what_is_not_acknowledged_comes_again_after_close(self, open_queue):
        sender, first = open_queue(), open_queue()
        sender.send(intents(3), 0)
        received = first.receive(3, 60_000)
        first.acknowledge(received[:1])
        first.release(received[1:2])
        assert first.receive(1, 100) == []
        first.close()
        again = open_queue().receive(2, 60_000)
        assert {one.info for one in again} == {one.info for one in received[1:]}

    def test_two_sessions_share_the_messages(self, open_queue):
        one, other = open_queue(), open_queue()
        one.receive(1, 100)
        other.receive(1, 100)
        one.send(intents(40), 0)
        received = [*one.receive(40, 10_000), *other.receive(40, 10_000)]
        assert sorted(message.info.ledger_id for message in received) == list(range(40))

    def test_a_delayed_message_waits(self, open_queue):
        queue = open_queue()
        queue.receive(1, 100)  # subscribes, which may take a while
        queue.send(intents(1), 4_000)
        assert queue.backlog() == 1
        assert queue.receive(1, 100) == []
        assert len(queue.receive(1, 60_000)) == 1

    @pytest.mark.parametrize("raw", [b"", b"not json", b"\xff\xfe", b'{"ledgerId": 1}'])
    def test_what_is_no_intent_is_received_with_its_problem_and_bytes(self, open_queue, publish, raw):
        queue = open_queue()
        publish(raw, {"from": "someone"})
        (received,) = queue.receive(1, 60_000)
        assert received.info is None
        assert "PendingDeleteLedgerInfo" in received.problem
        assert received.raw == raw
        assert received.properties == {"from": "someone"}
        queue.acknowledge([received])
        queue.close()
        assert open_queue().backlog() == 0

    @pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC], ids=["main", "retry", "dlq"])
    def test_a_property_that_is_no_text_holds_nothing_up(self, open_queue, open_letters, reader, publish, topic):
        open_queue().send([], 0)
        publish(encode_deletion_message(intents(1)[0]), {"mine": b"\xff"}, topic=topic)
        publish(encode_deletion_message(intents(1)[0]), {"mine": "text"}, topic=topic)
        seen = [one for part in reader.partitions(topic) for one in reader.waiting(part, None, 10).messages]
        queue = open_letters() if topic == DLQ_TOPIC else open_queue()
        received = queue.take(2, 60_000) if topic == DLQ_TOPIC else queue.receive(2, 60_000)
        for messages in (seen, received):
            odd, good = sorted(messages, key=lambda one: len(one.properties))
            assert (odd.info, odd.properties, odd.problem) == (None, {}, NOT_TEXT)
            assert (good.info, good.properties, good.problem) == (intents(1)[0], {"mine": "text"}, "")
        queue.acknowledge(received)
        queue.close()
        assert (open_letters() if topic == DLQ_TOPIC else open_queue()).backlog() == 0

    def test_what_is_reconsumed_comes_again_later_and_says_how_often(self, open_queue, reader):
        queue = open_queue()
        queue.send(intents(2), 0)
        received = queue.receive(2, 60_000)
        first, second = queue.reconsume_later(received, 4_000, 3)
        assert [(one.message, one.times, one.dead, one.error) for one in (first, second)] == [
            (message, 1, False, "") for message in received
        ]
        queue.acknowledge(received)
        assert queue.receive(1, 100) == []
        again = queue.receive(2, 60_000)
        assert {one.info for one in again} == set(intents(2))
        for one in again:
            assert Topic.parse(one.topic).partitioned_parent == RETRY_TOPIC
            assert one.properties["RECONSUMETIMES"] == "1"
            assert one.properties["DELAY_TIME"] == "4000"
            assert one.properties["REAL_TOPIC"] == str(DELETION_TOPIC)
            assert one.properties["REAL_SUBSCRIPTION"] == SUBSCRIPTION
        queue.acknowledge(again)
        queue.close()
        assert open_queue().backlog() == 0

    @pytest.mark.parametrize("count", [None, "0", "3", "10", "many"])
    def test_what_is_sent_back_comes_again_later_and_is_not_counted(self, open_queue, open_letters, publish, count):
        queue = open_queue()
        publish(encode_deletion_message(intents(1)[0]), {"mine": "kept"} | ({"RECONSUMETIMES": count} if count else {}))
        (message,) = queue.receive(1, 60_000)
        notes = {WAITING_SINCE: str(message.publish_time), WAITING_FOR: "no-scan", WAITING_RUN: "run"}
        (sent,) = queue.send_back([message], [notes], 4_000)
        assert (sent.message, sent.dead, sent.error) == (message, False, "")
        queue.acknowledge([message])
        assert queue.receive(1, 100) == []
        (again,) = queue.receive(1, 60_000)
        assert Topic.parse(again.topic).partitioned_parent == RETRY_TOPIC
        assert (again.info, again.properties.get("RECONSUMETIMES")) == (message.info, count)
        assert again.properties["DELAY_TIME"] == "4000"
        assert again.properties["REAL_TOPIC"] == str(DELETION_TOPIC)
        assert {"mine": "kept", **notes}.items() <= again.properties.items()
        (postponed,) = queue.reconsume_later([again], 10, 20)
        assert postponed.times == (20 if count == "many" else int(count or 0)) + 1
        queue.acknowledge([again])
        if not postponed.dead:
            (retried,) = queue.receive(1, 60_000)
            assert {WAITING_SINCE} == {WAITING_SINCE, WAITING_FOR, WAITING_RUN} & retried.properties.keys()
            queue.acknowledge([retried])
        queue.close()
        assert open_queue().backlog() == 0

    def test_after_the_last_retry_it_is_a_dead_letter_and_nothing_else(self, open_queue, open_letters):
        queue = open_queue()
        queue.send(intents(1), 0)
        origins = set()
        for times in (1, 2, 3):
            (message,) = queue.receive(1, 60_000)
            (postponed,) = queue.reconsume_later([message], 10, 2)
            assert (postponed.times, postponed.dead, postponed.error) == (times, times == 3, "")
            queue.acknowledge([message])
            origins.add(message.properties.get("ORIGIN_MESSAGE_ID"))
        assert len(origins - {None}) == 1
        assert queue.receive(1, 2_000) == []
        queue.close()
        letters = open_letters()
        assert (open_queue().backlog(), letters.backlog()) == (0, 1)
        (letter,) = letters.take(1, 60_000)
        assert letter.info == intents(1)[0]
        assert letter.properties["RECONSUMETIMES"] == "3"
        letters.acknowledge([letter])
        letters.close()
        assert open_letters().backlog() == 0

    @pytest.mark.parametrize(
        ("count", "max_times", "times", "dead"),
        [("-5", 10, 11, True), ("9" * 40, 10, 11, True), ("12", 10, 13, True), ("9", 10, 10, False), ("", 0, 1, True)],
    )
    def test_whatever_a_message_says_of_its_retries_it_never_loops(
        self, open_queue, publish, count, max_times, times, dead
    ):
        queue = open_queue()
        publish(b"x", {"RECONSUMETIMES": count})
        (message,) = queue.receive(1, 60_000)
        (postponed,) = queue.reconsume_later([message], 10, max_times)
        assert (postponed.times, postponed.dead, postponed.error) == (times, dead, "")
        queue.acknowledge([message])

    def test_a_dead_letter_is_sent_again_as_it_was_sent_first(self, open_queue, open_letters, publish):
        queue = open_queue()
        publish(encode_deletion_message(intents(1)[0]), {"mine": "kept"})
        (message,) = queue.receive(1, 60_000)
        queue.reconsume_later([message], 10, 0)
        queue.acknowledge([message])
        letters = open_letters()
        (letter,) = letters.take(1, 60_000)
        assert len(letter.properties) == 7
        (resent,) = letters.send_again([letter])
        assert (resent.message, resent.error, bool(resent.message_id)) == (letter, "", True)
        letters.acknowledge([letter])
        (again,) = queue.receive(1, 60_000)
        assert (again.raw, again.properties) == (message.raw, {"mine": "kept"})
        assert Topic.parse(again.topic).partitioned_parent == DELETION_TOPIC
        queue.acknowledge([again])

    def test_a_dead_letter_that_is_not_acknowledged_comes_again(self, open_letters, publish):
        publish(b"x", {}, topic=DLQ_TOPIC)
        letters = open_letters()
        (letter,) = letters.take(1, 60_000)
        assert letters.take(1, 100) == []
        letters.close()
        (again,) = open_letters().take(1, 60_000)
        assert again.message_id == letter.message_id

    @pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC], ids=["main", "retry", "dlq"])
    def test_looking_takes_nothing_and_goes_on_where_it_was(self, open_queue, reader, publish, topic):
        open_queue().send([], 0)
        for number in range(5):
            publish(b"%d" % number, {"n": str(number)}, topic=topic)
        parts = reader.partitions(topic)
        assert sum(reader.backlog(part) for part in parts) == 5
        seen = []
        for part in parts:
            whole = reader.waiting(part, None, 100)
            assert whole.end
            assert reader.waiting(part, whole.upto, 100).messages == ()
            paged = []
            page = reader.waiting(part, None, 2)
            paged += page.messages
            while not page.end:
                page = reader.waiting(part, page.upto, 2)
                paged += page.messages
            assert tuple(paged) == whole.messages
            assert reader.waiting(part, Position(10**12, 0), 100) == whole
            seen += whole.messages
        assert sorted(one.raw for one in seen) == [b"%d" % number for number in range(5)]
        assert all(one.properties == {"n": one.raw.decode()} for one in seen)
        assert sum(reader.backlog(part) for part in parts) == 5

    def test_looking_sees_delayed_messages_and_none_that_is_done(self, open_queue, reader):
        queue = open_queue()
        queue.send(intents(3), 0)
        received = queue.receive(3, 60_000)
        queue.acknowledge([one for one in received if one.info.ledger_id == 1])
        queue.close()
        open_queue().send(intents(1, first=9), 4_000)
        seen = [one for part in reader.partitions(DELETION_TOPIC) for one in reader.waiting(part, None, 100).messages]
        assert sorted(one.info.ledger_id for one in seen) == [0, 2, 9]
        (delayed,) = [one for one in seen if one.info.ledger_id == 9]
        published = delayed.publish_time
        assert due_at(delayed.properties, published, published) == published + 4_000
        rest = open_queue()
        rest.acknowledge(rest.receive(3, 60_000))
        rest.close()
        assert open_queue().backlog() == 0


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
    def __init__(self, script=(), messages=(), failure=None):
        self.producer, self.consumer, self.failure = Producer(script), Consumer(messages), failure
        self.opened = 0
        self.reader = Reader(messages)

    def create_producer(self, topic, **options):
        self.opened += 1
        if self.failure:
            raise self.failure
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
        return PulsarDeletionQueue(PulsarSettings(**urls, **settings), admin, 4)

    return open_queue


def test_every_partition_of_all_three_topics_has_the_subscription_before_the_first_send(open_on, admin):
    open_on(Client()).send(intents(1), 0)
    assert [admin.partitions(topic) for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC)] == [4, 4, 0]
    parts = [part for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC) for part in topics_of(admin, topic)]
    assert len(parts) == 9
    assert all(SUBSCRIPTION in admin.subscriptions(part) for part in parts)


def test_a_lost_subscription_is_made_again_at_the_next_send(open_on, admin):
    queue = open_on(Client())
    queue.send(intents(1), 0)
    part = topics_of(admin, RETRY_TOPIC)[3]
    del admin.topics[part][SUBSCRIPTION]
    queue.send(intents(1), 0)
    assert SUBSCRIPTION in admin.subscriptions(part)


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
    failures = [_pulsar.Result.Ok, _pulsar.Result.MessageTooBig, ValueError("no text"), _pulsar.Result.Ok]
    sent = open_on(Client(failures)).send(intents(5), 60_000)
    assert [one.error for one in sent] == ["", "MessageTooBig", "no text", "", ""]
    assert [bool(one.message_id) for one in sent] == [True, False, False, True, True]
    assert [one.info.ledger_id for one in sent] == list(range(5))


def test_after_a_time_out_the_rest_is_not_sent(open_on):
    client = Client([_pulsar.Result.Ok, _pulsar.Result.Timeout])
    sent = open_on(client).send(intents(4), 60_000)
    assert [one.error.split(",")[0] for one in sent] == ["", "Timeout", "not sent", "not sent"]
    assert len(client.producer.sent) == 2


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


def test_subscriptions_are_made_again_where_they_are_missing_and_topics_are_not(open_on, admin):
    assert subscribe_everywhere(admin) == []
    assert admin.topics == {}
    admin.create_partitioned_topic(DLQ_TOPIC, 2)
    one, other = topics_of(admin, DLQ_TOPIC)
    admin.create_subscription(one, "__compaction")
    del admin.topics[other]  # a partition that is only listed, as auto-creation leaves it
    assert subscribe_everywhere(admin) == [one, other]
    assert subscribe_everywhere(admin) == []
    assert admin.subscriptions(one) == ["__compaction", SUBSCRIPTION]


def test_a_retry_topic_that_cannot_be_opened_fails_each_message_once(open_on, admin):
    part = Topic(DELETION_TOPIC.namespace, "__ledger_deletion-partition-0")
    client = Client(messages=[Message(part, Position(5, n)) for n in range(3)])
    queue = open_on(client)
    messages = queue.receive(3, 1000)
    client.failure = _pulsar.Timeout("t")
    postponed = queue.reconsume_later(messages, 10, 3)
    assert all("Timeout" in one.error for one in postponed)
    assert client.opened == 1


def test_pending_is_the_backlog_of_main_and_retry_and_creates_nothing(open_on, admin):
    assert pending(admin) == 0
    assert admin.topics == {}
    open_on(Client()).ensure()
    for topic, backlog in ((DELETION_TOPIC, 3), (RETRY_TOPIC, 2), (DLQ_TOPIC, 100)):
        admin.topics[topics_of(admin, topic)[0]][SUBSCRIPTION].backlog = backlog
        admin.topics[topics_of(admin, topic)[-1]][SUBSCRIPTION].backlog = backlog
    assert pending(admin) == 10


def test_pending_of_a_topic_that_lost_its_subscription_is_an_error(admin):
    admin.create_partitioned_topic(DELETION_TOPIC, 2)
    with pytest.raises(NotFound, match=SUBSCRIPTION):
        pending(admin)


def test_the_topics_are_those_of_the_pip():
    assert str(DELETION_TOPIC) == "persistent://pulsar/system/__ledger_deletion"
    assert str(RETRY_TOPIC) == "persistent://pulsar/system/__ledger_deletion-RETRY"
    assert str(DLQ_TOPIC) == "persistent://pulsar/system/__ledger_deletion-DLQ"
    assert DELETION_TOPIC.namespace == Namespace("pulsar", "system")
