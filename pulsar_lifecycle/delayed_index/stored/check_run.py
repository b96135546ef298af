"""Check the delayed indexes of a scan's subscriptions in bulk: read, judge, store the tables of the epoch.

Belongs here: which topics, spreading them over tasks, storing. Not here: the rule (``index_findings.py``), reading
(``index_reading.py``). Loads no topic, and writes nothing to the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored import index_tables, rows
from pulsar_lifecycle.delayed_index.stored.index_capacity import capacity
from pulsar_lifecycle.delayed_index.stored.index_codes import HARM, RED, Harm, IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import Found, judge
from pulsar_lifecycle.delayed_index.stored.index_reading import IndexPorts, index_ports, read_entries, read_topic
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_BUCKET
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.tables import Problem

BUCKETS, FINDINGS, DUE = "delayed_index_buckets", "delayed_index_findings", "delayed_messages_due"
CAPACITY = "delayed_index_capacity"
SCHEMAS = {
    BUCKETS: index_tables.DELAYED_INDEX_BUCKETS,
    FINDINGS: index_tables.DELAYED_INDEX_FINDINGS,
    DUE: index_tables.DELAYED_MESSAGES_DUE,
    CAPACITY: index_tables.DELAYED_INDEX_CAPACITY,
}
_PIECES_PER_TASK = 4
"""More pieces than tasks at once, as topics differ."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found: topics with buckets, and findings by code."""

    topics: int
    findings: Mapping[IndexFinding, int]

    @property
    def red(self) -> Mapping[IndexFinding, int]:
        """The findings by which messages are late, early or lost."""
        return {code: count for code, count in self.findings.items() if HARM[code] in RED}

    @property
    def unknown(self) -> int:
        """How many findings say that something could not be read."""
        return sum(count for code, count in self.findings.items() if HARM[code] is Harm.UNKNOWN)


