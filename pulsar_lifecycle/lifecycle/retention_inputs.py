"""What the retention rule needs of each topic, out of the tables of a scan, cursor ledgers and policies.

Belongs here: where each number of ``verdicts.RETENTION_TOPICS`` comes from, in bulk. Not here: the rule
(``lifecycle/retention.py``), how policies come about (``topics/retention_policy.py``). What is not known becomes null,
and keeps. Source: ``ManagedLedgerImpl.initialize`` and ``ManagedCursorImpl.recoverFromLedger``, 4.0.7.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.cursor import REPLICATED_PROPERTY, PositionInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.lifecycle.retention import slowest, whole
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_LEDGER, RETENTION_TOPICS
from pulsar_lifecycle.model import PARTITION_SUFFIX, Topic
from pulsar_lifecycle.ports import Entry, LedgerReader, MetadataStore
from pulsar_lifecycle.scan.stored_references import cursor_state, last_entries_of
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.tables import MANAGED_CURSORS

OF_NAME = (
    *("managed_ledger", "cursor", "last_active"),
    *("cursors_ledger_id", "mtime", "replicated_subscription"),
)
POSITIONS = pa.schema(
    [pa.field("path", pa.string()), pa.field("ledger_id", pa.int64()), pa.field("entry_id", pa.int64())]
)
"""One row per durable cursor: its topic's z-node and its persisted mark-delete position, null where that is unknown.
Where cursors could not be listed, ``path`` is the z-node above all that is unknown."""

NAMED_POSITIONS = pa.schema([*POSITIONS, *(MANAGED_CURSORS.field(name) for name in OF_NAME)])
"""The same with the name of each cursor, its managed ledger, when it was last active (ms), and what tells whether that
is known (``lifecycle/load/going_subscriptions.py``)."""

_PLAIN = r"^persistent://(?P<namespace>[^/]+/[^/]+)/[^/]+$"
"""Topics of V2 namespaces."""
_PARTITION = f"{PARTITION_SUFFIX}$"


# -------------------------------------------------------------------------------------------------------- cursors


def persisted_positions(store: MetadataStore, reader: LedgerReader, cursors: pa.Table, root: str) -> pa.Table:
    """Where durable cursors stand (``POSITIONS``), of rows of ``tables.MANAGED_CURSORS``. Writes nothing."""
    return _positions(cursors, cursor_marks(store, reader, cursors, root))


def named_positions(store: MetadataStore, reader: LedgerReader, cursors: pa.Table, root: str) -> pa.Table:
    """:func:`persisted_positions` with what tells the cursors apart (``NAMED_POSITIONS``)."""
    marks = cursor_marks(store, reader, cursors, root)
    own = {name: cursors.column(name) for name in OF_NAME}
    own["replicated_subscription"] = [one.replicated_subscription for one in marks]
    return pa.table([*_positions(cursors, marks).columns, *own.values()], schema=NAMED_POSITIONS)


class CursorMark(NamedTuple):
    """What is persisted of a cursor; null where that is unknown.

    Its mark-delete position, the last entry of its cursor ledger, and whether it is a replicated subscription.
    """

    ledger_id: int | None
    entry_id: int | None
    cursors_entry_id: int | None
    replicated_subscription: bool | None


def _positions(cursors: pa.Table, marks: Sequence[CursorMark]) -> pa.Table:
    paths, owners = (cursors.column(name).to_pylist() for name in ("path", "managed_ledger"))
    # A row without an owner stands for what could not be listed.
    above = [path.rpartition("/")[0] if owner else path for path, owner in zip(paths, owners, strict=True)]
    return pa.table([above, [one.ledger_id for one in marks], [one.entry_id for one in marks]], schema=POSITIONS)


def cursor_marks(store: MetadataStore, reader: LedgerReader, cursors: pa.Table, root: str) -> list[CursorMark]:
    """What is persisted of durable cursors, of rows of ``tables.MANAGED_CURSORS``, in their order.

    The last entry of its cursor ledger counts, else its z-node. Of a cursor ledger that is gone, without any entry,
    another topic's or cannot be read brokers go back to that copy or do not load the topic; here the position is
    unknown. Writes nothing, and recovers no ledger.
    """
    names = ("cursors_ledger_id", "mark_delete_ledger_id", "mark_delete_entry_id", "problem", "path")
    ids, ledgers, entries, problems, paths = (cursors.column(name).to_pylist() for name in names)
    replicated = cursors.column("replicated_subscription").to_pylist()
    found = [
        CursorMark(ledger, entry, None, is_) for ledger, entry, is_ in zip(ledgers, entries, replicated, strict=True)
    ]
    own = [n for n, ledger in enumerate(ids) if problems[n] is None and ledger >= 0]
    answers = last_entries_of(store, reader, [ids[n] for n in own], root)
    for n, (metadata, entry) in zip(own, answers, strict=True):
        last = entry.entry_id if isinstance(entry, Entry) else None
        state, at = _state(metadata, entry, paths[n].rpartition("/")[0]), _NOWHERE
        if state:
            at = (state.mark_delete.ledger_id, state.mark_delete.entry_id)
        found[n] = CursorMark(*at, last, REPLICATED_PROPERTY in state.properties if state else None)
    return [mark if problems[n] is None else CursorMark(*_NOWHERE, None, None) for n, mark in enumerate(found)]


_NOWHERE = None, None


def _state(
    metadata: LedgerMetadata | LifecycleError, entry: Entry | LifecycleError | None, path: str
) -> PositionInfo | None:
    try:
        return cursor_state(metadata, entry, path)
    except LifecycleError:
        return None


# --------------------------------------------------------------------------------------------------------- ledgers


def retention_topics(
    managed_ledgers: pa.Table,
    positions: pa.Table,
    bookkeeper: pa.Table,
    policies: InForce[RetentionPolicy | None],
    context: Context,
    loaded: Collection[str] = (),
) -> pa.Table:
    """Rows of ``RETENTION_TOPICS``, of rows of ``tables.MANAGED_LEDGERS`` and ``tables.BOOKKEEPER_LEDGERS``.

    ``bookkeeper`` has every ledger that the topics list, as far as it exists. Topics that could not be read have no
    row. ``shadow_source`` is as :func:`with_shadow_sources` makes it. ``context``: the owners' rules;
    ``loaded``: topics that count as loaded.
    """
    topics = managed_ledgers.filter(managed_ledgers.column("problem").is_null())
    minutes, mb, _ = policy_columns(topics, policies)
    cursors, slowest_ledger, slowest_entry = slowest(topics, positions)
    lists = whole(topics.column("ledgers"))
    columns = [
        topics.column("managed_ledger"),
        _ledgers(lists, bookkeeper),
        minutes,
        mb,
        cursors,
        slowest_ledger,
        slowest_entry,
        _kept(topics, lists, context, pa.array(sorted(loaded), pa.string())),
    ]
    return pa.table(columns, schema=RETENTION_TOPICS)


def with_shadow_sources(listed: pa.Table, shadows: ShadowSources) -> pa.Table:
    """Rows of ``tables.MANAGED_LEDGERS`` whose ``shadow_source`` says so of partitions, too.

    A partition's own z-node does not: that of its partitioned topic does.
    """
    if not shadows.partitioned:
        return listed
    names, sources = (listed.column(name).to_pylist() for name in ("topic", "shadow_source"))
    found = [source or shadows.of_partition(Topic.parse(name)) for name, source in zip(names, sources, strict=True)]
    column = pa.array([source or None for source in found], pa.string())
    return listed.set_column(listed.column_names.index("shadow_source"), "shadow_source", column)


def asked_of_bookkeeper(managed_ledgers: pa.Table) -> Any:
    """The ledgers of which BookKeeper must tell something: the last of each topic, and what its z-node does not say."""
    return _Listed.of(whole(managed_ledgers.column("ledgers"))).asked


@dataclass(frozen=True, slots=True)
class _Listed:
    """All ledgers of some topics, as their z-nodes list them. ``begin``: where each topic's begin, and the end."""

    inner: Any
    begin: Any
    is_last: Any
    none: Any
    """Where no entries are said."""
    dated: Any

    @classmethod
    def of(cls, lists: Any) -> _Listed:
        inner = lists.flatten()
        end = np.cumsum(np.asarray(lists.value_lengths().fill_null(0), np.int64))
        begin = np.concatenate(([0], end))
        last = np.zeros(len(inner), bool)
        last[end[end > begin[:-1]] - 1] = True
        none = pc.equal(pc.fill_null(inner.field("entries"), 0), 0)
        dated = pc.fill_null(pc.greater(inner.field("timestamp"), 0), False)
        return cls(inner, begin, pa.array(last), none, dated)

    @property
    def unsaid(self) -> Any:
        """Where BookKeeper is to be asked."""
        return pc.or_(pc.or_(self.is_last, self.none), pc.invert(self.dated))

    @property
    def asked(self) -> Any:
        """The ids of these."""
        return self.inner.field("ledger_id").filter(self.unsaid)


