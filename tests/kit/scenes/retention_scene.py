"""A cluster of fakes with a stored scan of it, for retention plans and what applies them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_units, read_ledgers
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.load_state import Brokers, read_topics
from pulsar_lifecycle.metastore.topics import read_cursors, read_managed_ledgers, topic_units
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks
from pulsar_lifecycle.settings import Settings, load_settings
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.epoch import Census, Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.store_history import StoreCounters
from pulsar_lifecycle.values.topic_load import CompactionStatus
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.deletion_queue import FakeQueueReader
from tests.kit.fakes.lake import FakeLake
from tests.kit.fakes.ledger_reader import FakeLedgerWriter
from tests.kit.fakes.metadata_store import FakeStore, Operation
from tests.kit.settings import write_settings
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

MINUTE = 60_000
NAMESPACE = "acme/orders"
MB = 1 << 20


class RetentionScene:
    """Topics of namespace ``acme/orders``, all unloaded, and a scan of them.

    The lake is in memory, or in ``files``, which takes longer: for what opens it by the settings, as commands do.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, files: bool = False) -> None:
        self.servers = SimulatedCluster()
        more = (
            "bookkeeper.shared_with = []\norphans.grace_period = 0\norphans.confirm_after = 0\napply.max_share = 1.0\n"
        )
        self.file = write_settings(folder, monkeypatch, more=more)
        self.settings: Settings = load_settings(str(self.file))
        self.lake = FileLake(self.settings.lake.path) if files else FakeLake()
        servers = self.servers
        connect = connecting(
            stores=lambda *_, read_only=False, **__: self._session(read_only),
            admin=lambda: servers.admin,
            reader=lambda: servers.reader,
            writer=lambda: self.writer,
            queue=lambda: self.open_queue(),
            queue_reader=lambda: FakeQueueReader(servers.deletion_topics),
            journal=lambda: servers.journal,
            journal_reader=lambda: servers.journal,
            objects=lambda: self.objects,
            clock=lambda: servers.clock,
            lake=lambda: self.lake,
        )
        self.cluster = Cluster(self.settings, connect, str(self.file), given=LocalTasks())
        servers.put(control.SANDBOX, b"")
        self.writer = FakeLedgerWriter(servers.open_store(), servers.reader)
        self.open_queue: Callable[[], Any] = servers.open_queue
        self.objects: Any = None
        """The object store, where the settings have one."""
        self.before: Callable[[Operation], None] = lambda operation: None
        """Called before each operation of a session that is opened."""
        self.retention(60, -1)

    def _session(self, read_only: bool) -> FakeStore:
        store = self.servers.open_store(read_only=read_only)
        store.before = lambda operation: self.before(operation)
        return store

    @property
    def now(self) -> int:
        """The fakes' time (ms)."""
        return self.servers.clock.now_ms()

    def hold(self, name: str) -> None:
        """Put something on legal hold in the settings file, as an operator does while runs are at work."""
        self.file.write_text(f"{self.file.read_text()}orphans.legal_holds = {json.dumps([name])}\n")

    def retention(self, minutes: int, megabytes: int, namespace: str = NAMESPACE) -> None:
        """Set a namespace's retention."""
        policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        document = json.dumps({"retention_policies": policy}).encode()
        self.servers.put(f"/admin/policies/{namespace}", document)

    def topic(self, name: str, *minutes_ago: int, cursor: int | None = None, namespace: str = NAMESPACE) -> list[int]:
        """A topic with a ledger of 1 MiB for each age; its cursor stands at the end of the one of index ``cursor``."""
        topic = Topic.parse(f"persistent://{namespace}/{name}")
        servers = self.servers
        ids = [servers.ledger(data_tags(topic), state=LedgerState.CLOSED) for _ in minutes_ago]
        servers.topic(topic, ids)
        path = servers.topic_path(topic)
        info = managed_ledger.decode(servers.zookeeper.data(path))
        closed = [self.now - age * MINUTE for age in minutes_ago]
        ledgers = [replace(item, timestamp=at, size=MB) for item, at in zip(info.ledgers, closed, strict=True)]
        servers.put(path, managed_ledger.encode(replace(info, ledgers=tuple(ledgers))))
        if cursor is not None:
            entry = servers.position_entry(at=ids[cursor])
            ledger = servers.ledger({**data_tags(topic), "pulsar/cursor": "s"}, entries=[entry])
            servers.cursor(topic, "s", ledger=ledger, at=0)
        return ids

    def listed(self, name: str, namespace: str = NAMESPACE) -> list[int]:
        """The ledgers that a topic lists now."""
        path = self.servers.topic_path(Topic.parse(f"persistent://{namespace}/{name}"))
        return [item.ledger_id for item in managed_ledger.decode(self.servers.zookeeper.data(path)).ledgers]

    def position(self, name: str, position: Position) -> None:
        """Move the subscription of a topic, by a cursor ledger of its own."""
        topic = Topic.parse(f"persistent://{NAMESPACE}/{name}")
        entry = self.servers.position_entry(at=position.ledger_id)
        ledger = self.servers.ledger({**data_tags(topic), "pulsar/cursor": "s"}, entries=[entry])
        self.servers.cursor(topic, "s", ledger=ledger)

    def scan(self, *gaps: Gap, **context: Any) -> Epoch:
        """Store a scan of an hour later, when the topics count as unloaded."""
        servers, lake = self.servers, self.lake
        servers.wait(1)
        store = servers.open_store(read_only=True)
        epoch_id, units = f"e{len(lake.epochs())}", topic_units(store)
        brokers = Brokers(servers.admin.loaded_topics(), servers.admin.stats_interval_ms())
        batches = {
            "managed_ledgers": (tables.MANAGED_LEDGERS, read_managed_ledgers(store, units)),
            "managed_cursors": (tables.MANAGED_CURSORS, read_cursors(store, units)),
            "bookkeeper_ledgers": (tables.BOOKKEEPER_LEDGERS, read_ledgers(store, ledger_units(store))),
            "topics": (
                tables.TOPICS,
                read_topics(store, units, brokers, {}, lambda topic: CompactionStatus.NOT_RUN, self.now, "/ledgers"),
            ),
        }
        fingerprint = cluster_fingerprint(store, "/ledgers")
        lake.begin_epoch(epoch_id, self.now, epoch_id, StoreCounters(fingerprint, 0))
        for table, (schema, rows) in batches.items():
            lake.publish(epoch_id, table, [lake.write_part(epoch_id, table, schema, rows)])
        named = frozenset({NAMESPACE, "pulsar/system"})
        rules = Context(**{"now": self.now, "grace": 0, "namespaces": named, **context})
        census = Census("bookkeeper_ledgers", "", 1_000, 1_000, 0, 0)
        epoch = Epoch(epoch_id, "test", fingerprint, self.now, self.now, (census,), 1, 1, (), gaps=gaps)
        lake.store_epoch(epoch, Referenced(), rules)
        return epoch
