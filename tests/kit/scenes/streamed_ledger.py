"""A ledger that is read as a stream, on bookies of this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.settings import BookKeeperSettings
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.fakes.metadata_store import FakeZooKeeper

LEDGER = 7
STRIPINGS = [(3, 2), (5, 3), (3, 3), (2, 2), (1, 1)]


class FiveBookies:
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


def some(count: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice((0, 1, 50, 300, 2_000))) for _ in range(count)]


def five_bookies() -> Iterator[FiveBookies]:
    """To make a fixture of: they listen until its test ends."""
    with ExitStack() as stack:
        cluster = FiveBookies([stack.enter_context(BookieServer()) for _ in range(5)])
        stack.callback(lambda: cluster.reader.close())
        yield cluster