def _ledgers(lists: Any, bookkeeper: pa.Table) -> Any:
    """The ledgers as a broker that loads the topic would see them.

    It asks BookKeeper about the last ledger alone, whatever the z-node says of it. Of another one the z-node's numbers
    count, and BookKeeper's time where it has none. No entries are only believed where BookKeeper has none either:
    brokers delete such a ledger.
    """
    listed = _Listed.of(lists)
    inner, is_last, nothing = listed.inner, listed.is_last, pa.scalar(None, pa.int64())
    ids, said, stamp = (inner.field(name) for name in ("ledger_id", "entries", "timestamp"))
    entries, length, mtime = _of_bookkeeper(bookkeeper, ids, listed.unsaid)
    believed = pc.if_else(listed.none, pc.if_else(pc.equal(entries, 0), entries, nothing), said)
    stamped = pc.if_else(listed.dated, stamp, mtime)
    fields = [
        ids,
        pc.if_else(is_last, entries, believed),
        pc.if_else(is_last, length, inner.field("size")),
        pc.if_else(is_last, mtime, stamped),
    ]
    structs = pa.StructArray.from_arrays(fields, fields=list(RETENTION_LEDGER))
    return pa.ListArray.from_arrays(pa.array(listed.begin, pa.int32()), structs)


