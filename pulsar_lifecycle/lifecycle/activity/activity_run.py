"""Keep the history of topics and subscriptions that are used or not, and report the inactive ones: tables of an epoch.

Belongs here: the order of steps, which earlier history counts, storing. Not here: the rules (``last_use.py``,
``inactive_rules.py``, ``partition_check.py``). Loads no topic, and writes nothing to the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.lifecycle.activity.activity_tables import (
    CONNECTIONS,
    CURSOR_ACTIVITY,
    CURSOR_HISTORY,
    TOPIC_ACTIVITY,
)
from pulsar_lifecycle.lifecycle.activity.held_bytes import on_bookies
from pulsar_lifecycle.lifecycle.activity.in_force import InForceNow, in_force_now
from pulsar_lifecycle.lifecycle.activity.inactive_rules import (
    PARTITION,
    InactivityChoice,
    inactive_cursors,
    inactive_topics,
    parents_of,
    with_partitioned_subscriptions,
    with_partitions,
)
from pulsar_lifecycle.lifecycle.activity.last_use import Clients, cursor_activity, topic_activity
from pulsar_lifecycle.lifecycle.activity.partition_check import (
    PARTITION_FINDINGS,
    partition_findings,
    partitioned_topic,
)
from pulsar_lifecycle.lifecycle.activity.scan_time import not_before
from pulsar_lifecycle.lifecycle.held.open_sizes import open_sizes_of
from pulsar_lifecycle.lifecycle.load.monitors import by_topic
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.retention_inputs import (
    POSITIONS,
    CursorMark,
    asked_of_bookkeeper,
    cursor_marks,
    retention_topics,
    with_shadow_sources,
)
from pulsar_lifecycle.lifecycle.retention_tables import namespaces_of
from pulsar_lifecycle.metastore.topics import partition_counts
from pulsar_lifecycle.ports import Connect, Lake, MetadataStore, Node
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import history_check
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.topics.topic_run import owners_rules, partitioned_shadows
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import BROKERS_NOT_ANSWERING, GapCode
from pulsar_lifecycle.values.plans.inactive_plan import INACTIVE_CURSORS, INACTIVE_TOPICS
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, MANAGED_CURSORS, MANAGED_LEDGERS, TOPICS

CURSORS, TOPIC_TABLE, CLIENTS = "cursor_activity", "topic_activity", "connected_clients"
IDLE_TOPICS, IDLE_CURSORS, DISAGREEING = "inactive_topics", "inactive_cursors", "partition_findings"

_OF_TOPIC = (
    *("managed_ledger", "topic", "namespace", "ledgers", "terminated", "shadow_source"),
    *("ctime", "czxid", "version", "path", "problem"),
)
_OF_CURSOR = (
    *("path", "managed_ledger", "topic", "namespace", "cursor", "ctime", "czxid", "version", "cursors_ledger_id"),
    *("mark_delete_ledger_id", "mark_delete_entry_id", "last_active", "problem", "replicated_subscription"),
)
_OF_LEDGER = ("ledger_id", "state", "entries", "length", "ctime", "mtime", "problem")
_OF_STATE = ("managed_ledger", "load_state", "load_reason")


class ActivityReport(NamedTuple):
    """What became of a report: its tables, the scan whose history it goes on with, and what could not be read.

    ``undecodable``: why policies of some namespaces are not known; nothing of these goes.
    """

    topics: pa.Table
    cursors: pa.Table
    partitions: pa.Table
    previous: Epoch | None
    problems: tuple[str, ...]
    undecodable: tuple[str, ...] = ()


def build_activity(cluster: Cluster, epoch: Epoch) -> ActivityReport:
    """Go on with the history by a closed epoch, and say what is inactive; stored over an earlier report of it.

    Where brokers do not answer, clients may be connected anywhere but to topics that the scan found unloaded.
    """
    lake, epoch_id = cluster.lake, epoch.epoch_id
    parts = cluster.parts(epoch_id, "managed_ledgers")
    clients, unreached = _clients(cluster)
    now = cluster.clock.now_ms()
    if clients is not None:
        cluster.store(epoch_id, CLIENTS, CONNECTIONS, lambda one: one.to_batches(), [clients])
    elif stored(lake, epoch_id, CLIENTS):
        lake.publish(epoch_id, CLIENTS, [])
    in_force, unknown = in_force_now(cluster, namespaces_of(lake, parts))
    shadows, unread = _shadows(cluster)
    previous = previous_activity(cluster, epoch)
    files = {name: tuple(cluster.parts(epoch_id, name)) for name in _READ}
    written = (part for name in ("managed_cursors", "bookkeeper_ledgers") for part in files[name])
    reading = _Reading(
        share_of(cluster.tasks, cluster.settings),
        lake,
        cluster.connect,
        in_force,
        owners_rules(cluster, epoch, now).of_whole_topics(),
        shadows,
        files,
        {name: _parts(lake, previous, name) for name in (TOPIC_TABLE, CURSORS)},
        tuple(cluster.parts(epoch_id, CLIENTS)) if clients is not None else None,
        not_before(lake, (*parts, *written), now, int(cluster.settings.inactivity.max_gap * 1000)),
    )
    cluster.store(epoch_id, CURSORS, CURSOR_ACTIVITY, reading.cursors, parts)
    # A table's parts are in the order of their pieces.
    pieces = list(zip(parts, cluster.parts(epoch_id, CURSORS), strict=True))
    cluster.store(epoch_id, TOPIC_TABLE, TOPIC_ACTIVITY, reading.topics, pieces)
    found = _inactive(cluster, epoch, pieces, choice_of(cluster.settings, in_force))
    problems, disagreeing = _partitions(cluster, epoch_id)
    for name, rows in zip((IDLE_TOPICS, IDLE_CURSORS, DISAGREEING), (*found, disagreeing), strict=True):
        cluster.store(epoch_id, name, rows.schema, lambda one: one.to_batches(), [rows])
    unread = (*unreached, *unknown, *unread, *problems)
    return ActivityReport(*found, disagreeing, previous, unread, in_force.undecodable)


_READ = ("managed_cursors", "bookkeeper_ledgers", "topics")


def choice_of(settings: Settings, in_force: InForceNow) -> InactivityChoice:
    """The settings' word on what is inactive and what of it may be deleted."""
    own = settings.inactivity
    return InactivityChoice(
        int(own.period * 1000),
        frozenset(own.topics),
        frozenset(own.subscriptions),
        frozenset(own.kept_subscriptions),
        in_force.system_cursors,
        in_force.replicator,
        in_force.functions,
        in_force.owners_keep,
    )


