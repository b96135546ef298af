"""Offloading on a real cluster: planned, copied, proven, committed, and read back from the bucket alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import Failed
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.sources.spark_session import prepare
from pulsar_lifecycle.tiered.asked_entries import entries_to_ask
from pulsar_lifecycle.tiered.offload_run import revert_offloads
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import topics
from sandbox.planting.seed import transactional
from tests.integration.pipeline import (
    Pipeline,
    drain,
    existing,
    new_namespace,
    wait_unlisted,
    wait_until_unloaded_counts,
)
from tests.integration.tiered.offloads import contexts, keys, messages, offload, planned, s3_client, with_bucket

pytestmark = pytest.mark.integration


@pytest.fixture
def operator(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> Callable[..., Pipeline]:
    """Pipelines with an object store, and what brokers with an offloader would say of themselves."""

    def make(lake: str = "", *, on_spark: bool = False, **offload: Any) -> Pipeline:
        return pipelines(with_bucket(sandbox, **offload), lake, on_spark=on_spark)

    return make


@pytest.fixture
def bucket(sandbox: Cluster) -> Iterator[Any]:
    with s3_client(sandbox) as client:
        yield client


def published(sandbox: Cluster, namespace: str, name: str, count: int) -> tuple[str, list[bytes], list[int]]:
    """A topic with ``count`` messages, unloaded; its payloads, and the ledgers they are in."""
    topic = f"persistent://{namespace}/{name}"
    payloads = topics.payloads(count, name)
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        ledgers = topics.publish(client, topic, payloads)
        admin.unload(topic)
    return topic, payloads, list(dict.fromkeys(ledgers))


def unloaded(sandbox: Cluster, *names: str) -> None:
    since = time.time()
    wait_unlisted(sandbox, names)
    wait_until_unloaded_counts(since)


def test_a_topic_goes_to_the_bucket_and_leaves_bookkeeper(
    sandbox: Cluster, operator: Callable[..., Pipeline], bucket: Any
) -> None:
    namespace = new_namespace(sandbox, "tiered")
    topic, payloads, ledgers = published(sandbox, namespace, "a b+é", 130)
    unloaded(sandbox, topic)
    pipeline = operator(on_spark=True)
    plan, rows = planned(pipeline, namespace)
    assert plan.actionable, plan.gaps
    last = max(contexts(sandbox, topic))
    going = [ledger for ledger in ledgers if ledger != last]
    assert [row["ledger_id"] for row in rows if row["topic"] == topic] == going
    said = offload(pipeline, plan)
    assert {ledger: said[ledger].outcome for ledger in going} == dict.fromkeys(going, Outcome.OFFLOADED)
    made = contexts(sandbox, topic)
    assert {ledger for ledger, context in made.items() if context and context.complete} == set(going)
    assert all(len(keys(bucket, ledger)) == 2 for ledger in going)
    with KazooStore(pipeline.where.settings.zookeeper, read_only=True) as store:
        assert attempts.open_attempts(store) == []
    offloaded = [
        payload for payload, ledger in zip(payloads, _ledger_of(payloads, ledgers), strict=True) if ledger in going
    ]
    assert messages(pipeline, topic) == offloaded
    # what is offloaded is never repeated; its copy in BookKeeper is due at once
    drain(sandbox)
    unloaded(sandbox, topic)
    plan, rows = planned(pipeline, namespace)
    assert {row["action"] for row in rows} == {"delete_copy"}
    said = offload(pipeline, plan, "delete-copies")
    assert {ledger: said[ledger].outcome for ledger in going} == dict.fromkeys(going, Outcome.BOOKKEEPER_DELETED)
    assert all(contexts(sandbox, topic)[ledger].bookkeeper_deleted for ledger in going)
    assert existing(sandbox, going) == set(going)
    unloaded(sandbox, topic)
    pipeline.scan()
    pipeline.delete_until(lambda: not existing(sandbox, going))
    outcomes = {row["ledger_id"]: (row["outcome"], row["reason"]) for row in pipeline.journal()}
    assert {ledger: outcomes[ledger][0] for ledger in going} == dict.fromkeys(going, "deleted"), outcomes
    assert existing(sandbox, going) == set()
    assert messages(pipeline, topic) == offloaded
    assert all(len(keys(bucket, ledger)) == 2 for ledger in going)


def _ledger_of(payloads: list[bytes], ledgers: list[int]) -> list[int]:
    """A ledger of the sandbox rolls over at 50 entries."""
    return [ledgers[number // 50] for number in range(len(payloads))]


def test_batches_chunks_and_transactions_come_back_as_bookkeeper_has_them(
    sandbox: Cluster, operator: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "kinds")
    batches, chunks, moved, source = (
        f"persistent://{namespace}/{name}" for name in ("batches", "chunks", "to", "from")
    )
    with pulsar_client(sandbox.service_url) as client:
        batching = client.create_producer(
            batches,
            batching_enabled=True,
            batching_max_messages=3,
            batching_max_publish_delay_ms=60_000,
            compression_type=pulsar.CompressionType.LZ4,
        )
        texts = topics.payloads(180, "batched")
        for text in texts:
            batching.send_async(text, lambda *_: None)
        batching.flush()
        client.create_producer(chunks, chunking_enabled=True).send(b"x" * (11 << 20))
        transactional(sandbox, client, print, source, moved)
        for topic in (chunks, moved):
            topics.publish(client, topic, topics.payloads(60))
    pipeline = operator(loaded_topics=True)
    plan, rows = planned(pipeline, namespace)
    going = {row["ledger_id"] for row in rows}
    assert {row["topic"] for row in rows} >= {batches, chunks, moved}
    said = offload(pipeline, plan)
    assert {said[ledger].outcome for ledger in going} == {Outcome.OFFLOADED}, said

    def read(table: str, topic: str) -> list[Any]:
        options = {"settings": str(pipeline.file), "topic": topic, "as": "messages"}
        found = prepare(pipeline.spark_cluster.spark).read.format(table).options(**options).load().collect()
        return sorted(
            (row for row in found if row["ledger_id"] in going),
            key=lambda row: (row["ledger_id"], row["entry_id"], row["batch_index"] or 0),
        )

    found = {topic: read("pulsar_offload", topic) for topic in (batches, chunks, moved)}
    assert found == {topic: read("bookkeeper_entries", topic) for topic in found}
    assert {row["batch_size"] for row in found[batches]} == {3}
    assert [row["payload"] for row in found[batches]] == texts[: len(found[batches])]
    assert [row["chunks"] for row in found[chunks][:3]] == [3, 3, 3]
    assert any(row["marker_type"] is not None for row in found[moved])


def test_a_broker_that_cannot_read_gets_its_ledger_back(sandbox: Cluster, operator: Callable[..., Pipeline]) -> None:
    """The sandbox's brokers have no offloader: a consumer would stall on the first ledger that is committed."""
    namespace = new_namespace(sandbox, "read_check")
    topic, payloads, _ = published(sandbox, namespace, "t", 120)
    unloaded(sandbox, topic)
    pipeline = operator(waive_read_check=False)
    plan, _ = planned(pipeline, namespace)
    stopped = offload(pipeline, plan)[-1]
    assert (stopped.outcome, stopped.why.code) == (Outcome.FAILED, Code.READ_CHECK_FAILED)
    assert not any(context and context.complete for context in contexts(sandbox, topic).values())
    rows = [row for row in journal_rows(FileJournal(pipeline.lake)).to_pylist() if row["outcome"] == "reverted"]
    assert len(rows) == 1
    with pulsar_client(sandbox.service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in payloads] == payloads


