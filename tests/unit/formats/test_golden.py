"""Every golden z-node and entry decodes to what Java printed and encodes back to the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from google.protobuf import text_format

from pulsar_lifecycle._pb import pulsar_mldata_pb2, pulsar_schema_pb2
from pulsar_lifecycle.formats import cursor, delayed_bucket, ledger_metadata, managed_ledger, message, schema
from pulsar_lifecycle.formats.compression import Compression, unwrap
from tests.golden.files import GOLDEN, entries, matching, name


def as_text(path, message_type):
    return text_format.Parse(path.with_name(path.name + ".txt").read_text(), message_type())


def with_text(paths):
    return [path for path in paths if path.with_name(path.name + ".txt").exists()]


Z_NODES = [
    *((managed_ledger, pulsar_mldata_pb2.ManagedLedgerInfo, path) for path in matching("**/zk_ml*.bin")),
    *((cursor, pulsar_mldata_pb2.ManagedCursorInfo, path) for path in matching("**/zk_cursor*.bin")),
]


@pytest.mark.parametrize(("codec", "message_type", "path"), Z_NODES, ids=lambda v: getattr(v, "name", None))
def test_topic_and_cursor_znodes(codec, message_type, path):
    data = path.read_bytes()
    value = codec.decode(data)
    assert codec.encode(value) == data
    rewritten = codec.encode(replace(value, origin=b""))
    assert codec.decode(rewritten) == value
    if value.compression is not Compression.ZSTD:  # another zstd library chooses other bytes
        assert rewritten == data
    if path in with_text([path]):
        assert message_type.FromString(unwrap(rewritten, "test").data) == as_text(path, message_type)


def test_offload_states():
    before, after, deleted = (
        managed_ledger.decode((GOLDEN / f"offload/g-tiny/zk_ml_{state}.bin").read_bytes()).ledgers[0]
        for state in ("before", "after", "bkdeleted")
    )
    assert (before.ledger_id, before.entries, before.size, before.offload) == (14, 20, 1046, None)
    assert after.offload.complete
    assert not after.offload.bookkeeper_deleted
    assert deleted.offload.bookkeeper_deleted
    assert str(deleted.offload.uuid) == "db2170f3-52ea-4b25-8101-4a5c63d105aa"
    assert deleted.offload.driver_name == "aws-s3"
    assert deleted.offload.driver_metadata["managedLedgerOffloadDriver"] == "AWS_S3"
    prepared = managed_ledger.decode((GOLDEN / "znodes/incomplete/zk_ml_prepared_incomplete.bin").read_bytes())
    assert prepared.ledgers[0].offload.uuid is not None
    assert not prepared.ledgers[0].offload.complete


@pytest.mark.parametrize("path", matching("**/cursor_ledger_last_entry.bin"), ids=name)
def test_cursor_ledger_entries(path):
    data = path.read_bytes()
    value = cursor.decode_position(data)
    assert cursor.encode_position(value) == data
    assert cursor.encode_position(replace(value, origin=b"")) == data
    assert pulsar_mldata_pb2.PositionInfo.FromString(data) == as_text(path, pulsar_mldata_pb2.PositionInfo)
    stats = json.loads((path.parent / "info.json").read_text())["internalStats"]["cursors"]["SUB"]
    assert str(value.mark_delete) == stats["markDeletePosition"]
    shown = ",".join(f"({item.lower}..{item.upper}]" for item in value.individual_deleted)
    assert f"[{shown}]" == stats["individuallyDeletedMessages"]


@pytest.mark.parametrize("path", matching("**/zk_bkledger*.bin"), ids=name)
def test_ledger_metadata(path):
    data = path.read_bytes()
    value = ledger_metadata.decode(data)
    assert ledger_metadata.encode(value) == data
    assert ledger_metadata.encode(replace(value, origin=b"")) == data
    columns, errors = ledger_metadata.decode_columns([data], ledger_metadata.COLUMNS)
    assert errors == [None]
    closed = value.state is ledger_metadata.LedgerState.CLOSED
    assert columns["state"] == [value.state.name]
    assert columns["entries"] == [value.last_entry_id + 1 if closed else None]
    assert ledger_metadata.parse_ensembles(columns["ensembles"][0]) == value.segments
    assert columns["component"] == [value.custom_metadata["component"].decode()]


@pytest.mark.parametrize("path", matching("ledger_metadata/*.bin"), ids=name)
def test_ledger_metadata_of_every_version(path):
    version, state = path.stem.split("_")
    value = ledger_metadata.decode(path.read_bytes())
    assert ledger_metadata.encode(value) == path.read_bytes()
    assert f"v{value.format_version}" == version
    expected = {"open": ("OPEN", 0, -1), "recovery": ("IN_RECOVERY", 0, -1), "closed": ("CLOSED", 1024, 41)}[state]
    assert (value.state.name, value.length, value.last_entry_id) == expected
    assert (value.ensemble_size, value.write_quorum) == (3, 2)
    assert value.segments[1] == ledger_metadata.Segment(10, ("a:1", "d:4", "c:3"))
    if value.format_version > 1:
        assert (value.ack_quorum, value.digest_type.name, value.password) == (1, "HMAC", b"secret")
        assert value.custom_metadata == {"application": b"pulsar", "x": b"\xff\x00"}


def test_every_codec_of_pulsar_holds_the_same_topic():
    found = {
        path.stem.removeprefix("zk_ml_"): managed_ledger.decode(path.read_bytes()) for path in matching("codecs/*")
    }
    assert {name: info.compression.name for name, info in found.items()} == {name: name for name in found}
    assert len(found) == len(Compression)
    assert all(replace(info, compression=Compression.NONE) == found["NONE"] for info in found.values())


def test_schema_locator_and_entries():
    folder = GOLDEN / "znodes/plain/schema"
    data = (folder / "zk_schema.bin").read_bytes()
    locator = schema.decode_locator(data)
    assert schema.encode_locator(locator) == data
    assert schema.encode_locator(replace(locator, origin=b"")) == data
    parsed = pulsar_schema_pb2.SchemaLocator.FromString(data)
    assert parsed == as_text(folder / "zk_schema.bin", pulsar_schema_pb2.SchemaLocator)
    assert locator.ledger_ids == {52, 53}
    rest = json.loads((folder / "info.json").read_text())["rest"]["getSchemaResponses"]
    for path, expected in zip(matching("znodes/plain/schema/schema_*_E0.bin"), rest, strict=True):
        entry = schema.decode_entry(path.read_bytes())
        assert schema.encode_entry(replace(entry, origin=b"")) == path.read_bytes()
        info = schema.decode_info(entry.schema_data)
        assert (info.type.name, info.timestamp, info.schema.decode(), info.properties) == (
            expected["type"],
            expected["timestamp"],
            expected["data"],
            expected["properties"],
        )


@pytest.mark.parametrize("path", matching("delayed/unmerged/*.entries.bin"), ids=name)
def test_bucket_snapshots(path):
    first, *rest = entries(path)
    metadata = delayed_bucket.decode_metadata(first)
    assert delayed_bucket.encode_metadata(metadata) == first
    assert delayed_bucket.encode_metadata(replace(metadata, origin=b"")) == first
    assert len(metadata.segments) == len(rest)
    for described, data in zip(metadata.segments, rest, strict=True):
        segment = delayed_bucket.decode_segment(data)
        assert delayed_bucket.encode_segment(replace(segment, origin=b"")) == data
        times = [index.timestamp for index in segment.indexes]
        assert (times[0], times[-1]) == (described.min_schedule_timestamp, described.max_schedule_timestamp)
        placed = {(ledger, entry) for ledger, bits in described.delayed_index_bit_map.items() for entry in bits}
        assert placed == {(index.ledger_id, index.entry_id) for index in segment.indexes}


def test_buckets_of_a_cursor():
    expected = json.loads((GOLDEN / "delayed/unmerged/expected.json").read_text())["bucketProperties"]
    info = cursor.decode((GOLDEN / "delayed/unmerged/zk_cursor_open.bin").read_bytes())
    buckets = cursor.bucket_ledgers(info.cursor_properties)
    assert {f"{cursor.BUCKET_PREFIX}_{start}_{end}": str(ledger) for start, end, ledger in buckets} == expected
    assert list(buckets) == sorted(buckets)


def test_messages():
    expected = json.loads((GOLDEN / "offload/g-tiny/expected.json").read_text())
    found = [message.decode(data) for data in entries(GOLDEN / "offload/g-tiny/L14.entries.bin")]
    assert len(found) == 20
    assert all(len(entry.messages) == 1 and entry.checksummed and entry.batch_size is None for entry in found)
    assert found[0].messages[0].payload == b"hello-00"
    assert "g-tiny" in json.dumps(expected)


@pytest.mark.parametrize(
    ("file", "codec"),
    [("g-batch-lz4/L28.first_entry.bin", Compression.LZ4), ("g-batch-zstd/L30.first_entry.bin", Compression.ZSTD)],
)
def test_compressed_batches(file, codec):
    entry = message.decode((GOLDEN / "offload" / file).read_bytes())
    assert entry.compression is codec
    assert entry.batch_size == len(entry.messages) == 100
    assert [single.batch_index for single in entry.messages] == list(range(100))
