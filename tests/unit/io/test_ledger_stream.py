"""Streams of whole ledgers from bookies in memory: every striping and digest, every way a bookie can fail."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import entry, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.io.bookkeeper import stream as ledger_stream
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeZooKeeper

LEDGER = 7
TOO_MANY_REQUESTS = 106
STRIPINGS = [(3, 2), (5, 3), (3, 3), (2, 2), (1, 1)]


class Cluster:
    """Five bookies with legacy registrations, whose ids say where they listen, and what a ledger's entries are."""

    def __init__(self, bookies: list[BookieServer]) -> None:
        self.bookies = {bookie.id: bookie for bookie in bookies}
        self.ids = list(self.bookies)
        self.store = FakeZooKeeper().session()
        for bookie in self.ids:
            self.store.create(f"/ledgers/available/{bookie}", b"", parents=True)
        self.reader = self.connect()

    def connect(self, read_timeout: float = 30) -> BookieReader:
        return BookieReader(self.store, BookKeeperSettings(read_timeout=read_timeout))

    def write(
        self,
        payloads: list[bytes],
        ensemble: int = 3,
        write: int = 2,
        *,
        segments: tuple[Segment, ...] = (),
        digest: DigestType | None = DigestType.CRC32C,
        password: bytes = b"",
        ledger_id: int = LEDGER,
    ) -> LedgerMetadata:
        segments = segments or (Segment(0, tuple(self.ids[:ensemble])),)
        length = sum(map(len, payloads))
        metadata = LedgerMetadata(
            LedgerState.CLOSED,
            ensemble,
            write,
            1,
            segments,
            length,
            len(payloads) - 1,
            digest,
            password,
        )
        length = 0
        for e, payload in enumerate(payloads):
            length += len(payload)
            for bookie in striping.replicas(metadata, e):
                self.bookies[bookie].add(
                    ledger_id, e, payload, length=length, digest=digest or DigestType.CRC32, password=password
                )
        return metadata

    def stream(self, metadata: LedgerMetadata, first: int = 0, last: int | None = None) -> list[bytes]:
        found: list[bytes] = []
        for batch in self.reader.stream(LEDGER, metadata, first, metadata.last_entry_id if last is None else last):
            assert batch.first == first + len(found)
            assert batch.payloads
            found += batch.payloads
        return found

    def spoil(self, metadata: LedgerMetadata, entry_id: int, copies: int) -> None:
        for bookie in striping.replicas(metadata, entry_id)[:copies]:
            self.bookies[bookie].spoil(LEDGER, entry_id)

    def asked(self, bookie: str | None = None) -> int:
        return sum(len(b.requests) for b in self.bookies.values() if bookie in (None, b.id))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster([stack.enter_context(BookieServer()) for _ in range(5)])
        stack.callback(lambda: cluster.reader.close())
        yield cluster


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_stream, "BATCH_BYTES", 8_000)
    monkeypatch.setattr(ledger_stream, "READ_AHEAD", 64_000)


def some(count: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice((0, 1, 50, 300, 2_000))) for _ in range(count)]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_every_entry_comes_once_in_order_and_from_every_bookie(cluster: Cluster, ensemble: int, write: int) -> None:
    payloads = some(2_000)
    metadata = cluster.write(payloads, ensemble, write)

    assert cluster.stream(metadata) == payloads
    assert all(cluster.asked(bookie) for bookie in cluster.ids[:ensemble])
    for first, last in ((3, 3), (17, 1_500), (1_999, 1_999), (5, 4)):
        assert cluster.stream(metadata, first, last) == payloads[first : last + 1]


