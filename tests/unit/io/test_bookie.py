"""BookieReader against bookies in memory, which can be silent, broken, old or wrong as no real one is on demand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    CorruptFormat,
    LifecycleError,
    NotFound,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.ports import Entry, ReplicaCheck
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeZooKeeper

LEDGER = 7
UNAUTHORIZED = 102
TOO_MANY_REQUESTS = 106


class Cluster:
    """Three bookies and a reader that finds them in a metadata store."""

    def __init__(self, bookies: list[BookieServer]) -> None:
        self.bookies = bookies
        self.ids = [f"bookie-{i}" for i in range(len(bookies))]
        self.store = FakeZooKeeper().session()
        for i in range(len(bookies)):
            self.register(i)
        self.reader = BookieReader(self.store, BookKeeperSettings(read_timeout=2))

    def reregister(self, i: int) -> None:
        where = "available/readonly" if i == 0 else "available"
        self.store.delete(f"/ledgers/{where}/{self.ids[i]}", -1)
        self.register(i)

    def register(self, i: int) -> None:
        # BookieServiceInfoFormat: endpoints = 6 {id 1, port 2, host 3, protocol 4}
        port = self.bookies[i].port
        varint = bytes([port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])
        text = [(1, b"bookie"), (3, b"127.0.0.1"), (4, b"bookie-rpc")]
        body = b"\x10" + varint + b"".join(bytes([n << 3 | 2, len(t)]) + t for n, t in text)
        where = "available/readonly" if i == 0 else "available"
        self.store.create(f"/ledgers/{where}/{self.ids[i]}", bytes([6 << 3 | 2, len(body)]) + body, parents=True)

    def metadata(
        self,
        ensemble: int,
        write: int,
        ack: int,
        last: int | None = None,
        digest: DigestType | None = DigestType.CRC32C,
        segments: tuple[Segment, ...] = (),
    ) -> LedgerMetadata:
        """OPEN, or CLOSED with a ``last`` entry."""
        return LedgerMetadata(
            LedgerState.OPEN if last is None else LedgerState.CLOSED,
            ensemble,
            write,
            ack,
            segments or (Segment(0, tuple(self.ids[:ensemble])),),
            last_entry_id=-1 if last is None else last,
            digest_type=digest,
        )

    def fill(self, metadata: LedgerMetadata, count: int, ledger_id: int = LEDGER) -> None:
        """Entries 0..count-1 where the round robin puts them."""
        for e in range(count):
            for i in range(metadata.write_quorum):
                self.bookies[(e + i) % metadata.ensemble_size].add(
                    ledger_id, e, b"payload %d" % e, length=length_up_to(e)
                )

    def asked(self, kind: str) -> int:
        return sum(request[0] == kind for bookie in self.bookies for request in bookie.requests)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster([stack.enter_context(BookieServer(batch_limit=40)) for _ in range(3)])
        stack.callback(cluster.reader.close)
        yield cluster


def length_up_to(entry_id: int) -> int:
    return sum(len(b"payload %d" % e) for e in range(entry_id + 1))


def expected(first: int, last: int, ledger_id: int = LEDGER) -> list[Entry]:
    return [Entry(ledger_id, e, b"payload %d" % e) for e in range(first, last + 1)]


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(3, 3, 2), (3, 2, 2), (3, 1, 1), (1, 1, 1)])
def test_reads_any_range_of_any_striping(cluster: Cluster, ensemble: int, write: int, ack: int) -> None:
    metadata = cluster.metadata(ensemble, write, ack, last=999)
    cluster.fill(metadata, 1000)

    assert cluster.reader.read(LEDGER, metadata, 0, 999) == expected(0, 999)
    assert cluster.reader.read(LEDGER, metadata, 3, 3) == expected(3, 3)
    assert cluster.reader.read(LEDGER, metadata, 5, 4) == []


def test_batches_are_used_where_a_bookie_has_consecutive_entries_only(cluster: Cluster) -> None:
    whole, striped = cluster.metadata(2, 2, 1, last=99), cluster.metadata(3, 2, 1, last=99)
    cluster.fill(whole, 100)
    cluster.fill(striped, 100, ledger_id=8)

    cluster.reader.read(LEDGER, whole, 0, 99)
    assert (cluster.asked("batch"), cluster.asked("read")) == (3, 0)

    cluster.reader.read(8, striped, 0, 99)
    assert (cluster.asked("batch"), cluster.asked("read")) == (3, 100)


def test_a_bookie_without_batch_reads_is_asked_once_and_then_read_singly(cluster: Cluster) -> None:
    metadata = cluster.metadata(1, 1, 1, last=49)
    cluster.fill(metadata, 50)
    cluster.bookies[0].batch_reads = False

    assert cluster.reader.read(LEDGER, metadata, 0, 49) == expected(0, 49)
    cluster.bookies[0].batch_reads = True
    assert cluster.reader.read(LEDGER, metadata, 0, 49) == expected(0, 49)

    assert cluster.asked("batch") == 0


def test_reads_cross_an_ensemble_change(cluster: Cluster) -> None:
    a, b, c = cluster.ids
    metadata = cluster.metadata(2, 2, 2, last=19, segments=(Segment(0, (a, b)), Segment(10, (b, c))))
    for e in range(20):
        for bookie in cluster.bookies[:2] if e < 10 else cluster.bookies[1:]:
            bookie.add(LEDGER, e, b"payload %d" % e, length=length_up_to(e))

    assert cluster.reader.read(LEDGER, metadata, 0, 19) == expected(0, 19)


@pytest.mark.parametrize("trouble", ["stopped", "spoilt", "refuses", "lost the entry", "lost the ledger"])
@pytest.mark.parametrize("ensemble", [2, 3])
def test_another_replica_helps(cluster: Cluster, trouble: str, ensemble: int) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=99)
    cluster.fill(metadata, 100)
    bookie = cluster.bookies[1]
    match trouble:
        case "stopped":
            bookie.stop()
        case "spoilt":
            for e in list(bookie.entries[LEDGER]):
                bookie.spoil(LEDGER, e)
        case "refuses":
            bookie.code = TOO_MANY_REQUESTS
        case "lost the entry":
            bookie.entries[LEDGER] = {200: bookie.entries[LEDGER].popitem()[1]}
        case "lost the ledger":
            bookie.entries.clear()

    assert cluster.reader.read(LEDGER, metadata, 0, 99) == expected(0, 99)
    assert cluster.reader.last_entry(LEDGER, metadata) == expected(99, 99)[0]


def test_a_restarted_bookie_is_reconnected(cluster: Cluster) -> None:
    metadata = cluster.metadata(1, 1, 1, last=9)
    cluster.fill(metadata, 10)
    cluster.reader.last_entry(LEDGER, metadata)
    cluster.bookies[0].restart()

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(9, 9)[0]

    cluster.bookies[0].restart()

    assert cluster.reader.read(LEDGER, metadata, 0, 9) == expected(0, 9)
    assert cluster.asked("batch") == 1


def test_an_unknown_digest_type_is_found_out(cluster: Cluster) -> None:
    metadata = cluster.metadata(1, 1, 1, last=9, digest=None)
    cluster.fill(metadata, 10)

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(9, 9)[0]


def break_bookie(bookie: BookieServer, how: str) -> None:
    match how:
        case "gone":
            bookie.entries.clear()
        case "no entry":
            bookie.entries = {LEDGER: {500: b""}}
        case "spoilt":
            for e in list(bookie.entries[LEDGER]):
                bookie.spoil(LEDGER, e)
        case "stopped":
            bookie.stop()
        case "unauthorized":
            bookie.code = UNAUTHORIZED


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ("gone", "gone", NotFound),
        ("gone", "no entry", StoreError),
        ("no entry", "no entry", StoreError),
        ("gone", "stopped", Unavailable),
        ("spoilt", "stopped", Unavailable),
        ("spoilt", "spoilt", CorruptFormat),
        ("spoilt", "gone", CorruptFormat),
        ("unauthorized", "unauthorized", AccessDenied),
        ("unauthorized", "gone", AccessDenied),
        ("stopped", "stopped", Unavailable),
    ],
)
def test_what_is_raised_when_no_replica_has_the_entry(
    cluster: Cluster, first: str, second: str, error: type[LifecycleError]
) -> None:
    metadata = cluster.metadata(2, 2, 2, last=3)
    cluster.fill(metadata, 4)
    break_bookie(cluster.bookies[0], first)
    break_bookie(cluster.bookies[1], second)

    for read in (
        lambda: cluster.reader.read(LEDGER, metadata, 3, 3),
        lambda: cluster.reader.last_entry(LEDGER, metadata),
    ):
        with pytest.raises(error) as raised:
            read()
        assert type(raised.value) is error


def test_an_unregistered_bookie_counts_as_silent(cluster: Cluster) -> None:
    metadata = cluster.metadata(1, 1, 1, last=3, segments=(Segment(0, ("elsewhere",)),))

    with pytest.raises(Unavailable, match="elsewhere"):
        cluster.reader.last_entry(LEDGER, metadata)


def test_the_last_entry_of_an_open_ledger_may_be_unconfirmed_and_on_one_bookie(cluster: Cluster) -> None:
    metadata = cluster.metadata(3, 2, 2)
    cluster.fill(metadata, 5)
    cluster.bookies[2].add(LEDGER, 5, b"payload 5", lac=3)

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(5, 5)[0]


def test_an_open_ledger_whose_last_segment_is_empty_ends_in_the_one_before(cluster: Cluster) -> None:
    a, b, c = cluster.ids
    metadata = cluster.metadata(2, 2, 2, segments=(Segment(0, (a, b)), Segment(10, (c, a))))
    for e in range(10):
        cluster.bookies[1].add(LEDGER, e, b"payload %d" % e)

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(9, 9)[0]


@pytest.mark.parametrize(
    ("ensemble", "write", "ack", "silent", "known"),
    [
        (3, 3, 2, [0], True),  # an acknowledged entry is on two of three
        (3, 3, 2, [0, 1], False),
        (3, 2, 2, [0], True),
        (3, 2, 2, [0, 1], False),
        (3, 2, 1, [0], False),  # acknowledged by one bookie alone, and that may be the silent one
        (2, 2, 2, [1], True),
        (2, 2, 1, [1], False),
        (1, 1, 1, [0], False),
    ],
)
def test_an_open_ledger_needs_enough_answers(
    cluster: Cluster, ensemble: int, write: int, ack: int, silent: list[int], known: bool
) -> None:
    metadata = cluster.metadata(ensemble, write, ack)
    cluster.fill(metadata, 30)
    for i in silent:
        cluster.bookies[i].stop()

    if known:
        assert cluster.reader.last_entry(LEDGER, metadata) == expected(29, 29)[0]
    else:
        with pytest.raises(Unavailable, match="too few"):
            cluster.reader.last_entry(LEDGER, metadata)


def test_an_open_ledger_nobody_has_is_not_found_and_one_without_entries_is_none(cluster: Cluster) -> None:
    with pytest.raises(NotFound):
        cluster.reader.last_entry(LEDGER, cluster.metadata(2, 2, 2))
    assert cluster.reader.last_entry(LEDGER, cluster.metadata(2, 2, 2, last=-1)) is None


def test_many_last_entries_at_once_each_with_its_own_outcome(cluster: Cluster) -> None:
    closed, striped, still_open = (
        cluster.metadata(2, 2, 2, last=4),
        cluster.metadata(3, 2, 2, last=4),
        cluster.metadata(3, 3, 2),
    )
    ledgers: list[tuple[int, LedgerMetadata]] = []
    for ledger_id in range(0, 900, 3):
        for i, metadata in enumerate((closed, striped, still_open)):
            cluster.fill(metadata, 5, ledger_id=ledger_id + i)
            ledgers.append((ledger_id + i, metadata))
    ledgers += [(5000, closed), (5001, cluster.metadata(2, 2, 2, last=-1)), (0, closed)]

    results = cluster.reader.last_entries(ledgers)

    assert results[:900] == [expected(4, 4, ledger_id)[0] for ledger_id in range(900)]
    assert isinstance(results[900], NotFound)
    assert results[901:] == [None, expected(4, 4, 0)[0]]


def test_tls_with_certificates_that_cannot_be_loaded_is_refused_by_name() -> None:
    settings = BookKeeperSettings.model_validate({"tls": {"ca_file": "/nonexistent/ca.pem"}})
    with pytest.raises(ConfigError, match=r"bookkeeper\.tls"):
        BookieReader(FakeZooKeeper().session(), settings)


def test_a_bookie_without_tls_is_never_read_in_the_clear(cluster: Cluster) -> None:
    metadata = cluster.metadata(2, 2, 2, last=9)
    cluster.fill(metadata, 10)
    settings = BookKeeperSettings.model_validate({"tls": {}})

    with BookieReader(cluster.store, settings) as reader, pytest.raises(Unavailable):
        reader.read(LEDGER, metadata, 0, 9)

    assert not any(bookie.requests for bookie in cluster.bookies)


# ----------------------------------------------------------------------------------------------------- every replica


@pytest.mark.parametrize(("ensemble", "write"), [(3, 3), (3, 2), (3, 1), (1, 1)])
def test_every_copy_of_a_small_ledger_is_asked_for(cluster: Cluster, ensemble: int, write: int) -> None:
    metadata = cluster.metadata(ensemble, write, 1, last=99)
    cluster.fill(metadata, 100)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert check == ReplicaCheck(100, 100, 100 * write, 0, 0, 0, {}, {})
    assert check.every_entry
    assert (cluster.asked("batch") > 0) == (ensemble == write)


@pytest.mark.parametrize(("ensemble", "write"), [(3, 3), (3, 2)])
def test_a_large_ledger_is_sampled_the_same_way_each_time_at_every_bookie_of_every_segment(
    cluster: Cluster, ensemble: int, write: int
) -> None:
    a, b, c = cluster.ids
    segments = (Segment(0, (a, b, c)), Segment(700, (c, a, b)), Segment(2000, (b, c, a)))  # the last has no entry
    metadata = replace(cluster.metadata(ensemble, write, 1, last=1999, segments=segments), length=1 << 30)
    for e in range(2000):
        order = (0, 1, 2) if e < 700 else (2, 0, 1)
        for i in range(write):
            cluster.bookies[order[(e + i) % 3]].add(LEDGER, e, b"payload %d" % e)

    first, again = cluster.reader.check_replicas([(LEDGER, metadata)] * 2)

    assert first == again
    assert not first.every_entry
    assert 0 < first.asked < 200
    assert first.held == first.asked * write
    for bookie in cluster.bookies:
        asked = {entry for _, _, entry in bookie.requests}
        assert any(e < 700 for e in asked)
        assert any(e >= 700 for e in asked)
    assert {0, 699, 700, 1999} <= {entry for bookie in cluster.bookies for _, _, entry in bookie.requests}


@pytest.mark.parametrize("ensemble", [2, 3])
def test_what_one_bookie_collected_leaves_its_entries_thin(cluster: Cluster, ensemble: int) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    gone = len(cluster.bookies[0].entries.pop(LEDGER))

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert check == ReplicaCheck(30, 30, 60 - gone, gone, 0, 0, {"bookie-0": gone}, {})


@pytest.mark.parametrize("ensemble", [2, 3])
@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_an_entry_without_any_good_copy_is_lost(cluster: Cluster, ensemble: int, loss: str) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    for bookie in cluster.bookies:
        if 17 in bookie.entries.get(LEDGER, ()):
            bookie.spoil(LEDGER, 17)
            if loss == "deleted":
                del bookie.entries[LEDGER][17]

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert (check.held, check.lost, check.thin, check.unproven) == (58, 1, 0, 0)
    assert sum(check.missing.values()) == 2


def test_a_ledger_collected_everywhere_is_lost_and_costs_one_question_a_bookie(cluster: Cluster) -> None:
    metadata = cluster.metadata(2, 2, 2, last=29)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert (check.held, check.lost) == (0, 30)
    assert cluster.asked("batch") == 2


@pytest.mark.parametrize("ensemble", [2, 3])
@pytest.mark.parametrize("trouble", ["stopped", "refuses", "not registered"])
def test_a_bookie_that_does_not_answer_is_silent_and_never_gone(cluster: Cluster, ensemble: int, trouble: str) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    for i in (0, 1):
        if trouble == "refuses":
            cluster.bookies[i].code = TOO_MANY_REQUESTS
        elif trouble == "stopped":
            cluster.bookies[i].stop()
        else:
            cluster.ids[i] = f"lost-{i}"
    if trouble == "not registered":
        metadata = cluster.metadata(ensemble, 2, 2, last=29)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    both = sum(set(striping.replicas(metadata, e)) == set(cluster.ids[:2]) for e in range(30))
    assert (check.lost, check.unproven, check.thin) == (0, both, 30 - both)
    assert set(check.silent) == set(cluster.ids[:2])
    assert check.missing == {}


def test_one_silence_is_waited_out_once_for_many_ledgers(cluster: Cluster) -> None:
    metadata = cluster.metadata(2, 2, 2, last=4)
    for ledger_id in range(50):
        cluster.fill(metadata, 5, ledger_id)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        cluster.bookies[0].stop()
        cluster.bookies[0].port = mute.getsockname()[1]
        cluster.reregister(0)
        checks = cluster.reader.check_replicas([(ledger_id, metadata) for ledger_id in range(50)])
        mute.settimeout(1)
        mute.accept()[0].close()
        with pytest.raises(TimeoutError):
            mute.accept()  # nobody came back

    assert all(check.thin == 5 and set(check.silent) == {"bookie-0"} for check in checks)


def test_a_bookie_without_batch_reads_is_checked_by_single_reads(cluster: Cluster) -> None:
    metadata = cluster.metadata(2, 2, 2, last=29)
    cluster.fill(metadata, 30)
    cluster.bookies[1].batch_reads = False

    assert cluster.reader.check_replicas([(LEDGER, metadata)]) == [ReplicaCheck(30, 30, 60, 0, 0, 0, {}, {})]


def test_an_empty_ledger_has_nothing_to_ask_for(cluster: Cluster) -> None:
    assert cluster.reader.check_replicas([(LEDGER, cluster.metadata(2, 2, 2, last=-1))]) == [
        ReplicaCheck(0, 0, 0, 0, 0, 0, {}, {})
    ]
