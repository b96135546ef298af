"""Chunked messages of a real broker, put together from its ledgers: what a consumer gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.sources.entries import BookKeeperEntriesReader
from pulsar_lifecycle.sources.entry_tables import EntryOptions
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.pipeline import new_namespace, settings_file

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("codec", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZSTD])
def test_chunks_come_together_across_ledgers_and_between_others(
    sandbox: Cluster, tmp_path: Path, codec: pulsar.CompressionType
) -> None:
    settings = str(settings_file(sandbox, tmp_path))
    topic = f"persistent://{new_namespace(sandbox, 'chunked')}/t"
    large = [os.urandom(6 << 20) + bytes(1 << 20) for _ in range(4)]
    small = topics.payloads(49)

    def read(**options: str) -> list[dict[str, Any]]:
        """What the data source's tasks give."""
        given = {"settings": settings, "topic": topic, "as": "messages", **options}
        reader = BookKeeperEntriesReader(EntryOptions("bookkeeper_entries", given))
        found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        return sorted(found, key=lambda row: (row["ledger_id"], row["entry_id"]))

    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.publish(client, topic, small)  # a ledger has 50 entries: the first large one lies in two
        several = [
            client.create_producer(topic, chunking_enabled=True, compression_type=codec, batching_enabled=False)
            for _ in range(2)
        ]
        several[0].send(large[0], partition_key="key 0", properties={"n": "0"}, event_timestamp=1000)
        before = read(chunks="assembled")  # its second part is in the open ledger
        for n, body in enumerate(large[1:], 1):
            several[n % 2].send_async(
                body, lambda *_: None, partition_key=f"key {n}", properties={"n": str(n)}, event_timestamp=1000 + n
            )
        for one in several:
            one.flush()
            one.close()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        consumed = [reader.read_next(60_000) for _ in range(len(small) + len(large))]
        admin.unload(topic)
    assert [row["problem"] for row in before][-1] == "the other parts of its message are not here"
    assert [row["payload"] for row in before][:-1] == small
    found = read(chunks="assembled")
    assert not any(row["problem"] for row in found)
    told = [(m.data(), m.partition_key(), m.properties(), m.event_timestamp()) for m in consumed]
    assert [
        (row["payload"], row["key"] or "", dict(row["properties"]), row["event_time"] or 0) for row in found
    ] == told
    assert {row["chunks"] for row in found} == {None, 2}
    ids = [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in consumed]
    assert [(row["ledger_id"], row["entry_id"]) for row in found] == ids
    parts = [row for row in read() if row["chunks"]]
    assert len(parts) == 2 * len(large)
    assert {row["uncompressed_size"] or len(large[0]) for row in parts} == {len(large[0])}
    assert all(row["key"] and row["properties"] and row["event_time"] for row in parts)
