"""A ledger on bookies of this process, some of which fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper

LEDGER = 7
TOO_MANY_REQUESTS = 106


class ThreeBookies:
    """Three bookies and a reader that finds them in a metadata store."""

    def __init__(self, bookies: list[BookieServer]) -> None:
        self.bookies = bookies
        self.ids = [f"bookie-{i}" for i in range(len(bookies))]
        self.store = FakeZooKeeper().session()
        for i in range(len(bookies)):
            self.register(i)
        self.reader = BookieReader(self.store, BookKeeperSettings(read_timeout=6))

    def reregister(self, i: int) -> None:
        where = "available/readonly" if i == 0 else "available"
        self.store.delete(f"/ledgers/{where}/{self.ids[i]}", -1)
        self.register(i)

    def register(self, i: int) -> None:
        where = "available/readonly" if i == 0 else "available"
        register(self.store, f"/ledgers/{where}/{self.ids[i]}", self.bookies[i].port)

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


def register(store: FakeStore, path: str, port: int) -> None:
    """A bookie on 127.0.0.1, as BookieServiceInfoFormat: endpoints = 6 {id 1, port 2, host 3, protocol 4}."""
    varint = bytes([port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])
    text = [(1, b"bookie"), (3, b"127.0.0.1"), (4, b"bookie-rpc")]
    body = b"\x10" + varint + b"".join(bytes([n << 3 | 2, len(t)]) + t for n, t in text)
    store.create(path, bytes([6 << 3 | 2, len(body)]) + body, parents=True)


def length_up_to(entry_id: int) -> int:
    return sum(len(b"payload %d" % e) for e in range(entry_id + 1))


def three_bookies() -> Iterator[ThreeBookies]:
    """To make a fixture of: they listen until its test ends."""
    with ExitStack() as stack:
        cluster = ThreeBookies([stack.enter_context(BookieServer(batch_limit=40)) for _ in range(3)])
        stack.callback(cluster.reader.close)
        yield cluster
