import base64
import json
import time

import _pulsar
import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, RETRY_TOPIC
from pulsar_lifecycle.errors import AccessDenied, NotFound, Unavailable
from pulsar_lifecycle.io.pulsar import pulsar_session
from pulsar_lifecycle.io.pulsar.pulsar_session import Outgoing, PulsarSession
from pulsar_lifecycle.io.pulsar.token_expiry import expired_at
from pulsar_lifecycle.setting_types import SecretRef
from pulsar_lifecycle.settings import PulsarSettings

BROKERS = ("b1:6650", "b2:6650", "b3:6650")


class Brokers:
    """What clients of some brokers see: ``not_answering`` ones take connections and never answer. Lookups go to all."""

    def __init__(self, not_answering=(), no_owner=False, failure=None):
        self.not_answering, self.no_owner, self.failure = set(not_answering), no_owner, failure
        self.clients = []
        self.sent = []

    def client(self, url, **options):
        self.clients.append(_Client(self, url.partition("://")[2].rstrip("/").split(","), options))
        return self.clients[-1]

    @property
    def open_clients(self):
        return [client.hosts for client in self.clients if not client.closed]


class _Client:
    def __init__(self, brokers, hosts, options):
        self.brokers, self.hosts, self.options, self.closed = brokers, hosts, options, False

    def get_topic_partitions(self, topic):
        if self.brokers.not_answering.intersection(self.hosts):
            raise pulsar.Timeout("t")
        if self.brokers.failure:
            raise self.brokers.failure
        return [topic]

    def create_producer(self, topic, **options):
        self.get_topic_partitions(topic)
        if self.brokers.no_owner:
            raise pulsar.ConnectError("c")
        return _Producer(self.brokers)

    def subscribe(self, topics, subscription, **options):
        return self.create_producer(topics[0])

    def close(self):
        self.closed = True


class _Producer:
    """Its sends get no receipt until the test gives one."""

    def __init__(self, brokers):
        self._brokers = brokers

    def send_async(self, content, callback, **options):
        self._brokers.sent.append(callback)


@pytest.fixture
def session_of(monkeypatch):
    def open_session(brokers: Brokers, hosts=BROKERS, **settings) -> PulsarSession:
        monkeypatch.setattr(pulsar_session.pulsar, "Client", brokers.client)
        url = f"pulsar://{','.join(hosts)}/"
        return PulsarSession(PulsarSettings(admin_url="http://b1:8080", service_url=url, **settings))

    return open_session


def test_what_a_broker_that_does_not_answer_holds_up_is_opened_through_the_first_that_answers(session_of):
    brokers = Brokers(not_answering=["b1:6650"])
    session = session_of(brokers)
    session.open_producer(DELETION_TOPIC)
    session.subscribe([DELETION_TOPIC, RETRY_TOPIC], "s")
    assert brokers.open_clients == [list(BROKERS), ["b2:6650"]]
    session.close()
    assert brokers.open_clients == []


def test_where_no_broker_answers_each_was_asked_once(session_of):
    brokers = Brokers(not_answering=BROKERS)
    session = session_of(brokers)
    with pytest.raises(Unavailable, match="open the producer: Timeout"):
        session.open_producer(DELETION_TOPIC)
    assert [client.hosts for client in brokers.clients] == [list(BROKERS), *([host] for host in BROKERS)]
    assert brokers.open_clients == [list(BROKERS)]


def test_a_partition_whose_owner_does_not_answer_is_asked_for_through_one_more_broker(session_of):
    brokers = Brokers(no_owner=True)
    session = session_of(brokers)
    for _ in range(2):
        with pytest.raises(Unavailable, match="ConnectError"):
            session.open_producer(DELETION_TOPIC)
    assert len(brokers.clients) == 2


def test_an_answer_that_says_no_goes_nowhere_else(session_of):
    brokers = Brokers(failure=pulsar.TopicNotFound("t"))
    with pytest.raises(NotFound):
        session_of(brokers).open_producer(DELETION_TOPIC)
    assert len(brokers.clients) == 1


def test_of_one_broker_there_is_no_other(session_of):
    brokers = Brokers(not_answering=["b1:6650"])
    with pytest.raises(Unavailable):
        session_of(brokers, ["b1:6650"]).open_producer(DELETION_TOPIC)
    assert len(brokers.clients) == 1


@pytest.mark.parametrize("count", [1, pulsar_session.IN_FLIGHT + 1])
def test_sends_that_the_client_forgets_are_unanswered(session_of, count):
    brokers = Brokers()
    session = session_of(brokers, request_timeout=0.01)
    receipts = session.send_all([Outgoing(DELETION_TOPIC, b"x")] * count)
    assert [(one.message_id, one.unanswered) for one in receipts] == [(b"", True)] * count
    assert receipts[0].error == "no receipt came for 0.02 s"
    for receipt in brokers.sent:  # late ones are not heard
        receipt(_pulsar.Result.AlreadyClosed, None)
    assert {one.error for one in receipts} == {receipts[0].error}


@pytest.mark.parametrize(("timeout", "connect"), [(8, 8_000), (30, 10_000), (0.5, 1_000)])
def test_a_connection_takes_no_longer_than_a_request(session_of, timeout, connect):
    brokers = Brokers()
    session_of(brokers, request_timeout=timeout)
    assert brokers.clients[0].options["connection_timeout_ms"] == connect


def jwt(claims) -> str:
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.signature"


def test_an_expired_token_is_not_taken_for_brokers_that_do_not_answer(session_of, tmp_path):
    """They close the connection, and the client says that nothing came in time."""
    file = tmp_path / "token"
    file.write_text(jwt({"sub": "ops", "exp": time.time() - 60}))
    session = session_of(brokers := Brokers(not_answering=BROKERS), token=SecretRef(file=str(file)))
    with pytest.raises(AccessDenied, match=r"pulsar\.token expired at 20"):
        session.subscribe([DELETION_TOPIC], "s")
    (receipt,) = session.send_all([Outgoing(DELETION_TOPIC, b"x")])
    assert "pulsar.token expired at" in receipt.error
    assert len(brokers.clients) == 1  # another broker would not take it either
    file.write_text(jwt({"sub": "ops", "exp": time.time() + 60}))
    with pytest.raises(Unavailable):
        session.subscribe([DELETION_TOPIC], "s")


def test_a_token_file_is_read_again_for_each_connection(session_of, tmp_path, monkeypatch):
    suppliers = []
    monkeypatch.setattr(pulsar_session.pulsar, "AuthenticationToken", suppliers.append)
    file = tmp_path / "token"
    file.write_text("first")
    session_of(Brokers(), token=SecretRef(file=str(file)))
    file.write_text("second")
    assert suppliers[0]() == "second"


@pytest.mark.parametrize(
    "token", ["", "no.jwt", "a.!!.c", jwt([]), jwt({}), jwt({"exp": "soon"}), jwt({"exp": 1e99}), jwt({"exp": 101})]
)
def test_a_token_that_does_not_say_that_it_expired_has_not(token):
    assert expired_at(token, 100.0) is None


def test_a_token_says_when_it_expired():
    assert expired_at(jwt({"exp": 99}), 100.0) == "1970-01-01 00:01:39+00:00"
