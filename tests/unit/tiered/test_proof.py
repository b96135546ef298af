"""A copy proves to be the ledger only if every byte of both objects says so; whatever is changed is found and named."""

import random
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.copies.offloaded_ledger import Location, open_offloaded
from pulsar_lifecycle.copies.proven_copies import are_whole
from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    NotFound,
    Paused,
    Unavailable,
    UnsupportedFormat,
    UsageError,
)
from pulsar_lifecycle.formats import crc32c, ledger_metadata, offload_data, offload_index
from pulsar_lifecycle.formats.ledger_metadata import Segment
from pulsar_lifecycle.formats.offload_object import FORMAT_VERSION
from pulsar_lifecycle.tiered import upload
from pulsar_lifecycle.tiered.proof import Origin, find_copy, verify
from pulsar_lifecycle.tiered.upload import Source
from pulsar_lifecycle.values.codes import Code, Why
from tests.golden.files import matching
from tests.kit.scenes.tiered.copy_scene import BLOCK, BUCKET, DATA, INDEX, LOCATION, PAYLOADS, source_of, target
from tests.kit.scenes.tiered.copy_scene import CopyScene as Scene

ORIGIN = Origin("standalone", "t/ns/persistent/a%2Bb")
EITHER = pytest.mark.parametrize("with_copy", [True, False], ids=["with the copy", "with BookKeeper"])


class Copy(Scene):
    """A ledger that was copied."""

    def __post_init__(self):
        super().__post_init__()
        self.copied = self.copy()
        self.index = self.copied.index

    def verify(self, with_copy=True, **options):
        against = {"copied": self.copied} if with_copy else {"reader": self.reader}
        return verify(self.objects, LOCATION, self.source, **against, **options)

    def store(self, key, data, **metadata):
        """Other bytes under a key, without its ETag telling."""
        head = self.objects.head(BUCKET, key)
        self.service.put(BUCKET, key, data, {**head.metadata, **metadata}, etag=head.etag)


def found_code(copy, *origin):
    """What the first look says, which reads nothing whole."""
    found = find_copy(copy.objects, LOCATION, copy.source, *origin)
    return found and found.code


@EITHER
def test_a_copy_is_proven(with_copy):
    copy = Copy()
    told = []
    verified = copy.verify(with_copy, origin=ORIGIN, pace=told.append)
    data, index = copy.objects.head(BUCKET, DATA), copy.objects.head(BUCKET, INDEX)
    assert (verified.data_size, verified.data_etag) == (data.size, data.etag)
    assert (verified.index_size, verified.index_etag) == (index.size, index.etag)
    assert (verified.entries, verified.length) == (100, sum(map(len, PAYLOADS)))
    assert verified.checksum == upload.digest(crc32c.checksums(PAYLOADS))
    assert sum(told) == data.size
    assert are_whole(copy.objects, [(LOCATION, verified)])[0] is None
    assert find_copy(copy.objects, LOCATION, copy.source, ORIGIN) is None


@pytest.mark.parametrize("folder", [p.parent for p in matching("offload/*/object_data.bin")], ids=lambda f: f.name)
def test_what_a_broker_wrote_is_proven(folder):
    data = (folder / "object_data.bin").read_bytes()
    (z_node,) = folder.glob("zk_bkledger_*.bin")
    scene = Scene([bytes(p) for block in offload_data.read_blocks(data) for p in block.payloads])
    source = Source(ledger_metadata.decode(z_node.read_bytes()), 5)
    found = find_copy(scene.objects, LOCATION, source)
    assert found
    assert found.code is Code.OBJECT_MISSING
    scene.service.put(BUCKET, DATA, data, {FORMAT_VERSION: "1"})
    scene.service.put(BUCKET, INDEX, (folder / "object_index.bin").read_bytes(), {FORMAT_VERSION: "1"})
    assert find_copy(scene.objects, LOCATION, source) is None
    verified = verify(scene.objects, LOCATION, source, reader=scene.reader)
    assert verified.entries == len(scene.payloads)
    with pytest.raises(UsageError):
        verify(scene.objects, LOCATION, source)


