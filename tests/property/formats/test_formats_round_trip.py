"""For every format: values survive encode and decode, and unknown fields survive a change, at every level."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import FrozenBitMap

from pulsar_lifecycle._pb import (
    bookkeeper_metadata_pb2,
    pulsar_delayed_index_pb2,
    pulsar_message_pb2,
    pulsar_mldata_pb2,
    pulsar_schema_pb2,
)
from pulsar_lifecycle.formats import (
    cursor,
    delayed_bucket,
    ledger_metadata,
    ledger_path,
    managed_ledger,
    message,
    schema,
)
from pulsar_lifecycle.formats import entry as bookkeeper_entry
from pulsar_lifecycle.formats.compression import Compression, compress, unwrap
from pulsar_lifecycle.model import Position

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
ID = st.integers(0, (1 << 63) - 1)
MAYBE = st.none() | LONG
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STRINGS = st.dictionaries(TEXT, TEXT, max_size=3)
POSITIONS = st.builds(Position, LONG, LONG)
UUIDS = st.none() | st.uuids()
LONGS = st.lists(LONG, max_size=3).map(tuple)
CODECS = st.sampled_from(Compression)


def several(strategy, key=None):
    return st.lists(strategy, max_size=4, unique_by=key).map(tuple)


SEGMENTS = st.builds(managed_ledger.OffloadSegment, UUIDS, st.booleans(), MAYBE, MAYBE, MAYBE, TEXT, STRINGS)
OFFLOADS = st.builds(
    managed_ledger.OffloadContext,
    UUIDS,
    st.booleans(),
    st.booleans(),
    MAYBE,
    TEXT,
    STRINGS,
    several(SEGMENTS, lambda s: s.uuid),
)
LEDGERS = st.builds(managed_ledger.LedgerInfo, ID, MAYBE, MAYBE, MAYBE, st.none() | OFFLOADS)
TOPICS = st.builds(
    managed_ledger.ManagedLedgerInfo, several(LEDGERS, lambda v: v.ledger_id), st.none() | POSITIONS, STRINGS, CODECS
)
RANGES = several(st.builds(cursor.MessageRange, POSITIONS, POSITIONS))
DELETIONS = several(st.builds(cursor.BatchDeletion, POSITIONS, LONGS))
NUMBERS = st.dictionaries(TEXT, LONG, max_size=3)
CURSORS = st.builds(
    cursor.ManagedCursorInfo,
    st.integers(-1, (1 << 63) - 1),
    st.none() | POSITIONS,
    RANGES,
    NUMBERS,
    MAYBE,
    DELETIONS,
    STRINGS,
    CODECS,
)
CURSOR_ENTRIES = st.builds(
    cursor.PositionInfo, POSITIONS, RANGES, NUMBERS, DELETIONS, several(st.builds(cursor.LedgerBits, LONG, LONGS))
)
INDEX = st.builds(schema.IndexEntry, LONG, POSITIONS, st.binary(max_size=32))
INDEXES = several(INDEX, lambda v: v.version)
LOCATORS = st.builds(schema.SchemaLocator, INDEX, INDEXES)
SCHEMA_ENTRIES = st.builds(schema.SchemaEntry, st.binary(max_size=20), INDEXES)
UNSIGNED = st.integers(0, (1 << 64) - 1)
BITMAPS = st.frozensets(st.integers(0, (1 << 32) - 1), max_size=20).map(FrozenBitMap)


@st.composite
def ledgers(draw):
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    starts = sorted({0, *draw(st.lists(st.integers(1, 1 << 40), max_size=3))})
    bookies = st.lists(TEXT, min_size=ensemble, max_size=ensemble).map(tuple)
    return ledger_metadata.LedgerMetadata(
        draw(st.sampled_from(ledger_metadata.LedgerState)),
        ensemble,
        write,
        draw(st.integers(1, write)),
        tuple(ledger_metadata.Segment(start, draw(bookies)) for start in starts),
        draw(ID),
        draw(st.integers(-1, (1 << 62))),
        draw(st.none() | st.sampled_from(ledger_metadata.DigestType)),
        draw(st.binary(max_size=8)),
        draw(MAYBE),
        draw(MAYBE),
        draw(st.dictionaries(TEXT, st.binary(max_size=8), max_size=5)),
    )


@st.composite
def bucket_metadata(draw):
    found = []
    for low, high in draw(st.lists(st.tuples(UNSIGNED, UNSIGNED).map(sorted), max_size=3)):
        bitmaps = dict(sorted(draw(st.dictionaries(UNSIGNED, BITMAPS, max_size=3)).items()))
        found.append(delayed_bucket.SnapshotSegmentMetadata(bitmaps, low, high))
    return delayed_bucket.SnapshotMetadata(tuple(found))


BUCKET_SEGMENTS = st.builds(
    delayed_bucket.SnapshotSegment, several(st.builds(delayed_bucket.DelayedIndex, UNSIGNED, UNSIGNED, UNSIGNED))
)

CASES = [
    (TOPICS, managed_ledger.decode, managed_ledger.encode),
    (CURSORS, cursor.decode, cursor.encode),
    (CURSOR_ENTRIES, cursor.decode_position, cursor.encode_position),
    (LOCATORS, schema.decode_locator, schema.encode_locator),
    (SCHEMA_ENTRIES, schema.decode_entry, schema.encode_entry),
    (ledgers(), ledger_metadata.decode, ledger_metadata.encode),
    (bucket_metadata(), delayed_bucket.decode_metadata, delayed_bucket.encode_metadata),
    (BUCKET_SEGMENTS, delayed_bucket.decode_segment, delayed_bucket.encode_segment),
]
ANY = st.one_of([st.tuples(values, st.just(decode), st.just(encode)) for values, decode, encode in CASES])


@given(ANY)
@settings(max_examples=400)
def test_values_round_trip(case):
    value, decode, encode = case
    data = encode(value)
    found = decode(data)
    assert found == value
    assert encode(found) == data
    assert encode(replace(found, origin=b"")) == data
    assert pickle.loads(pickle.dumps(found)) == value


@given(ledgers())
def test_columns_agree_with_decode(value):
    columns, errors = ledger_metadata.decode_columns([ledger_metadata.encode(value)], ledger_metadata.COLUMNS)
    if errors != [None]:
        raw = [
            value.custom_metadata.get(tag, b"") for tag in (ledger_metadata.TAG_CURSOR, ledger_metadata.TAG_COMPONENT)
        ]
        assert any(tag.decode(errors="replace").encode() != tag for tag in raw)
        return
    closed = value.state is ledger_metadata.LedgerState.CLOSED
    digest = value.digest_type.name if value.digest_type else None
    assert columns["state"] == [value.state.name]
    assert columns["entries"] == [value.last_entry_id + 1 if closed else None]
    assert columns["length"] == [value.length if closed else None]
    assert columns["ensemble_size"] == [value.ensemble_size]
    assert columns["write_quorum"] == [value.write_quorum]
    assert columns["ack_quorum"] == [value.ack_quorum]
    assert columns["digest_type"] == [digest]
    assert columns["ctime"] == [value.ctime or 0]
    plain = not any(set(bookie) & {" ", "|"} for segment in value.segments for bookie in segment.bookies)
    if columns["ensembles"] != [None] or plain:
        assert ledger_metadata.parse_ensembles(columns["ensembles"][0]) == value.segments


@given(ID)
def test_ledger_paths_round_trip(ledger_id):
    path = ledger_path.ledger_path(ledger_id)
    assert ledger_path.parse_ledger_path(path) == ledger_id
    assert ledger_path.is_ledger_folder(path.split("/")[2])


@given(
    st.builds(bookkeeper_entry.StoredEntry, LONG, LONG, LONG, LONG, st.binary(max_size=40)),
    st.sampled_from(ledger_metadata.DigestType),
    st.binary(max_size=8),
)
def test_bookkeeper_entries_round_trip(value, digest_type, password):
    assert (
        bookkeeper_entry.decode(bookkeeper_entry.encode(value, digest_type, password), digest_type, password) == value
    )


# A field that no message here defines: number 1000, text "new".
UNKNOWN = b"\xc2\x3e\x03new"


def mark(shown):
    """Gives the message, and every message inside it, an unknown field; how many there are."""
    marked = 1
    for field, value in shown.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        marked += sum(map(mark, value if field.is_repeated else [value]))
    shown.MergeFromString(UNKNOWN)
    return marked


def marked(message_type, plain):
    shown = message_type.FromString(plain)
    count = mark(shown)
    data = shown.SerializeToString()
    assert data.count(UNKNOWN) == count
    return data, count


@given(TOPICS)
def test_a_changed_topic_keeps_unknown_fields(info):
    plain = managed_ledger.encode(replace(info, compression=Compression.NONE))
    data, count = marked(pulsar_mldata_pb2.ManagedLedgerInfo, plain)
    found = managed_ledger.decode(data)
    assert found == replace(info, compression=Compression.NONE)
    ledgers = tuple(
        replace(
            ledger,
            size=1,
            offload=ledger.offload
            and replace(
                ledger.offload,
                bookkeeper_deleted=True,
                driver_metadata=dict.fromkeys(ledger.offload.driver_metadata, "x"),
            ),
        )
        for ledger in reversed(found.ledgers)
    )
    changed = replace(
        found, ledgers=ledgers, properties=dict.fromkeys(found.properties, "y"), compression=Compression.ZLIB
    )
    written = managed_ledger.encode(changed)
    assert managed_ledger.decode(written) == changed
    assert unwrap(written, "test").data.count(UNKNOWN) == count


def test_another_offload_attempt_takes_over_nothing():
    first = managed_ledger.OffloadContext(UUID(int=1), False, False, None, "aws-s3", {"bucket": "b"})
    info = managed_ledger.ManagedLedgerInfo((managed_ledger.LedgerInfo(1, offload=first),))
    data, _ = marked(pulsar_mldata_pb2.ManagedLedgerInfo, managed_ledger.encode(info))
    second = replace(managed_ledger.decode(data).ledgers[0], offload=replace(first, uuid=UUID(int=2)))
    written = managed_ledger.encode(replace(managed_ledger.decode(data), ledgers=(second,)))
    assert written.count(UNKNOWN) == 2  # the info's and the ledger's


@given(CURSORS)
def test_a_changed_cursor_keeps_unknown_fields(info):
    data, count = marked(
        pulsar_mldata_pb2.ManagedCursorInfo, cursor.encode(replace(info, compression=Compression.NONE))
    )
    changed = replace(
        cursor.decode(data), last_active=5, cursors_ledger_id=9, properties=dict.fromkeys(info.properties, 3)
    )
    written = cursor.encode(changed)
    assert cursor.decode(written) == changed
    assert written.count(UNKNOWN) == count


@given(CURSOR_ENTRIES)
def test_a_changed_cursor_entry_keeps_unknown_fields(info):
    data, count = marked(pulsar_mldata_pb2.PositionInfo, cursor.encode_position(info))
    changed = replace(cursor.decode_position(data), mark_delete=Position(1, 1))
    written = cursor.encode_position(changed)
    assert cursor.decode_position(written) == changed
    assert written.count(UNKNOWN) == count


@given(LOCATORS, SCHEMA_ENTRIES)
def test_changed_schemas_keep_unknown_fields(locator, entry):
    data, count = marked(pulsar_schema_pb2.SchemaLocator, schema.encode_locator(locator))
    changed = replace(locator, latest=replace(locator.latest, hash=b"h"), origin=data)
    written = schema.encode_locator(changed)
    assert schema.decode_locator(written) == changed
    assert written.count(UNKNOWN) == count
    data, count = marked(pulsar_schema_pb2.SchemaEntry, schema.encode_entry(entry))
    written = schema.encode_entry(replace(schema.decode_entry(data), schema_data=b"s"))
    assert written.count(UNKNOWN) == count


@given(ledgers())
def test_changed_ledger_metadata_keeps_unknown_fields(value):
    body, count = marked(
        bookkeeper_metadata_pb2.LedgerMetadataFormat, ledger_metadata.body(ledger_metadata.encode(value))
    )
    shown = bookkeeper_metadata_pb2.LedgerMetadataFormat.FromString(body)
    size = shown.ByteSize()
    prefix = bytes([size & 0x7F | 0x80, size >> 7]) if size > 0x7F else bytes([size])
    data = b"BookieMetadataFormatVersion\t3\n" + prefix + body
    found = ledger_metadata.decode(data)
    assert found == value
    assert ledger_metadata.decode_columns([data], frozenset({"state"})) == ({"state": [value.state.name]}, [None])
    changed = replace(found, ctoken=1, ctime=2, custom_metadata=dict.fromkeys(value.custom_metadata, b"z"))
    written = ledger_metadata.encode(changed)
    assert ledger_metadata.decode(written) == changed
    assert written.count(UNKNOWN) == count


@given(bucket_metadata(), BUCKET_SEGMENTS)
def test_changed_buckets_keep_unknown_fields(metadata, segment):
    data, count = marked(pulsar_delayed_index_pb2.SnapshotMetadata, delayed_bucket.encode_metadata(metadata))
    extra = delayed_bucket.SnapshotSegmentMetadata({1: FrozenBitMap([1])}, 0, 0)
    found = delayed_bucket.decode_metadata(data)
    written = delayed_bucket.encode_metadata(replace(found, segments=(*found.segments, extra)))
    assert written.count(UNKNOWN) == count
    data, count = marked(pulsar_delayed_index_pb2.SnapshotSegment, delayed_bucket.encode_segment(segment))
    found = delayed_bucket.decode_segment(data)
    more = delayed_bucket.DelayedIndex(1, 2, 3)
    written = delayed_bucket.encode_segment(replace(found, indexes=(*found.indexes, more)))
    assert written.count(UNKNOWN) == count


@given(st.lists(st.tuples(TEXT, st.binary(max_size=20), st.booleans()), min_size=1, max_size=4), CODECS)
def test_batches_come_apart(singles, codec):
    plain = b""
    for key, payload, null in singles:
        single = pulsar_message_pb2.SingleMessageMetadata(
            partition_key=key, payload_size=len(payload), null_value=null
        ).SerializeToString()
        plain += struct.pack(">i", len(single)) + single + payload
    metadata = pulsar_message_pb2.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=2,
        compression=codec.value,
        uncompressed_size=len(plain),
        num_messages_in_batch=len(singles),
    ).SerializeToString()
    found = message.decode(struct.pack(">i", len(metadata)) + metadata + compress(codec, plain))
    assert [(m.key, m.payload) for m in found.messages] == [(k, None if null else p) for k, p, null in singles]
