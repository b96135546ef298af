"""The object store's contract on the sandbox's S3 server, and what only a real server shows."""

import json
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from pulsar_lifecycle.errors import AccessDenied
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.settings import ObjectStoreSettings
from tests.golden.files import GOLDEN
from tests.unit.io.test_objects import BUCKET, GONE_BUCKET, ObjectStoreContract

pytestmark = pytest.mark.integration


@pytest.fixture
def service(sandbox):
    """Where the S3 server is and the keys to it, from the sandbox's state file."""
    where = sandbox.state.as_json()["s3"]
    return {"endpoint": where["endpoint"], **json.loads(Path(where["credentials_file"]).read_text())}


@pytest.fixture
def s3(service):
    client = boto3.client(
        "s3",
        endpoint_url=service["endpoint"],
        aws_access_key_id=service["access_key"],
        aws_secret_access_key=service["secret_key"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    yield client
    client.close()


@pytest.fixture
def open_store(service, monkeypatch):
    stores = []

    def make(**changes):
        monkeypatch.setenv("TEST_S3_ACCESS", service["access_key"])
        monkeypatch.setenv("TEST_S3_SECRET", changes.pop("secret", service["secret_key"]))
        settings = ObjectStoreSettings.model_validate(
            {
                "endpoint": service["endpoint"],
                "access_key": {"env": "TEST_S3_ACCESS"},
                "secret_key": {"env": "TEST_S3_SECRET"},
                "buckets": [BUCKET, GONE_BUCKET],
                **changes,
            }
        )
        stores.append(S3ObjectStore(settings))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


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
