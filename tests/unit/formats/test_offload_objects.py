"""The broker's own offload objects: read to the ledger's entries, and written again from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats import crc32c, ledger_metadata, managed_ledger, message, offload_data, offload_index
from pulsar_lifecycle.formats import offload_object as names
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerState
from pulsar_lifecycle.formats.offload_data import DataObjectBuilder, DataObjectReader, EntryTooLong, NotOffloadable
from pulsar_lifecycle.formats.offload_index import OffloadIndexEntry
from pulsar_lifecycle.formats.plain_data import describe
from tests.golden.files import GOLDEN, entries, matching

FOLDERS = [path.parent for path in matching("offload/*/object_data.bin")]
GOLDENS = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
TINY = GOLDEN / "offload/g-tiny"
UID = UUID("db2170f3-52ea-4b25-8101-4a5c63d105aa")


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def stored(folder):
    """Data object, index object, and the ledger's metadata with the ctime that BookKeeper's client gave it."""
    (z_node,) = folder.glob("zk_bkledger_*.bin")
    metadata = ledger_metadata.decode(z_node.read_bytes())
    index = offload_index.decode((folder / "object_index.bin").read_bytes())
    ctime = expected(folder).get("ctime", index.ledger.ctime)
    return (folder / "object_data.bin").read_bytes(), index, replace(metadata, ctime=ctime)


def payloads_of(folder):
    return [bytes(p) for block in offload_data.read_blocks(stored(folder)[0]) for p in block.payloads]


@GOLDENS
def test_objects_are_read_to_the_entries_of_bookkeeper(folder):
    data, index, _ = stored(folder)
    reader = DataObjectReader(index, len(data))
    payloads = []
    while (wanted := reader.next_range) is not None:
        payloads += map(bytes, reader.feed(data[wanted.start : wanted.stop]).payloads)
    assert reader.finish() == crc32c.checksums(payloads)
    assert [
        {"entryId": n, "size": len(p), "sha256": hashlib.sha256(p).hexdigest()} for n, p in enumerate(payloads)
    ] == [{name: entry[name] for name in ("entryId", "size", "sha256")} for entry in expected(folder)["entries"]]
    for dump in folder.glob("*.entries.bin"):
        assert payloads == entries(dump)
    if folder.name != "edge-zero-length":
        found = [single.payload or b"" for payload in payloads for single in message.decode(payload).messages]
        sent = expected(folder)["messages"]
        assert list(map(len, found)) == sent["sizes"]
        assert hashlib.sha256(b"".join(found)).hexdigest() == sent["sha256_of_concat"]


@GOLDENS
def test_entries_are_written_as_the_broker_wrote_them(folder):
    data, index, metadata = stored(folder)
    builder = DataObjectBuilder(metadata, offload_data.MIN_BLOCK_SIZE)
    payloads = payloads_of(folder)
    blocks = []
    for first in range(0, len(payloads), 7):
        blocks += builder.feed(first, payloads[first : first + 7])
    written = builder.finish()
    assert b"".join(block.data for block in blocks) == data
    assert tuple(block.position for block in blocks) == index.blocks
    assert written.index == index
    assert written.checksums == crc32c.checksums(payloads)


@GOLDENS
def test_an_index_is_written_as_the_broker_wrote_it(folder):
    golden = (folder / "object_index.bin").read_bytes()
    data, index, metadata = stored(folder)
    facts = expected(folder)
    assert (index.ledger.last_entry_id, index.ledger.length) == (facts["lastAddConfirmed"], facts["length"])
    assert index.data_object_length == len(data)
    ours = offload_index.encode(offload_index.of_ledger(metadata, [OffloadIndexEntry(0, 1, 0)], len(data)))
    assert offload_index.decode(ours) == index
    shown, theirs = describe("offload-index", ours), describe("offload-index", golden)
    for document in (shown, theirs):  # the broker writes a map
        document["segmentMetadata"]["customMetadata"].sort(key=lambda pair: pair["key"])
    assert shown == theirs
    assert len(ours) == len(golden)
    assert "password" not in theirs["segmentMetadata"]


@pytest.mark.parametrize("path", matching("offload_blocks/blocks_of_*.bin"), ids=lambda path: path.stem)
def test_many_blocks_are_cut_and_padded_as_the_broker_does(path):
    payloads = entries(GOLDEN / "offload_blocks/entries.bin")
    metadata = ledger(sum(map(len, payloads)), len(payloads) - 1)
    builder = DataObjectBuilder(metadata, int(path.stem.rpartition("_")[2]))
    assert b"".join(block.data for block in builder.feed(0, payloads)) == path.read_bytes()
    read = list(offload_data.read_blocks(path.read_bytes()))
    assert [bytes(p) for block in read for p in block.payloads] == payloads
    assert tuple(block.offset for block in read) == tuple(b.offset for b in builder.finish().index.blocks)


@GOLDENS
def test_keys_and_user_metadata(folder):
    facts = expected(folder)
    for item in facts["s3"]:
        head = item.get("head", item)
        key = names.parse_key(item["key"])
        assert str(key) == item["key"]
        assert (key.ledger_id, key.role) == (facts["ledgerId"], item["role"])
        theirs = head["Metadata"]
        assert theirs == names.user_metadata(
            key.role,
            cluster="standalone",
            managed_ledger=theirs["managedledgername"],
            software_version="4.0.7",
            software_git_sha=theirs["s3managedledgeroffloadersoftwaregitsha"],
        )
        assert head["ContentType"] == names.CONTENT_TYPES[key.role]
        names.check_version(theirs)


def test_keys_of_other_things():
    data = names.data_key(UID, 14)
    assert names.parse_key(data) == names.ObjectKey(UID, 14, names.Role.DATA)
    assert names.parse_key(data + "-index") == names.ObjectKey(UID, 14, names.Role.INDEX)
    others = ["", str(UID), f"{UID}-index", data + "-", data.upper(), data + "x", f" {data}", f"{data}\n"]
    others += [f"{UID}-ledger-", f"{UID}-ledger-014", f"{UID}-ledger--1", f"{UID}-ledger-{1 << 63}", f"a/{data}"]
    others += [f"{UID.hex}-ledger-14", f"{UID}-ledger-٣"]
    assert [key for key in others if names.parse_key(key)] == []
    assert names.parse_key(f"{UID}-ledger-{(1 << 63) - 1}").ledger_id == (1 << 63) - 1


def test_halves_of_a_uuid_are_signed_longs():
    stored_uuid = managed_ledger.decode((TINY / "zk_ml_after.bin").read_bytes()).ledgers[0].offload.uuid
    assert stored_uuid == UID
    assert names.halves(UID) == (-2656718114801431771, -9150951207168047702)  # as zk_ml_after.bin.txt has them
    assert names.uuid_of(*names.halves(UID)) == UID


def test_user_metadata_is_what_a_header_carries():
    def made(cluster):
        return names.user_metadata(
            names.Role.DATA,
            cluster=cluster,
            managed_ledger="t/n/persistent/x",
            software_version="1",
            software_git_sha="0",
        )

    assert made("eu west")[names.CLUSTER_NAME] == "eu west"
    for cluster in ("", "höchst", " eu", "eu\n", "a\tb"):
        with pytest.raises(ValueError, match="pulsarclustername"):
            made(cluster)


def test_only_version_one_is_read():
    with pytest.raises(CorruptFormat, match="s3managedledgeroffloaderformatversion"):
        names.check_version({"role": "data"})
    with pytest.raises(UnsupportedFormat, match="found '2'"):
        names.check_version({names.FORMAT_VERSION: "2"})


# ------------------------------------------------------------------------------------------------------------ refusals

LEDGER = stored(TINY)[2]


def ledger(length, last_entry_id, **changed):
    return replace(LEDGER, origin=b"", length=length, last_entry_id=last_entry_id, **changed)


@pytest.mark.parametrize("metadata", [ledger(9, 0, state=LedgerState.OPEN), ledger(0, 3), ledger(0, -1)])
def test_what_brokers_do_not_offload_is_refused(metadata):
    with pytest.raises(NotOffloadable):
        DataObjectBuilder(metadata)


def test_an_entry_that_fits_no_block_is_refused():
    longest = offload_data.max_entry_length(1000)
    assert longest == 860
    builder = DataObjectBuilder(ledger(2 * longest + 1, 1), 1000)
    with pytest.raises(EntryTooLong, match=r"entry 1 has 861 bytes.* 1000 .*860"):
        builder.feed(0, [bytes(longest), bytes(longest + 1)])
    assert builder.next_entry_id == 0
    builder = DataObjectBuilder(ledger(2 * longest, 1), 1000)
    blocks = builder.feed(0, [bytes(longest), bytes(longest)])
    assert [len(block.data) for block in blocks] == [1000, 1000]


def test_metadata_alone_may_tell_that_every_entry_fits():
    assert offload_data.every_entry_fits(ledger(860, 0), 1000) is True
    assert offload_data.every_entry_fits(ledger(861, 0), 1000) is False
    assert offload_data.every_entry_fits(ledger(861, 1), 1000) is None
    assert offload_data.every_entry_fits(ledger(1720, 1), 1000) is None
    assert offload_data.every_entry_fits(ledger(1721, 1), 1000) is False


def test_entries_that_are_not_the_ledgers_are_refused():
    for first, payloads, wrong in [
        (1, [b"a"], "entry 0, found 1"),
        (0, [b"aaaa", b"", b"b"], "no entry after 1, found 2"),
        (0, [b"aaaaaa"], "5 bytes in entries 0..1, found 6 in 0..0"),
        (0, [b"a", b"b"], "5 bytes in entries 0..1, found 2"),
    ]:
        builder = DataObjectBuilder(ledger(5, 1))
        with pytest.raises(CorruptFormat, match=wrong):
            builder.feed(first, payloads)
    builder = DataObjectBuilder(ledger(5, 1))
    assert builder.feed(0, []) == []
    assert builder.feed(0, [b"aaaa"]) == []
    with pytest.raises(CorruptFormat, match=r"at byte 144: expected entries 1\.\.1"):
        builder.finish()
    with pytest.raises(CorruptFormat, match="at byte 144: expected entry 1, found 0"):
        builder.feed(0, [b"b"])
    assert len(builder.feed(1, [memoryview(b"b")])) == 1
    assert builder.finish().index.data_object_length == 128 + 2 * 12 + 5


def test_block_sizes_that_no_part_can_have():
    for size in (140, 1 << 31):
        with pytest.raises(ValueError, match="block size"):
            DataObjectBuilder(ledger(5, 1), size)


def three_blocks():
    """Entries 0, 1 | 2 | 3 in blocks of 200 bytes with padding of 16, 38 and 0; the object and its index."""
    payloads = [b"0" * 10, b"1" * 22, b"2" * 22, b"3" * 40]
    builder = DataObjectBuilder(ledger(94, 3), 200)
    blocks = builder.feed(0, payloads)
    return b"".join(block.data for block in blocks), builder.finish().index


def changed(data, at, replacement):
    return data[:at] + replacement + data[at + len(replacement) :]


def long(value):
    return value.to_bytes(8, "big", signed=True)


def test_three_blocks():
    data, index = three_blocks()
    assert index.blocks == (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(2, 2, 200), OffloadIndexEntry(3, 3, 400))
    assert len(data) == index.data_object_length == 580
    blocks = list(offload_data.read_blocks(data))
    assert [(b.offset, b.length, b.first_entry_id, b.last_entry_id, b.padding) for b in blocks] == [
        (0, 200, 0, 1, 16),
        (200, 200, 2, 2, 38),
        (400, 180, 3, 3, 0),
    ]
    assert data[184:200] == bytes.fromhex("FEDCDEAD") * 4
    assert data[362:400] == bytes.fromhex("FEDCDEAD") * 9 + bytes.fromhex("FEDC")
    assert [index.block_of(entry_id).part_id for entry_id in range(4)] == [1, 1, 2, 3]
    for entry_id in (-1, 4):
        with pytest.raises(ValueError, match=r"not among 0\.\.3"):
            index.block_of(entry_id)


def test_descriptions_of_both_objects_agree_on_the_blocks():
    data, index = three_blocks()
    shown = describe("offload-data", data)
    assert {name: value for name, value in shown.items() if name != "blocks"} == {
        "dataObjectLength": 580,
        "lastEntryId": 3,
        "payloadLength": 94,
    }
    assert [(b["payloadLength"], b["padding"]) for b in shown["blocks"]] == [(32, 16), (22, 38), (40, 0)]
    described = describe("offload-index", offload_index.encode(index))["blocks"]
    assert [{name: b[name] for name in described[0]} for b in shown["blocks"]] == described


@pytest.mark.parametrize(
    ("at", "replacement", "offset", "wrong"),
    [
        (0, b"\xfb\xdb\xab\xca", 0, "magic 0xfbdbabcb, found 0xfbdbabca"),
        (204, long(64), 204, "headerLen 128, found 64"),
        (212, long(381), 212, "blockLen of 140..380, found 381"),
        (212, long(139), 212, "blockLen"),
        (212, long(-1), 212, "blockLen"),
        (220, long(3), 328, "entry 3, found 2"),
        (220, long(-1), 220, "an entry id, found -1"),
        (127, b"\x01", 28, "zeros"),
        (128, b"\xff\xff\xff\xff", 128, "entry 0"),
        (128, b"\x00\x00\x00\x3d", 128, "at most 60 bytes of entry 0, found 61"),
        (132, long(1), 132 - 4, "entry 0, found 1"),
        (150, b"\xff\xff\xff\xff", 150, "padding fedcdead up to 200"),
        (186, b"\x00", 186, "padding"),
        (399, b"\xde", 399, "padding"),
        (420, long(7), 528, "entry 7, found 3"),
    ],
)
def test_data_objects_that_are_none(at, replacement, offset, wrong):
    data, _ = three_blocks()
    with pytest.raises(CorruptFormat, match=wrong) as raised:
        list(offload_data.read_blocks(changed(data, at, replacement)))
    assert raised.value.offset == offset


def test_data_objects_of_another_length():
    data, _ = three_blocks()
    for cut in (0, 1, 127, 128, 199, 201, 399, 579):
        with pytest.raises(CorruptFormat):
            list(offload_data.read_blocks(data[:cut]))
    with pytest.raises(CorruptFormat, match=r"at byte 581: expected a block header"):
        list(offload_data.read_blocks(data + b"\xfe"))
    with pytest.raises(CorruptFormat, match=r"at byte 220: expected firstEntryId 2, found 3"):
        list(offload_data.read_blocks(data[:200] + data[400:]))


def test_blocks_that_are_not_those_of_the_index():
    data, index = three_blocks()
    reader = DataObjectReader(index, 580)
    with pytest.raises(CorruptFormat, match="at byte 12: expected blockLen 200, found 180"):
        reader.feed(data[400:])
    with pytest.raises(CorruptFormat, match="at byte 200: expected the block's end, found 180 bytes more"):
        reader.feed(data[:380])
    with pytest.raises(CorruptFormat, match="at byte 20: expected firstEntryId 0, found 2"):
        reader.feed(data[200:400])
    with pytest.raises(CorruptFormat, match="at byte 0: expected 200 bytes more"):
        reader.finish()
    for length in (579, 581):
        with pytest.raises(CorruptFormat, match=f"580 bytes in all, found {length}"):
            DataObjectReader(index, length)
    moved = replace(index, blocks=(index.blocks[0], OffloadIndexEntry(1, 2, 200), index.blocks[2]))
    with pytest.raises(CorruptFormat, match="at byte 200: expected a block up to entry 0, found 1"):
        DataObjectReader(moved, 580).feed(data[:200])
    longer = DataObjectReader(replace(index, ledger=ledger(95, 3)), 580)
    for start, stop in ((0, 200), (200, 400), (400, 580)):
        assert longer.next_range == range(start, stop)
        longer.feed(data[start:stop])
    with pytest.raises(CorruptFormat, match="95 bytes in all entries, found 94"):
        longer.finish()


def test_any_payload_that_changed_changes_its_checksum():
    data, index = three_blocks()
    reader = DataObjectReader(index, 580)
    for block in index.blocks:
        end = index.end_of(block)
        reader.feed(changed(data, 365 - 20, b"x")[block.offset : end])
    before = crc32c.checksums(p for block in offload_data.read_blocks(data) for p in block.payloads)
    assert [a == b for a, b in zip(before, reader.finish(), strict=True)] == [True, True, False, True]


def test_an_index_of_the_streaming_offload_is_refused_by_name():
    with pytest.raises(UnsupportedFormat, match="streaming offload"):
        offload_index.decode(bytes.fromhex("3D1FB0BC") + bytes(40))
    for data in (b"", b"\xde\x47\xde", bytes.fromhex("DE47DE47"), bytes(40)):
        with pytest.raises(CorruptFormat):
            offload_index.decode(data)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"blocks": ()}, "indexEntryCount of at least 1"),
        ({"blocks": (OffloadIndexEntry(1, 1, 0),)}, "entry 0 at offset 0, found 1 at 0"),
        ({"blocks": (OffloadIndexEntry(0, 1, 128),)}, "entry 0 at offset 0, found 0 at 128"),
        ({"blocks": (OffloadIndexEntry(0, 2, 0),)}, "part id 1, found 2"),
        ({"blocks": (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(2, 3, 200))}, "part id 2, found 3"),
        ({"blocks": (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(0, 2, 200))}, "first entry among 1..3, found 0"),
        ({"blocks": (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(4, 2, 200))}, "first entry among 1..3, found 4"),
        ({"blocks": (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(2, 2, 151))}, "a block at 152 or later, found 151"),
        (
            {"blocks": (OffloadIndexEntry(0, 1, 0), OffloadIndexEntry(2, 2, 580))},
            "dataObjectLength of at least 732, found 580",
        ),
        ({"data_object_length": 525}, "dataObjectLength of at least 540, found 525"),
        ({"ledger": ledger(400, 3)}, "dataObjectLength of at least 832, found 580"),
        ({"data_object_length": -1}, "dataObjectLength"),
        ({"ledger": ledger(94, 3, state=LedgerState.OPEN)}, "closed ledger"),
        ({"ledger": ledger(94, -1)}, "closed ledger"),
    ],
)
def test_indexes_that_contradict_themselves_are_not_written(change, wrong):
    index = three_blocks()[1]
    with pytest.raises(CorruptFormat, match=wrong):
        offload_index.encode(replace(index, **change))


@pytest.mark.parametrize(
    ("at", "replacement", "wrong"),
    [
        (4, b"\x7f\x00\x00\x00", "at byte 4: expected indexBlockLength"),
        (16, long(64), "at byte 16: expected dataHeaderLength 128, found 64"),
        (24, b"\x00\x00\x00\x04", "at byte 24: expected counts"),
        (28, b"\xff\xff\xff\xff", "at byte 28: expected a segmentMetadataLength"),
        (32, b"\x10", "at byte"),
    ],
)
def test_index_headers_that_are_wrong(at, replacement, wrong):
    data = offload_index.encode(three_blocks()[1])
    with pytest.raises(CorruptFormat, match=wrong):
        offload_index.decode(changed(data, at, replacement))


def test_an_index_is_all_there_and_has_nothing_after_it():
    data = offload_index.encode(three_blocks()[1])
    for other in (data[:-1], data + b"\0", data + data[-20:]):
        with pytest.raises(CorruptFormat, match="at byte 24"):
            offload_index.decode(other)


def test_an_index_carries_neither_password_nor_token():
    metadata = ledger(94, 3, password=b"secret", ctoken=7, digest_type=DigestType.HMAC)
    written = offload_index.encode(offload_index.of_ledger(metadata, three_blocks()[1].blocks, 580))
    assert b"secret" not in written
    found = offload_index.decode(written).ledger
    assert (found.password, found.ctoken, found.digest_type) == (b"", None, DigestType.HMAC)
    assert (found.custom_metadata, found.segments) == (metadata.custom_metadata, metadata.segments)
