"""Any ledger, cut into blocks of any size: what the broker's stream gives, and what is read back is what went in."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import crc32c, ledger_metadata, offload_data, offload_index
from pulsar_lifecycle.formats import offload_object as names
from pulsar_lifecycle.formats.offload_block import BlockReader
from pulsar_lifecycle.formats.offload_data import DataObjectBuilder, DataObjectReader
from pulsar_lifecycle.formats.plain_data import describe
from tests.golden.files import GOLDEN, matching
from tests.kit.torn import mutated

LEDGER = replace(
    ledger_metadata.decode((GOLDEN / "offload/g-tiny/zk_bkledger_L14.bin").read_bytes()), origin=b"", ctime=1
)
HEADER, FRAME = 128, 12
SIZES = st.lists(st.integers(0, 60) | st.sampled_from([0, 0, 1, 59, 60]), min_size=1, max_size=40).filter(any)


def metadata_of(payloads):
    return replace(LEDGER, length=sum(map(len, payloads)), last_entry_id=len(payloads) - 1)


def as_the_broker_writes(payloads, max_block_size):
    """BlobStoreManagedLedgerOffloader.offload and BlockAwareSegmentInputStreamImpl, byte by byte: the reference."""
    blocks, start, written = [], 0, 0
    length = sum(map(len, payloads))
    while start < len(payloads):
        size = min(max_block_size, (len(payloads) - start) * FRAME + (length - written) + HEADER)
        out = bytearray(struct.pack(">Iqqq", 0xFBDBABCB, 128, size, start).ljust(HEADER, b"\0"))
        entry = start
        while entry < len(payloads) and len(out) + FRAME + len(payloads[entry]) <= size:
            out += struct.pack(">iq", len(payloads[entry]), entry) + payloads[entry]
            written += len(payloads[entry])
            entry += 1
        full = len(out)
        while len(out) < size:
            out.append((0xFE, 0xDC, 0xDE, 0xAD)[(len(out) - full) % 4])
        blocks.append((start, bytes(out)))
        start = entry
    return blocks


def built(payloads, max_block_size, cuts=()):
    """Fed in batches that end at ``cuts``: the finished object and its blocks."""
    builder = DataObjectBuilder(metadata_of(payloads), max_block_size)
    blocks, bounds = [], [0, *sorted(cuts), len(payloads)]
    for first, end in pairwise(bounds):
        blocks += builder.feed(first, payloads[first:end])
    return builder.finish(), blocks


def read_back(index, data):
    reader, payloads = DataObjectReader(index, len(data)), []
    while (wanted := reader.next_range) is not None:
        payloads += map(bytes, reader.feed(data[wanted.start : wanted.stop]).payloads)
    return reader.finish(), payloads


@given(SIZES, st.integers(0, 400), st.lists(st.integers(0, 40), max_size=5), st.randoms(use_true_random=False))
@example([100], 0, [], random.Random(0))  # one entry that fills its block
@example([60, 1], 0, [], random.Random(0))  # the second begins a block of its own, and less than a frame is left
@example([0, 0, 0, 60], 0, [1], random.Random(0))
@settings(max_examples=500, deadline=None)
def test_what_goes_in_comes_out_in_the_brokers_bytes(sizes, slack, cuts, rng):
    payloads = [rng.randbytes(size) for size in sizes]
    max_block_size = max(sizes) + HEADER + FRAME + slack
    fed = [memoryview(p) if rng.random() < 0.5 else p for p in payloads]
    written, blocks = built(fed, max_block_size, [min(cut, len(sizes)) for cut in cuts])
    assert [(block.position.first_entry_id, bytes(block.data)) for block in blocks] == as_the_broker_writes(
        payloads, max_block_size
    )
    data = b"".join(block.data for block in blocks)
    index = offload_index.decode(offload_index.encode(written.index))
    assert index == written.index
    assert index.data_object_length == len(data)
    checksums, found = read_back(index, data)
    assert found == payloads
    assert checksums == written.checksums == crc32c.checksums(payloads)
    assert written.block_checksums == crc32c.checksums(block.data for block in blocks)
    for block in blocks:
        assert index.end_of(block.position) - block.position.offset == len(block.data)
        assert index.last_entry_of(block.position) == block.last_entry_id
        for entry_id in (block.position.first_entry_id, block.last_entry_id):
            assert index.block_of(entry_id) == block.position


@pytest.mark.parametrize("padding", range(40))
def test_every_length_of_padding(padding):
    payloads = [b"a" * 40, b"b" * 40, b"c" * 28]
    first_block = HEADER + FRAME + 40
    written, blocks = built(payloads, first_block + padding)
    assert bytes(blocks[0].data[first_block:]) == (b"\xfe\xdc\xde\xad" * 10)[:padding]
    assert next(offload_data.read_blocks(b"".join(b.data for b in blocks))).padding == padding
    assert read_back(written.index, b"".join(b.data for b in blocks))[1] == payloads


@given(SIZES, st.integers(0, 300), st.integers(0, 1 << 32))
@settings(max_examples=500, deadline=None)
def test_mutated_data_objects_are_refused_or_have_another_checksum(sizes, slack, seed):
    rng = random.Random(seed)
    payloads = [rng.randbytes(size) for size in sizes]
    written, blocks = built(payloads, max(sizes) + HEADER + FRAME + slack)
    data = b"".join(block.data for block in blocks)
    other = mutated(data, rng)
    with contextlib.suppress(CorruptFormat):
        checksums, found = read_back(written.index, other)
        assert len(found) == len(payloads)
        assert (checksums == written.checksums) == (other == data)
    with contextlib.suppress(CorruptFormat):
        found = [bytes(p) for block in offload_data.read_blocks(other) for p in block.payloads]
        assert b"".join(bytes(b) for _, b in rewritten(other)) == other
        assert found
        assert json.loads(json.dumps(describe("offload-data", other)))["lastEntryId"] == len(found) - 1


@given(SIZES, st.integers(0, 300), st.integers(1, 250), st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_pieces_of_a_mutated_block_give_what_the_whole_block_gives(sizes, slack, piece, seed):
    rng = random.Random(seed)
    payloads = [rng.randbytes(size) for size in sizes]
    written, blocks = built(payloads, max(sizes) + HEADER + FRAME + slack)
    other = mutated(blocks[0].data, rng)[: len(blocks[0].data)].ljust(len(blocks[0].data), b"\0")
    data = other + b"".join(block.data for block in blocks[1:])
    index = written.index
    reader, found = BlockReader(index, index.blocks[0]), []
    try:
        whole = list(map(bytes, DataObjectReader(index, len(data)).feed(other).payloads))
    except CorruptFormat:
        whole = None
    try:
        while (left := reader.next_range) is not None:
            found += map(bytes, reader.feed(other[left.start : left.start + min(len(left), piece)]))
    except CorruptFormat:
        assert whole is None
    else:
        assert found == whole


def rewritten(data):
    """The blocks of a data object, each written again from its entries."""
    for block in offload_data.read_blocks(data):
        frames = b"".join(
            struct.pack(">iq", len(p), block.first_entry_id + i) + p for i, p in enumerate(map(bytes, block.payloads))
        )
        head = struct.pack(">Iqqq", 0xFBDBABCB, 128, block.length, block.first_entry_id).ljust(HEADER, b"\0")
        padding = (b"\xfe\xdc\xde\xad" * (block.padding // 4 + 1))[: block.padding]
        yield block.first_entry_id, head + frames + padding


INDEXES = [path.read_bytes() for path in matching("offload/*/object_index.bin")]
INDEXES += [offload_index.encode(built([b"x" * n for n in range(1, 50)], 200)[0].index)]


@given(st.sampled_from(INDEXES), st.integers(0, 1 << 32))
@settings(max_examples=1000, deadline=None)
def test_mutated_indexes_are_refused_or_say_something_that_can_be_written(data, seed):
    with contextlib.suppress(CorruptFormat):
        other = mutated(data, random.Random(seed))
        index = offload_index.decode(other)
        assert json.loads(json.dumps(describe("offload-index", other)))["indexEntryCount"] == len(index.blocks)
        assert offload_index.decode(offload_index.encode(index)) == index
        for block in index.blocks:
            assert index.block_of(block.first_entry_id) == block
            assert index.end_of(block) > block.offset
            assert index.last_entry_of(block) >= block.first_entry_id


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_are_no_objects(data):
    for prefix in (b"", b"\xfb\xdb\xab\xcb", b"\xde\x47\xde\x47", b"\x3d\x1f\xb0\xbc"):
        with pytest.raises(CorruptFormat):
            offload_index.decode(prefix + data)
        with pytest.raises(CorruptFormat):
            list(offload_data.read_blocks(prefix + data))


@given(st.uuids(), st.integers(0, (1 << 63) - 1))
def test_keys_and_halves_round_trip(uuid, ledger_id):
    for role, key in (
        (names.Role.DATA, names.data_key(uuid, ledger_id)),
        (names.Role.INDEX, names.index_key(uuid, ledger_id)),
    ):
        found = names.ObjectKey(uuid, ledger_id, role)
        assert names.parse_key(key) == found
        assert str(found) == key
    assert names.uuid_of(*names.halves(uuid)) == uuid
    assert all(-(1 << 63) <= half < 1 << 63 for half in names.halves(uuid))


@given(st.text(max_size=60) | st.from_regex(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-ledger-\d{1,20}(-index)?)?"))
def test_a_key_is_parsed_only_if_it_is_written_that_way(key):
    found = names.parse_key(key)
    assert found is None or str(found) == key


@given(SIZES, st.integers(0, 300), st.integers(1, 250), st.data())
@settings(max_examples=300, deadline=None)
def test_a_block_in_pieces_gives_the_same_entries_from_any_of_them_on(sizes, slack, piece, data):
    payloads = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    written, blocks = built(payloads, max(sizes) + HEADER + FRAME + slack)
    whole = b"".join(block.data for block in blocks)
    for block in written.index.blocks:
        last = written.index.last_entry_of(block)
        places = {}
        found, reader = [], BlockReader(written.index, block)
        while (left := reader.next_range) is not None:
            places[reader.next_entry_id] = reader.at
            found += map(bytes, reader.feed(whole[left.start : left.start + min(len(left), piece)]))
        assert found == payloads[block.first_entry_id : last + 1]
        first = data.draw(st.sampled_from(sorted(places)))
        if first == block.first_entry_id or first > last:
            continue
        reader, found = BlockReader(written.index, block, first, places[first]), []
        while (left := reader.next_range) is not None:
            found += map(bytes, reader.feed(whole[left.start : left.start + min(len(left), piece)]))
        assert found == payloads[first : last + 1]