def check_delayed_indexes(cluster: Cluster, epoch_id: str, namespaces: Collection[str] | None = None) -> Checked:
    """Read and judge every subscription that has buckets by a scan; stores the tables over earlier ones of it.

    Of the topics of ``delayed_index.whole_backlogs`` every subscription, with buckets or not. Of ``namespaces``, if
    they are given, everything and of others nothing: then it is the tables of :func:`chosen` that are stored.
    """
    lake, now = cluster.lake, cluster.clock.now_ms()
    whole = cluster.settings.delayed_index.whole_backlogs if namespaces is None else namespaces
    topics = topics_to_read(cluster, epoch_id, whole)
    unnamed = unnamed_ledgers(cluster, epoch_id)
    if namespaces is not None:
        topics = [one for one in topics if one.whole]
        unnamed = [row for row in unnamed if row["namespace"] in namespaces]
    size = max(1, -(-len(topics) // (cluster.tasks.at_once * _PIECES_PER_TASK)))
    pieces = [topics[at : at + size] for at in range(0, len(topics), size)]
    settings = share_of(cluster.tasks, cluster.settings)
    names = {table: table if namespaces is None else chosen(table) for table in SCHEMAS}
    broker = DelayedIndexSettings.from_settings(settings.delayed_index.brokers)
    work = _Check(lake, epoch_id, settings, cluster.connect, now, names, broker)
    parts = [*cluster.tasks.map(work.write, pieces), work.store({FINDINGS: unnamed})]
    for table, name in names.items():
        lake.publish(epoch_id, name, [part[table] for part in parts])
    counts: Counter[IndexFinding] = Counter()
    for batch in lake.batches(cluster.parts(epoch_id, names[FINDINGS]), ["code"]):
        counts.update(map(IndexFinding, batch.column("code").to_pylist()))
    return Checked(len(topics), counts)


def chosen(table: str) -> str:
    """The name under which a table of chosen namespaces is stored, beside that of all."""
    return f"chosen_{table}"


@dataclass(frozen=True, slots=True)
class TopicToRead:
    """A topic by its full name; ``whole``: with the subscriptions that have no buckets."""

    name: str
    whole: bool


def topics_to_read(cluster: Cluster, epoch_id: str, whole: Collection[str] = ()) -> list[TopicToRead]:
    """The topics of which a cursor names a bucket, or cannot be read, and those of the namespaces ``whole``, sorted."""
    found: dict[str, bool] = {}
    there = (pc.list_value_length(pc.field("buckets")) > 0) | (pc.field("problem") == Problem.CORRUPT)
    there |= pc.field("namespace").isin(pa.array(sorted(whole), pa.string()))
    for batch in cluster.lake.batches(cluster.parts(epoch_id, "managed_cursors"), ["topic", "namespace"], there):
        names = (batch.column(name).to_pylist() for name in ("topic", "namespace"))
        for topic, namespace in zip(*names, strict=True):
            if topic:
                found[topic] = namespace in whole
    return [TopicToRead(name, whole) for name, whole in sorted(found.items())]


def unnamed_ledgers(cluster: Cluster, epoch_id: str) -> list[rows.Row]:
    """Snapshots of a scan that no cursor names: of a cursor that is there and was read, or orphans."""
    lake = cluster.lake
    is_snapshot = pc.field("component") == COMPONENT_BUCKET
    tagged: dict[int, tuple[str, str, str]] = {}
    columns = ["ledger_id", "bucket_topic", "bucket_cursor", "bucket_key"]
    for batch in lake.batches(cluster.parts(epoch_id, "bookkeeper_ledgers"), columns, is_snapshot):
        for row in batch.to_pylist():
            tagged[row["ledger_id"]] = (row["bucket_topic"] or "", row["bucket_cursor"] or "", row["bucket_key"] or "")
    wanted = {owner[0] for owner in tagged.values()}
    cursors: set[tuple[str, str]] = set()
    unread: set[tuple[str, str]] = set()
    for batch in lake.batches(cluster.parts(epoch_id, "managed_cursors"), ["topic", "cursor", "buckets", "problem"]):
        for row in batch.to_pylist():
            if row["topic"] in wanted:
                (unread if row["problem"] else cursors).add((row["topic"], row["cursor"]))
            for bucket in row["buckets"] or ():
                tagged.pop(bucket["ledger_id"], None)
    found: list[rows.Row] = []
    for ledger_id, (topic, cursor, key) in sorted(tagged.items()):
        if (topic, cursor) in unread:  # what it names is not known
            continue
        code = IndexFinding.LEDGER_WITHOUT_KEY if (topic, cursor) in cursors else IndexFinding.ORPHAN
        try:
            found.append(rows.finding_row(Topic.parse(topic), cursor, Found(code, key, ledger_id)))
        except LifecycleError:  # tags that name no topic
            continue
    return found


@dataclass(frozen=True)
class _Check:
    """Some topics; runs in a task."""

    lake: Lake
    epoch_id: str
    settings: Settings
    connect: Connect
    now: int
    names: Mapping[str, str]
    """Under which name each table is stored."""
    broker: DelayedIndexSettings

    def write(self, topics: Sequence[TopicToRead]) -> dict[str, str]:
        """The parts that have the rows of these topics, by table."""
        found: dict[str, list[rows.Row]] = {table: [] for table in SCHEMAS}
        with self.connect(self.settings, read_only=True) as ports:
            for one in topics:
                topic = Topic.parse(one.name)
                about = judged(index_ports(ports), topic, self._root, self.now, self.broker, whole=one.whole)
                for table, some in about:
                    found[table] += some
        return self.store(found)

    def store(self, found: Mapping[str, Sequence[rows.Row]]) -> dict[str, str]:
        """One part for each table."""
        return {
            table: self.lake.write_part(
                self.epoch_id,
                self.names[table],
                schema,
                [pa.RecordBatch.from_pylist(list(found.get(table, ())), schema)],
            )
            for table, schema in SCHEMAS.items()
        }

    @property
    def _root(self) -> str:
        return self.settings.bookkeeper.ledgers_root


def judged(
    ports: IndexPorts,
    topic: Topic,
    root: str,
    now: int,
    broker: DelayedIndexSettings,
    only: str = "",
    *,
    whole: bool = False,
) -> Iterator[tuple[str, list[dict[str, Any] | rows.Row]]]:
    """The rows of a topic's subscriptions, or of the ``only`` one, by table. What cannot be read is a finding.

    ``whole``: subscriptions without buckets, too. ``broker``: the settings by which brokers make theirs. What would be
    red is read once more, and that counts: a broker deletes a snapshot before the property that names it.
    """
    found = list(_judged(ports, topic, root, now, broker, only, whole=whole))
    if any(row["harm"] in RED for table, some in found if table == FINDINGS for row in some):
        found = list(_judged(ports, topic, root, now, broker, only, whole=whole))
    yield from found


def _judged(
    ports: IndexPorts, topic: Topic, root: str, now: int, broker: DelayedIndexSettings, only: str, *, whole: bool
) -> Iterator[tuple[str, list[dict[str, Any] | rows.Row]]]:
    sealed_at = max(broker.delayed_delivery_min_index_count_per_bucket, 1)
    try:
        stored = read_topic(ports, topic, root, only, unbucketed=whole)
        for cursor, why in stored.unread.items():
            yield FINDINGS, [rows.finding_row(topic, cursor, Found(IndexFinding.UNREAD, detail=why))]
        if not stored.subscriptions:
            return
        entries = read_entries(ports, stored, root)
    except LifecycleError as error:
        yield FINDINGS, [rows.finding_row(topic, only, Found(IndexFinding.UNREAD, detail=str(error)))]
        return
    for one in stored.subscriptions:
        yield BUCKETS, [rows.bucket_row(topic, one.cursor, bucket, now) for bucket in one.buckets]
        yield FINDINGS, [rows.finding_row(topic, one.cursor, found) for found in judge(one, entries, now, sealed_at)]
        yield DUE, list(rows.due_rows(topic, one, entries, now))
    if len(stored.subscriptions) > 1:
        yield CAPACITY, [rows.capacity_row(topic, capacity(stored.subscriptions, entries, broker, now))]
