"""Which offloaded ledgers an order means, from a bucket and a metadata store in memory."""

from dataclasses import replace
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import AccessDenied, NotFound, UsageError
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.sources import offload_listing
from pulsar_lifecycle.values.codes import Code
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.refused import refused_by

BUCKET = "offloaded"


class Bucket:
    def __init__(self):
        self.service = FakeBuckets(FakeClock())
        self.service.create(BUCKET)
        self.service.create("other")
        self.objects = FakeObjectStore(self.service, [BUCKET, "other"])

    def pair(self, ledger_id, bucket=BUCKET):
        location = Location(bucket, uuid4(), ledger_id)
        self.service.put(bucket, location.data_key, b"x" * ledger_id)
        self.service.put(bucket, location.index_key, b"index")
        return location


def context(location, complete=True):
    return OffloadContext(location.uuid, complete, False, 1, "aws-s3", {"bucket": location.bucket})


def locations(offloads):
    return [one.location for one in offloads.found]


def test_a_bucket_gives_every_pair_and_names_what_has_no_index():
    bucket = Bucket()
    pairs = [bucket.pair(n) for n in (3, 30, 301)]
    under_way = Location(BUCKET, uuid4(), 9)
    bucket.service.put(BUCKET, under_way.data_key, b"x")
    bucket.service.put(BUCKET, str(uuid4()), b"a segment of a streaming offload")
    bucket.service.put(BUCKET, "backup/of/something", b"x")
    found = offload_listing.below(bucket.objects, BUCKET, "")
    assert sorted(locations(found), key=lambda one: one.ledger_id) == pairs
    assert {one.location.ledger_id: one.size for one in found.found} == {3: 3, 30: 30, 301: 301}
    assert all(one.etag == bucket.objects.head(BUCKET, one.location.data_key).etag for one in found.found)
    assert found.left_out == {under_way.data_key: "it has no index object"}
    assert locations(offload_listing.below(bucket.objects, BUCKET, str(pairs[1].uuid))) == [pairs[1]]
    assert offload_listing.below(bucket.objects, BUCKET, "none").found == ()


def test_an_index_without_its_data_is_not_passed_over():
    bucket = Bucket()
    pair = bucket.pair(3)
    bucket.objects.delete_many(BUCKET, [pair.data_key])
    with pytest.raises(NotFound, match=f"{pair.data_key}: there is no such object, though its index is there"):
        offload_listing.below(bucket.objects, BUCKET, "")


def test_keys_of_either_object():
    bucket = Bucket()
    one, two = bucket.pair(3), bucket.pair(4)
    found = offload_listing.by_key(bucket.objects, BUCKET, f"{two.index_key}, {one.data_key},{two.data_key}")
    assert locations(found) == [two, one]
    for text in ("", "4711", f"{one.data_key},", f"{one.data_key};{two.data_key}"):
        with pytest.raises(UsageError, match="expected keys of offloaded ledgers"):
            offload_listing.by_key(bucket.objects, BUCKET, text)
    with pytest.raises(NotFound, match="there is no such object"):
        offload_listing.by_key(bucket.objects, BUCKET, str(replace(one, ledger_id=5).data_key))


def written(topics):
    store = FakeZooKeeper().session()
    for name, infos in topics.items():
        data = managed_ledger.encode(ManagedLedgerInfo(tuple(infos)))
        store.create(f"/managed-ledgers/a/b/persistent/{name}", data, parents=True)
    return store


def test_topics_say_where_their_complete_offloads_are():
    bucket = Bucket()
    one, two, three = bucket.pair(1), bucket.pair(2, "other"), bucket.pair(3)
    under_way = bucket.pair(4)
    streaming = OffloadContext(None, True, False, 1, "aws-s3", {"bucket": BUCKET})
    no_bucket = OffloadContext(uuid4(), True, False, 1, "filesystem", {})
    store = written(
        {
            "t": [LedgerInfo(1, offload=context(one)), LedgerInfo(2, offload=context(two)), LedgerInfo(8)],
            "t2": [LedgerInfo(5, offload=streaming), LedgerInfo(6, offload=no_bucket)],
            "p-partition-0": [LedgerInfo(3, offload=context(three)), LedgerInfo(4, offload=context(under_way, False))],
        }
    )
    topic = Topic.parse("persistent://a/b/t")
    assert locations(offload_listing.of_owner(store, bucket.objects, topic)) == [one, two]
    assert locations(offload_listing.of_owner(store, bucket.objects, Topic.parse("persistent://a/b/p"))) == [three]
    whole = offload_listing.of_owner(store, bucket.objects, Namespace.parse("a/b"))
    assert set(locations(whole)) == {one, two, three}
    assert list(whole.left_out) == ["5", "6"]
    with pytest.raises(NotFound):
        offload_listing.of_owner(store, bucket.objects, Topic.parse("persistent://a/b/none"))


def test_an_offload_that_is_complete_and_cannot_be_read_is_not_passed_over():
    bucket = Bucket()
    one = bucket.pair(1)
    topic = Topic.parse("persistent://a/b/t")
    elsewhere = Location("elsewhere", uuid4(), 1)
    with refused_by(Code.NO_BUCKET, "elsewhere"):
        offload_listing.of_owner(written({"t": [LedgerInfo(1, offload=context(elsewhere))]}), bucket.objects, topic)
    store = written({"t": [LedgerInfo(1, offload=context(one))]})
    bucket.objects.delete_many(BUCKET, [one.data_key])
    with pytest.raises(NotFound, match=one.data_key):
        offload_listing.of_owner(store, bucket.objects, topic)

    def forbidden(name, bucket, keys):
        raise AccessDenied("no")

    bucket.objects.before = forbidden
    with pytest.raises(AccessDenied):
        offload_listing.of_owner(store, bucket.objects, topic)
