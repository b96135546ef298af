"""What is refused, by which class, and where the error points."""

from __future__ import annotations

import struct
import zlib

import pytest

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as bookkeeper
from pulsar_lifecycle._pb import pulsar_mldata_pb2 as mldata
from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat, UsageError
from pulsar_lifecycle.formats import bookie_info, cursor, entry, ledger_metadata, ledger_path, managed_ledger
from pulsar_lifecycle.formats.compression import MAX_UNCOMPRESSED, Compression, compress, decompress, unwrap, wrap
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.plain_data import describe
from tests.golden.files import GOLDEN, matching

LEDGER = (GOLDEN / "offload/g-tiny/zk_bkledger_L14.bin").read_bytes()


def test_a_topic_never_loaded_is_an_empty_info():
    assert managed_ledger.decode(b"") == managed_ledger.ManagedLedgerInfo()
    assert managed_ledger.encode(managed_ledger.ManagedLedgerInfo()) == b""


def test_errors_point_at_the_byte():
    good = mldata.ManagedLedgerInfo(ledgerInfo=[{"ledgerId": 5}], properties=[{"key": "k", "value": "v"}])
    data = good.SerializeToString()
    with pytest.raises(CorruptFormat) as cut:
        managed_ledger.decode(data[:-1])
    assert cut.value.offset == 4
    assert "ManagedLedgerInfo.properties" in cut.value.expected
    with pytest.raises(CorruptFormat) as not_text:
        managed_ledger.decode(data[:-1] + b"\xff")
    assert not_text.value.offset == len(data) - 1
    assert "UTF-8 text in KeyValue.value" in not_text.value.expected
    with pytest.raises(CorruptFormat) as no_id:
        managed_ledger.decode(b"\x0a\x02\x10\x01")
    assert "required field LedgerInfo.ledgerId" in no_id.value.expected
    with pytest.raises(CorruptFormat) as other_type:
        managed_ledger.decode(b"\x08\x01")
    assert "ledgerInfo in its own wire type" in other_type.value.expected


@pytest.mark.parametrize(
    ("decoder", "data", "word"),
    [
        (managed_ledger.decode, b"ledgerInfo {\n  ledgerId: 1\n}\n", "text form"),
        (cursor.decode, b"cursorsLedgerId: -1\n", "text form"),
        (cursor.decode_position, b'{"numParts":3,"length":100}', "chunked"),
        (cursor.decode_position, b"\x47\x78\x00\x00\x00\x04\x08\x03\x10\x10", "compressed"),
        (ledger_metadata.decode, b"BookieMetadataFormatVersion\t4\n\x00", "version 1, 2 or 3"),
        (ledger_path.parse_layout, b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1", "FlatLedgerManager"),
        (ledger_path.parse_layout, b"1\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", "format 2"),
    ],
)
def test_other_forms_are_refused_by_name(decoder, data, word):
    with pytest.raises(UnsupportedFormat, match=word):
        decoder(data)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("plain", [b"", b"x", b"\x0a\x02\x08\x01" * 5000])
def test_every_codec_round_trips(codec, plain):
    assert decompress(codec, compress(codec, plain), len(plain), "test") == plain
    wrapped = unwrap(wrap(plain, codec), "test")
    assert (wrapped.data, wrapped.compression) == (plain, codec)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_wrong_uncompressed_size_is_corrupt(codec):
    data = compress(codec, b"abc" * 100)
    for size in (0, 299, 301, -1):
        with pytest.raises(CorruptFormat):
            decompress(codec, data, size, "test")
    with pytest.raises(UnsupportedFormat):
        decompress(codec, data, MAX_UNCOMPRESSED + 1, "test")


def test_a_bomb_is_not_inflated():
    bomb = zlib.compress(bytes(50 << 20))
    with pytest.raises(CorruptFormat):
        decompress(Compression.ZLIB, bomb, 10, "test")


def test_a_finished_zlib_stream_is_read_too():
    assert decompress(Compression.ZLIB, zlib.compress(b"abc"), 3, "test") == b"abc"


def test_a_bucket_key_that_cannot_be_read_is_refused_not_skipped():
    prefix = cursor.BUCKET_PREFIX
    good = {f"{prefix}_3_7": "12", f"{prefix}_0_2": "9", "user": "x", "#pulsar.internal.other": "y"}
    assert cursor.bucket_ledgers(good) == ((0, 2, 9), (3, 7, 12))
    for key, value in [
        ("_3", "1"),
        ("_3_4_5", "1"),
        ("_a_4", "1"),
        ("_4_3", "1"),
        ("_3_4", "x"),
        ("_03_4", "1"),
        ("", "1"),
    ]:
        with pytest.raises(CorruptFormat):
            cursor.bucket_ledgers({prefix + key: value})


def test_the_compacted_ledger_of_a_compaction_cursor():
    assert cursor.compacted_ledger({"CompactedTopicLedger": 7}) == 7
    assert cursor.compacted_ledger({"other": 7}) is None


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (59, "/ledgers/00/0000/L0059"),
        ((1 << 31) - 2, "/ledgers/21/4748/L3646"),
        ((1 << 31) - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (21474836487000, "/ledgers/000/0021/4748/3648/L7000"),
        ((1 << 63) - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id, path):
    assert ledger_path.ledger_path(ledger_id) == path
    assert ledger_path.parse_ledger_path(path) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/LAYOUT",
        "/ledgers/00/0000",
        "/ledgers/00/0000/L59",
        "/ledgers/000/0000/0000/0000/L0059",  # a small id has the short path
        "/ledgers/21/4748/L3647",
        "/ledgers/999/9999/9999/9999/L9999",
        "/other/00/0000/L0059",
        "/ledgers/00/0000/L0059/",
        "/ledgers/٠٠/0000/L0059",
    ],
)
def test_other_paths_are_no_ledgers(path):
    with pytest.raises(CorruptFormat):
        ledger_path.parse_ledger_path(path)


