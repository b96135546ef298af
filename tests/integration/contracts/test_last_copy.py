"""Whether another copy is the same, on a real bookie and a real S3 server: by every entry, not by a sample."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies.last_copy import CopyEvidence, UnnamedCopy, why_last, why_unlike
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.striping import telling_entries
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import EntryBatch, Node
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.referenced import Referenced
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import topics
from sandbox.servers.state import CLUSTER
from tests.integration.pipeline import new_namespace, settings_file
from tests.integration.tiered.offloads import with_bucket

pytestmark = pytest.mark.integration


class Altered:
    """A ledger reader whose entry ``at`` is another one; -1: none is."""

    def __init__(self, reader: BookieReader, at: int) -> None:
        self._reader, self._at = reader, at

    def stream(self, *given: Any) -> Iterator[EntryBatch]:
        for batch in self._reader.stream(*given):
            payloads = list(batch.payloads)
            if 0 <= self._at - batch.first < len(payloads):
                changed = payloads[self._at - batch.first]
                payloads[self._at - batch.first] = changed[:-1] + bytes([changed[-1] ^ 1])
            yield EntryBatch(batch.first, payloads)


def test_every_entry_of_a_large_ledger_counts(sandbox: Cluster, tmp_path: Path) -> None:
    settings = load_settings(str(settings_file(sandbox, tmp_path, with_bucket(sandbox))))
    topic = Topic.parse(f"persistent://{new_namespace(sandbox, 'last')}/large")
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        (ledger_id, *_) = topics.publish(client, str(topic), [os.urandom(200_000) for _ in range(60)])
        admin.unload(str(topic))
    assert settings.object_store
    with (
        KazooStore(settings.zookeeper, read_only=True) as store,
        BookieReader(store, settings.bookkeeper) as reader,
        closing(S3ObjectStore(settings.object_store)) as objects,
    ):
        node, listing = store.read([ledger_path(ledger_id), f"/managed-ledgers/{topic.managed_ledger}"])
        assert isinstance(node, Node)
        assert isinstance(listing, Node)
        source = Source(ledger_metadata.decode(node.data), node.stat.ctime)
        assert 21 not in telling_entries(source.metadata)  # what a sample asks for
        (item, *_) = managed_ledger.decode(listing.data).ledgers
        evidence = CopyEvidence((BUCKET,), settings.bookkeeper.ledgers_root, Referenced())

        def stored(at: int) -> Location:
            altered: Any = Altered(reader, at)
            location = Location(BUCKET, uuid4(), ledger_id)
            copy_ledger(altered, objects, source, Target(location, CLUSTER, topic.managed_ledger, 5 << 20))
            return location

        def why(unnamed: UnnamedCopy, location: Location) -> object:
            """By what is there at a glance it may go; then by every entry."""
            assert why_last([unnamed], evidence, store=store, reader=reader, objects=objects) == [None]
            read: list[int] = []
            told = why_unlike(
                unnamed,
                location,
                evidence,
                store=store,
                reader=reader,
                objects=objects,
                pace=lambda size: read.append(size),
            )
            assert sum(read) >= 2 * source.metadata.length if told is None else read
            return told

        same, differs = stored(-1), stored(21)
        in_bookkeeper = UnnamedCopy(ledger_id, topic, item)
        assert why(in_bookkeeper, same) is None
        found = why(in_bookkeeper, differs)
        assert isinstance(found, Why)
        assert (found.code, "entry 21 " in found.text) == (Code.LAST_COPY, True)
        context = OffloadContext(same.uuid, True, True, 1, "aws-s3", {"bucket": BUCKET})
        named = UnnamedCopy(ledger_id, topic, managed_ledger.LedgerInfo(ledger_id, item.entries, item.size, 1, context))
        found = why(named, differs)
        assert isinstance(found, Why)
        assert (found.code, "entry 21 " in found.text) == (Code.LAST_COPY, True)
        third = stored(-1)
        assert why(named, third) is None
        objects.delete_many(BUCKET, [third.index_key])  # as after a broken-off upload
        assert why(named, third) is None
        assert why(in_bookkeeper, third) is None
        objects.delete_many(BUCKET, [key for one in (same, differs, third) for key in (one.data_key, one.index_key)])
