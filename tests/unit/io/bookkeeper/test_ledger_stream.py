"""Streams of whole ledgers from bookies in memory: every striping and digest, every way a bookie can fail."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import entry
from pulsar_lifecycle.formats.ledger_metadata import DigestType, Segment
from pulsar_lifecycle.io.bookkeeper import stream as ledger_stream
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.scenes.streamed_ledger import LEDGER, STRIPINGS, FiveBookies, five_bookies, some

cluster = pytest.fixture(five_bookies, name="cluster")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_every_entry_comes_once_in_order_and_from_every_bookie(cluster: FiveBookies, ensemble: int, write: int) -> None:
    payloads = some(2_000)
    metadata = cluster.write(payloads, ensemble, write)

    assert cluster.stream(metadata) == payloads
    assert all(cluster.asked(bookie) for bookie in cluster.ids[:ensemble])
    for first, last in ((3, 3), (17, 1_500), (1_999, 1_999), (5, 4)):
        assert cluster.stream(metadata, first, last) == payloads[first : last + 1]


@pytest.mark.parametrize("digest", [*DigestType, None])
@pytest.mark.parametrize("ensemble", [2, 3])
def test_every_digest_is_verified(cluster: FiveBookies, digest: DigestType | None, ensemble: int) -> None:
    payloads = some(300)
    metadata = cluster.write(payloads, ensemble, 2, digest=digest, password=b"secret")
    wrong = payloads.index(next(p for p in payloads if p))

    assert cluster.stream(metadata) == payloads

    cluster.spoil(metadata, wrong, 2)
    if digest is DigestType.DUMMY:
        assert cluster.stream(metadata) != payloads
    else:
        with pytest.raises(CorruptFormat, match="digest"):
            cluster.stream(metadata)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_segments_each_have_their_bookies(cluster: FiveBookies, ensemble: int, write: int) -> None:
    payloads = some(1_000)
    rotated = [tuple(cluster.ids[(i + k) % 5] for i in range(ensemble)) for k in range(4)]
    segments = tuple(Segment(first, rotated[k]) for k, first in enumerate((0, 1, 500, 1_000)))
    metadata = cluster.write(payloads, ensemble, write, segments=segments)

    assert cluster.stream(metadata) == payloads


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (2, 2)])
def test_bookies_without_batch_reads_are_read_singly_and_asked_for_a_batch_once(
    cluster: FiveBookies, ensemble: int, write: int
) -> None:
    payloads = some(500)
    metadata = cluster.write(payloads, ensemble, write)
    for bookie in cluster.bookies.values():
        bookie.batch_reads = False

    assert cluster.stream(metadata) == payloads
    for bookie in cluster.bookies.values():
        bookie.batch_reads = True
    assert cluster.stream(metadata) == payloads

    assert not any(kind == "batch" for bookie in cluster.bookies.values() for kind, _, _ in bookie.requests)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_entries_larger_than_a_batch_and_than_all_that_is_read_ahead(
    cluster: FiveBookies, ensemble: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_stream, "BATCH_BYTES", 8_000)
    monkeypatch.setattr(ledger_stream, "READ_AHEAD", 16_000)
    payloads = [b"x" * (100_000 if i % 3 else 10) for i in range(60)]
    metadata = cluster.write(payloads, ensemble, 1)

    assert cluster.stream(metadata) == payloads


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_no_more_is_asked_for_than_may_be_read_ahead(cluster: FiveBookies, ensemble: int, write: int) -> None:
    payloads = [b"x" * 936] * 2_000
    metadata = cluster.write(payloads, ensemble, write)
    ahead = ledger_stream.READ_AHEAD + ledger_stream.BATCH_BYTES
    handed = 0
    for batch in cluster.reader.stream(LEDGER, metadata, 0, 1_999):
        given = sum(bookie.given for bookie in cluster.bookies.values())
        assert given <= handed * 1_000 + ahead
        assert sum(map(len, batch.payloads)) <= 2 * ledger_stream.BATCH_BYTES
        handed += len(batch.payloads)

    assert handed == 2_000


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (2, 2)])
def test_streams_take_turns_and_an_abandoned_one_is_forgotten(cluster: FiveBookies, ensemble: int, write: int) -> None:
    payloads = [b"%d" % i * 50 for i in range(1_000)]
    metadata = cluster.write(payloads, ensemble, write)
    streams = [cluster.reader.stream(LEDGER, metadata, 0, 999) for _ in range(3)]
    found: list[list[bytes]] = [[], [], []]

    next(streams[2])
    del streams[2]
    for _ in range(1_000):
        for stream, payload in zip(streams, found, strict=False):
            payload += next(stream).payloads if len(payload) < 1_000 else []
        assert cluster.reader.read(LEDGER, metadata, 5, 5)[0].payload == payloads[5]
        if len(found[1]) == 1_000:
            break

    assert found[0] == found[1] == payloads


def test_a_consumer_that_takes_its_time_is_not_a_bookie_that_does_not_answer(cluster: FiveBookies) -> None:
    cluster.reader = cluster.connect(read_timeout=4)
    payloads = [b"x" * 10_000] * 2_000
    metadata = cluster.write(payloads, 2, 2)
    count = 0
    for batch in cluster.reader.stream(LEDGER, metadata, 0, 1_999):
        if not count:
            time.sleep(6)
        count += len(batch.payloads)

    assert count == 2_000


def test_the_pace_is_told_every_byte_before_it_is_handed_on(cluster: FiveBookies) -> None:
    payloads = some(500)
    metadata = cluster.write(payloads, 2, 2)
    told: list[int] = []
    with BookieReader(cluster.store, BookKeeperSettings(), pace=told.append) as reader:
        for batch in reader.stream(LEDGER, metadata, 0, 499):
            assert told.pop() == sum(map(len, batch.payloads))
            assert not told


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    st.sampled_from(DigestType),
    st.data(),
)
def test_a_run_is_verified_as_its_entries_are_one_by_one(
    payloads: list[bytes], kind: DigestType, data: st.DataObject
) -> None:
    length, whole, bounds = 100, b"xyz", list[tuple[int, int]]()
    for e, payload in enumerate(payloads, 7):
        length += len(payload)
        stored = entry.encode(entry.StoredEntry(3, e, e - 1, length, payload), kind, b"pw")
        bounds.append((len(whole), len(whole) + len(stored)))
        whole += stored
    flipped = data.draw(st.one_of(st.none(), st.integers(3, len(whole) - 1)))
    if flipped is not None:
        whole = whole[:flipped] + bytes([whole[flipped] ^ 1]) + whole[flipped + 1 :]

    run = entry.verify(whole, bounds, kind, b"pw", ledger_id=3, first=7)

    expected: list[entry.StoredEntry] = []
    try:
        for e, (begin, end) in enumerate(bounds, 7):
            found = entry.decode(whole[begin:end], kind, b"pw", ledger_id=3, entry_id=e)
            if expected and found.length - len(found.payload) != expected[-1].length:
                break
            if found.length < len(found.payload):
                break
            expected.append(found)
    except CorruptFormat:
        pass
    assert run.payloads == [one.payload for one in expected]
    assert (run.problem is None) == (len(expected) == len(payloads))
    if expected:
        assert (run.before, run.after) == (
            expected[0].length - len(expected[0].payload),
            expected[-1].length,
        )
