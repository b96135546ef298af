"""Retry and dead letters beside a Java consumer that does what PIP-186 says: each understands what the other wrote."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from pulsar_lifecycle.deletion_queue.missing_topics import subscribe_everywhere
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION, waiting
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.formats.retry_letter import java_message_id
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Received
from pulsar_lifecycle.settings import PulsarSettings
from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from sandbox.servers.toolchain import find_tools
from tests.kit.builders import intents

pytestmark = pytest.mark.integration

CONSUMER = Path(__file__).with_name("RetryingConsumer.java")
FROM_JAVA = {
    "properties": {"tenant's own": "yes"},
    "partition_key": "clé",
    "ordering_key": "order",
    "event_timestamp": 1_700_000_000_123,
}
DELAY = 1_000


@pytest.fixture
def publish(client: pulsar.Client) -> Callable[..., str]:
    """Puts a message on the main topic, or another, as anyone may; returns its id as Java spells it."""

    def publish(content: bytes, topic: Topic = DELETION_TOPIC, **options: Any) -> str:
        producer = client.create_producer(str(topic), chunking_enabled=True)
        sent = producer.send(content, **options)
        producer.close()
        return java_message_id(sent.ledger_id(), sent.entry_id(), sent.partition(), sent.batch_index())

    return publish


def reconsume_in_java(sandbox: Cluster, count: int, max_times: int, delay_ms: int = DELAY) -> list[dict[str, Any]]:
    """What a Java consumer of our topics received before it reconsumed each of ``count`` messages later."""
    tools = find_tools()
    command = [tools.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tools.pulsar]
    topics = [str(topic) for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC)]
    arguments = [str(CONSUMER), sandbox.service_url, *topics, SUBSCRIPTION, str(count), str(delay_ms), str(max_times)]
    done = subprocess.run([*command, *arguments], capture_output=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr.decode()
    found: list[dict[str, Any]] = []
    for line in done.stdout.decode().splitlines():
        if line.startswith("received:"):
            data, key, ordering, event, *rest = (
                base64.b64decode(field.rstrip(".")) for field in line.removeprefix("received: ").split(" ")
            )
            properties = dict(text.decode().split("=", 1) for text in rest)
            found.append(
                {
                    "data": data,
                    "partition_key": key.decode(),
                    "ordering_key": ordering.decode(),
                    "event_timestamp": int(event),
                    "properties": properties,
                }
            )
    assert len(found) == count
    return found


def shown(message: Received) -> dict[str, Any]:
    """A message of ours in the form of :func:`reconsume_in_java`."""
    original: Any = message.handle
    return {
        "data": message.raw,
        "partition_key": original.partition_key(),
        "ordering_key": original.ordering_key(),
        "event_timestamp": original.event_timestamp(),
        "properties": message.properties,
    }


def expected(content: bytes, origin: str, times: int, delay_ms: int = DELAY) -> dict[str, Any]:
    """A retry letter, property by property."""
    return {
        "data": content,
        **FROM_JAVA,
        "properties": {
            "tenant's own": "yes",
            "REAL_TOPIC": "persistent://pulsar/system/__ledger_deletion",
            "REAL_SUBSCRIPTION": "ledger-deletion",
            "ORIGIN_MESSAGE_ID": origin,
            "ORIGIN_MESSAGE_IDY_TIME": origin,
            "RECONSUMETIMES": str(times),
            "DELAY_TIME": str(delay_ms),
        },
    }


def reconsume(queue: PulsarDeletionQueue, count: int, max_times: int, delay_ms: int = DELAY) -> list[Received]:
    """Receive ``count`` messages and reconsume them later; returns them as they were received."""
    received = queue.receive(count, 60_000)
    assert len(received) == count
    postponed = queue.reconsume_later(received, delay_ms, max_times)
    assert {one.error for one in postponed} == {None}
    queue.acknowledge(received)
    return received


def receive_new(queue: PulsarDeletionQueue, *known: dict[str, Any]) -> Received:
    """The next message that is none of ``known``: an acknowledgement may be lost, then its message comes again."""
    while True:
        (message,) = queue.receive(1, 60_000)
        if shown(message) not in known:
            return message
        queue.acknowledge([message])


def test_ours_and_javas_retry_letters_are_the_same(sandbox, open_queue, publish) -> None:
    (content,) = map(encode_deletion_message, intents(1))
    queue = open_queue()
    origin = publish(content, **FROM_JAVA)
    reconsume(queue, 1, 10)
    queue.close()
    (as_java_read_ours,) = reconsume_in_java(sandbox, 1, 10)
    assert as_java_read_ours == expected(content, origin, 1)

    queue = open_queue()
    after_java = receive_new(queue, {"data": content, **FROM_JAVA}, expected(content, origin, 1))
    assert shown(after_java) == expected(content, origin, 2)
    assert Topic.parse(after_java.topic).partitioned_parent == RETRY_TOPIC
    (postponed,) = queue.reconsume_later([after_java], DELAY, 10)
    assert (postponed.times, postponed.dead, postponed.error) == (3, False, None)
    queue.acknowledge([after_java])
    third = receive_new(queue, {"data": content, **FROM_JAVA}, *(expected(content, origin, n) for n in (1, 2)))
    queue.acknowledge([third])
    assert shown(third) == expected(content, origin, 3)


def test_java_counts_on_from_what_we_sent_back_uncounted(sandbox, open_queue, open_letters, publish) -> None:
    (content,) = map(encode_deletion_message, intents(1))
    origin = publish(content, **FROM_JAVA)
    notes = {"LIFECYCLE_WAITING_SINCE": "1", "LIFECYCLE_WAITING_FOR": "no-scan", "LIFECYCLE_WAITING_RUN": "a run"}
    reconsume_in_java(sandbox, 1, 2)
    queue = open_queue()
    once = receive_new(queue, {"data": content, **FROM_JAVA})
    for _ in range(4):  # more often than anything is retried
        (sent,) = queue.send_back([once], [notes], DELAY)
        assert (sent.times, sent.dead, sent.error) == (1, False, None)
        queue.acknowledge([once])
        (once,) = queue.receive(1, 60_000)
    waiting_copy = expected(content, origin, 1)
    waiting_copy["properties"] |= notes
    assert shown(once) == waiting_copy
    queue.close()
    assert reconsume_in_java(sandbox, 2, 2)[0] == waiting_copy
    (letter,) = open_letters().take(1, 60_000)
    assert letter.properties["RECONSUMETIMES"] == "3"


def test_what_java_reconsumed_first_is_the_same_too(sandbox, open_queue, publish) -> None:
    (content,) = map(encode_deletion_message, intents(1))
    origin = publish(content, **FROM_JAVA)
    (first,) = reconsume_in_java(sandbox, 1, 10)
    assert first == {"data": content, **FROM_JAVA}
    queue = open_queue()
    after_java = receive_new(queue, first)
    assert shown(after_java) == expected(content, origin, 1)
    queue.acknowledge([after_java])


def test_ours_and_javas_dead_letters_are_the_same(sandbox, open_queue, open_letters, publish) -> None:
    ours, javas = map(encode_deletion_message, intents(2))
    origins = [publish(javas, **FROM_JAVA)]
    reconsume_in_java(sandbox, 3, 2)
    queue = open_queue()
    origins.insert(0, publish(ours, **FROM_JAVA))
    for _ in range(3):
        reconsume(queue, 1, 2)
    assert queue.receive(1, DELAY + 3_000) == []
    assert queue.backlog() == 0
    letters = open_letters()
    assert letters.backlog() == 2
    taken = sorted(letters.take(2, 60_000), key=lambda one: one.raw)
    assert [shown(one) for one in taken] == [
        expected(content, origin, 3) for content, origin in zip([ours, javas], origins, strict=True)
    ]
    letters.acknowledge(taken)
    letters.close()
    assert open_letters().backlog() == 0


def test_ours_counts_on_from_java_to_the_dead_letter(sandbox, open_queue, open_letters, publish) -> None:
    (content,) = map(encode_deletion_message, intents(1))
    origin = publish(content, **FROM_JAVA)
    reconsume_in_java(sandbox, 2, 2)
    queue = open_queue()
    (last,) = reconsume(queue, 1, 2)
    assert shown(last) == expected(content, origin, 2)
    (letter,) = open_letters().take(1, 60_000)
    assert shown(letter) == expected(content, origin, 3)
    wait_for("the acknowledgements to arrive", lambda: queue.backlog() == 0)


def test_a_batched_message_says_where_it_was_in_its_batch_as_java_does(sandbox, open_queue, client) -> None:
    contents = list(map(encode_deletion_message, intents(4)))

    def publish_batch(some: list[bytes]) -> None:
        producer = client.create_producer(
            f"{DELETION_TOPIC}-partition-1", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for content in some:
            producer.send_async(content, lambda *_: None)
        producer.flush()
        producer.close()

    publish_batch(contents[:2])
    reconsume_in_java(sandbox, 2, 10)
    publish_batch(contents[2:])
    queue = open_queue()
    fresh: dict[bytes, Received] = {}
    # nobody waits for acknowledgements, so what Java acknowledged as it closed may come again, and come first
    while not fresh.keys() >= set(contents[2:]):
        (one,) = queue.receive(1, 60_000)
        if "RECONSUMETIMES" not in one.properties:
            fresh.setdefault(one.raw, one)
    ours = [one for content, one in fresh.items() if content in contents[2:]]
    assert {one.error for one in queue.reconsume_later(ours, DELAY, 10)} == {None}
    queue.acknowledge(ours)
    queue.close()
    last, by_content = open_queue(), dict[bytes, Received]()
    while not by_content.keys() >= set(contents):
        (one,) = last.receive(1, 60_000)
        if "RECONSUMETIMES" in one.properties:
            by_content[one.raw] = one
    received = [by_content[content] for content in contents]
    origins = [one.properties["ORIGIN_MESSAGE_ID"].split(":") for one in received]
    assert [origin[2:] for origin in origins] == [["1", "0"], ["1", "1"]] * 2
    assert origins[2][:2] == origins[3][:2]


def test_a_retry_waits_and_is_seen_waiting(open_queue, reader) -> None:
    queue = open_queue()
    queue.send(intents(1), 0)
    sent_at = time.time() * 1000
    reconsume(queue, 1, 10, 6_000)
    assert queue.receive(1, 1_000) == []
    pages = [reader.waiting(part, None, 10) for part in reader.partitions(RETRY_TOPIC)]
    (seen,) = [message for page in pages for message in page.messages]
    assert seen.properties["DELAY_TIME"] == "6000"
    (again,) = queue.receive(1, 60_000)
    assert again.message_id == seen.message_id
    assert time.time() * 1000 >= sent_at + 6_000  # the broker's promise, however slow this machine is
    queue.acknowledge([again])


def test_a_count_that_no_client_writes_is_dead_lettered(open_queue, open_letters, publish) -> None:
    counts = ["-5", "+1", "1e3", "", "９", "4294967297", "9" * 40]
    queue = open_queue()
    for info, count in zip(intents(len(counts)), counts, strict=True):
        publish(encode_deletion_message(info), RETRY_TOPIC, properties={"RECONSUMETIMES": count})
    reconsume(queue, len(counts), 10)
    letters = open_letters().take(len(counts), 60_000)
    assert [letter.properties["RECONSUMETIMES"] for letter in letters] == ["11"] * len(counts)
    wait_for("the acknowledgements to arrive", lambda: queue.backlog() == 0)


def test_one_that_was_retried_more_often_than_allowed_now_counts_on(sandbox, open_queue, open_letters, publish) -> None:
    ours, javas = map(encode_deletion_message, intents(2))
    publish(javas, RETRY_TOPIC, properties={"RECONSUMETIMES": "12"})
    reconsume_in_java(sandbox, 1, 10)
    queue = open_queue()
    publish(ours, RETRY_TOPIC, properties={"RECONSUMETIMES": "12"})
    reconsume(queue, 1, 10)
    letters = open_letters().take(2, 60_000)
    assert [letter.properties["RECONSUMETIMES"] for letter in letters] == ["13", "13"]


def test_a_message_in_chunks_goes_the_same_way(open_queue, open_letters, publish) -> None:
    (content,) = map(encode_deletion_message, intents(1))
    large = content[:-1] + b',"padding":"' + b"x" * 11_000_000 + b'"}'
    queue = open_queue()
    publish(large)
    for _ in range(2):
        reconsume(queue, 1, 1)
    (letter,) = open_letters().take(1, 60_000)
    assert letter.raw == large
    assert letter.info == intents(1)[0]


def test_dead_letters_are_looked_at_without_taking_them(open_queue, open_letters, publish, reader) -> None:
    for info in intents(7):
        publish(encode_deletion_message(info), DLQ_TOPIC)
    letters = open_letters()
    taken = letters.take(7, 60_000)
    letters.acknowledge([taken[0], taken[2], taken[3]])
    letters.close()
    assert open_letters().backlog() == 4
    whole = reader.waiting(DLQ_TOPIC, None, 100)
    assert [one.message_id for one in whole.messages] == [taken[n].message_id for n in (1, 4, 5, 6)]
    assert [one.info for one in whole.messages] == [taken[n].info for n in (1, 4, 5, 6)]
    assert whole.end
    first = reader.waiting(DLQ_TOPIC, None, 4)
    rest = reader.waiting(DLQ_TOPIC, first.upto, 4)
    assert (first.end, rest.end) == (False, True)
    assert first.messages + rest.messages == whole.messages
    assert reader.waiting(DLQ_TOPIC, whole.upto, 4).messages == ()
    assert [one.message_id for one in open_letters().take(4, 60_000)] == [one.message_id for one in whole.messages]


def test_a_batch_of_dead_letters_is_never_cut(open_queue, client, reader) -> None:
    producer = client.create_producer(str(DLQ_TOPIC), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for info in intents(6):
        producer.send_async(encode_deletion_message(info), lambda *_: None)
    producer.flush()
    page = reader.waiting(DLQ_TOPIC, None, 2)
    assert len(page.messages) == 6


def test_a_dead_letter_without_subscription_is_caught_up_with(
    admin, open_queue, open_letters, publish, operator
) -> None:
    """The broker's own cursors keep nothing for us; after mending, not even a trim takes a dead letter away."""
    operator.unsubscribe(DLQ_TOPIC)
    assert subscribe_everywhere(admin) == [DLQ_TOPIC]
    assert subscribe_everywhere(admin) == []
    (content,) = map(encode_deletion_message, intents(1, first=4711))
    publish(content, DLQ_TOPIC)
    operator.unload_and_trim(DLQ_TOPIC)
    assert waiting(admin, DLQ_TOPIC) >= 1
    # whatever the topic still held from before is back, too
    assert content in [letter.raw for letter in open_letters().take(1000, 20_000)]


