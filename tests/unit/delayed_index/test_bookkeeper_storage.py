"""Snapshots in BookKeeper, over fakes: the contract of every storage, and the tags that brokers write."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.errors import Conflict, StoreError
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.ports import LedgerShape
from tests.golden.files import GOLDEN
from tests.kit.contracts.bucket_storage_contract import CURSOR, ENTRIES, KEY, TOPIC, BucketSnapshotStorageContract
from tests.kit.fakes.ledger_reader import FakeLedgerReader, FakeLedgerWriter
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper


class Scene:
    def __init__(self) -> None:
        self.store: FakeStore = FakeZooKeeper().session()
        self.reader = FakeLedgerReader()
        self.writer = FakeLedgerWriter(self.store, self.reader)
        self.reserved: list[int] = []
        self.storage = BookKeeperBucketStorage(
            self.store, self.reader, self.writer, (2, 2, 1), reserved=self.reserved.append
        )

    def metadata(self, ledger_id: int) -> ledger_metadata.LedgerMetadata:
        return ledger_metadata.decode(self.store.server.data(ledger_path(ledger_id)))


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestBookKeeperBucketStorage(BucketSnapshotStorageContract):
    @pytest.fixture
    def storage(self, scene: Scene) -> BookKeeperBucketStorage:
        scene.storage.start()
        return scene.storage


def test_the_tags_are_those_of_a_brokers_snapshot(scene: Scene) -> None:
    made = scene.metadata(scene.storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR))
    theirs = ledger_metadata.decode((GOLDEN / "delayed/unmerged/zk_bkledger_bucketL242.bin").read_bytes())

    assert made.custom_metadata.keys() == theirs.custom_metadata.keys()
    assert made.custom_metadata["pulsar/delayedIndexCursor"] == CURSOR.encode()
    assert (made.digest_type, made.password, made.ctoken) == (theirs.digest_type, theirs.password, theirs.ctoken)
    assert (made.ensemble_size, made.write_quorum, made.ack_quorum) == (2, 2, 1)


def test_an_id_that_is_taken_is_passed_over_and_every_one_is_heard_of_before(scene: Scene) -> None:
    taken = scene.writer.reserve() + 2
    scene.store.create(ledger_path(taken), b"somebody's", parents=True)

    made = scene.storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)

    assert scene.reserved[-1] == made
    assert made > taken


def test_a_ledger_that_is_no_snapshot_is_not_deleted(scene: Scene) -> None:
    ledger_id = scene.writer.reserve()
    scene.writer.write(ledger_id, [b"x"], LedgerShape(1, 1, 1, {"component": b"managed-ledger"}))

    with pytest.raises(StoreError, match="do not say"):
        scene.storage.delete_bucket_snapshot(ledger_id)

    assert scene.metadata(ledger_id).last_entry_id == 0


def test_a_write_that_fails_leaves_no_snapshot(scene: Scene) -> None:
    scene.writer.failures = [Conflict("taken"), Conflict("taken"), Conflict("taken")]

    with pytest.raises(Conflict):
        scene.storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)

    assert [scene.store.server.stat(ledger_path(i)) for i in scene.reserved] == [None] * 3
