"""Reading every live topic back through the broker, and saying where it differs from what was written.

Belongs here: reads that acknowledge nothing and leave no subscription. Not here: what should be there
(:mod:`sandbox.planting.seed` wrote it down).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pulsar

from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting.seed import Live
from sandbox.planting.topics import digest
from sandbox.servers.toolchain import SandboxError

_PATIENCE_MS = 60_000
"""For what is there, or must come; a busy machine takes its time."""


def read_back(cluster: Cluster, live: Iterable[Live]) -> list[str]:
    """Read every topic whole and look its schemas, compacted view and delayed messages up; returns discrepancies.

    Messages, order and payloads are compared by count and digest. A message of a delayed subscription must be
    delivered if it is due and held back if it is not.
    """
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client:
        return [found for topic in live for found in _discrepancies(admin, client, topic)]


def _discrepancies(admin: Admin, client: pulsar.Client, live: Live) -> Iterator[str]:
    try:
        messages = _read(client, live.topic, live.messages)
        if len(messages) != live.messages:
            yield f"{live.topic}: {len(messages)} messages, {live.messages} were written"
        elif digest([message.data() for message in messages]) != live.sha256:
            yield f"{live.topic}: {len(messages)} messages, but not the ones that were written"
        if live.schemas:
            yield from _schema_discrepancies(admin, live)
        if live.compacted is not None:
            view = _read(client, live.topic, len(live.compacted), compacted=True)
            if {message.partition_key(): digest([message.data()]) for message in view} != live.compacted:
                yield f"{live.topic}: the compacted view of {len(view)} keys is not the last value of each key"
        for subscription, due in live.delayed.items():
            yield from _delayed_discrepancies(admin, client, live.topic, subscription, due)
    except (pulsar.PulsarException, SandboxError) as error:
        yield f"{live.topic}: {error}"


def _read(client: pulsar.Client, topic: str, expected: int, *, compacted: bool = False) -> list[pulsar.Message]:
    """Everything in the topic; waits long for what should be there and shortly for what should not."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    messages: list[pulsar.Message] = []
    try:
        while reader.has_message_available():  # also said of a transaction's marker, which is never delivered
            messages.append(reader.read_next(_PATIENCE_MS if len(messages) < expected else 500))
    except pulsar.Timeout:
        return messages
    finally:
        reader.close()
    return messages


def _schema_discrepancies(admin: Admin, live: Live) -> Iterator[str]:
    versions = admin.schemas(live.topic)
    if len(versions) != live.schemas:
        yield f"{live.topic}: {len(versions)} schema versions, {live.schemas} were registered"
    for schema in versions:
        if admin.schema(live.topic, schema["version"])["data"] != schema["data"]:
            yield f"{live.topic}: version {schema['version']} of the schema is not the one listed"


def _delayed_discrepancies(
    admin: Admin, client: pulsar.Client, topic: str, subscription: str, due: list[int]
) -> Iterator[str]:
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, subscription, shared, initial_position=pulsar.InitialPosition.Earliest)
    delivered = held = expected = 0
    try:
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        while time.monotonic() < deadline:
            expected = sum(at <= time.time() * 1000 for at in due)
            if delivered >= expected:
                held = admin.topic("GET", topic, "/stats")["subscriptions"][subscription]["msgDelayed"]
                if delivered + held == len(due):
                    return
            with suppress(pulsar.Timeout):
                consumer.receive(200)
                delivered += 1
        yield (
            f"{topic}: of {len(due)} messages for {subscription}, "
            f"{expected} are due, {delivered} were delivered, {held} held back"
        )
    finally:
        consumer.close()