@EITHER
def test_any_flipped_bit_of_either_object_is_found(with_copy):
    copy = Copy()
    rng = random.Random(7)
    unnoticed = set()
    for key in (DATA, INDEX):
        good = copy.data(key)
        for at in {*range(0, len(good), 7), *range(140)} if key == DATA else range(len(good)):
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            copy.store(key, bytes(bad))
            try:
                copy.verify(with_copy)
            except CorruptFormat as error:
                unnoticed |= set() if DATA in str(error) else {"which object"}
            else:
                unnoticed |= {key, *differences(good, bytes(bad))}
        copy.store(key, good)
    assert copy.verify(with_copy).entries == 100
    # Auto-recovery replaces bookies, and a broker's handle may have a ctime of its own: neither says anything.
    assert unnoticed == (set() if with_copy else {INDEX, "bookies", "ctime"})


def test_a_byte_that_only_one_reading_got_wrong_is_read_again():
    copy = Copy()
    good = copy.data()
    copy.store(DATA, good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    read = []

    def mended(size):
        read.append(size)
        if sum(read) > 5000:
            copy.store(DATA, good)

    with pytest.raises(CorruptFormat):
        copy.verify()
    assert copy.verify(ahead=0, pace=mended).entries == 100
    assert sum(read) > len(good)  # the second reading is whole


def differences(index, other):
    """What differs between the ledgers of two index objects."""
    one, two = offload_index.decode(index).ledger, offload_index.decode(other).ledger
    assert [s.first_entry_id for s in one.segments] == [s.first_entry_id for s in two.segments]
    found = {"bookies"} if one.segments != two.segments else set()
    found |= {"ctime"} if one.ctime != two.ctime else set()
    assert replace(one, segments=(), ctime=0) == replace(two, segments=(), ctime=0)
    return found


@EITHER
def test_a_changed_payload_is_named_with_entry_and_place(with_copy):
    copy = Copy()
    reader = open_offloaded(copy.objects, LOCATION)
    block = copy.index.block_of(57)
    at = block.offset + 128 + sum(12 + len(PAYLOADS[e]) for e in range(block.first_entry_id, 57))
    bad = bytearray(copy.data())
    bad[at + 12 + 20] ^= 4
    copy.store(DATA, bytes(bad))
    with pytest.raises(CorruptFormat, match="of entry 4711:57, found 0x") as raised:
        copy.verify(with_copy)
    assert raised.value.offset == at
    assert raised.value.what == LOCATION.data_url
    assert len(reader.read(57, 57)) == 1  # the format has no checksums: only the comparison tells


def test_what_was_proven_once_is_proven_again_without_bookkeeper():
    copy = Copy()
    known = copy.verify()
    assert verify(copy.objects, LOCATION, copy.source, known=known) == known
    bad = bytearray(copy.data())
    bad[copy.index.block_of(57).offset + 128 + 12 + 20] ^= 4
    copy.store(DATA, bytes(bad))
    with pytest.raises(CorruptFormat, match="the entries that were proven") as raised:
        verify(copy.objects, LOCATION, copy.source, known=known)
    assert raised.value.what == LOCATION.data_url


@EITHER
@pytest.mark.parametrize("left", [0, 1, 127, 128, 400, 1000, -1])
def test_a_truncated_data_object_is_found(with_copy, left):
    copy = Copy()
    copy.store(DATA, copy.data()[:left])
    with pytest.raises(CorruptFormat, match="as its index says"):
        copy.verify(with_copy)
    assert found_code(copy) is Code.COPY_DIFFERS


@EITHER
def test_bytes_that_the_store_does_not_give_are_found(with_copy):
    copy = Copy()
    copy.service.data[BUCKET, DATA] = copy.data()[:-10]
    with pytest.raises(CorruptFormat, match="10 bytes more"):
        copy.verify(with_copy)


@EITHER
def test_an_object_replaced_while_it_is_read_is_a_conflict(with_copy):
    copy = Copy()
    told = []

    def replaced_after_the_third(size):
        told.append(size)
        if len(told) == 3:
            copy.service.put(BUCKET, DATA, copy.data(), copy.objects.head(BUCKET, DATA).metadata, etag="another")

    with pytest.raises(Conflict):
        copy.verify(with_copy, pace=replaced_after_the_third)


@pytest.mark.parametrize("key", [DATA, INDEX])
def test_an_object_replaced_since_the_copy_is_a_conflict(key):
    copy = Copy()
    copy.service.put(BUCKET, key, copy.data(key), copy.objects.head(BUCKET, key).metadata, etag="another")
    with pytest.raises(Conflict, match="written with ETag"):
        copy.verify()
    assert copy.verify(with_copy=False).entries == 100


@EITHER
def test_an_object_that_goes_away_is_not_found(with_copy):
    for key in (DATA, INDEX):
        copy = Copy()
        copy.objects.delete_many(BUCKET, [key])
        with pytest.raises(NotFound, match=key):
            copy.verify(with_copy)
        assert found_code(copy) is Code.OBJECT_MISSING


def test_an_entry_that_a_replica_serves_differently_is_found():
    for change in (lambda p: p[:-1] + b"!", lambda p: p + b"!", lambda p: p[:-1]):
        copy = Copy()
        copy.reader.payloads[4711][40] = change(PAYLOADS[40])
        with pytest.raises(CorruptFormat, match="of entry 4711:40, found"):
            copy.verify(with_copy=False)
        assert copy.verify().entries == 100


def test_what_the_ledger_cannot_give_ends_the_proof():
    copy = Copy()
    copy.reader.failures[4711] = Unavailable("bookies are down")
    with pytest.raises(Unavailable):
        copy.verify(with_copy=False)


@pytest.mark.parametrize("key", [DATA, INDEX])
@pytest.mark.parametrize(
    ("version", "error"), [("2", UnsupportedFormat), ("", UnsupportedFormat), (None, CorruptFormat)]
)
def test_both_objects_need_their_format_version(key, version, error):
    copy = Copy()
    head = copy.objects.head(BUCKET, key)
    metadata = {name: value for name, value in head.metadata.items() if name != FORMAT_VERSION}
    if version is not None:
        metadata[FORMAT_VERSION] = version
    copy.service.objects[BUCKET][key] = replace(head, metadata=metadata)
    with pytest.raises(error, match=key):
        copy.verify()


@pytest.mark.parametrize("key", [DATA, INDEX])
@pytest.mark.parametrize(
    ("name", "setting"), [("pulsarclustername", r" \(object_store.pulsar_cluster.*\)"), ("managedledgername", "")]
)
def test_objects_of_another_cluster_or_topic_are_refused(key, name, setting):
    copy = Copy()
    copy.store(key, copy.data(key), **{name: "other"})
    with pytest.raises(CorruptFormat, match=f"user metadata {name} '.*'{setting}, found 'other'"):
        copy.verify(origin=ORIGIN)
    assert found_code(copy, ORIGIN) is Code.COPY_DIFFERS
    assert copy.verify().entries == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"write_quorum": 0, "ack_quorum": 0},
        {"digest_type": ledger_metadata.DigestType.CRC32},
        {"custom_metadata": {"application": b"pulsar"}},
        {"custom_metadata": {}},
    ],
)
@EITHER
def test_an_index_of_other_metadata_is_found(changes, with_copy):
    copy = Copy()
    copy.source = Source(replace(copy.source.metadata, **changes), copy.source.ctime)
    with pytest.raises(CorruptFormat, match=f"{INDEX}.*: expected {next(iter(changes))} "):
        copy.verify(with_copy)
    assert found_code(copy) is Code.COPY_DIFFERS


