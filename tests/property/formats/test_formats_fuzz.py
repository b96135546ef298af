"""Whatever the bytes, a decoder gives a value or CorruptFormat, and nothing else."""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import (
    bookie_info,
    cursor,
    delayed_bucket,
    ledger_metadata,
    ledger_path,
    managed_ledger,
    message,
    schema,
)
from pulsar_lifecycle.formats import entry as bookkeeper_entry
from pulsar_lifecycle.formats.plain_data import FORMATS, describe
from tests.golden.files import GOLDEN, entries, matching
from tests.kit.torn import mutated

VERSION_1 = b"BookieMetadataFormatVersion\t1\n2\n3\n1024\n0\ta:1\tb:2\tc:3\n41\tCLOSED"
VERSION_2 = (
    b"BookieMetadataFormatVersion\t2\nquorumSize: 1\nensembleSize: 1\nlength: 9\nlastEntryId: 3\nstate: CLOSED\n"
    b'segment { ensembleMember: "a:1" firstEntryId: 0 }\ndigestType: HMAC\npassword: "x"\n'
)
BUCKET = entries(GOLDEN / "delayed/unmerged/L237.entries.bin")
MESSAGES = [
    entries(GOLDEN / "offload/g-tiny/L14.entries.bin")[0],
    (GOLDEN / "offload/g-batch-zstd/L30.first_entry.bin").read_bytes(),
]


def bookkeeper_digests(data):
    for digest_type in ledger_metadata.DigestType:
        with contextlib.suppress(CorruptFormat):
            bookkeeper_entry.decode(data, digest_type)


def read(pattern):
    return [path.read_bytes() for path in matching(pattern)]


SEEDS = {
    "managed-ledger": (managed_ledger.decode, read("**/zk_ml*.bin")),
    "cursor": (lambda data: cursor.bucket_ledgers(cursor.decode(data).cursor_properties), read("**/zk_cursor*.bin")),
    "cursor-entry": (cursor.decode_position, read("**/cursor_ledger_last_entry.bin")),
    "ledger-metadata": (ledger_metadata.decode, [*read("**/zk_bkledger*.bin"), VERSION_1, VERSION_2]),
    "schema-locator": (schema.decode_locator, read("**/zk_schema.bin")),
    "schema-entry": (
        lambda data: schema.decode_info(schema.decode_entry(data).schema_data),
        read("**/schema_*_E0.bin"),
    ),
    "bucket-metadata": (delayed_bucket.decode_metadata, BUCKET[:1]),
    "bucket-segment": (delayed_bucket.decode_segment, BUCKET[1:2]),
    "message": (message.decode, MESSAGES),
    "bookie-info": (
        lambda data: bookie_info.decode(data, "bk0"),
        [bytes.fromhex("320c0a0161 10011a0162 220163".replace(" ", ""))],
    ),
    "layout": (ledger_path.parse_layout, read("**/zk_ledgers_LAYOUT.txt")),
    "entry": (bookkeeper_digests, [bytes(60)]),
}


def outcome_of(name, data):
    decode, _ = SEEDS[name]
    with contextlib.suppress(CorruptFormat):
        decode(data)
    if name in FORMATS:
        with contextlib.suppress(CorruptFormat):
            json.dumps(describe(name, data))


@pytest.mark.parametrize("name", SEEDS)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=300)
def test_mutated_bytes(name, seed):
    rng = random.Random(seed)
    outcome_of(name, mutated(rng.choice(SEEDS[name][1]), rng))


@pytest.mark.parametrize("name", SEEDS)
@given(data=st.binary(max_size=200))
@settings(max_examples=100)
def test_random_bytes(name, data):
    outcome_of(name, data)
    outcome_of(name, b"BookieMetadataFormatVersion\t" + data)
    outcome_of(name, b"\x47\x78\x00\x00\x00\x04\x08" + data)


@given(st.lists(st.integers(0, 1 << 32), max_size=8))
@settings(max_examples=200)
def test_columns_read_what_decode_reads(seeds):
    blobs = []
    for seed in seeds:
        rng = random.Random(seed)
        blobs.append(mutated(rng.choice(SEEDS["ledger-metadata"][1]), rng))
    columns, errors = ledger_metadata.decode_columns(blobs, ledger_metadata.COLUMNS)
    assert all(len(column) == len(errors) == len(blobs) for column in columns.values())
    for row, blob in enumerate(blobs):
        try:
            value = ledger_metadata.decode(blob)
        except CorruptFormat:
            continue
        if errors[row] is None:
            assert columns["state"][row] == value.state.name
            ensembles = columns["ensembles"][row]
            assert ensembles is None or ledger_metadata.parse_ensembles(ensembles) == value.segments
        else:
            assert "tag" in errors[row]
            assert columns["state"][row] is None
