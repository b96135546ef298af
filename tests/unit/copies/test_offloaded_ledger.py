"""Entries out of a bucket: every golden object, by ranges and in order; what is damaged is refused, never returned."""

import contextlib
import random

import pytest

from pulsar_lifecycle.copies import offloaded_ledger
from pulsar_lifecycle.copies.offloaded_ledger import open_offloaded
from pulsar_lifecycle.errors import Conflict, CorruptFormat, NotFound, Unavailable, UnsupportedFormat, UsageError
from pulsar_lifecycle.formats import offload_data
from pulsar_lifecycle.formats.offload_object import FORMAT_VERSION
from tests.golden.files import matching
from tests.kit.scenes.tiered.copy_scene import BUCKET, DATA, INDEX, LOCATION, PAYLOADS
from tests.kit.scenes.tiered.copy_scene import CopyScene as Scene

VERSION = {FORMAT_VERSION: "1"}


@pytest.fixture
def small(monkeypatch):
    """Ranges so short that entries and headers are cut anywhere."""
    monkeypatch.setattr(offloaded_ledger, "READ_SIZE", 37)
    monkeypatch.setattr(offloaded_ledger, "STREAM_SIZE", 71)


def copied():
    scene = Scene()
    scene.copy()
    return scene


@pytest.mark.parametrize("folder", [p.parent for p in matching("offload/*/object_data.bin")], ids=lambda f: f.name)
@pytest.mark.parametrize("read_size", [1 << 20, 1000])
def test_golden_objects_are_read_whole_and_anywhere(folder, read_size, monkeypatch):
    monkeypatch.setattr(offloaded_ledger, "READ_SIZE", read_size)
    monkeypatch.setattr(offloaded_ledger, "STREAM_SIZE", read_size * 3)
    data = (folder / "object_data.bin").read_bytes()
    scene = Scene()
    scene.service.put(BUCKET, DATA, data, VERSION)
    scene.service.put(BUCKET, INDEX, (folder / "object_index.bin").read_bytes(), VERSION)
    payloads = [bytes(p) for block in offload_data.read_blocks(data) for p in block.payloads]
    ledger = open_offloaded(scene.objects, LOCATION)
    last = ledger.index.ledger.last_entry_id
    assert [p for batch in ledger.stream(0, last) for p in batch.payloads] == payloads
    rng = random.Random(folder.name)
    for entry_id in [0, last, *rng.sample(range(last + 1), min(5, last + 1))]:
        (entry,) = ledger.read(entry_id, entry_id)
        assert (entry.ledger_id, entry.entry_id, entry.payload) == (4711, entry_id, payloads[entry_id])


def test_every_range_of_entries(small):
    scene = copied()
    ledger = open_offloaded(scene.objects, LOCATION)
    for first, last in [(0, 99), (0, 0), (99, 99), (98, 99), (5, 4), (0, -1), (100, 99), (7, 61), (60, 60), (59, 61)]:
        found = ledger.read(first, last)
        assert [(e.entry_id, e.payload) for e in found] == [(e, PAYLOADS[e]) for e in range(first, last + 1)]
        batches = list(ledger.stream(first, last))
        streamed = [(e, p) for batch in batches for e, p in enumerate(batch.payloads, batch.first)]
        assert streamed == [(e, PAYLOADS[e]) for e in range(first, last + 1)]
        assert all(batch.payloads for batch in batches)


def test_entries_that_it_does_not_have():
    ledger = open_offloaded(copied().objects, LOCATION)
    for first, last in [(-1, 5), (0, 100), (100, 100), (7, 3), (101, 100)]:
        with pytest.raises(UsageError, match=r"entries 0 \.\. 99, asked for"):
            ledger.stream(first, last)
        with pytest.raises(UsageError):
            ledger.read(first, last)


