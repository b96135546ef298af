"""BookieWriter against bookies in memory, which die, refuse or are fenced at the moment that a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pulsar_lifecycle.errors import AccessDenied, Conflict, LifecycleError, NotFound, OutcomeUnknown, Unavailable
from pulsar_lifecycle.formats import bookie_racks, ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper import ledger_ids
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter, preferred
from pulsar_lifecycle.ports import LedgerShape, Node
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper, Operation
from tests.kit.scenes.bookies import register

LEDGER = 12
PAYLOADS = [b"payload %d" % i for i in range(700)]
TAGS = {"application": b"pulsar"}


class Bookies:
    def __init__(self, servers: list[BookieServer]) -> None:
        self.servers = {f"bookie-{i}": server for i, server in enumerate(servers)}
        self.store = FakeZooKeeper().session()
        self.store.create("/ledgers/available/readonly", parents=True)
        for name, server in self.servers.items():
            register(self.store, f"/ledgers/available/{name}", server.port)
        settings = BookKeeperSettings(read_timeout=6)
        self.writer = BookieWriter(self.store, settings)
        self.reader = BookieReader(self.store, settings)

    def ensemble(self) -> list[str]:
        """In the order in which the ledger takes the bookies."""
        return preferred(LEDGER, self.servers, {})

    def stored(self) -> LedgerMetadata | None:
        (node,) = self.store.read([ledger_path(LEDGER)])
        return ledger_metadata.decode(node.data) if isinstance(node, Node) else None

    def write(self, ensemble: int, write: int, ack: int) -> LedgerMetadata:
        return self.writer.write(LEDGER, PAYLOADS, LedgerShape(ensemble, write, ack, TAGS))

    def read_back(self, metadata: LedgerMetadata) -> list[bytes]:
        return [e.payload for e in self.reader.read(LEDGER, metadata, 0, metadata.last_entry_id)]


@pytest.fixture
def bookies() -> Iterator[Bookies]:
    with ExitStack() as stack:
        made = Bookies([stack.enter_context(BookieServer()) for _ in range(4)])
        stack.callback(made.reader.close)
        stack.callback(made.writer.close)
        yield made


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(3, 3, 2), (3, 2, 2), (4, 2, 1), (1, 1, 1)])
def test_every_copy_of_every_entry_is_where_readers_look_for_it(
    bookies: Bookies, ensemble: int, write: int, ack: int
) -> None:
    metadata = bookies.write(ensemble, write, ack)

    (check,) = bookies.reader.check_replicas([(LEDGER, metadata)])
    assert (check.entries, check.thin, check.lost) == (len(PAYLOADS), 0, 0)
    assert bookies.read_back(metadata) == PAYLOADS
    assert bookies.stored() == metadata


@pytest.mark.parametrize("taken", [0, 1, 250, 499])
def test_another_bookie_stands_in_for_one_that_dies(bookies: Bookies, taken: int) -> None:
    lost = bookies.ensemble()[1]
    bookies.servers[lost].takes = taken

    metadata = bookies.write(3, 3, 2)

    assert metadata.state == LedgerState.CLOSED
    assert lost not in metadata.segments[-1].bookies
    assert bookies.ensemble()[3] in metadata.segments[-1].bookies
    assert bookies.read_back(metadata) == PAYLOADS
    bookies.servers[bookies.ensemble()[0]].stop()
    assert bookies.read_back(metadata) == PAYLOADS  # from the two that are left


@pytest.mark.parametrize("code", [BookieCode.READ_ONLY, BookieCode.IO, BookieCode.TOO_MANY_REQUESTS])
def test_another_bookie_stands_in_for_one_that_refuses(bookies: Bookies, code: BookieCode) -> None:
    refusing = bookies.ensemble()[0]
    bookies.servers[refusing].add_code = code

    metadata = bookies.write(3, 2, 2)

    assert [len(segment.bookies) for segment in metadata.segments] == [3]
    assert refusing not in metadata.segments[0].bookies
    assert bookies.read_back(metadata) == PAYLOADS


def test_a_dead_bookie_without_a_spare_is_borne_by_the_ack_quorum(bookies: Bookies) -> None:
    bookies.servers[bookies.ensemble()[2]].takes = 100

    metadata = bookies.write(4, 3, 2)

    assert len(metadata.segments) == 1
    assert bookies.read_back(metadata) == PAYLOADS


def test_too_few_bookies_leave_no_ledger(bookies: Bookies) -> None:
    for name in bookies.ensemble()[:2]:
        bookies.servers[name].takes = 100

    with pytest.raises(Unavailable, match="too few bookies take entry"):
        bookies.write(3, 3, 3)
    assert bookies.stored() is None
    with pytest.raises(Unavailable, match="5 bookies are to hold it, 4 take entries"):
        bookies.write(5, 2, 2)
    assert bookies.stored() is None


@pytest.mark.parametrize(("code", "error"), [(BookieCode.FENCED, Conflict), (BookieCode.UNAUTHORIZED, AccessDenied)])
def test_a_ledger_that_somebody_else_took_over_ends(
    bookies: Bookies, code: BookieCode, error: type[LifecycleError]
) -> None:
    bookies.servers[bookies.ensemble()[0]].add_code = code

    with pytest.raises(error):
        bookies.write(2, 2, 2)

    assert bookies.stored() is None


def test_a_ledger_that_somebody_else_recovers_is_left_to_them(bookies: Bookies) -> None:
    def recover(operation: Operation) -> None:
        if operation.name == "write":
            bookies.store.before = lambda _: None
            bookies.store.server.write(ledger_path(LEDGER), bookies.store.server.data(ledger_path(LEDGER)), -1)

    bookies.store.before = recover

    with pytest.raises(Conflict):
        bookies.write(2, 2, 2)

    stored = bookies.stored()
    assert stored is not None
    assert stored.state == LedgerState.OPEN


@pytest.mark.parametrize("name", ["create", "write"])
def test_an_answer_that_got_lost_is_looked_up(bookies: Bookies, name: str) -> None:
    lose(bookies.store, name, arrived=True)

    metadata = bookies.write(2, 2, 2)

    assert bookies.stored() == metadata
    assert bookies.read_back(metadata) == PAYLOADS


@pytest.mark.parametrize("name", ["create", "write"])
def test_a_request_that_never_arrived_closes_nothing(bookies: Bookies, name: str) -> None:
    lose(bookies.store, name, arrived=False)

    with pytest.raises(OutcomeUnknown):
        bookies.write(2, 2, 2)

    assert bookies.stored() is None


def lose(store: FakeStore, name: str, *, arrived: bool) -> None:
    def fault(operation: Operation) -> None:
        if operation.name == name:
            store.before = store.after = lambda _: None
            raise OutcomeUnknown("the connection broke")

    if arrived:
        store.after = fault
    else:
        store.before = fault


def test_racks_take_turns() -> None:
    racks = {"a": "/r1", "b": "/r1", "c": "/r2"}
    for ledger_id in range(20):
        first, second, _ = preferred(ledger_id, "abc", racks)
        assert racks[first] != racks[second]
    assert len({tuple(preferred(i, "abcd", {})) for i in range(50)}) > 5
    assert bookie_racks.DEFAULT_RACK not in racks.values()


def test_ids_go_on_in_63_bits_once_the_short_ones_are_used_up() -> None:
    store = FakeZooKeeper().session()
    assert ledger_ids.next_ledger_id(store, "/ledgers") == 0  # made the counter's parent
    store.create("/ledgers/idgen-long")

    first = ledger_ids.next_ledger_id(store, "/ledgers")
    second = ledger_ids.next_ledger_id(store, "/ledgers")

    assert first == 1 << 32
    assert first < second < 2 << 32
    with pytest.raises(NotFound):
        store.sequence("/nowhere/ID-")
