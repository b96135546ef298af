"""The object store's contract on the sandbox's S3 server, and what only a real server shows."""

import json

import pytest

from pulsar_lifecycle.errors import AccessDenied
from tests.golden.files import GOLDEN
from tests.kit.contracts.object_contract import BUCKET, ObjectStoreContract

pytestmark = pytest.mark.integration


class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store, s3):
        if BUCKET not in {found["Name"] for found in s3.list_buckets()["Buckets"]}:
            s3.create_bucket(Bucket=BUCKET)
        for found in s3.list_objects_v2(Bucket=BUCKET).get("Contents", []):
            s3.delete_object(Bucket=BUCKET, Key=found["Key"])
        for found in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            s3.abort_multipart_upload(Bucket=BUCKET, Key=found["Key"], UploadId=found["UploadId"])
        return open_store()

    @pytest.fixture
    def put(self, s3):
        return lambda key, data, metadata: s3.put_object(Bucket=BUCKET, Key=key, Body=data, Metadata=metadata)

    def test_what_the_offloader_wrote_is_recognised(self, store, s3):
        for one in json.loads((GOLDEN / "offload/g-tiny/expected.json").read_text())["s3"]:
            head = one["head"]
            data = (GOLDEN / f"offload/g-tiny/object_{one['role']}.bin").read_bytes()
            s3.put_object(
                Bucket=BUCKET, Key=one["key"], Body=data, Metadata=head["Metadata"], ContentType=head["ContentType"]
            )
            found = store.head(BUCKET, one["key"])
            assert (found.size, dict(found.metadata)) == (head["ContentLength"], head["Metadata"])

    def test_wrong_credentials_are_denied(self, open_store):
        store = open_store(secret="wrong")
        with pytest.raises(AccessDenied):
            store.head(BUCKET, "k")
        assert store.delete_many(BUCKET, ["k"])[0].error
