"""The bytes of multiRead, and how large batches become."""

from __future__ import annotations

import struct
from collections import deque

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.io.zookeeper.multiread import (
    MAX_PATHS,
    MAX_REQUEST_BYTES,
    NO_NODE,
    BatchSize,
    MultiReadRequest,
    Reply,
)
from pulsar_lifecycle.ports import Stat

STAT = Stat(11, 12, 13, 14, 3, 1, 0, 5, 2, 15)
# czxid mzxid ctime mtime | version cversion aversion | ephemeralOwner | dataLength numChildren | pzxid
STAT_BYTES = struct.pack("!qqqqiiiqiiq", 11, 12, 13, 14, 3, 1, 99, 0, 5, 2, 15)
END = bytes.fromhex("ffffffff01ffffffff")


def data(value: bytes | None) -> bytes:
    length = -1 if value is None else len(value)
    return struct.pack("!iBii", 4, 0, 0, length) + (value or b"") + STAT_BYTES


def names(*values: str) -> bytes:
    strings = b"".join(struct.pack("!i", len(v.encode())) + v.encode() for v in values)
    return struct.pack("!iBii", 8, 0, 0, len(values)) + strings


def failure(code: int) -> bytes:
    return struct.pack("!iBii", -1, 0, code, code)


def reply(*results: bytes) -> Reply:
    header = b"sixteen bytes ok"  # xid, zxid, error: kazoo's business
    return MultiReadRequest.deserialize(header + b"".join(results) + END, len(header))


def test_the_request_is_a_get_data_of_every_path() -> None:
    request = MultiReadRequest(["/a", "/ä"], children=False)

    assert request.type == 22
    assert request.serialize() == bytes.fromhex(
        "00000004 00 ffffffff 00000002 2f61 0000000004 00 ffffffff 00000003 2fc3a4 00ffffffff 01 ffffffff"
    )


def test_with_children_every_get_data_is_followed_by_its_get_children() -> None:
    assert MultiReadRequest(["/a"], children=True).serialize() == bytes.fromhex(
        "00000004 00 ffffffff 00000002 2f61 0000000008 00 ffffffff 00000002 2f61 00ffffffff 01 ffffffff"
    )


def test_nodes_have_data_and_the_whole_stat_or_a_code() -> None:
    assert reply(data(b"value"), failure(NO_NODE), data(None), data(b"")).nodes(["/a", "/b", "/c", "/d"]) == [
        (b"value", STAT),
        NO_NODE,
        (b"", STAT),
        (b"", STAT),
    ]


def test_rows_are_bare_tuples_and_failures_have_positions() -> None:
    rows, failed = reply(failure(-102), data(b"v")).rows(["/a", "/b"], children=False)

    assert rows == [("/b", b"v", 11, 12, 13, 14, 3, 2, ())]
    assert failed == [(0, -102)]


def test_rows_with_children_need_both_answers() -> None:
    rows, failed = reply(
        data(b""), names("x", "ä"), data(b"v"), failure(NO_NODE), failure(NO_NODE), failure(NO_NODE), data(b""), names()
    ).rows(["/a", "/b", "/c", "/d"], children=True)

    assert [(row[0], row[8]) for row in rows] == [("/a", ("x", "ä")), ("/d", ())]
    assert failed == [(1, NO_NODE), (2, NO_NODE)]


@pytest.mark.parametrize("children", [False, True])
def test_a_reply_that_is_cut_or_too_long_is_corrupt(children: bool) -> None:
    results = data(b"value") + (names("x") if children else b"")
    whole = results + END

    assert len(Reply(whole, 0).rows(["/a"], children)[0]) == 1
    for end in range(len(whole)):
        with pytest.raises(CorruptFormat):
            Reply(whole[:end], 0).rows(["/a"], children)
    with pytest.raises(CorruptFormat):
        Reply(results + whole, 0).rows(["/a"], children)
    with pytest.raises(CorruptFormat):
        Reply(whole, 0).rows(["/a", "/b"], children)


def test_an_unknown_result_is_corrupt() -> None:
    for decode in (lambda: reply(names("x")).nodes(["/a"]), lambda: reply(names("x")).rows(["/a"], children=False)):
        with pytest.raises(CorruptFormat, match="found type 8"):
            decode()


# ------------------------------------------------------------------------------------------------------------ batches


def sizes(batch: BatchSize, count: int, path: str = "/p", *, per_path: int = 300, children: bool = False) -> list[int]:
    """How large the batches of ``count`` paths become when every path's answer has ``per_path`` bytes."""
    source, again = iter([path] * count), deque[str]()
    found: list[int] = []
    while taken := batch.take(source, again, children):
        found.append(len(taken))
        batch.answered(len(taken), len(taken) * per_path)
    return found


def test_batches_grow_from_small_to_the_limit() -> None:
    found = sizes(BatchSize(), 10_000)

    assert found[:5] == [64, 128, 256, 512, 1000]
    assert max(found) == MAX_PATHS
    assert sum(found) == 10_000


def test_replies_stay_under_a_megabyte_once_large_nodes_were_seen() -> None:
    found = sizes(BatchSize(), 1000, per_path=100_000)

    assert set(found[1:-1]) == {5}


def test_one_node_is_asked_for_however_large_the_last_one_was() -> None:
    assert set(sizes(BatchSize(), 100, per_path=3_000_000)[1:]) == {1}


@pytest.mark.parametrize("children", [False, True])
def test_requests_stay_below_their_limit_and_lose_no_path(children: bool) -> None:
    batch, path = BatchSize(), "/" + "ä" * 2000
    source, again = iter([f"{path}{i}" for i in range(2000)]), deque[str]()
    taken: list[str] = []
    while found := batch.take(source, again, children):
        assert len(MultiReadRequest(found, children).serialize()) <= MAX_REQUEST_BYTES + 9
        taken += found
        batch.answered(len(found), 100 * len(found))

    assert taken == [f"{path}{i}" for i in range(2000)]


def test_a_failed_batch_is_halved_down_to_one_and_grows_again() -> None:
    batch = BatchSize()
    source, again = iter([f"/{i}" for i in range(5000)]), deque[str]()
    found = []
    for _ in range(8):
        taken = batch.take(source, again, False)
        found.append(len(taken))
        again.extendleft(reversed(taken))
        batch.failed(len(taken))

    assert found == [64, 32, 16, 8, 4, 2, 1, 1]
    assert batch.take(source, again, False) == ["/0"]
    batch.answered(1, 300)
    assert batch.take(source, again, False) == ["/1", "/2"]
