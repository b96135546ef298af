"""What every LedgerWriter does: the same tests on the fake and on real bookies; BookKeeper's own client reads it."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import Conflict
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import LedgerReader, LedgerShape, LedgerWriter, MetadataStore, Node
from pulsar_lifecycle.settings import BookKeeperSettings
from sandbox.cluster import Cluster
from sandbox.servers.toolchain import find_tools
from tests.integration.contracts.zk_nodes import settings
from tests.kit.fakes.ledger_reader import FakeLedgerReader, FakeLedgerWriter
from tests.kit.fakes.metadata_store import FakeZooKeeper

READ_LEDGER = Path(__file__).with_name("ReadLedger.java")
TAGS = {"application": b"pulsar", "component": b"a-test"}
SHAPE = LedgerShape(1, 1, 1, TAGS)
PAYLOADS = [b"x" * size for size in (0, 1, 7, 100_000, 3_000_000, 2)] + [b"entry %d" % i for i in range(500)]


@dataclass(frozen=True)
class Bench:
    writer: LedgerWriter
    reader: LedgerReader
    store: MetadataStore

    def stored(self, ledger_id: int) -> LedgerMetadata | None:
        (node,) = self.store.read([ledger_path(ledger_id)])
        return ledger_metadata.decode(node.data) if isinstance(node, Node) else None


@pytest.fixture(params=["fake", pytest.param("bookies", marks=pytest.mark.integration)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "fake":
        store, reader = FakeZooKeeper().session(), FakeLedgerReader()
        yield Bench(FakeLedgerWriter(store, reader), reader, store)
        return
    sandbox: Cluster = request.getfixturevalue("sandbox")
    with (
        KazooStore(settings(sandbox.zookeeper)) as real,
        BookieReader(real, BookKeeperSettings()) as bookies,
        closing(BookieWriter(real, BookKeeperSettings())) as writer,
    ):
        yield Bench(writer, bookies, real)


def test_what_was_written_is_a_closed_ledger_and_reads_back(bench: Bench) -> None:
    ledger_id = bench.writer.reserve()

    written = bench.writer.write(ledger_id, iter(PAYLOADS), SHAPE)

    assert (written.state, written.last_entry_id, written.length) == (
        LedgerState.CLOSED,
        len(PAYLOADS) - 1,
        sum(map(len, PAYLOADS)),
    )
    assert (written.digest_type, written.password, written.custom_metadata) == (DigestType.CRC32C, b"", TAGS)
    assert bench.stored(ledger_id) == written
    read = [
        payload for batch in bench.reader.stream(ledger_id, written, 0, len(PAYLOADS) - 1) for payload in batch.payloads
    ]
    assert read == PAYLOADS


def test_ids_are_given_once(bench: Bench) -> None:
    ids = [bench.writer.reserve() for _ in range(4)]

    assert ids == sorted(set(ids))
    bench.writer.write(ids[0], [], SHAPE)
    with pytest.raises(Conflict):
        bench.writer.write(ids[0], [b"other"], SHAPE)
    stored = bench.stored(ids[0])
    assert stored is not None
    assert stored.last_entry_id == -1


def test_what_fails_half_way_leaves_no_ledger(bench: Bench) -> None:
    def payloads() -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        raise RuntimeError("the payloads end here")

    ledger_id = bench.writer.reserve()

    with pytest.raises(RuntimeError, match="end here"):
        bench.writer.write(ledger_id, payloads(), SHAPE)

    assert bench.stored(ledger_id) is None


@pytest.mark.integration
def test_bookkeepers_own_client_reads_what_was_written(sandbox: Cluster) -> None:
    with (
        KazooStore(settings(sandbox.zookeeper)) as store,
        closing(BookieWriter(store, BookKeeperSettings())) as writer,
    ):
        ledgers = {writer.reserve(): payloads for payloads in (PAYLOADS, [])}
        for ledger_id, payloads in ledgers.items():
            writer.write(ledger_id, payloads, SHAPE)
    tools = find_tools()
    drivers = [
        f"-Dbookkeeper.metadata.{side}.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{name}Driver"
        for side, name in (("bookie", "Bookie"), ("client", "Client"))
    ]
    command = [tools.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *drivers, "-cp", tools.pulsar]
    said = subprocess.run(
        [*command, str(READ_LEDGER), f"metadata-store:zk:{sandbox.zookeeper}", *map(str, ledgers)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1200,
    ).stdout.splitlines()

    tags = sorted(f"tag {key}={value.decode()}" for key, value in TAGS.items())
    expected: list[str] = []
    for ledger_id, payloads in ledgers.items():
        whole = b"".join(payloads)
        expected.append(f"ledger {ledger_id} {len(payloads) - 1} {len(whole)} {hashlib.sha256(whole).hexdigest()}")
        expected += tags
    assert [line for line in said if line.startswith(("ledger ", "tag "))] == expected
