"""The last entries of many small ledgers at once, as a retention plan reads them from cursor ledgers."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.ports import Entry
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.scenes.bookies import TOO_MANY_REQUESTS, ThreeBookies

LEDGERS = range(100, 400)


@pytest.fixture
def ledgers(cluster: ThreeBookies) -> list[tuple[int, LedgerMetadata]]:
    """Each of one entry, on two bookies."""
    metadata = cluster.metadata(2, 2, 2, last=0)
    for ledger_id in LEDGERS:
        cluster.fill(metadata, 1, ledger_id)
    return [(ledger_id, metadata) for ledger_id in LEDGERS]


def kinds(found: list[Entry | LifecycleError | None]) -> set[type]:
    return {type(one) for one in found}


def test_each_entry_is_read_once_and_both_bookies_give_half(
    cluster: ThreeBookies, ledgers: list[tuple[int, LedgerMetadata]]
) -> None:
    assert cluster.reader.last_entries(ledgers) == [Entry(ledger_id, 0, b"payload 0") for ledger_id in LEDGERS]

    assert [len(bookie.requests) for bookie in cluster.bookies] == [150, 150, 0]


@pytest.mark.parametrize("trouble", ["stopped", "mute", "spoilt", "refuses", "gone"])
def test_what_one_bookie_cannot_give_the_other_does(
    cluster: ThreeBookies, ledgers: list[tuple[int, LedgerMetadata]], trouble: str
) -> None:
    break_bookie(cluster.bookies[1], trouble)

    assert cluster.reader.last_entries(ledgers) == [Entry(ledger_id, 0, b"payload 0") for ledger_id in LEDGERS]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [("stopped", Unavailable), ("spoilt", CorruptFormat), ("refuses", Unavailable), ("gone", NotFound)],
)
def test_what_no_bookie_can_give_is_an_error_each(
    cluster: ThreeBookies, ledgers: list[tuple[int, LedgerMetadata]], trouble: str, kind: type[LifecycleError]
) -> None:
    for bookie in cluster.bookies[:2]:
        break_bookie(bookie, trouble)

    assert kinds(cluster.reader.last_entries(ledgers)) == {kind}


def test_an_entry_of_another_ledger_or_place_is_none(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(1, 1, 1, last=0)
    for ledger_id in (1, 2, 3):
        cluster.fill(metadata, 2, ledger_id)
    own = cluster.bookies[0].entries
    own[1][0], own[2][0] = own[3][0], own[2][1]

    first, second, third = cluster.reader.last_entries([(1, metadata), (2, metadata), (3, metadata)])

    assert isinstance(first, CorruptFormat)
    assert isinstance(second, CorruptFormat)
    assert third == Entry(3, 0, b"payload 0")


def test_ledgers_without_replicas_or_entries_disturb_no_other(cluster: ThreeBookies) -> None:
    full, nowhere = cluster.metadata(1, 1, 1, last=0), cluster.metadata(1, 0, 0, last=0)
    cluster.fill(full, 1, 5)

    found = cluster.reader.last_entries([(4, nowhere), (5, full), (6, cluster.metadata(1, 1, 1, last=-1))])

    assert isinstance(found[0], StoreError)
    assert found[1:] == [Entry(5, 0, b"payload 0"), None]


def break_bookie(bookie: BookieServer, trouble: str) -> None:
    match trouble:
        case "stopped":
            bookie.stop()
        case "mute":
            bookie.mute = True
        case "spoilt":
            for ledger_id in LEDGERS:
                bookie.spoil(ledger_id, 0)
        case "refuses":
            bookie.code = TOO_MANY_REQUESTS
        case "gone":
            bookie.entries.clear()
