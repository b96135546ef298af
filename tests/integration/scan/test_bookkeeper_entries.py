"""Whole ledgers of a real BookKeeper of three bookies: streamed while one is dead, and as Spark tables.

A cluster of its own: a bookie is killed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import managed_ledger, message
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.setting_types import Tls
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.sources.spark_session import prepare
from sandbox.cluster import Cluster
from sandbox.planting import topics
from sandbox.servers import kinds
from tests.integration.pipeline import Pipeline, settings_file
from tests.kit.certificates import make_certificate

pytestmark = pytest.mark.integration

MESSAGES = 120
"""In each topic; the sandbox's brokers begin a ledger every 50 entries."""
COMPRESSIONS = {
    "NONE": pulsar.CompressionType.NONE,
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}


def payload(i: int) -> bytes:
    return b"message %d " % i * 20


class Written:
    """The cluster with what was written to it, and the settings to read it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.settings = settings_file(cluster, folder)
        self.client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def namespace(self, name: str, ensemble: int, write: int) -> None:
        url = f"{self.cluster.admin_url}/admin/v2/namespaces/public/{name}"
        httpx.put(url, json={}, timeout=120).raise_for_status()
        policy = {
            "bookkeeperEnsemble": ensemble,
            "bookkeeperWriteQuorum": write,
            "bookkeeperAckQuorum": write,
            "managedLedgerMaxMarkDeleteRate": 0,
        }
        httpx.post(f"{url}/persistence", json=policy, timeout=120).raise_for_status()

    def topic(self, name: str, **producer: Any) -> Topic:
        """``MESSAGES`` messages; the subscription keeps them."""
        topic = Topic.parse(f"persistent://public/{name}")
        self.client.subscribe(str(topic), "keep").close()
        sending = self.client.create_producer(str(topic), **producer)
        for i in range(MESSAGES):
            sending.send_async(
                payload(i),
                lambda *_: None,
                partition_key=f"key {i}",
                properties={"number": str(i)},
                event_timestamp=1_000 + i,
            )
        sending.flush()
        sending.close()
        return topic

    def ledgers(self, topic: Topic) -> tuple[tuple[int, LedgerMetadata], ...]:
        with KazooStore(load_settings(self.settings).zookeeper, read_only=True) as store:
            return closed_ledgers.of_topic(store, topic).ledgers

    def read(self, topic: Topic, tls: Tls | None = None) -> list[bytes]:
        settings = load_settings(self.settings)
        with (
            KazooStore(settings.zookeeper, read_only=True) as store,
            BookieReader(store, settings.bookkeeper.model_copy(update={"tls": tls})) as reader,
        ):
            return [
                one
                for ledger_id, metadata in closed_ledgers.of_topic(store, topic).ledgers
                for batch in reader.stream(ledger_id, metadata, 0, metadata.last_entry_id)
                for one in batch.payloads
            ]

    def table(self, name: str = "bookkeeper_entries", **options: str) -> DataFrame:
        spark: SparkSession = Pipeline(self.settings).spark_cluster.spark
        return prepare(spark).read.format(name).options(settings=str(self.settings), **options).load()


@pytest.fixture(scope="module")
def written(three_bookies: Cluster, spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    made = Written(three_bookies, tmp_path_factory.mktemp("settings"))
    yield made
    made.client.close()


def test_delayed_indexes_are_tables(written: Written) -> None:
    written.namespace("delayed", 2, 2)
    topic = "persistent://public/delayed/t"
    contents = topics.payloads(MESSAGES)
    due = [int(time.time() + 86_400 + number % 7) * 1000 for number in range(MESSAGES)]
    buckets = topics.delayed_backlog(written.cluster, written.client, topic, "s", contents, due)

    options = {"namespaces": "public/delayed", "partitions": "2"}
    (table, found) = (
        written.table(name, **options).collect() for name in ("delayed_index_buckets", "delayed_index_messages")
    )
    assert sorted((row.ledger_id, row.state) for row in table) == [(one, "waiting") for one in sorted(buckets)]
    with KazooStore(load_settings(written.settings).zookeeper, read_only=True) as store:
        (node,) = store.read([f"/managed-ledgers/{Topic.parse(topic).managed_ledger}"])
    assert isinstance(node, Node)
    listed = [one.ledger_id for one in managed_ledger.decode(node.data).ledgers]
    known = {(listed.index(row.ledger_id), row.entry_id): row.due for row in found}
    assert len(found) == sum(row.messages for row in table) == len(known) == 100
    first = min(ledger for ledger, _ in known)
    assert known == {(first + n // 50, n % 50): due[n] for n in range(100)}
    assert {(row.topic, row.subscription, row.acknowledged) for row in found} == {(topic, "s", False)}


def test_every_compression_in_batches_is_a_row_per_message(written: Written) -> None:
    written.namespace("batches", 2, 2)
    for name, codec in COMPRESSIONS.items():
        written.topic(
            f"batches/{name}",
            compression_type=codec,
            batching_enabled=True,
            batching_max_messages=2,
            batching_max_publish_delay_ms=60_000,
        )

    rows = written.table(namespace="public/batches", **{"as": "messages"}).collect()

    assert {row["compression"] for row in rows} == set(COMPRESSIONS)
    for name in COMPRESSIONS:
        mine = sorted(
            (row for row in rows if row["compression"] == name),
            key=lambda row: (row["ledger_id"], row["entry_id"], row["batch_index"]),
        )
        assert len(mine) >= 100  # the rest is in the ledger that is being written
        for i, row in enumerate(mine):
            assert (row["payload"], row["key"], row["properties"]) == (payload(i), f"key {i}", {"number": str(i)})
            assert (row["event_time"], row["sequence_id"]) == (1_000 + i, i)
            assert (row["batch_size"], row["batch_index"]) == (2, i % 2)
            assert not row["encrypted"]
            assert row["problem"] is None


def test_encrypted_messages_are_said_to_be(written: Written) -> None:
    private, public = written.folder / "private.pem", written.folder / "public.pem"
    for command in (
        ["openssl", "genrsa", "-out", str(private), "2048"],
        ["openssl", "rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    written.namespace("secret", 2, 2)
    written.topic(
        "secret/t",
        batching_enabled=False,
        encryption_key="k",
        crypto_key_reader=pulsar.CryptoKeyReader(str(public), str(private)),
    )

    rows = written.table(topic="persistent://public/secret/t", **{"as": "messages"}).collect()

    assert len(rows) == 100
    assert all(row["encrypted"] and b"message" not in row["payload"] for row in rows)


def test_tables_are_cut_into_tasks_and_columns_and_wrong_orders_are_refused(written: Written) -> None:
    written.namespace("tables", 2, 2)
    topic = written.topic("tables/t", batching_enabled=False)
    ids = [ledger_id for ledger_id, _ in written.ledgers(topic)]

    whole = written.table(topic=str(topic), partition_bytes="3000")
    rows = sorted(whole.collect())

    assert whole.rdd.getNumPartitions() > 5
    assert [row["entry_id"] for row in rows] == [*range(50), *range(50)]
    assert [message.decode(bytes(row["payload"])).messages[0].payload for row in rows] == [
        payload(i) for i in range(100)
    ]
    some = written.table(ledgers=str(ids[1]), columns="entry_id", bytes_per_second="1000000")
    assert sorted(row["entry_id"] for row in some.collect()) == list(range(50))
    for options, said in (
        ({}, "give one of the options"),
        ({"topic": "t"}, "option topic"),
        ({"ledgers": "987654321"}, "987654321"),
        ({"ledgers": "1", "as": "rows"}, "option as"),
    ):
        with pytest.raises(PySparkException, match=said):
            written.table(**options).collect()


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (3, 3)])
def test_ledgers_are_read_whole_while_a_bookie_is_dead(written: Written, ensemble: int, write: int) -> None:
    name = f"striped-{ensemble}-{write}"
    written.namespace(name, ensemble, write)
    topic = written.topic(f"{name}/t", batching_enabled=False)
    ledgers = written.ledgers(topic)
    assert {(m.ensemble_size, m.write_quorum) for _, m in ledgers} == {(ensemble, write)}
    before = written.read(topic)
    written.cluster.kill("bookie-2")
    try:
        after = written.read(topic)
        rows = written.table(topic=str(topic), **{"as": "messages"}).collect()
    finally:
        written.cluster.start_server("bookie-2")

    assert before == after
    assert [message.decode(one).messages[0].payload for one in before] == [payload(i) for i in range(100)]
    assert len(rows) == 100


def test_ledgers_are_read_over_tls_from_the_bookie_that_offers_it(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.namespace("tls", 3, 3)
    topic = written.topic("tls/t", batching_enabled=False)
    plain = written.read(topic)
    certificate = make_certificate(written.folder / "tls")
    usual = kinds.write_configuration

    def with_tls(server: kinds.Server, conf: Path, data: Path, *values: dict[str, str]) -> None:
        usual(server, conf, data, *values)
        options = {
            "ProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "Provider": "JDK",
            "KeyStoreType": "PEM",
            "KeyStore": certificate.key,
            "CertificatePath": certificate.file,
            "ClientAuthentication": "false",
        }
        with conf.open("a") as file:
            file.writelines(f"\ntls{name}={value}" for name, value in options.items())

    with monkeypatch.context() as patched:
        patched.setattr(kinds, "write_configuration", with_tls)
        written.cluster.restart("bookie-3")
    try:
        assert written.read(topic, Tls(ca_file=certificate.file)) == plain
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            written.read(topic, Tls())
    finally:
        written.cluster.restart("bookie-3")
