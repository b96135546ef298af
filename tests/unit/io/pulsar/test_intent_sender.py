"""Sending intents: each that counts as sent is kept for whoever consumes it."""

import time

import _pulsar
import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    topics_of,
)
from pulsar_lifecycle.errors import Conflict, NotFound, Unavailable
from pulsar_lifecycle.io.pulsar import pulsar_session
from pulsar_lifecycle.io.pulsar.intent_sender import SHUT_FOR
from tests.kit.builders import intents
from tests.kit.queue_client import Client


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

    def lose_it():
        if not client.producer.sent:
            admin.topics[topics_of(admin, DELETION_TOPIC)[1]].pop(SUBSCRIPTION)

    client.producer.before = lose_it
    sent = queue.send(intents(4), 0)
    assert {one.error for one in sent} == {None}
    assert len(client.producer.sent) == 5
    assert SUBSCRIPTION in admin.subscriptions(topics_of(admin, DELETION_TOPIC)[1])


def test_what_is_lost_again_and_again_was_not_sent(open_on, admin):
    client = Client()
    queue = open_on(client)
    queue.ensure()

    def lose_all():
        for part in topics_of(admin, DELETION_TOPIC):
            admin.topics[part].pop(SUBSCRIPTION, None)

    client.producer.before = lose_all
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
