"""The bytes of a guarded deletion of many: as kazoo would send them, and every reply that is no clear one refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.serialization import CheckVersion, Delete, Transaction

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.io.zookeeper.multidelete import MultiDeleteRequest, check, delete

HEADER = b"sixteen bytes ok"  # xid, zxid, error: kazoo's business
END = bytes.fromhex("ffffffff01ffffffff")
CHECKED = bytes.fromhex("0000000d 00 00000000")
DELETED = bytes.fromhex("00000002 00 00000000")
NO_NODE = -101
REVERTED = 0
AFTER_A_FAILURE = -2

paths = st.text(st.characters(codec="utf-8"), min_size=1).map(lambda name: f"/{name}")
versions = st.integers(-1, 2**31 - 1)


def request(count: int) -> MultiDeleteRequest:
    return MultiDeleteRequest(check("/lease", 7), [delete(f"/ledgers/{i}", i) for i in range(count)])


def failed(*codes: int) -> bytes:
    return b"".join(struct.pack("!iBii", -1, 0, code, code) for code in codes)


def answer(count: int, results: bytes) -> list[tuple[int, int]]:
    return request(count).deserialize(HEADER + results + END, len(HEADER))


@given(st.tuples(paths, versions), st.lists(st.tuples(paths, versions), max_size=5))
def test_the_request_is_what_kazoo_sends(guard: tuple[str, int], deletions: list[tuple[str, int]]) -> None:
    ours = MultiDeleteRequest(check(*guard), [delete(*deletion) for deletion in deletions])
    theirs = Transaction([CheckVersion(*guard), *(Delete(*deletion) for deletion in deletions)])

    assert ours.type == theirs.type
    assert ours.serialize() == theirs.serialize()


@pytest.mark.parametrize("count", [0, 1, 500])
def test_nothing_is_wrong_with_a_transaction_that_went_through(count: int) -> None:
    assert answer(count, CHECKED + DELETED * count) == []


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_what_aborted_a_transaction_has_its_position_and_code(bad: int) -> None:
    codes = [REVERTED] * bad + [NO_NODE] + [AFTER_A_FAILURE] * (3 - bad)

    assert answer(3, failed(*codes)) == [(bad, NO_NODE)]


@pytest.mark.parametrize(
    "results",
    [
        b"",
        CHECKED + DELETED,
        CHECKED + DELETED * 3,
        DELETED * 3,
        failed(REVERTED, REVERTED, REVERTED),
        failed(AFTER_A_FAILURE, AFTER_A_FAILURE, AFTER_A_FAILURE),
        failed(REVERTED, NO_NODE),
        failed(REVERTED, NO_NODE, AFTER_A_FAILURE, AFTER_A_FAILURE),
        CHECKED + DELETED + failed(NO_NODE),
        struct.pack("!iBii", 2, 0, NO_NODE, NO_NODE) * 3,
    ],
)
def test_a_reply_to_another_request_is_corrupt_and_no_success(results: bytes) -> None:
    with pytest.raises(CorruptFormat, match="multi reply"):
        answer(2, results)


@pytest.mark.parametrize("results", [CHECKED + DELETED * 2, failed(REVERTED, NO_NODE, AFTER_A_FAILURE)])
def test_a_reply_that_is_cut_is_corrupt(results: bytes) -> None:
    whole = results + END

    for end in range(len(whole)):
        with pytest.raises(CorruptFormat):
            request(2).deserialize(whole[:end], 0)
    with pytest.raises(CorruptFormat):
        request(2).deserialize(results + whole, 0)
