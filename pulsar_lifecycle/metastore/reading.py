"""Reading the metastore's tables in shares, wherever the work is done.

Belongs here: which subtrees each share reads, and their rows. Not here: Spark (``metastore/sources.py``), what the rows
mean (``values/tables.py``) and how a z-node is read (``metastore/walk.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import LifecycleError, UsageError
from pulsar_lifecycle.metastore import bookkeeper_ledgers, load_state, schemas, topics, walk
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.namespaces import namespace_policies, policy_documents
from pulsar_lifecycle.metastore.walk import Unit
from pulsar_lifecycle.ports import ClusterPorts, Connect, MetadataStore
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.topic_load import LoadReason

TABLES: Mapping[str, pa.Schema] = {
    "bookkeeper_ledgers": tables.BOOKKEEPER_LEDGERS,
    "managed_ledgers": tables.MANAGED_LEDGERS,
    "managed_cursors": tables.MANAGED_CURSORS,
    "schemas": tables.SCHEMAS,
    "topics": tables.TOPICS,
}
"""Every table of the metastore by the name of its data source. A scan reads BookKeeper's list first."""


@dataclass(frozen=True)
class RowFilter:
    """Which rows are wanted: inclusive id bounds, ids, and exact values of the name columns."""

    low: int = 0
    high: int = 2**63 - 1
    ids: frozenset[int] | None = None
    names: Mapping[str, frozenset[str]] | None = None

    def namespace(self, namespace: str) -> bool:
        """Whether a namespace is worth reading."""
        for column, values in (self.names or {}).items():
            known = {_namespace_of(column, value) for value in values}
            if namespace not in known:
                return False
        return True

    def overlaps(self, low: int, high: int) -> bool:
        """Whether any wanted ledger id is in low..high."""
        if high < self.low or low > self.high:
            return False
        return self.ids is None or any(low <= i <= high for i in self.ids)


def _namespace_of(column: str, value: str) -> str:
    if column == "topic":
        parts = value.partition("://")[2].split("/")
        return "/".join(parts[: 3 if len(parts) > 3 else 2])  # T/NS/local, or V1 T/C/NS/local with slashes in it
    return value.rpartition("/")[0].rpartition("/")[0] if column == "managed_ledger" else value


@dataclass(frozen=True)
class TableShare:
    """What one task reads. Everything that it needs comes with it: nothing leans on the driver's memory."""

    units: list[Unit]
    reads_per_second: float
    brokers: Brokers | None = None
    policies: Mapping[str, Mapping[str, Any]] | None = None
    now: int = 0


@dataclass(frozen=True)
class Reading:
    """One table of one root; ``root`` is empty for our own.

    ``strict``: what cannot be learnt of brokers and policies raises, and is no row's error. Sent to tasks.
    """

    table: str
    settings: Settings
    connect: Connect
    root: str = ""
    wanted: RowFilter = field(default_factory=RowFilter)
    strict: bool = False

    def shares(self, parts: int, concurrency: int) -> list[TableShare]:
        """``parts`` shares of the work at most, at least one; ``concurrency`` of them are worked on at once."""
        concurrency = max(1, min(parts, concurrency))
        budget = max(1, self.settings.zookeeper.reads_per_second // concurrency)
        with self.connect(self.settings) as ports:
            store = ports.root(self.root)
            store.sync("/")
            shares = [TableShare(group, budget) for group in walk.share(self._units(store), parts) or [[]]]
            if self.table == "topics":
                shares = self._with_brokers(shares, store, ports)
        return shares

    def rows(self, share: TableShare, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one share, with all columns of the table or those of ``schema``."""
        schema = schema or TABLES[self.table]
        with self.connect(self.settings, reads_per_second=share.reads_per_second) as ports:
            yield from self._batches(ports, share, schema)

    def _units(self, store: MetadataStore) -> list[Unit]:
        root, wanted = self.settings.bookkeeper.ledgers_root, self.wanted
        if self.table == "bookkeeper_ledgers":
            units = bookkeeper_ledgers.ledger_units(store, root)
            return [u for u in units if u.trouble or wanted.overlaps(*bookkeeper_ledgers.id_range(u.parent, root))]
        if self.table == "schemas":
            return schemas.schema_units(store, wanted.namespace)
        return topics.topic_units(store, wanted.namespace)

    def _with_brokers(self, shares: list[TableShare], store: MetadataStore, ports: ClusterPorts) -> list[TableShare]:
        if not self.settings.pulsar.admin_url:
            raise UsageError("topics: give option admin_url (or settings): the load state needs the brokers' word")
        try:
            brokers = load_state.fetch_brokers(store, ports.admin)
        except LifecycleError as error:
            if self.strict:
                raise
            brokers = Brokers.failed(error)
        try:
            # topics of a namespace whose policies cannot be decoded have none in the table
            stored = ports.configuration
            policies = namespace_policies(stored) if self.strict else policy_documents(stored).known
        except LifecycleError as error:
            if self.strict:
                raise
            policies = {}
            why = brokers.unknown or Why(LoadReason.BROKERS_UNANSWERED, f"policies: {error}")
            brokers = replace(brokers, unknown=why)
        now = ports.clock.now_ms()
        return [_with_its_topics(share, brokers, policies, now) for share in shares]

    def _batches(self, ports: ClusterPorts, share: TableShare, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self.table == "topics":
            if not share.units:
                return
            assert share.brokers is not None
            assert share.policies is not None
            yield from load_state.read_topics(
                ports.root(self.root),
                share.units,
                share.brokers,
                share.policies,
                ports.admin.compaction_status,
                share.now,
                self.settings.bookkeeper.ledgers_root,
                schema,
            )
            return
        store = ports.root(self.root)
        if self.table == "bookkeeper_ledgers":
            root = self.settings.bookkeeper.ledgers_root
            yield from bookkeeper_ledgers.read_ledgers(store, share.units, schema, root)
            return
        yield from _READERS[self.table](store, share.units, schema)


def _with_its_topics(
    share: TableShare, brokers: Brokers, policies: Mapping[str, Mapping[str, Any]], now: int
) -> TableShare:
    """The share with what brokers and policies say of its own namespaces."""
    namespaces = {unit.parent[len(walk.MANAGED_LEDGERS_ROOT) + 1 :].rpartition("/")[0] for unit in share.units}
    mine = {t: b for t, b in brokers.loaded.items() if _namespace_of("topic", t) in namespaces}
    return replace(
        share,
        brokers=replace(brokers, loaded=mine),
        policies={n: p for n, p in policies.items() if n in namespaces},
        now=now,
    )


_READERS: Mapping[str, Callable[..., Iterator[pa.RecordBatch]]] = {
    "managed_ledgers": topics.read_managed_ledgers,
    "managed_cursors": topics.read_cursors,
    "schemas": schemas.read_schemas,
}
