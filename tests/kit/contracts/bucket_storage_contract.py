"""What every BucketSnapshotStorage does: tests for the fake and for the one over BookKeeper."""

import pytest

from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.errors import NotFound

ENTRIES = [b"metadata", b"first", b"second" * 50_000, b"third"]
KEY = bucket_key(3, 9)
TOPIC = "persistent://public/default/t-partition-1"
CURSOR = "a sub"


class BucketSnapshotStorageContract:
    """What storages have in common. Needs the fixture ``storage``, started."""

    def test_a_snapshot_is_read_as_it_was_given(self, storage):
        bucket_id = storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)
        assert bucket_id >= 0
        assert storage.get_bucket_snapshot_metadata(bucket_id) == ENTRIES[0]
        assert storage.get_bucket_snapshot_segments(bucket_id, 1, 3) == ENTRIES[1:]
        assert storage.get_bucket_snapshot_segments(bucket_id, 2, 2) == ENTRIES[2:3]
        assert storage.get_bucket_snapshot_length(bucket_id) == sum(map(len, ENTRIES))

    def test_each_snapshot_has_an_id_of_its_own(self, storage):
        first = storage.create_bucket_snapshot(ENTRIES[:2], KEY, TOPIC, CURSOR)
        second = storage.create_bucket_snapshot(ENTRIES[1:], KEY, TOPIC, CURSOR)
        assert first != second
        assert storage.get_bucket_snapshot_metadata(first) == ENTRIES[0]
        assert storage.get_bucket_snapshot_metadata(second) == ENTRIES[1]

    def test_a_segment_that_is_not_there_is_not_found(self, storage):
        bucket_id = storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)
        with pytest.raises(NotFound):
            storage.get_bucket_snapshot_segments(bucket_id, 3, 4)

    def test_what_is_deleted_is_not_found_and_deleting_again_is_harmless(self, storage):
        bucket_id = storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)
        kept = storage.create_bucket_snapshot(ENTRIES, KEY, TOPIC, CURSOR)
        storage.delete_bucket_snapshot(bucket_id)
        storage.delete_bucket_snapshot(bucket_id)
        with pytest.raises(NotFound):
            storage.get_bucket_snapshot_metadata(bucket_id)
        with pytest.raises(NotFound):
            storage.get_bucket_snapshot_segments(bucket_id, 1, 1)
        with pytest.raises(NotFound):
            storage.get_bucket_snapshot_length(bucket_id)
        assert storage.get_bucket_snapshot_metadata(kept) == ENTRIES[0]