def previous_activity(cluster: Cluster, epoch: Epoch) -> Epoch | None:
    """The scan whose history goes on with this one; None where it starts anew.

    One whose brokers did not answer is passed over: what it did not see is no use, and no proof of the contrary. It
    starts anew after ``inactivity.max_gap`` without one that proves something, and where the metadata store is not the
    later state of what an earlier scan saw: it was restored, or is another one.
    """
    earlier = [one for one in cluster.lake.epochs(epoch.fingerprint) if one.started_at < epoch.started_at]
    reported = (one for one in reversed(earlier) if stored(cluster.lake, one.epoch_id, TOPIC_TABLE))
    found = next((one for one in reported if brokers_answered(cluster.lake, one)), None)
    if found is None or epoch.started_at - found.started_at > cluster.settings.inactivity.max_gap * 1000:
        return None
    since = [one for one in (*earlier, epoch) if one.started_at > found.started_at]
    if any(gap.code is GapCode.HISTORY_BROKEN for one in since for gap in one.gaps):
        return None
    root = cluster.settings.bookkeeper.ledgers_root
    with cluster.ports(read_only=True) as ports:
        broken = history_check.broken_since(ports.store, [found], epoch.fingerprint, root)
    return None if broken else found


def brokers_answered(lake: Lake, epoch: Epoch) -> bool:
    """Whether brokers said what they had loaded at the scan, and who was connected at its report."""
    unanswered = any(gap.code in BROKERS_NOT_ANSWERING for gap in epoch.gaps)
    return not unanswered and stored(lake, epoch.epoch_id, CLIENTS)


def stored(lake: Lake, epoch_id: str, table: str) -> bool:
    """Whether a scan has a table."""
    try:
        return bool(lake.parts(epoch_id, table))
    except NotFound:
        return False


def rows_of(lake: Lake, epoch_id: str, table: str) -> pa.Table:
    """``inactive_topics``, ``inactive_cursors`` or ``partition_findings`` of a scan. Raises NotFound without any."""
    schema = {IDLE_TOPICS: INACTIVE_TOPICS, IDLE_CURSORS: INACTIVE_CURSORS, DISAGREEING: PARTITION_FINDINGS}[table]
    return _table(lake, lake.parts(epoch_id, table), schema, schema.names)