def test_ledger_folders_and_layout():
    assert [
        n for n in ("00", "000", "0000", "idgen", "available", "LAYOUT", "٠٠") if ledger_path.is_ledger_folder(n)
    ] == ["00", "000"]
    layout = ledger_path.parse_layout((GOLDEN / "znodes/policies/zk_ledgers_LAYOUT.txt").read_bytes())
    assert layout == ledger_path.LedgerLayout("org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory", 1)


VERSION_1 = b"BookieMetadataFormatVersion\t1\n2\n3\n1024\n0\ta:1\tb:2\tc:3\n10\ta:1\td:4\tc:3\n"
VERSION_2 = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 2
length: 9
lastEntryId: 3
state: CLOSED
segment {
  ensembleMember: "a:1"
  ensembleMember: "b:2"
  firstEntryId: 0
}
digestType: HMAC
password: "secret"
ackQuorumSize: 1
"""


def test_version_1():
    state = ledger_metadata.LedgerState
    for end, expected in [
        (b"", (state.OPEN, -1)),
        (b"41\tCLOSED", (state.CLOSED, 41)),
        (b"-102\tCLOSED", (state.IN_RECOVERY, -1)),
    ]:
        value = ledger_metadata.decode(VERSION_1 + end)
        assert (value.state, value.last_entry_id) == expected
        assert (value.write_quorum, value.ack_quorum, value.ensemble_size, value.length) == (2, 2, 3, 1024)
        assert value.segments[1] == ledger_metadata.Segment(10, ("a:1", "d:4", "c:3"))
        assert value.digest_type is None
        assert ledger_metadata.encode(value) == VERSION_1 + end
    for bad in (VERSION_1 + b"41\tCLOSED\nmore", VERSION_1 + b"x\tCLOSED", VERSION_1[:35], VERSION_1 + b"20\ta:1"):
        with pytest.raises(CorruptFormat):
            ledger_metadata.decode(bad)


VERSION_3 = ledger_metadata.encode(
    LedgerMetadata(LedgerState.CLOSED, 2, 2, 2, (Segment(0, ("a:1", "b:2")),), 10, 1, DigestType.CRC32C)
)


def test_version_2():
    value = ledger_metadata.decode(VERSION_2)
    assert (value.state.name, value.last_entry_id, value.ack_quorum, value.password) == ("CLOSED", 3, 1, b"secret")
    assert value.digest_type is DigestType.HMAC
    assert ledger_metadata.encode(value) == VERSION_2
    with pytest.raises(CorruptFormat):
        ledger_metadata.decode(VERSION_2 + b"nonsense: 1\n")


@pytest.mark.parametrize("bad", [b"a 1", b"a|1", b"\xff:1"])
def test_bookies_whose_ids_cannot_be_told_apart_again_are_no_ensembles(bad):
    blob = VERSION_3.replace(b"a:1", bad)
    assert blob != VERSION_3
    columns, errors = ledger_metadata.decode_columns([VERSION_3, blob], frozenset({"ensembles"}))
    assert columns["ensembles"] == ["0 a:1 b:2", None]
    assert errors == [None, None]


def test_columns_of_every_version_and_of_unreadable_rows():
    blobs = [LEDGER, VERSION_1, VERSION_2, b"", LEDGER[:-1], VERSION_2[:50]]
    columns, errors = ledger_metadata.decode_columns(blobs, ledger_metadata.COLUMNS)
    assert columns["entries"] == [20, None, 4, None, None, None]
    assert columns["ensembles"][1].split("|")[-1].split(" ")[1:] == ["a:1", "d:4", "c:3"]
    assert columns["ensembles"][2] == "0 a:1 b:2"
    assert columns["component"][:3] == ["managed-ledger", None, None]
    assert [error is None for error in errors] == [True, True, True, False, False, False]
    assert all(column[row] is None for column in columns.values() for row in (3, 4, 5))
    only = ledger_metadata.decode_columns(blobs, frozenset({"state"}))[0]
    assert only == {"state": columns["state"]}
    with pytest.raises(ValueError, match="nonsense"):
        ledger_metadata.decode_columns(blobs, frozenset({"nonsense"}))


def test_columns_of_a_broken_tag_are_an_error():
    value = ledger_metadata.decode(LEDGER)
    tags = {**value.custom_metadata, ledger_metadata.TAG_CURSOR: b"\xff"}
    broken = ledger_metadata.encode(ledger_metadata.LedgerMetadata(**fields(value, custom_metadata=tags)))
    columns, errors = ledger_metadata.decode_columns([broken, LEDGER], frozenset({"cursor", "application"}))
    assert columns == {"application": [None, "pulsar"], "cursor": [None, None]}
    assert ledger_metadata.TAG_CURSOR in errors[0]
    assert errors[1] is None


def fields(value, **changed):
    names = [name for name in value.__slots__ if name != "origin"]
    return {name: getattr(value, name) for name in names} | changed


def test_bookies():
    legacy = bookie_info.decode(b"", "bookie-1.example.com:3181")
    assert (legacy.rpc.host, legacy.rpc.port, legacy.http) == ("bookie-1.example.com", 3181, None)
    with pytest.raises(CorruptFormat):
        bookie_info.decode(b"", "bk0test")
    registered = bookkeeper.BookieServiceInfoFormat(
        endpoints=[
            {"id": "httpserver", "port": 8000, "host": "10.0.0.1", "protocol": "http"},
            {"id": "bookie", "port": 3181, "host": "10.0.0.2", "protocol": "bookie-rpc", "auth": ["tls"]},
        ],
        properties={"zone": "a"},
    ).SerializeToString()
    found = bookie_info.decode(registered, "bk0test")
    assert (found.rpc.host, found.rpc.port) == ("10.0.0.2", 3181)
    assert (found.http.host, found.http.port) == ("10.0.0.1", 8000)
    assert found.properties == {"zone": "a"}
    with pytest.raises(CorruptFormat):
        bookie_info.decode(registered[:-1], "bk0test")


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_entries_are_verified(digest_type):
    value = entry.StoredEntry(7, 3, 2, 40, b"payload")
    data = entry.encode(value, digest_type, b"pw")
    assert len(data) == entry.HEADER_SIZE + entry.DIGEST_SIZE[digest_type] + 7
    assert entry.decode(data, digest_type, b"pw", ledger_id=7, entry_id=3) == value
    with pytest.raises(CorruptFormat, match="ledger 8"):
        entry.decode(data, digest_type, b"pw", ledger_id=8)
    with pytest.raises(CorruptFormat, match="entry 4"):
        entry.decode(data, digest_type, b"pw", entry_id=4)
    with pytest.raises(CorruptFormat):
        entry.decode(data[: entry.HEADER_SIZE - 1], digest_type, b"pw")
    if digest_type is not DigestType.DUMMY:
        with pytest.raises(CorruptFormat, match="digest"):
            entry.decode(data[:-1] + b"X", digest_type, b"pw")
    if digest_type is DigestType.HMAC:
        with pytest.raises(CorruptFormat, match="digest"):
            entry.decode(data, digest_type, b"other")


def test_digests_are_those_of_bookkeeper():
    assert entry.master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    header = struct.pack(">qqqq", 1, 2, 3, 4)
    assert entry.digest(DigestType.CRC32, header, b"x", b"")[:4] == bytes(4)
    assert entry.digest(DigestType.CRC32C, b"1234", b"56789", b"").hex() == "e3069283"


def test_descriptions_use_upstream_names():
    shown = describe("managed-ledger", (GOLDEN / "znodes/zlib/g-tiny-zlib/zk_ml_before.bin").read_bytes())
    assert shown["compressionType"] == "ZLIB"
    assert shown["ledgerInfo"][0] == {"ledgerId": 112, "entries": 20, "size": 1046, "timestamp": 1795225003178}
    shown = describe("ledger-metadata", LEDGER)
    assert (shown["metadataFormatVersion"], shown["state"], shown["lastEntryId"]) == (3, "CLOSED", 19)
    assert {"key": "component", "value": "managed-ledger"} in shown["customMetadata"]
    assert describe("ledger-metadata", VERSION_2)["metadataFormatVersion"] == 2
    shown = describe("schema-entry", matching("znodes/plain/schema/schema_L52_E0.bin")[0].read_bytes())
    assert shown["schema_data"]["type"] == "AVRO"
    assert describe("cursor", b"\x08\x01\xa2\x06\x01a")["unknownFields"] == [
        {"number": 100, "wireType": 2, "data": "a"}
    ]
    with pytest.raises(UsageError, match="managed-ledger"):
        describe("nonsense", b"")
    with pytest.raises(CorruptFormat):
        describe("cursor", b"")