def test_bookies_replaced_since_and_another_ctime_matter_only_to_a_copy_made_now():
    for changes in ({"segments": (Segment(0, ("new:3181",)),)}, {"ctime": 7}):
        copy = Copy()
        copy.source = Source(replace(copy.source.metadata, **changes), copy.source.ctime)
        with pytest.raises(CorruptFormat, match=next(iter(changes))):
            copy.verify()
        assert copy.verify(with_copy=False).entries == 100


@EITHER
def test_a_ledger_of_other_entries_is_not_the_copys(with_copy):
    copy = Copy()
    for payloads in (PAYLOADS[:-1], [*PAYLOADS, b"x"]):
        copy.source = source_of(payloads)
        copy.reader.payloads[4711] = list(payloads)
        with pytest.raises(CorruptFormat, match=INDEX):
            copy.verify(with_copy)


def test_an_index_that_fits_its_object_but_was_not_written_is_found():
    copy = Copy()
    ours = copy.copied
    copy.copy(target(BLOCK * 2))
    copy.copied = replace(ours, data_etag=copy.objects.head(BUCKET, DATA).etag)
    with pytest.raises(CorruptFormat, match="the index that was written"):
        copy.verify()


def test_an_enormous_index_is_not_read():
    copy = Copy()
    head = copy.objects.head(BUCKET, INDEX)
    copy.service.objects[BUCKET][INDEX] = replace(head, size=1 << 30)
    with pytest.raises(CorruptFormat, match="the end of an index"):
        copy.verify()
    assert ("get", BUCKET, (INDEX,)) not in copy.objects.requests