def newest_activity(lake: Lake, cluster: str) -> Epoch:
    """The newest scan of a cluster with a report. Raises NotFound where there is none."""
    for epoch in reversed(lake.epochs(cluster=cluster)):
        if stored(lake, epoch.epoch_id, DISAGREEING):
            return epoch
    raise NotFound("there is no report of inactive topics yet: run the job scan, then report_activity")


def history_since(lake: Lake, epoch_id: str) -> int | None:
    """Since when (ms) the history of the topic that is watched longest has no gap; None without topics."""
    batches = lake.batches(lake.parts(epoch_id, TOPIC_TABLE), ["watched_since"])
    return min((least for batch in batches if (least := pc.min(batch.column(0)).as_py()) is not None), default=None)


@dataclass(frozen=True)
class _Reading:
    """What one file of ``managed_ledgers`` says; runs in a task.

    ``files``: of the scan's other tables; ``before``: of the history that counts; ``clients``: None, where brokers did
    not answer.
    """

    settings: Settings
    lake: Lake
    connect: Connect
    in_force: InForceNow
    context: Context
    shadows: ShadowSources
    files: dict[str, tuple[str, ...]]
    before: dict[str, tuple[str, ...]]
    clients: tuple[str, ...] | None
    now: int

    def cursors(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of ``CURSOR_ACTIVITY`` of the topics in a file."""
        listed = self._listed(part)
        own = pc.field("managed_ledger").isin(whole(listed.column("managed_ledger")))
        cursors = self._rows(MANAGED_CURSORS, _OF_CURSOR, own & pc.field("path").is_valid())
        with self.connect(self.settings, read_only=True) as ports:
            marks = cursor_marks(ports.store, ports.reader, cursors, self.settings.bookkeeper.ledgers_root)
            said = _acknowledged(ports.store, cursors)
        cursors = cursors.drop_columns("replicated_subscription")
        for n, name in enumerate(CursorMark._fields):
            column = pa.array([mark[n] for mark in marks], CURSOR_ACTIVITY.field(name).type)
            cursors = cursors.append_column(name, column)
        cursors = cursors.append_column("acknowledged", said).filter(cursors.column("problem").is_null())
        inputs, ledgers = self._inputs(listed, POSITIONS.empty_table())
        made = _made(listed, ledgers)
        columns = (listed.column("managed_ledger"), listed.column("topic"), inputs.column("ledgers"), made)
        topics = pa.table(dict(zip(("managed_ledger", "topic", "inner", "loaded_at"), columns, strict=True)))
        before = self._before(CURSORS, CURSOR_HISTORY, own)
        yield from cursor_activity(cursors, topics, self._clients(listed), before, self.now).to_batches()

    def topics(self, piece: tuple[str, str]) -> Iterator[pa.RecordBatch]:
        """Rows of ``TOPIC_ACTIVITY`` of the topics in a file, with that of their cursors."""
        listed = self._listed(piece[0])
        own = pc.field("managed_ledger").isin(whole(listed.column("managed_ledger")))
        cursors = _table(self.lake, [piece[1]], CURSOR_ACTIVITY, CURSOR_ACTIVITY.names)
        inputs, ledgers = self._inputs(listed, self._positions(cursors, own))
        listed = listed.append_column("loaded_at", _last_had(listed, ledgers))
        before = self._before(TOPIC_TABLE, TOPIC_ACTIVITY, own)
        clients = self._clients(listed)
        replicated = by_topic(listed, self.in_force.replicated)
        yield from topic_activity(
            listed.append_column("replicated", pc.cast(replicated, pa.bool_())),
            inputs, cursors, clients, before, self.now, self.in_force.replicator,
        ).to_batches()  # fmt: skip

    def _listed(self, part: str) -> pa.Table:
        rows = _table(self.lake, [part], MANAGED_LEDGERS, _OF_TOPIC, pc.field("problem").is_null())
        return with_shadow_sources(rows, self.shadows)

    def _positions(self, cursors: pa.Table, own: pc.Expression) -> pa.Table:
        """Where cursors stand, or stood when they could be read (``POSITIONS``), with what could not be listed of them.

        Only how many there are counts here.
        """
        lost = ~own & pc.field("managed_ledger").is_null() | own & pc.field("problem").is_valid()
        unread = self._rows(MANAGED_CURSORS, ("path", "managed_ledger"), lost)
        paths, owned = whole(unread.column("path")), whole(unread.column("managed_ledger")).is_valid()
        above = pc.if_else(owned, _parents(paths), paths)
        nothing = pa.nulls(len(paths), pa.int64())
        known = [_parents(whole(cursors.column("path"))), *(whole(cursors.column(n)) for n in POSITIONS.names[1:])]
        rows = [pa.concat_arrays(both) for both in zip(known, (whole(above), nothing, nothing), strict=True)]
        return pa.table(rows, schema=POSITIONS)

    def _inputs(self, listed: pa.Table, positions: pa.Table) -> tuple[pa.Table, pa.Table]:
        asked = pc.field("ledger_id").isin(asked_of_bookkeeper(listed))
        ledgers = _table(self.lake, self.files["bookkeeper_ledgers"], BOOKKEEPER_LEDGERS, _OF_LEDGER, asked)
        return retention_topics(listed, positions, ledgers, self.in_force.retention, self.context), ledgers

    def _clients(self, listed: pa.Table) -> Clients:
        names = whole(listed.column("topic"))
        own = pc.field("managed_ledger").isin(whole(listed.column("managed_ledger")))
        states = _table(self.lake, self.files["topics"], TOPICS, _OF_STATE, own)
        place = pc.index_in(listed.column("managed_ledger"), whole(states.column("managed_ledger")))
        state, reason = (whole(states.column(name)).take(whole(place)) for name in _OF_STATE[1:])
        said = None
        if self.clients is not None:
            said = _table(self.lake, self.clients, CONNECTIONS, CONNECTIONS.names, pc.field("topic").isin(names))
        return Clients.of(names, state, reason, said)

    def _before(self, table: str, schema: pa.Schema, own: pc.Expression) -> pa.Table:
        return _table(self.lake, self.before[table], schema, schema.names, own)

    def _rows(self, schema: pa.Schema, names: Sequence[str], where: pc.Expression) -> pa.Table:
        return _table(self.lake, self.files["managed_cursors"], schema, names, where)


def _acknowledged(store: MetadataStore, cursors: pa.Table) -> Any:
    """By cursor without a cursor ledger, a digest of what its z-node says beside the position; null: unknown.

    A load, or an unload, writes the z-node, too, and changes nothing of this.
    """
    ids, paths = cursors.column("cursors_ledger_id").to_pylist(), cursors.column("path").to_pylist()
    own = [n for n, ledger in enumerate(ids) if ledger is not None and ledger < 0]
    found: list[str | None] = [None] * len(paths)
    for n, node in zip(own, store.read([paths[n] for n in own]), strict=True):
        if isinstance(node, Node):
            try:
                found[n] = cursor_format.acknowledged(cursor_format.decode(node.data))
            except LifecycleError:
                continue
    return pa.array(found, pa.string())


def _last_ids(lists: Any) -> Any:
    """The last ledger of each topic, null for none."""
    lengths = lists.value_lengths()
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0))
    at = pc.if_else(pc.greater(pc.fill_null(lengths, 0), 0), pc.subtract(ends, 1), pa.scalar(None, ends.type))
    return lists.flatten().field("ledger_id").take(at)


def _made(listed: pa.Table, ledgers: pa.Table) -> Any:
    """When the last ledger of each topic was made (ms), null without any."""
    return _of_last(listed, ledgers, "ctime")


def _last_had(listed: pa.Table, ledgers: pa.Table) -> Any:
    """When a broker had each topic for sure (ms), null without any ledger: it made the last one, or closed it.

    Who unloads a topic writes that ledger's z-node in BookKeeper, and no other.
    """
    return _of_last(listed, ledgers, "ctime", "mtime")


def _of_last(listed: pa.Table, ledgers: pa.Table, *times: str) -> Any:
    """The latest of these times of each topic's last ledger."""
    place = pc.index_in(_last_ids(whole(listed.column("ledgers"))), whole(ledgers.column("ledger_id")))
    return pc.max_element_wise(*(whole(ledgers.column(name)).take(place) for name in times))


def _parents(paths: Any) -> Any:
    return pc.replace_substring_regex(paths, r"/[^/]*$", "")


def _table(
    lake: Lake, parts: Sequence[str], schema: pa.Schema, names: Sequence[str], where: pc.Expression | None = None
) -> pa.Table:
    some = pa.schema([schema.field(name) for name in names])
    return pa.Table.from_batches(lake.batches(parts, names, where), some)


def _parts(lake: Lake, epoch: Epoch | None, table: str) -> tuple[str, ...]:
    return tuple(lake.parts(epoch.epoch_id, table)) if epoch and stored(lake, epoch.epoch_id, table) else ()


def _inactive(
    cluster: Cluster, epoch: Epoch, pieces: Sequence[tuple[str, str]], choice: InactivityChoice
) -> tuple[pa.Table, pa.Table]:
    """The inactive topics and cursors of an epoch whose history is stored."""
    lake, until = cluster.lake, epoch.started_at
    partitions = _partitions_there(lake, [part for part, _ in pieces])
    subscriptions = _partitioned_subscriptions(lake, [part for _, part in pieces])
    topics, cursors = [INACTIVE_TOPICS.empty_table()], [INACTIVE_CURSORS.empty_table()]
    own = cluster.parts(epoch.epoch_id, TOPIC_TABLE)
    ledgers = cluster.parts(epoch.epoch_id, "bookkeeper_ledgers")

    def opened(ids: Sequence[int]) -> pa.Table:
        return open_sizes_of(cluster.connect, cluster.settings, ids)

    for (part, of_cursors), of_topics in zip(pieces, own, strict=True):
        activity = _table(lake, [of_topics], TOPIC_ACTIVITY, TOPIC_ACTIVITY.names)
        theirs = _table(lake, [of_cursors], CURSOR_ACTIVITY, CURSOR_ACTIVITY.names)
        found = inactive_topics(activity, theirs, choice, until), inactive_cursors(theirs, activity, choice, until)
        for tables, rows in zip((topics, cursors), found, strict=True):
            tables.append(on_bookies(lake, rows, part, ledgers, opened))
    order = [("ledger_id", "ascending"), ("topic", "ascending")]
    unused = with_partitions(pa.concat_tables(topics), partitions).sort_by(order)
    idle = with_partitioned_subscriptions(pa.concat_tables(cursors), subscriptions)
    return unused, idle.sort_by([*order, ("cursor", "ascending")])


def _partitioned_subscriptions(lake: Lake, parts: Sequence[str]) -> dict[tuple[str, str], int]:
    """On how many partitions each subscription of a partitioned topic is."""
    found: Counter[tuple[str, str]] = Counter()
    for batch in lake.batches(parts, ["topic", "cursor"]):
        names = whole(batch.column("topic"))
        is_one = pc.match_substring_regex(names, PARTITION)
        owners, cursors = (
            parents_of(names.filter(is_one)).to_pylist(),
            batch.column("cursor").filter(is_one).to_pylist(),
        )
        found.update(zip(owners, cursors, strict=True))
    return found


def _partitions_there(lake: Lake, parts: Sequence[str]) -> dict[str, int]:
    """How many partitions each partitioned topic has, with those that could not be read."""
    found: Counter[str] = Counter()
    for batch in lake.batches(parts, ["topic"], pc.field("topic").is_valid()):
        names = whole(pa.chunked_array([batch.column("topic")]))
        for one in pc.value_counts(parents_of(names.filter(pc.match_substring_regex(names, PARTITION)))).to_pylist():
            found[one["values"]] += one["counts"]
    return found


def _clients(cluster: Cluster) -> tuple[pa.Table | None, tuple[str, ...]]:
    """Rows of ``CONNECTIONS``; None where a broker does not answer, and why."""
    try:
        with cluster.ports(read_only=True) as ports:
            said = ports.admin.connections()
    except LifecycleError as error:
        return None, (str(error),)
    rows: list[tuple[str, str | None, int, int | None]] = []
    for topic, one in said.items():
        rows.append((topic, None, one.producers, one.published))
        rows += [(topic, name, count, None) for name, count in one.consumers.items()]
    columns = zip(*rows, strict=True) if rows else [[] for _ in CONNECTIONS]
    return pa.table([list(column) for column in columns], schema=CONNECTIONS), ()


def _shadows(cluster: Cluster) -> tuple[ShadowSources, tuple[str, ...]]:
    try:
        return partitioned_shadows(cluster), ()
    except LifecycleError as error:
        return ShadowSources(), (str(error),)


def _partitions(cluster: Cluster, epoch_id: str) -> tuple[tuple[str, ...], pa.Table]:
    try:
        with cluster.ports(read_only=True) as ports:
            said = partition_counts(ports.configuration)
    except LifecycleError as error:
        return (str(error),), PARTITION_FINDINGS.empty_table()
    names = {partitioned_topic(path): count for path, count in said.items()}
    known = pc.field("topic").is_valid()
    topics = cluster.lake.batches(cluster.parts(epoch_id, "managed_ledgers"), ["topic"], known)
    there = (name for batch in topics for name in batch.column("topic").to_pylist())
    return (), partition_findings({name: count for name, count in names.items() if name}, there)
