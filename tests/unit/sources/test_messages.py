"""Entries as rows of messages: golden entries of a real broker, and what no broker wrote."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.chunks import Assembler, Chunk, Loose, LoosePart, WholeMessage
from pulsar_lifecycle.formats.compression import Compression, compress
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.sources import messages
from pulsar_lifecycle.sources.entry_tables import ENTRIES
from pulsar_lifecycle.sources.messages import MESSAGES, Messages
from tests.golden.files import GOLDEN, entries
from tests.kit.builders import entry


def batch(*payloads: bytes, first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"ledger_id": 14, "entry_id": e, "payload": p} for e, p in enumerate(payloads, first)], ENTRIES
    )


def rows(kernel: Messages, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    found = list(kernel(batches))
    assert all(one.schema == kernel.schema for one in found)
    return [row for one in found for row in one.to_pylist()]


def single(payload: bytes, **fields: Any) -> bytes:
    metadata = pb.SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return struct.pack(">i", len(metadata)) + metadata + payload


def test_messages_of_golden_entries() -> None:
    payloads = entries(GOLDEN / "offload/g-tiny/L14.entries.bin")

    found = rows(Messages(), batch(*payloads[:3]), batch(*payloads[3:], first=3))

    assert [(row["ledger_id"], row["entry_id"]) for row in found] == [(14, e) for e in range(len(payloads))]
    assert found[0]["payload"] == b"hello-00"
    assert not any(row["encrypted"] or row["null_value"] or row["problem"] or row["batch_size"] for row in found)
    assert all(row["publish_time"] > 1_600_000_000_000 and row["compression"] == "NONE" for row in found)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_is_a_row_per_message_whatever_its_compression(codec: Compression) -> None:
    pair = pb.KeyValue(key="k", value="v")
    plain = single(b"one", partition_key="a", properties=[pair], event_time=5) + single(b"", null_value=True)
    data = entry(
        compress(codec, plain),
        compression=codec.value,
        uncompressed_size=len(plain),
        num_messages_in_batch=2,
    )

    one, two = rows(Messages(), batch(data))

    assert (one["batch_index"], one["batch_size"], one["compression"]) == (0, 2, codec.name)
    assert (one["key"], one["properties"], one["event_time"], one["payload"]) == ("a", [("k", "v")], 5, b"one")
    assert (two["batch_index"], two["payload"], two["null_value"], two["key"]) == (1, None, True, None)
    assert two["producer"] == "p"
    assert two["sequence_id"] == 3


def test_encrypted_entries_and_chunks_are_rows_of_stored_bytes() -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    encrypted, chunk = rows(
        Messages(),
        batch(
            entry(b"secret", encryption_keys=[key], num_messages_in_batch=7, compression=1, uncompressed_size=99),
            entry(b"part", num_chunks_from_msg=3, chunk_id=1, uuid="u"),
        ),
    )

    assert (encrypted["encrypted"], encrypted["payload"], encrypted["batch_size"]) == (True, b"secret", 7)
    assert encrypted["batch_index"] is None
    assert (chunk["chunk_id"], chunk["chunks"], chunk["chunked_uuid"], chunk["payload"]) == (1, 3, "u", b"part")


def test_unsigned_numbers_beyond_a_long_are_what_java_makes_of_them() -> None:
    (row,) = rows(Messages(), batch(entry(sequence_id=2**64 - 1, event_time=2**63)))

    assert (row["sequence_id"], row["event_time"]) == (-1, -(2**63))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff" * 40,
        entry(b"not zlib", compression=2, uncompressed_size=9),
        entry(b"", num_messages_in_batch=0),
        b"\x0e\x01\x00\x00\x00\x00" + entry(),
    ],
    ids=["empty", "noise", "compression", "no message", "checksum"],
)
def test_an_entry_that_is_no_message_is_named_or_a_row_with_its_problem(bad: bytes) -> None:
    with pytest.raises(CorruptFormat, match="entry 14:1: "):
        rows(Messages(), batch(entry(), bad))

    good, problem, more = rows(Messages(permissive=True), batch(entry(), bad, entry()))

    assert good["problem"] is more["problem"] is None
    assert (problem["entry_id"], problem["payload"]) == (1, bad)
    assert problem["problem"]
    assert problem["producer"] is None


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH_ROWS", 10)
    monkeypatch.setattr(messages, "BATCH_BYTES", 1_000)
    data = [batch(*[entry(b"x" * (400 if e < 9 else 1)) for e in range(30)])]

    found = list(Messages(schema=pa.schema([MESSAGES.field("entry_id"), MESSAGES.field("payload")]))(data))

    assert [row["entry_id"] for one in found for row in one.to_pylist()] == list(range(30))
    assert [one.num_rows for one in found] == [3, 3, 3, 10, 10, 1]


# -------------------------------------------------------------------------------------------------- parts of messages

PAIR = pb.KeyValue(key="k", value="v")


def parts(
    plain: bytes, count: int, uuid: str = "u", codec: Compression = Compression.NONE, **fields: Any
) -> list[bytes]:
    """The entries of a message that was compressed, and cut into parts then."""
    stored = compress(codec, plain)
    size = -(-len(stored) // count)
    given = {"uuid": uuid, "num_chunks_from_msg": count, "total_chunk_msg_size": len(stored), "partition_key": "key"}
    given |= {"properties": [PAIR], "event_time": 7, "uncompressed_size": len(plain), "compression": codec.value}
    return [entry(stored[n * size : (n + 1) * size], **given | {"chunk_id": n} | fields) for n in range(count)]


WHOLE = Messages(assembled=True)
INCOMPLETE = "the other parts of its message are not here"


def told(found: list[dict[str, Any]]) -> list[tuple[int, int | None, bytes | None, str | None]]:
    return [(row["entry_id"], row["chunk_id"], row["payload"], row["problem"]) for row in found]


@pytest.mark.parametrize("codec", list(Compression))
def test_parts_say_whose_they_are_and_how_long_the_whole_is(codec: Compression) -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    found = rows(
        Messages(), batch(*parts(b"x" * 900, 3, codec=codec), entry(b"?", encryption_keys=[key], event_time=9))
    )
    for row in found[:3]:
        assert (row["key"], row["properties"], row["event_time"]) == ("key", [("k", "v")], 7)
        assert (row["uncompressed_size"], row["compression"]) == (900, codec.name)
    assert (found[3]["event_time"], found[3]["uncompressed_size"]) == (9, None)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_message_of_parts_is_one_row_at_its_last_part(codec: Compression) -> None:
    one, two = bytes(range(256)) * 9, b"two" * 700
    a, b = parts(one, 3, "a", codec), parts(two, 2, "b", codec)
    found = rows(WHOLE, batch(a[0], entry(), b[0]), batch(a[1], b[1], a[2], entry(), first=3))
    assert told(found) == [
        (1, None, b"hello", None),
        (4, None, two, None),
        (5, None, one, None),
        (6, None, b"hello", None),
    ]
    assert (found[2]["chunks"], found[2]["chunked_uuid"], found[2]["key"]) == (3, "a", "key")
    assert (found[2]["properties"], found[2]["event_time"], found[2]["uncompressed_size"]) == (
        [("k", "v")],
        7,
        len(one),
    )


def test_parts_that_make_no_message_are_said() -> None:
    a, b, c, d = (parts(b"abcdef", 3, uuid) for uuid in "abcd")
    found = rows(WHOLE, batch(a[1], a[2], b[0], b[2], c[0], c[1], d[0], d[0], d[1], d[1], d[2]))
    assert told(found) == [
        (0, 1, b"cd", INCOMPLETE),  # its beginning was trimmed
        (1, 2, b"ef", INCOMPLETE),
        (2, 0, b"ab", INCOMPLETE),  # one in between is lost
        (3, 2, b"ef", INCOMPLETE),
        (6, 0, b"ab", INCOMPLETE),  # begun anew
        (9, 1, b"cd", "this part of its message was here already"),
        (10, None, b"abcdef", None),
        (4, 0, b"ab", INCOMPLETE),  # its end was never written
        (5, 1, b"cd", INCOMPLETE),
    ]


def test_encrypted_parts_stay_as_they_are_stored() -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    found = rows(WHOLE, batch(*parts(b"abcd", 2, encryption_keys=[key])))
    assert [(row["encrypted"], row["chunk_id"], row["payload"]) for row in found] == [
        (True, 0, b"ab"),
        (True, 1, b"cd"),
    ]
    assert all(row["problem"] == "it is encrypted, each part by itself" for row in found)


def test_what_waits_is_bounded() -> None:
    assembler = Assembler(max_pending=10)
    given = [
        Chunk(Position(1, n), message.decode(data))
        for n, data in enumerate(
            (*parts(b"abcdefgh", 2, "a")[:1], *parts(b"ABCDEFGH", 2, "b")[:1], *parts(b"123456", 2, "c"))
        )
    ]
    found = [one for part in given for one in assembler.add(part)]
    assert [(type(one), getattr(one, "why", None)) for one in found] == [
        (LoosePart, Loose.TOO_MUCH),
        (WholeMessage, None),
    ]
    assert [one.part.entry.uuid for one in assembler.finish()] == ["b"]


@pytest.mark.parametrize(
    "fields", [{"total_chunk_msg_size": 5}, {"compression": 2, "uncompressed_size": 6}, {"uncompressed_size": 1 << 31}]
)
def test_parts_that_do_not_fit_are_named(fields: dict[str, Any]) -> None:
    fields = {"compression": 1, **fields} if "total_chunk_msg_size" not in fields else fields
    bad = parts(b"abcdef", 3, **fields)
    with pytest.raises(CorruptFormat, match="entry 14:2: "):
        rows(WHOLE, batch(*bad, entry()))
    problem, good = rows(Messages(permissive=True, assembled=True), batch(*bad, entry()))
    assert (problem["entry_id"], problem["payload"], good["problem"]) == (2, bad[2], None)
