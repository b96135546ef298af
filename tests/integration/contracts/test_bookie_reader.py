"""What every LedgerReader does: the same tests on the fake and on real bookies, with ledgers that a broker wrote."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
import pulsar
import pytest

from pulsar_lifecycle.errors import NotFound, StoreError, UsageError
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node, ReplicaCheck, Traces
from pulsar_lifecycle.settings import BookKeeperSettings, ZooKeeperSettings
from tests.kit.fakes.ledger_reader import FakeLedgerReader

MESSAGES = 120
NO_SUCH_LEDGER = 2**31 - 5


@dataclass(frozen=True)
class Ledgers:
    """A reader, and the ledgers of one topic with its messages in order; the last one is still being written."""

    reader: LedgerReader
    all: list[tuple[int, LedgerMetadata]]
    store: MetadataStore | None = None

    @property
    def closed(self) -> tuple[int, LedgerMetadata]:
        return self.all[0]

    @property
    def open(self) -> tuple[int, LedgerMetadata]:
        return self.all[-1]


def message(i: int) -> bytes:
    return b"message %d." % i


def fake_ledgers() -> Ledgers:
    reader = FakeLedgerReader()
    found: list[tuple[int, LedgerMetadata]] = []
    for ledger_id, first in ((3, 0), (5, 50), (8, 100)):
        reader.payloads[ledger_id] = [message(i) for i in range(first, min(first + 50, MESSAGES))]
        state, last = (LedgerState.CLOSED, 49) if first < 100 else (LedgerState.OPEN, -1)
        segments = (Segment(0, ("bookie",)),)
        found.append(
            (ledger_id, LedgerMetadata(state, 1, 1, 1, segments, last_entry_id=last, digest_type=DigestType.CRC32C))
        )
    return Ledgers(reader, found)


def real_ledgers(store: KazooStore, topic: Topic) -> list[tuple[int, LedgerMetadata]]:
    (node,) = store.read([f"/managed-ledgers/{topic.managed_ledger}"])
    assert isinstance(node, Node)
    found: list[tuple[int, LedgerMetadata]] = []
    for ledger_id in sorted(info.ledger_id for info in managed_ledger.decode(node.data).ledgers):
        (ledger,) = store.read([ledger_path(ledger_id)])
        assert isinstance(ledger, Node)
        found.append((ledger_id, ledger_metadata.decode(ledger.data)))
    return found


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest) -> Iterator[tuple[KazooStore, Topic]]:
    """A topic with ``MESSAGES`` messages, an entry each, in several ledgers; its producer is still connected."""
    sandbox = request.getfixturevalue("sandbox")
    topic = Topic.parse(f"persistent://public/default/entries-{uuid.uuid4()}")
    client = pulsar.Client(sandbox.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(str(topic), "keep")
    producer = client.create_producer(str(topic), batching_enabled=False)
    for i in range(MESSAGES):
        producer.send(message(i))
    settings = ZooKeeperSettings.model_validate({"hosts": sandbox.zookeeper, "slow_above": 30, "stop_above": 60})
    with KazooStore(settings, read_only=True) as store:
        yield store, topic
    client.close()
    url = f"{sandbox.admin_url}/admin/v2/{str(topic).replace('://', '/')}"
    httpx.delete(url, params={"force": "true"}, timeout=120).raise_for_status()


@pytest.fixture(params=["fake", pytest.param("bookies", marks=pytest.mark.integration)])
def ledgers(request: pytest.FixtureRequest) -> Iterator[Ledgers]:
    if request.param == "fake":
        yield fake_ledgers()
        return
    store, topic = request.getfixturevalue("written")
    with BookieReader(store, BookKeeperSettings()) as reader:
        yield Ledgers(reader, real_ledgers(store, topic), store)


def test_the_ledgers_hold_every_message_once_and_in_order(ledgers: Ledgers) -> None:
    read: list[bytes] = []
    for ledger_id, metadata in ledgers.all:
        last = ledgers.reader.last_entry(ledger_id, metadata)
        assert last is not None
        entries = ledgers.reader.read(ledger_id, metadata, 0, last.entry_id)
        assert [(entry.ledger_id, entry.entry_id) for entry in entries] == [
            (ledger_id, e) for e in range(last.entry_id + 1)
        ]
        assert entries[-1] == last
        if metadata.state is not LedgerState.CLOSED:
            assert last.length == sum(len(entry.payload) for entry in entries)
        read += [entry.payload for entry in entries]

    assert len(read) == MESSAGES
    assert all(payload.endswith(message(i)) for i, payload in enumerate(read))


def test_a_closed_ledger_ends_where_its_metadata_says(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.closed
    assert metadata.state == LedgerState.CLOSED

    last = ledgers.reader.last_entry(ledger_id, metadata)

    assert last is not None
    assert last.entry_id == metadata.last_entry_id
    assert ledgers.reader.last_entry(ledger_id, replace(metadata, last_entry_id=-1)) is None


def test_the_last_entry_of_an_open_ledger_is_the_one_not_confirmed_yet(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.open
    assert metadata.state == LedgerState.OPEN

    last = ledgers.reader.last_entry(ledger_id, metadata)

    assert last is not None
    assert last.payload.endswith(message(MESSAGES - 1))


def test_a_range_is_inclusive_and_may_be_empty(ledgers: Ledgers) -> None:
    entries = ledgers.reader.read(*ledgers.closed, 7, 9)

    assert [entry.entry_id for entry in entries] == [7, 8, 9]
    assert ledgers.reader.read(*ledgers.closed, 9, 8) == []


def test_a_missing_entry_is_not_a_missing_ledger(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.closed

    with pytest.raises(StoreError) as no_entry:
        ledgers.reader.read(ledger_id, metadata, metadata.last_entry_id, metadata.last_entry_id + 1)
    with pytest.raises(NotFound):
        ledgers.reader.read(NO_SUCH_LEDGER, metadata, 0, 0)
    with pytest.raises(NotFound):
        ledgers.reader.last_entry(NO_SUCH_LEDGER, metadata)
    with pytest.raises(NotFound):
        ledgers.reader.last_entry(NO_SUCH_LEDGER, replace(metadata, state=LedgerState.OPEN))

    assert not isinstance(no_entry.value, NotFound)


def test_many_last_entries_are_those_read_one_by_one(ledgers: Ledgers) -> None:
    many = [*ledgers.all * 20, (NO_SUCH_LEDGER, ledgers.closed[1])]

    results = ledgers.reader.last_entries(many)

    assert results[:-1] == [ledgers.reader.last_entry(*ledger) for ledger in ledgers.all] * 20
    assert isinstance(results[-1], NotFound)


def test_a_stream_has_the_entries_of_a_range_in_order(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.closed
    for first, last in ((0, metadata.last_entry_id), (7, 29), (metadata.last_entry_id, metadata.last_entry_id), (4, 3)):
        at = first
        for batch in ledgers.reader.stream(ledger_id, metadata, first, last):
            assert batch.first == at
            for payload in batch.payloads:
                assert payload.endswith(message(at))
                at += 1
        assert at == last + 1


def test_a_stream_is_of_a_closed_ledger_and_of_entries_that_it_has(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.closed

    with pytest.raises(UsageError, match="not closed"):
        ledgers.reader.stream(*ledgers.open, 0, 0)
    for first, last in ((0, metadata.last_entry_id + 1), (-1, 3), (5, 3)):
        with pytest.raises(UsageError):
            ledgers.reader.stream(ledger_id, metadata, first, last)
    with pytest.raises(NotFound):
        list(ledgers.reader.stream(NO_SUCH_LEDGER, metadata, 0, 9))


@pytest.mark.integration
def test_reading_an_open_ledger_leaves_its_writer_alone(
    written: tuple[KazooStore, Topic], request: pytest.FixtureRequest
) -> None:
    store, topic = written
    before = real_ledgers(store, topic)
    with BookieReader(store, BookKeeperSettings()) as reader:
        reader.last_entries(before)
    sandbox = request.getfixturevalue("sandbox")
    client = pulsar.Client(sandbox.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with_more = client.create_producer(str(topic), batching_enabled=False)
    with_more.send(b"one more")
    client.close()

    after = real_ledgers(store, topic)

    assert after == before  # neither closed by a recovery nor rolled over after a fence


def test_every_replica_of_a_closed_ledger_holds_what_it_should_and_none_of_one_that_is_not_there(
    ledgers: Ledgers,
) -> None:
    ledger_id, metadata = ledgers.closed

    whole, gone = ledgers.reader.check_replicas([(ledger_id, metadata), (NO_SUCH_LEDGER, metadata)])

    entries = metadata.last_entry_id + 1
    assert whole == ReplicaCheck(entries, entries, entries * metadata.write_quorum, 0, 0, 0, {}, {})
    assert (gone.held, gone.lost, gone.unanswered) == (0, entries, {})
    assert sum(gone.missing.values()) == entries * metadata.write_quorum


def test_the_bookies_of_a_ledger_have_entries_of_it_and_none_of_one_that_is_not_there(ledgers: Ledgers) -> None:
    ledger_id, metadata = ledgers.closed

    whole, gone = ledgers.reader.find_traces([(ledger_id, metadata), (NO_SUCH_LEDGER, metadata)])

    bookies = tuple(dict.fromkeys(bookie for segment in metadata.segments for bookie in segment.bookies))
    assert whole == Traces(bookies, bookies, {})
    assert gone == Traces(bookies, (), {})