def test_places_that_were_seen_are_found_again_by_one_request(small):
    scene = copied()
    ledger = open_offloaded(scene.objects, LOCATION)
    last_of_block = ledger.index.last_entry_of(ledger.index.block_of(57))
    ledger.read(57, last_of_block)
    before = len(scene.objects.requests)
    ledger.read(last_of_block, last_of_block)
    assert len(scene.objects.requests) - before <= 3
    fresh = open_offloaded(scene.objects, LOCATION)
    before = len(scene.objects.requests)
    fresh.read(last_of_block, last_of_block)
    assert len(scene.objects.requests) - before > 5


def test_few_places_are_enough(small, monkeypatch):
    monkeypatch.setattr(offloaded_ledger, "MAX_PLACES", 5)
    ledger = open_offloaded(copied().objects, LOCATION)
    order = list(range(100)) * 2
    random.Random(1).shuffle(order)
    assert [ledger.read(e, e)[0].payload for e in order] == [PAYLOADS[e] for e in order]


def test_damage_is_refused_or_only_in_a_payload(small):
    scene = copied()
    good, rng = scene.data(), random.Random(3)
    ledger = open_offloaded(scene.objects, LOCATION)
    head = ledger.data_head
    refused = 0
    for at in range(0, len(good), 5):
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        scene.service.put(BUCKET, DATA, bytes(bad), head.metadata, etag=head.etag)
        ledger = open_offloaded(scene.objects, LOCATION)
        try:
            found = [p for batch in ledger.stream(0, 99) for p in batch.payloads]
        except CorruptFormat as error:
            refused += error.what == LOCATION.data_url
        else:
            assert list(map(len, found)) == list(map(len, PAYLOADS))
            assert sum(f != p for f, p in zip(found, PAYLOADS, strict=True)) == 1
        first = rng.randrange(100)
        with contextlib.suppress(CorruptFormat):
            assert [len(e.payload) for e in ledger.read(first, 99)] == [len(p) for p in PAYLOADS[first:]]
    assert refused > 100


@pytest.mark.parametrize(
    ("key", "data", "error"),
    [
        (INDEX, b"", CorruptFormat),
        (INDEX, b"\xde\x47\xde\x48" + bytes(100), CorruptFormat),
        (INDEX, b"\x3d\x1f\xb0\xbc" + bytes(100), UnsupportedFormat),
        (DATA, b"", CorruptFormat),
        (DATA, b"short", CorruptFormat),
    ],
)
def test_objects_that_are_none_are_not_opened(key, data, error):
    scene = copied()
    scene.service.put(BUCKET, key, data, VERSION)
    with pytest.raises(error, match=key):
        open_offloaded(scene.objects, LOCATION)


def test_an_object_that_changes_or_goes_is_noticed_at_the_next_read(small):
    scene = copied()
    ledger = open_offloaded(scene.objects, LOCATION)
    ledger.read(0, 3)
    scene.service.put(BUCKET, DATA, scene.data(), VERSION, etag="another")
    with pytest.raises(Conflict):
        ledger.read(0, 3)
    scene.objects.delete_many(BUCKET, [DATA])
    with pytest.raises(NotFound):
        ledger.read(0, 3)
    with pytest.raises(NotFound, match=DATA):
        open_offloaded(scene.objects, LOCATION)


def test_a_read_that_fails_comes_after_the_entries_before_it(small):
    scene = copied()
    ledger = open_offloaded(scene.objects, LOCATION)
    asked = []

    def hook(name, bucket, keys):
        asked.append(name)
        if len(asked) == 10:
            raise Unavailable("cut")

    scene.objects.before = hook
    found = []

    def read():
        for batch in ledger.stream(0, 99):
            found.extend(batch.payloads)

    with pytest.raises(Unavailable):
        read()
    assert found == PAYLOADS[: len(found)]
    assert found


def test_a_stream_that_is_closed_asks_no_more(small):
    scene = copied()
    ledger = open_offloaded(scene.objects, LOCATION)
    opened = len(scene.objects.requests)
    stream = ledger.stream(0, 99, ahead=2)
    next(stream)
    stream.close()
    before = len(scene.objects.requests)
    assert before - opened <= 7
    assert list(stream) == []
    assert len(scene.objects.requests) == before
