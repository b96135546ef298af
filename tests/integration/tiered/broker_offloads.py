"""A cluster whose brokers have an offloader, as the tests drive it: policies, the brokers' own offloads, their reads.

Belongs here: what several test modules do with the ``offloading`` sandbox. Not here: what must come out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import topics
from tests.integration.pipeline import wait_unlisted, wait_until_unloaded_counts
from tests.integration.tiered.offloads import contexts, with_bucket

MAX_BLOCK = 5 << 20
"""Bytes; the smallest blocks that offloaders write."""


def location(sandbox: Cluster) -> dict[str, str]:
    """What broker.conf says of the location, and no API shows."""
    return {
        "s3ManagedLedgerOffloadBucket": BUCKET,
        "s3ManagedLedgerOffloadRegion": "us-east-1",
        "s3ManagedLedgerOffloadServiceEndpoint": sandbox.state.as_json()["s3"]["endpoint"],
    }


def with_offloader(sandbox: Cluster, **offload: Any) -> dict[str, dict[str, Any]]:
    """Sections of settings: driver and lag are asked of the brokers, and one must read what is committed."""
    return with_bucket(sandbox, **{"brokers": location(sandbox), "waive_read_check": False, **offload})


def set_policy(sandbox: Cluster, namespace: str, lag_ms: int, **more: Any) -> None:
    """A namespace's own offload policy; brokers delete BookKeeper's copy ``lag_ms`` after they offloaded."""
    body = {
        "managedLedgerOffloadDriver": "aws-s3",
        "managedLedgerOffloadDeletionLagInMillis": lag_ms,
        **location(sandbox),
        **more,
    }
    with Admin(sandbox.admin_url) as admin:
        admin.call("POST", f"/v2/namespaces/{namespace}/offloadPolicies", body)


def published(sandbox: Cluster, topic: str, payloads: list[bytes]) -> list[int]:
    """Publish, one entry each; the ledger of each entry."""
    with pulsar_client(sandbox.service_url) as client:
        return topics.publish(client, topic, payloads)


def unload(sandbox: Cluster, *names: str) -> None:
    """Unload topics, and wait until they count as unloaded."""
    with Admin(sandbox.admin_url) as admin:
        for topic in names:
            admin.unload(topic)
    since = time.time()
    wait_unlisted(sandbox, names)
    wait_until_unloaded_counts(since)


def begin_offload(sandbox: Cluster, topic: str, until: int) -> None:
    """Have a broker offload what lies before a ledger."""
    with Admin(sandbox.admin_url) as admin:
        admin.topic("PUT", topic, "/offload", {"ledgerId": until, "entryId": 0, "partitionIndex": -1})


def offload_status(sandbox: Cluster, topic: str) -> str:
    """How that goes: ``RUNNING``, ``SUCCESS``, ``ERROR``, ``NOT_RUN``."""
    with Admin(sandbox.admin_url) as admin:
        return str(admin.topic("GET", topic, "/offload")["status"])


def offloaded_by_broker(sandbox: Cluster, topic: str, ledgers: list[int]) -> None:
    """Have a broker offload all ledgers of a topic but the last, and wait for it."""
    begin_offload(sandbox, topic, ledgers[-1])
    wait_for(f"the offload of {topic}", lambda: offload_status(sandbox, topic) != "RUNNING")
    assert offload_status(sandbox, topic) == "SUCCESS"
    made = contexts(sandbox, topic)
    assert all(made[ledger].complete for ledger in set(ledgers) - {ledgers[-1]})


def trim(sandbox: Cluster, topic: str) -> None:
    """Have the topic's broker look now for what to trim or to delete in BookKeeper, as it does every two minutes."""
    with Admin(sandbox.admin_url) as admin:
        admin.topic("POST", topic, "/trim")


def read_by_broker(sandbox: Cluster, topic: str, count: int) -> list[tuple[int, int, bytes]]:
    """Ledger, entry and payload of every message, as a client gets them; those with a bad checksum it never gets."""
    with pulsar_client(sandbox.service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = [reader.read_next(60_000) for _ in range(count)]
        return [(one.message_id().ledger_id(), one.message_id().entry_id(), one.data()) for one in found]


@contextmanager
def misbehaving(sandbox: Cluster, word: str) -> Iterator[Callable[[], None]]:
    """The broker's offloader does as ``Cluster.tell_offloader`` says; until what is given is called, or the end."""
    sandbox.tell_offloader(word)
    try:
        yield lambda: sandbox.tell_offloader(word, on=False)
    finally:
        sandbox.tell_offloader(word, on=False)
