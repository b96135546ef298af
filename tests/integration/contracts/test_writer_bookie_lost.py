"""A real bookie that dies while a snapshot is written to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import pytest

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import LedgerShape, Node
from pulsar_lifecycle.settings import BookKeeperSettings
from sandbox.cluster import Cluster
from sandbox.servers.processes import port_is_free
from tests.integration.contracts.zk_nodes import settings

pytestmark = pytest.mark.integration

ENTRIES = [b"entry %d" % number * 100 for number in range(400)]
AFTER = 200
KEY, TOPIC, CURSOR = "#pulsar.internal.delayed.bucket_1_2", "persistent://a/b/c", "s"


@pytest.fixture
def three(three_bookies: Cluster) -> Iterator[Cluster]:
    yield three_bookies
    three_bookies.start(bookies=3)


class Killing(BookieWriter):
    """Kills a bookie of the ensemble, one that lives, amid the entries."""

    cluster: Cluster
    store: KazooStore
    lost = ""

    def write(self, ledger_id: int, payloads: Iterable[bytes], shape: LedgerShape) -> LedgerMetadata:
        return super().write(ledger_id, self._struck(ledger_id, payloads), shape)

    def _struck(self, ledger_id: int, payloads: Iterable[bytes]) -> Iterator[bytes]:
        for number, payload in enumerate(payloads):
            if number == AFTER:
                bookies = stored(self.store, ledger_id).segments[-1].bookies  # one may be dead, and not yet replaced
                self.lost = next(one for one in bookies if not port_is_free(int(one.rpartition(":")[2])))
                self.cluster.kill(f"bookie-{self.cluster.bookies.index(self.lost) + 1}")
            yield payload


def stored(store: KazooStore, ledger_id: int) -> LedgerMetadata:
    (node,) = store.read([ledger_path(ledger_id)])
    assert isinstance(node, Node)
    return ledger_metadata.decode(node.data)


@contextmanager
def storage(three: Cluster, store: KazooStore) -> Iterator[tuple[Killing, BookKeeperBucketStorage, list[int]]]:
    ids: list[int] = []
    with (
        BookieReader(store, BookKeeperSettings()) as reader,
        closing(Killing(store, BookKeeperSettings())) as writer,
    ):
        writer.cluster, writer.store = three, store
        yield writer, BookKeeperBucketStorage(store, reader, writer, (2, 2, 2), reserved=ids.append), ids


def test_another_one_stands_in_and_without_one_no_ledger_is_left(three: Cluster) -> None:
    with KazooStore(settings(three.zookeeper)) as store:
        with storage(three, store) as (writer, snapshots, ids):
            made = snapshots.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)

            metadata = stored(store, made)
            assert metadata.state is LedgerState.CLOSED
            assert writer.lost not in metadata.segments[-1].bookies
            assert [
                snapshots.get_bucket_snapshot_metadata(made),
                *snapshots.get_bucket_snapshot_segments(made, 1, 399),
            ] == ENTRIES

        with storage(three, store) as (_, snapshots, ids):
            with pytest.raises(Unavailable):
                snapshots.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)
            assert len(ids) == 1
            with pytest.raises(NotFound):
                snapshots.get_bucket_snapshot_metadata(ids[0])
            assert store.read([ledger_path(ids[0])]) == [None]