def test_its_broker_is_asked_for_entries_that_rest_shows(sandbox: Cluster, operator: Callable[..., Pipeline]) -> None:
    """REST shows neither a chunk of a compressed message nor large properties, which consumers read well."""
    topic = f"persistent://{new_namespace(sandbox, 'shown')}/t"
    large = {"trace": "t" * 9_000}
    chunked: dict[str, Any] = {"chunking_enabled": True, "compression_type": pulsar.CompressionType.LZ4}
    with pulsar_client(sandbox.service_url) as client:
        first = client.create_producer(topic, batching_enabled=False, **chunked)
        second = client.create_producer(topic, batching_enabled=False)
        for send in (
            lambda: first.send(os.urandom(6 << 20)),
            lambda: second.send(b"first"),
            lambda: second.send(b"last"),
            lambda: second.send(b"traced", properties=large),
        ):
            last = send()
    settings = operator().where.settings
    with Admin(sandbox.admin_url) as admin:
        admin.unload(topic)
    with (
        KazooStore(settings.zookeeper, read_only=True) as store,
        closing(BookieReader(store, settings.bookkeeper)) as reader,
        closing(HttpBrokerAdmin(settings.pulsar)) as brokers,
    ):
        run: Any = SimpleNamespace(ledgers_root=settings.bookkeeper.ledgers_root, lost_at_load=lambda *_: None)
        ports: Any = SimpleNamespace(store=store, reader=reader, admin=brokers)
        copy = OffloadedCopy(last.ledger_id(), last.entry_id() + 1, uuid4(), "S3", ())
        asked = entries_to_ask(run, ports, Topic.parse(topic), copy)
        assert asked == [last.entry_id() - 2, last.entry_id() - 1]
        for entry_id in asked:
            brokers.read_entry(Topic.parse(topic), Position(last.ledger_id(), entry_id))
        with pytest.raises(Failed, match="500"):
            brokers.read_entry(Topic.parse(topic), Position(last.ledger_id(), last.entry_id()))


