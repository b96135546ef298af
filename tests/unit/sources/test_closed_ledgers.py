"""Which closed ledgers an order means, from a metadata store in memory."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pulsar_lifecycle.errors import CorruptFormat, NotFound, UsageError
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.sources.entries import pieces
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper

GONE = OffloadContext(uuid4(), True, True, 1, "aws-s3", {})
COPIED = OffloadContext(uuid4(), True, False, 1, "aws-s3", {})


def closed(last: int = 9, length: int = 100) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerState.CLOSED,
        1,
        1,
        1,
        (Segment(0, ("b",)),),
        last_entry_id=last,
        length=length,
        digest_type=DigestType.CRC32C,
    )


@pytest.fixture
def store() -> FakeStore:
    """Ledgers 1 .. 5 and 8 are closed, 6 is open; they are those of topics and of two partitions."""
    store = FakeZooKeeper().session()
    for ledger_id in (1, 2, 3, 4, 5, 8):
        store.create(ledger_path(ledger_id), ledger_metadata.encode(closed()), parents=True)
    still_open = LedgerMetadata(LedgerState.OPEN, 1, 1, 1, (Segment(0, ("b",)),), digest_type=DigestType.CRC32C)
    store.create(ledger_path(6), ledger_metadata.encode(still_open), parents=True)
    topics = {
        "t": (LedgerInfo(1), LedgerInfo(2, offload=COPIED), LedgerInfo(77, offload=GONE), LedgerInfo(6)),
        "p-partition-0": (LedgerInfo(3),),
        "p-partition-10": (LedgerInfo(5),),
        "p-partition-2": (LedgerInfo(4),),
        "p-partition-x": (),
        "p-partition-01": (LedgerInfo(8),),
    }
    for name, infos in topics.items():
        data = managed_ledger.encode(ManagedLedgerInfo(infos))
        store.create(f"/managed-ledgers/a/b/persistent/{name}", data, parents=True)
    return store


def ids(chosen: closed_ledgers.ClosedLedgers) -> list[int]:
    return [ledger_id for ledger_id, _ in chosen.ledgers]


def test_ids_and_ranges(store: FakeStore) -> None:
    assert ids(closed_ledgers.by_id(store, "8, 1-3,2")) == [8, 1, 2, 3]
    found = closed_ledgers.by_id(store, "4-7")
    assert ids(found) == [4, 5]
    assert list(found.left_out) == [6]


@pytest.mark.parametrize("text", ["", "1,", "a", "3-1", "-1", "1-2-3", "0-1000000"])
def test_what_is_no_list_of_ledgers(store: FakeStore, text: str) -> None:
    with pytest.raises(UsageError, match="ledgers: "):
        closed_ledgers.by_id(store, text)


def test_an_id_by_itself_must_be_a_closed_ledger(store: FakeStore) -> None:
    with pytest.raises(UsageError, match="ledger 6: it is OPEN"):
        closed_ledgers.by_id(store, "1,6")
    with pytest.raises(NotFound, match="ledger 7"):
        closed_ledgers.by_id(store, "7")


def test_a_topic_has_its_closed_ledgers_and_says_what_it_lacks(store: FakeStore) -> None:
    found = closed_ledgers.of_topic(store, Topic.parse("persistent://a/b/t"))

    assert ids(found) == [1, 2]
    assert set(found.left_out) == {6, 77}


def test_a_partitioned_topic_is_all_its_partitions_and_a_partition_itself(store: FakeStore) -> None:
    assert ids(closed_ledgers.of_topic(store, Topic.parse("persistent://a/b/p"))) == [3, 4, 5]
    assert ids(closed_ledgers.of_topic(store, Topic.parse("persistent://a/b/p-partition-2"))) == [4]


def test_a_namespace_is_all_its_topics(store: FakeStore) -> None:
    assert sorted(ids(closed_ledgers.of_namespace(store, Namespace.parse("a/b")))) == [1, 2, 3, 4, 5, 8]


def test_what_is_not_there_is_not_empty(store: FakeStore) -> None:
    with pytest.raises(NotFound):
        closed_ledgers.of_topic(store, Topic.parse("persistent://a/b/nowhere"))
    with pytest.raises(NotFound):
        closed_ledgers.of_namespace(store, Namespace.parse("a/nowhere"))
    store.delete(ledger_path(3), -1)
    with pytest.raises(NotFound, match="ledger 3, which"):
        closed_ledgers.of_topic(store, Topic.parse("persistent://a/b/p"))
    store.write(ledger_path(4), b"no metadata", -1)
    with pytest.raises(CorruptFormat, match="L0004"):
        closed_ledgers.by_id(store, "4")


def test_pieces_are_about_equal_and_together_all_entries_once() -> None:
    given = closed_ledgers.ClosedLedgers(
        ((1, closed(9, 100)), (2, closed(-1, 0)), (3, closed(999, 10_000)), (4, closed(0, 5)), (5, closed(4, 0))), {}
    )

    groups = pieces(given, 1_000)

    for ledger_id, metadata in given.ledgers:
        ranges = [(first, last) for group in groups for i, _, first, last, _ in group if i == ledger_id]
        covered = [e for first, last in ranges for e in range(first, last + 1)]
        assert covered == list(range(metadata.last_entry_id + 1))
    assert len(groups) == 11