def test_stopping_between_blocks():
    copy = Copy()

    def stop(size):
        raise Paused("stop")

    for with_copy in (True, False):
        with pytest.raises(Paused):
            copy.verify(with_copy, pace=stop)


def test_what_was_verified_is_whole_as_long_as_size_and_etag_stay():
    copy = Copy()
    verified = copy.verify()
    for key in (DATA, INDEX):
        data, head = copy.data(key), copy.objects.head(BUCKET, key)
        copy.service.put(BUCKET, key, data + b"!", head.metadata, etag=head.etag)
        larger = are_whole(copy.objects, [(LOCATION, verified)])[0]
        assert isinstance(larger, Why)
        assert larger.code is Code.COPY_DIFFERS
        assert f"{key} is another one" in larger.text
        copy.service.put(BUCKET, key, data, head.metadata, etag="other")
        other = are_whole(copy.objects, [(LOCATION, verified)])[0]
        assert isinstance(other, Why)
        assert other.code is Code.COPY_DIFFERS
        copy.objects.delete_many(BUCKET, [key])
        missing = are_whole(copy.objects, [(LOCATION, verified)])[0]
        assert isinstance(missing, Why)
        assert missing.code is Code.OBJECT_MISSING
        assert missing.text.endswith(f"{key} is not there any more")
        copy.service.put(BUCKET, key, data, head.metadata, etag=head.etag)
    assert are_whole(copy.objects, [(LOCATION, verified)])[0] is None


@pytest.mark.parametrize("error", [Unavailable("cut"), AccessDenied("no")])
def test_no_answer_is_not_taken_for_absence(error):
    copy = Copy()
    verified = copy.verify()
    copy.fail("head", error, times=100)
    assert are_whole(copy.objects, [(LOCATION, verified)]) == [error]
    with pytest.raises(type(error)):
        find_copy(copy.objects, LOCATION, copy.source)
    other = Location("no-such-bucket", uuid4(), 1)
    found = find_copy(Scene().objects, other, copy.source)
    assert found
    assert (found.code, "no bucket" in found.text) == (Code.OBJECT_MISSING, True)


SIZES = st.lists(st.integers(0, 60) | st.sampled_from([0, 0, 1, 59, 60]), min_size=1, max_size=60).filter(any)


@given(SIZES, st.integers(0, 400), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_any_ledger_is_copied_proven_and_read_back(sizes, slack, rng):
    scene = Scene([rng.randbytes(size) for size in sizes])
    copied = scene.copy(target(max(sizes) + 128 + 12 + slack))
    verified = verify(scene.objects, LOCATION, scene.source, copied=copied)
    assert verify(scene.objects, LOCATION, scene.source, reader=scene.reader) == verified
    ledger = open_offloaded(scene.objects, LOCATION)
    first, last = sorted((rng.randrange(len(sizes)), rng.randrange(len(sizes))))
    assert [entry.payload for entry in ledger.read(first, last)] == scene.payloads[first : last + 1]
    streamed = [p for batch in ledger.stream(0, len(sizes) - 1) for p in batch.payloads]
    assert streamed == scene.payloads
    assert offload_index.decode(scene.data(INDEX)) == copied.index
