"""BookieReader against bookies in memory, which do not answer, are broken, old or wrong as no real one is on demand."""

from __future__ import annotations

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
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, Segment
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.ports import Entry
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.scenes.bookies import LEDGER, TOO_MANY_REQUESTS, ThreeBookies, length_up_to, three_bookies

UNAUTHORIZED = 102


cluster = pytest.fixture(three_bookies, name="cluster")


def expected(first: int, last: int, ledger_id: int = LEDGER) -> list[Entry]:
    return [Entry(ledger_id, e, b"payload %d" % e) for e in range(first, last + 1)]


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(3, 3, 2), (3, 2, 2), (3, 1, 1), (1, 1, 1)])
def test_reads_any_range_of_any_striping(cluster: ThreeBookies, ensemble: int, write: int, ack: int) -> None:
    metadata = cluster.metadata(ensemble, write, ack, last=999)
    cluster.fill(metadata, 1000)

    assert cluster.reader.read(LEDGER, metadata, 0, 999) == expected(0, 999)
    assert cluster.reader.read(LEDGER, metadata, 3, 3) == expected(3, 3)
    assert cluster.reader.read(LEDGER, metadata, 5, 4) == []


def test_batches_are_used_where_a_bookie_has_consecutive_entries_only(cluster: ThreeBookies) -> None:
    whole, striped = cluster.metadata(2, 2, 1, last=99), cluster.metadata(3, 2, 1, last=99)
    cluster.fill(whole, 100)
    cluster.fill(striped, 100, ledger_id=8)

    cluster.reader.read(LEDGER, whole, 0, 99)
    assert (cluster.asked("batch"), cluster.asked("read")) == (3, 0)

    cluster.reader.read(8, striped, 0, 99)
    assert (cluster.asked("batch"), cluster.asked("read")) == (3, 100)