def test_a_dead_letter_of_a_run_survives_a_subscription_lost_before(open_queue, open_letters, operator) -> None:
    queue = open_queue()
    (info,) = intents(1, first=4712)
    queue.send([info], 0)
    received = queue.receive(1, 60_000)
    operator.unsubscribe(DLQ_TOPIC)
    (postponed,) = queue.reconsume_later(received, DELAY, 0)
    assert (postponed.dead, postponed.error) == (True, None)
    queue.acknowledge(received)
    operator.unload_and_trim(DLQ_TOPIC)
    assert info in [letter.info for letter in open_letters().take(1000, 20_000)]


class Operator:
    """What an operator, or time, may do to a topic of ours."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def unsubscribe(self, topic: Topic) -> None:
        self._ask("DELETE", topic, f"subscription/{SUBSCRIPTION}?force=true")

    def unload_and_trim(self, topic: Topic) -> None:
        self._ask("PUT", topic, "unload")
        self._ask("GET", topic, "stats")
        self._ask("POST", topic, "trim")

    def _ask(self, method: str, topic: Topic, rest: str) -> None:
        path = f"/persistent/{topic.namespace}/{topic.local}/{rest}"
        answer = self._http.request(method, path, follow_redirects=True)
        assert answer.is_success, answer.text


@pytest.fixture
def operator(settings: PulsarSettings) -> Iterator[Operator]:
    with httpx.Client(base_url=f"{settings.admin_url}/admin/v2", trust_env=False, timeout=120) as http:
        yield Operator(http)