@pytest.mark.parametrize("digest", [*DigestType, None])
@pytest.mark.parametrize("ensemble", [2, 3])
def test_every_digest_is_verified(cluster: Cluster, digest: DigestType | None, ensemble: int) -> None:
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
def test_segments_each_have_their_bookies(cluster: Cluster, ensemble: int, write: int) -> None:
    payloads = some(1_000)
    rotated = [tuple(cluster.ids[(i + k) % 5] for i in range(ensemble)) for k in range(4)]
    segments = tuple(Segment(first, rotated[k]) for k, first in enumerate((0, 1, 500, 1_000)))
    metadata = cluster.write(payloads, ensemble, write, segments=segments)

    assert cluster.stream(metadata) == payloads


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("trouble", ["stopped", "refuses", "lost the ledger", "lost half", "old", "restarted", "cuts"])
@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (5, 3), (2, 2)])
def test_what_one_bookie_fails_to_give_comes_from_another(
    cluster: Cluster, trouble: str, ensemble: int, write: int
) -> None:
    payloads = some(1_000)
    metadata = cluster.write(payloads, ensemble, write)
    bookie = cluster.bookies[cluster.ids[1]]
    stream = cluster.reader.stream(LEDGER, metadata, 0, 999)
    found = list(next(stream).payloads)
    match trouble:
        case "stopped":
            bookie.stop()
        case "refuses":
            bookie.code = TOO_MANY_REQUESTS
        case "lost the ledger":
            bookie.entries.clear()
        case "lost half":
            for e in range(0, 1_000, 2):
                bookie.entries[LEDGER].pop(e, None)
        case "old":
            bookie.batch_reads = False
        case "restarted":
            bookie.restart()
        case "cuts":
            bookie.batch_limit = 3

    for batch in stream:
        found += batch.payloads

    assert found == payloads


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (2, 2)])
def test_a_mute_bookie_is_waited_for_once(cluster: Cluster, ensemble: int, write: int) -> None:
    cluster.reader = cluster.connect(read_timeout=2)
    payloads = some(1_000)
    metadata = cluster.write(payloads, ensemble, write)
    mute = cluster.bookies[cluster.ids[0]]
    mute.mute = True

    assert cluster.stream(metadata) == payloads

    asked = len(mute.requests)
    assert cluster.stream(metadata) == payloads
    assert len(mute.requests) == asked


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (2, 2)])
def test_bookies_without_batch_reads_are_read_singly_and_asked_for_a_batch_once(
    cluster: Cluster, ensemble: int, write: int
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


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS[:-1])
def test_a_flipped_bit_costs_one_entry_from_another_replica(cluster: Cluster, ensemble: int, write: int) -> None:
    payloads = [b"%07d" % i * 20 for i in range(1_000)]
    metadata = cluster.write(payloads, ensemble, write)
    whole = cluster.stream(metadata)
    before = cluster.asked()
    for entry_id in (0, 123, 124, 999):
        cluster.spoil(metadata, entry_id, write - 1)

    assert whole == cluster.stream(metadata) == payloads
    assert cluster.asked() - before <= before + 4 * (write - 1) + 4  # one more for the rest of its batch


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_a_bit_flipped_in_every_copy_is_told_after_the_entries_before_it(
    cluster: Cluster, ensemble: int, write: int
) -> None:
    payloads = some(1_000)
    payloads[321] = b"good"
    metadata = cluster.write(payloads, ensemble, write)
    cluster.spoil(metadata, 321, write)
    found: list[bytes] = []

    def read() -> None:
        for batch in cluster.reader.stream(LEDGER, metadata, 0, 999):
            found.extend(batch.payloads)

    with pytest.raises(CorruptFormat) as raised:
        read()

    assert found == payloads[:321]
    assert "7:321" in str(raised.value)
    assert all(bookie in str(raised.value) for bookie in striping.replicas(metadata, 321))


