"""Content of topics: messages, acknowledged holes, delayed messages; and the digest by which content is compared.

Belongs here: what goes into a topic through the real client. Not here: which topics there are
(:mod:`sandbox.planting.seed`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import pulsar

from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from sandbox.planting.znodes import bucket_ledgers, read_cursor
from sandbox.servers.toolchain import SandboxError

_PATIENCE = 120
"""Seconds until a broker must have confirmed a message."""


def payloads(count: int, text: str = "message") -> list[bytes]:
    """``count`` distinct payloads of about a hundred bytes."""
    return [f"{text} {number} ".encode().ljust(100, b".") for number in range(count)]


def publish(
    client: pulsar.Client,
    topic: str,
    payloads: Sequence[Any],
    *,
    keys: Sequence[str] | None = None,
    deliver_at: Sequence[int] | None = None,
    schema: Any = None,
) -> list[int]:
    """Publish one entry per payload, in order, and return the ledger id each went to; ``deliver_at`` in ms."""
    options = {} if schema is None else {"schema": schema}
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=_PATIENCE * 1000, **options
    )
    ledgers: list[int] = []
    failures: list[str] = []
    done = threading.Event()

    def sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            ledgers.append(message_id.ledger_id())
        else:
            failures.append(str(result))
        if len(ledgers) + len(failures) == len(payloads):
            done.set()

    for number, payload in enumerate(payloads):
        producer.send_async(
            payload,
            sent,
            partition_key=keys[number] if keys else None,
            deliver_at=deliver_at[number] if deliver_at else None,
        )
    if not done.wait(_PATIENCE + 10) or failures:
        raise SandboxError(f"publishing to {topic} failed: {failures[:1] or 'timed out'}")
    producer.close()
    return ledgers


def acknowledge_with_holes(
    cluster: Cluster, client: pulsar.Client, topic: str, subscription: str, contents: Sequence[bytes]
) -> None:
    """Publish, acknowledge every other message, and wait until the cursor has a ledger for that position."""
    consumer = _shared(client, topic, subscription)
    publish(client, topic, contents)
    for message in [consumer.receive(60_000) for _ in contents][::2]:
        consumer.acknowledge(message)
    with cluster.metadata() as zk:
        wait_for(
            f"the cursor ledger of {subscription} on {topic}",
            lambda: read_cursor(zk, topic, subscription).cursorsLedgerId != -1,
        )
    consumer.close()


def delayed_backlog(
    cluster: Cluster,
    client: pulsar.Client,
    topic: str,
    subscription: str,
    contents: Sequence[bytes],
    due: Sequence[int],
) -> list[int]:
    """Publish delayed messages (``due`` in ms) to a Shared subscription; returns the sealed buckets' ledgers.

    A bucket is sealed when the topic's ledger changes with 20 indexes queued; a ledger holds 50 entries, so every
    ledger of the topic but the last gives one bucket.
    """
    consumer = _shared(client, topic, subscription)
    ledgers = publish(client, topic, contents, deliver_at=due)
    with cluster.metadata() as zk:

        def sealed() -> list[int]:
            buckets = bucket_ledgers(read_cursor(zk, topic, subscription))
            return buckets if len(buckets) == len(set(ledgers)) - 1 else []

        found = wait_for(f"the delayed-index buckets of {topic}", sealed)
    consumer.close()
    return found


def _shared(client: pulsar.Client, topic: str, subscription: str) -> pulsar.Consumer:
    earliest = pulsar.InitialPosition.Earliest
    return client.subscribe(topic, subscription, pulsar.ConsumerType.Shared, initial_position=earliest)


def digest(payloads: Sequence[bytes]) -> str:
    """SHA-256 over the payloads in order, each preceded by its length, so that no two lists agree by accident."""
    total = hashlib.sha256()
    for payload in payloads:
        total.update(len(payload).to_bytes(4, "big"))
        total.update(payload)
    return total.hexdigest()