def test_a_bookie_without_batch_reads_is_asked_once_and_then_read_singly(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(1, 1, 1, last=49)
    cluster.fill(metadata, 50)
    cluster.bookies[0].batch_reads = False

    assert cluster.reader.read(LEDGER, metadata, 0, 49) == expected(0, 49)
    cluster.bookies[0].batch_reads = True
    assert cluster.reader.read(LEDGER, metadata, 0, 49) == expected(0, 49)

    assert cluster.asked("batch") == 0


def test_reads_cross_an_ensemble_change(cluster: ThreeBookies) -> None:
    a, b, c = cluster.ids
    metadata = cluster.metadata(2, 2, 2, last=19, segments=(Segment(0, (a, b)), Segment(10, (b, c))))
    for e in range(20):
        for bookie in cluster.bookies[:2] if e < 10 else cluster.bookies[1:]:
            bookie.add(LEDGER, e, b"payload %d" % e, length=length_up_to(e))

    assert cluster.reader.read(LEDGER, metadata, 0, 19) == expected(0, 19)


@pytest.mark.parametrize("trouble", ["stopped", "spoilt", "refuses", "lost the entry", "lost the ledger"])
@pytest.mark.parametrize("ensemble", [2, 3])
def test_another_replica_helps(cluster: ThreeBookies, trouble: str, ensemble: int) -> None:
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


def test_a_restarted_bookie_is_reconnected(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(1, 1, 1, last=9)
    cluster.fill(metadata, 10)
    cluster.reader.last_entry(LEDGER, metadata)
    cluster.bookies[0].restart()

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(9, 9)[0]

    cluster.bookies[0].restart()

    assert cluster.reader.read(LEDGER, metadata, 0, 9) == expected(0, 9)
    assert cluster.asked("batch") == 1


def test_an_unknown_digest_type_is_found_out(cluster: ThreeBookies) -> None:
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
    cluster: ThreeBookies, first: str, second: str, error: type[LifecycleError]
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


def test_an_unregistered_bookie_counts_as_unanswered(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(1, 1, 1, last=3, segments=(Segment(0, ("elsewhere",)),))

    with pytest.raises(Unavailable, match="elsewhere"):
        cluster.reader.last_entry(LEDGER, metadata)


def test_the_last_entry_of_an_open_ledger_may_be_unconfirmed_and_on_one_bookie(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(3, 2, 2)
    cluster.fill(metadata, 5)
    cluster.bookies[2].add(LEDGER, 5, b"payload 5", lac=3)

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(5, 5)[0]


def test_an_open_ledger_whose_last_segment_is_empty_ends_in_the_one_before(cluster: ThreeBookies) -> None:
    a, b, c = cluster.ids
    metadata = cluster.metadata(2, 2, 2, segments=(Segment(0, (a, b)), Segment(10, (c, a))))
    for e in range(10):
        cluster.bookies[1].add(LEDGER, e, b"payload %d" % e)

    assert cluster.reader.last_entry(LEDGER, metadata) == expected(9, 9)[0]


@pytest.mark.parametrize(
    ("ensemble", "write", "ack", "unanswered", "known"),
    [
        (3, 3, 2, [0], True),  # an acknowledged entry is on two of three
        (3, 3, 2, [0, 1], False),
        (3, 2, 2, [0], True),
        (3, 2, 2, [0, 1], False),
        (3, 2, 1, [0], False),  # acknowledged by one bookie alone, and that may be the one that does not answer
        (2, 2, 2, [1], True),
        (2, 2, 1, [1], False),
        (1, 1, 1, [0], False),
    ],
)
def test_an_open_ledger_needs_enough_answers(
    cluster: ThreeBookies, ensemble: int, write: int, ack: int, unanswered: list[int], known: bool
) -> None:
    metadata = cluster.metadata(ensemble, write, ack)
    cluster.fill(metadata, 30)
    for i in unanswered:
        cluster.bookies[i].stop()

    if known:
        assert cluster.reader.last_entry(LEDGER, metadata) == expected(29, 29)[0]
    else:
        with pytest.raises(Unavailable, match="too few"):
            cluster.reader.last_entry(LEDGER, metadata)


def test_an_open_ledger_nobody_has_is_not_found_and_one_without_entries_is_none(cluster: ThreeBookies) -> None:
    with pytest.raises(NotFound):
        cluster.reader.last_entry(LEDGER, cluster.metadata(2, 2, 2))
    assert cluster.reader.last_entry(LEDGER, cluster.metadata(2, 2, 2, last=-1)) is None


def test_many_last_entries_at_once_each_with_its_own_outcome(cluster: ThreeBookies) -> None:
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


def test_single_entries_of_many_ledgers_are_read_in_few_round_trips(cluster: ThreeBookies) -> None:
    closed, still_open = cluster.metadata(2, 2, 2, last=4), cluster.metadata(3, 2, 2)
    wanted: list[tuple[int, LedgerMetadata, int]] = []
    for ledger_id in range(0, 600, 2):
        for i, metadata in enumerate((closed, still_open)):
            cluster.fill(metadata, 5, ledger_id=ledger_id + i)
            wanted.append((ledger_id + i, metadata, ledger_id % 5))
    found = cluster.reader.read_each([*wanted, (9000, closed, 0), (1, still_open, 7)])
    assert found[:600] == [expected(at, at, ledger_id)[0] for ledger_id, _, at in wanted]
    assert isinstance(found[600], NotFound)
    assert isinstance(found[601], LifecycleError)


def test_tls_with_certificates_that_cannot_be_loaded_is_refused_by_name() -> None:
    settings = BookKeeperSettings.model_validate({"tls": {"ca_file": "/nonexistent/ca.pem"}})
    with pytest.raises(ConfigError, match=r"bookkeeper\.tls"):
        BookieReader(FakeZooKeeper().session(), settings)


def test_a_bookie_without_tls_is_never_read_in_the_clear(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(2, 2, 2, last=9)
    cluster.fill(metadata, 10)
    settings = BookKeeperSettings.model_validate({"tls": {}})

    with BookieReader(cluster.store, settings) as reader, pytest.raises(Unavailable):
        reader.read(LEDGER, metadata, 0, 9)

    assert not any(bookie.requests for bookie in cluster.bookies)
