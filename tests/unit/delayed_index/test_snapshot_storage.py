"""The fake of the storage of snapshots does what every storage does."""

import pytest

from tests.kit.contracts.bucket_storage_contract import BucketSnapshotStorageContract
from tests.kit.delayed.bucket_storage import InMemoryBucketStorage


class TestInMemoryBucketStorage(BucketSnapshotStorageContract):
    @pytest.fixture
    def storage(self):
        storage = InMemoryBucketStorage()
        storage.start()
        yield storage
        storage.close()