def test_live_clients_notice_nothing(sandbox: Cluster, operator: Callable[..., Pipeline]) -> None:
    """Commits on a loaded topic, beside a producer and a tailing consumer."""
    namespace = new_namespace(sandbox, "live")
    topic = f"persistent://{namespace}/loaded"
    pipeline = operator(loaded_topics=True)
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "tail", pulsar.ConsumerType.Exclusive)
        before = topics.payloads(130, "before")
        topics.publish(client, topic, before)
        for _ in before:
            consumer.acknowledge(consumer.receive(60_000))
        plan, rows = planned(pipeline, namespace)
        assert plan.actionable, plan.gaps
        assert any(row["topic"] == topic for row in rows)
        producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=60_000)
        sent: list[bytes] = []
        failed: list[str] = []

        def answered(payload: bytes) -> Callable[[Any, Any], None]:
            def answer(result: Any, _: Any) -> None:
                (sent.append(payload) if result == pulsar.Result.Ok else failed.append(str(result)))

            return answer

        ended = threading.Event()

        def produce() -> None:
            number = 0
            while not ended.wait(0.1):  # a ledger in five seconds, or a run's five tries may all meet a new one
                payload = f"live {number}".encode()
                producer.send_async(payload, answered(payload))
                number += 1
            producer.flush()

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            said = offload(pipeline, plan)
        finally:
            ended.set()
            thread.join()
        received: list[bytes] = []
        while not set(received) >= set(sent):
            message = consumer.receive(60_000)
            received.append(message.data())
            consumer.acknowledge(message)
    assert not failed
    # what was acknowledged as the topic was unloaded may come again
    assert set(received) - set(before) == set(sent)
    going = [row["ledger_id"] for row in rows if row["topic"] == topic]
    assert {said[ledger].outcome for ledger in going} == {Outcome.OFFLOADED}, said
    made = contexts(sandbox, topic)
    assert all(made[ledger].complete for ledger in going)
    with KazooStore(pipeline.where.settings.zookeeper, read_only=True) as store:
        assert control.pending_unloads(store) == []


def test_a_copy_that_is_gone_is_reverted_and_made_anew(
    sandbox: Cluster, operator: Callable[..., Pipeline], bucket: Any
) -> None:
    """Its topic would be read from the bucket alone, though BookKeeper has it."""
    namespace = new_namespace(sandbox, "damaged")
    topic, payloads, _ = published(sandbox, namespace, "t", 60)
    unloaded(sandbox, topic)
    pipeline = operator(bookkeeper_copies="brokers")
    plan, rows = planned(pipeline, namespace)
    (ledger,) = [row["ledger_id"] for row in rows if row["topic"] == topic]
    offload(pipeline, plan)
    for key in keys(bucket, ledger):
        bucket.delete_object(Bucket=BUCKET, Key=key)
    asked = (pipeline.where, "back", Topic.parse(topic), [ledger])
    assert [one.outcome for one in revert_offloads(*asked, dry_run=True)] == ["goes"]
    assert contexts(sandbox, topic)[ledger].complete
    unloaded(sandbox, topic)
    assert [one.outcome for one in revert_offloads(*asked, dry_run=False)] == ["reverted"]
    with pulsar_client(sandbox.service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in payloads] == payloads
    with Admin(sandbox.admin_url) as admin:
        admin.unload(topic)
    unloaded(sandbox, topic)
    plan, _ = planned(pipeline, namespace)
    assert offload(pipeline, plan)[ledger].outcome == Outcome.OFFLOADED
    assert len(keys(bucket, ledger)) == 2