def _of_bookkeeper(bookkeeper: pa.Table, ids: Any, asked: Any) -> tuple[Any, Any, Any]:
    """Entries, bytes and time of closing of the ledgers that are ``asked`` for and closed; null of others."""
    wanted = ids.filter(asked)
    found = bookkeeper.filter(pc.is_in(bookkeeper.column("ledger_id"), wanted))
    closed = pc.and_(found.column("problem").is_null(), pc.equal(found.column("state"), LedgerState.CLOSED.name))
    found = found.filter(closed)
    there = np.full(len(ids), -1, np.int64)
    there[np.asarray(asked)] = np.asarray(pc.fill_null(pc.index_in(wanted, whole(found.column("ledger_id"))), -1))
    place = pa.array(there, mask=there < 0)
    entries, length, mtime = (whole(found.column(name)).take(place) for name in ("entries", "length", "mtime"))
    return entries, length, mtime


def policy_columns(topics: pa.Table, policies: InForce[RetentionPolicy | None]) -> tuple[Any, Any, Any]:
    """Minutes, MiB and level by topic, null where they are unknown."""
    known = [*policies.by_topic.items(), *policies.by_namespace.items()]
    parents = pc.replace_substring_regex(topics.column("topic"), _PARTITION, "")
    own = pc.index_in(parents, pa.array(list(policies.by_topic), pa.string()))
    others = pc.index_in(topics.column("namespace"), pa.array(list(policies.by_namespace), pa.string()))
    row = whole(pc.coalesce(own, pc.add(others, len(policies.by_topic))))
    minutes = pa.array([policy and policy.minutes for _, policy in known], pa.int64())
    megabytes = pa.array([policy and policy.megabytes for _, policy in known], pa.int64())
    levels = pa.array([policy and str(policy.level) for _, policy in known], pa.string())
    return minutes.take(row), megabytes.take(row), levels.take(row)


def _kept(topics: pa.Table, lists: Any, context: Context, loaded: Any) -> Any:
    """What protects all ledgers of a topic, as codes.

    System topics stay whatever the settings say: brokers retain less of them than of others.
    """
    inner = lists.flatten()
    open_ = pc.and_(
        inner.field("offload_uuid").is_valid(), pc.invert(pc.fill_null(inner.field("offload_complete"), False))
    )
    counts = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    attempts = np.bincount(np.repeat(np.arange(len(counts)), counts)[np.asarray(open_)], minlength=len(counts)) > 0
    found = owners_kept(topics, replace(context, system_topics=False))
    for where, code in (
        (pc.fill_null(topics.column("terminated"), True), Protection.TERMINATED),
        (pa.array(attempts), Protection.OPEN_ATTEMPT),
        (pc.is_in(topics.column("topic"), loaded), Protection.LOADED),
    ):
        found = pc.coalesce(found, pc.if_else(whole(where), str(code), pa.scalar(None, pa.string())))
    return found


def owners_kept(topics: pa.Table, context: Context) -> Any:
    """By topic the ``Protection`` of the owners' rules, null for none; of rows of ``tables.MANAGED_LEDGERS``.

    One topic answers for all of its namespace that no rule can tell apart by their names.
    """
    names, sources = (whole(topics.column(name)) for name in ("topic", "shadow_source"))
    namespace = pc.struct_field(pc.extract_regex(names, _PLAIN), "namespace")
    named = (*context.kept_topics, *context.open_topics, *context.shadow_sources, *context.holds)
    of_named = {"/".join(name.partition("://")[2].split("/")[:2]) for name in named}
    strange = pc.or_(pc.match_substring(names, "__"), pc.match_substring(names, "/transaction_coordinator_"))
    alone = pc.or_(pc.or_(strange, sources.is_valid()), pc.is_in(namespace, pa.array(sorted(of_named), pa.string())))
    alike = pc.if_else(alone, pa.scalar(None, pa.string()), namespace).dictionary_encode()
    of = np.asarray(alike.indices.fill_null(-1), np.int64)
    spaces, first = np.unique(of, return_index=True)
    codes = pa.array([_owner_kept(names[n].as_py(), "", context) for n in first[spaces >= 0].tolist()], pa.string())
    found = codes.take(pa.array(of, mask=of < 0))
    rows = pa.array(np.flatnonzero(of < 0))
    own = zip(names.take(rows).to_pylist(), sources.take(rows).to_pylist(), strict=True)
    each = pa.array([_owner_kept(name, source or "", context) for name, source in own], pa.string())
    return pc.replace_with_mask(found, pa.array(of < 0), each)


def _owner_kept(name: str, source: str, context: Context) -> Protection | None:
    topic = Topic.parse(name)
    return protection.topic_protection(topic, source, context) or protection.deletion_protection(topic, context)