@pytest.mark.parametrize("ensemble", [2, 3])
def test_lengths_that_do_not_add_up_are_no_better_than_a_wrong_digest(cluster: Cluster, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    liar, honest = striping.replicas(metadata, 20)
    cluster.bookies[liar].add(LEDGER, 20, b"another", length=7 * 21 - 1)
    assert cluster.stream(metadata) == payloads

    cluster.bookies[honest].add(LEDGER, 20, b"shorter", length=7 * 21 - 1)
    with pytest.raises(CorruptFormat, match=r"7:20.*length"):
        cluster.stream(metadata)
    with pytest.raises(CorruptFormat, match=r"7:21.*length"):
        cluster.stream(metadata, 20)


@pytest.mark.parametrize("ensemble", [2, 3])
def test_the_last_entry_must_reach_the_length_of_the_ledger(cluster: Cluster, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = replace(cluster.write(payloads, ensemble, 2), length=351)

    with pytest.raises(CorruptFormat, match=r"7:49.*351"):
        cluster.stream(metadata)
    assert cluster.stream(metadata, 0, 48) == payloads[:-1]


@pytest.mark.parametrize("ensemble", [2, 3])
def test_another_entry_or_ledger_under_a_good_digest_is_not_taken(cluster: Cluster, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    cluster.write(payloads, ensemble, 2, ledger_id=8)
    for bookie in cluster.bookies.values():
        if 30 in bookie.entries.get(LEDGER, {}):
            bookie.entries[LEDGER][30] = bookie.entries[8][30]

    with pytest.raises(CorruptFormat, match="entry 7:30, found 8:30"):
        cluster.stream(metadata)


@pytest.mark.parametrize("ensemble", [2, 3])
def test_what_is_raised_when_no_replica_has_an_entry(cluster: Cluster, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    first, second = (cluster.bookies[bookie] for bookie in striping.replicas(metadata, 30))

    del first.entries[LEDGER][30], second.entries[LEDGER][30]
    with pytest.raises(StoreError, match="7:30") as missing:
        cluster.stream(metadata)
    assert type(missing.value) is StoreError

    first.code = TOO_MANY_REQUESTS
    with pytest.raises(Unavailable, match="TOO_MANY"):
        cluster.stream(metadata)

    for bookie in cluster.bookies.values():
        bookie.code = 0
        bookie.entries.clear()
    with pytest.raises(NotFound):
        cluster.stream(metadata)


@pytest.mark.parametrize("ensemble", [1, 3])
def test_entries_larger_than_a_batch_and_than_all_that_is_read_ahead(
    cluster: Cluster, ensemble: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_stream, "BATCH_BYTES", 8_000)
    monkeypatch.setattr(ledger_stream, "READ_AHEAD", 16_000)
    payloads = [b"x" * (100_000 if i % 3 else 10) for i in range(60)]
    metadata = cluster.write(payloads, ensemble, 1)

    assert cluster.stream(metadata) == payloads


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_no_more_is_asked_for_than_may_be_read_ahead(cluster: Cluster, ensemble: int, write: int) -> None:
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
def test_streams_take_turns_and_an_abandoned_one_is_forgotten(cluster: Cluster, ensemble: int, write: int) -> None:
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


def test_a_consumer_that_takes_its_time_is_not_a_silent_bookie(cluster: Cluster) -> None:
    cluster.reader = cluster.connect(read_timeout=1.5)
    payloads = [b"x" * 10_000] * 2_000
    metadata = cluster.write(payloads, 2, 2)
    count = 0
    for batch in cluster.reader.stream(LEDGER, metadata, 0, 1_999):
        if not count:
            time.sleep(3)
        count += len(batch.payloads)

    assert count == 2_000


def test_the_pace_is_told_every_byte_before_it_is_handed_on(cluster: Cluster) -> None:
    payloads = some(500)
    metadata = cluster.write(payloads, 2, 2)
    told: list[int] = []
    with BookieReader(cluster.store, BookKeeperSettings(), pace=told.append) as reader:
        for batch in reader.stream(LEDGER, metadata, 0, 499):
            assert told.pop() == sum(map(len, batch.payloads))
            assert not told


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_broken_the_entries_come_up_to_the_first_without_a_good_copy(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    ensemble, write = chance.choice([*STRIPINGS, (4, 4)])
    firsts = [0, *sorted(chance.sample(range(1, 400), chance.randrange(3)))]
    segments = tuple(Segment(first, tuple(chance.sample(cluster.ids, ensemble))) for first in firsts)
    payloads = some(400, seed)
    metadata = cluster.write(payloads, ensemble, write, segments=segments)
    for bookie in cluster.bookies.values():
        bookie.batch_reads = chance.random() < 0.7
        bookie.batch_limit = chance.choice((1, 5, 1_000))
        bookie.code = TOO_MANY_REQUESTS if chance.random() < 0.1 else 0
    share = chance.choice((0.0, 0.02, 0.3))
    good = 400
    for e in reversed(range(400)):
        copies = [cluster.bookies[bookie] for bookie in striping.replicas(metadata, e)]
        for bookie in copies:
            if chance.random() < share:
                chance.choice((BookieServer.spoil, lambda bookie, ledger, e: bookie.entries[ledger].pop(e)))(
                    bookie, LEDGER, e
                )
        stored = [(b, b.entries[LEDGER].get(e)) for b in copies]
        if not any(b.code == 0 and data and _is_good(data, metadata, e) for b, data in stored):
            good = e
    found: list[bytes] = []

    def read() -> None:
        for batch in cluster.reader.stream(LEDGER, metadata, 0, 399):
            found.extend(batch.payloads)

    if good == 400:
        read()
    else:
        with pytest.raises(LifecycleError, match=f"{LEDGER}:{good}"):
            read()

    assert found == payloads[:good]


def _is_good(data: bytes, metadata: LedgerMetadata, entry_id: int) -> bool:
    try:
        entry.decode(data, DigestType.CRC32C, metadata.password, ledger_id=LEDGER, entry_id=entry_id)
    except CorruptFormat:
        return False
    return True


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
        stored = entry.encode(entry.Entry(3, e, e - 1, length, payload), kind, b"pw")
        bounds.append((len(whole), len(whole) + len(stored)))
        whole += stored
    flipped = data.draw(st.one_of(st.none(), st.integers(3, len(whole) - 1)))
    if flipped is not None:
        whole = whole[:flipped] + bytes([whole[flipped] ^ 1]) + whole[flipped + 1 :]

    run = entry.verify(whole, bounds, kind, b"pw", ledger_id=3, first=7)

    expected: list[entry.Entry] = []
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
