"""Which topics and cursors are inactive, and what keeps some of them from being deleted.

Belongs here: the rule, as codes. Pure: rows of ``TOPIC_ACTIVITY`` and ``CURSOR_ACTIVITY`` in, rows of
``INACTIVE_TOPICS`` and ``INACTIVE_CURSORS`` out. Not here: when something was used last (``last_use.py``).

Inactive is what nobody used for the whole period, all of which our own history covers, by two scans at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.load.monitors import FUNCTION
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.model import COMPACTION_CURSOR, PARTITION_SUFFIX
from pulsar_lifecycle.topics.load_losses import DEDUPLICATION, REPLICATOR
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE
from pulsar_lifecycle.values.plans.inactive_plan import (
    INACTIVE_CURSORS,
    INACTIVE_TOPICS,
    InactiveKept,
    position_text,
)

PARTITION = f"{PARTITION_SUFFIX}$"
_LETTERS = r"-(DLQ|RETRY)(-partition-[0-9]+)?$"
"""How clients call the topics of dead letters, and of those to be delivered again (``RetryMessageUtil``)."""
_NO_CODE = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class InactivityChoice:
    """The settings' word. ``period``: ms; ``topics`` and ``subscriptions``: tenants, namespaces and topics.

    ``system_cursors``: what brokers call their own beside the known ones; ``functions``: by which names functions
    subscribe; None: not known. ``replicator``: how replicators' cursors begin. ``owners_keep``: topics whose own policy
    keeps them while they are inactive.
    """

    period: int
    topics: frozenset[str] = frozenset()
    subscriptions: frozenset[str] = frozenset()
    kept_subscriptions: frozenset[str] = frozenset()
    system_cursors: frozenset[str] | None = frozenset()
    replicator: str = REPLICATOR
    functions: frozenset[str] | None = frozenset()
    owners_keep: frozenset[str] = frozenset()


def inactive_topics(activity: pa.Table, cursors: pa.Table, choice: InactivityChoice, until: int) -> pa.Table:
    """Rows of ``INACTIVE_TOPICS`` at ``until`` (ms), when the scan began; :func:`with_partitions` comes after it.

    ``cursors``: rows of ``CURSOR_ACTIVITY``, of these topics and others.
    """
    uses = [(f"last_{name}", f"{name}_evidence") for name in ("write", "read", "client")]
    since, evidence = whole(activity.column("last_write")), whole(activity.column("write_evidence"))
    for at, by in uses[1:]:
        one = whole(activity.column(at))
        later = pc.fill_null(pc.greater(one, since), False)
        since, evidence = pc.if_else(later, one, since), pc.if_else(later, whole(activity.column(by)), evidence)
    some = activity.append_column("inactive_since", since).append_column("evidence", evidence)
    some = some.filter(_inactive(some, choice.period, until))
    minutes, has_data = whole(some.column("retention_minutes")), pc.greater_equal(some.column("end_ledger_id"), 0)
    age = pc.subtract(until, some.column("last_write"))
    retained = pc.or_(pc.less(minutes, 0), pc.less(age, pc.multiply(minutes, MS_PER_MINUTE)))
    kept = _first(
        some.column("protection"),
        *_kept_by_cursors(whole(some.column("topic")), cursors, choice),
        (pc.fill_null(some.column("replicated"), False), InactiveKept.REPLICATED),
        (some.column("replicated").is_null(), InactiveKept.UNKNOWN_POLICY),
        (pa.array([choice.system_cursors is None] * some.num_rows, pa.bool_()), InactiveKept.UNKNOWN_POLICY),
        (pc.and_(has_data, minutes.is_null()), InactiveKept.UNKNOWN_POLICY),
        (pc.and_(has_data, pc.fill_null(retained, False)), InactiveKept.RETAINED),
        (pc.greater(some.column("unread_subscriptions"), 0), InactiveKept.UNREAD_MESSAGES),
        (pc.and_(has_data, pc.match_substring_regex(whole(some.column("topic")), _LETTERS)), InactiveKept.DEAD_LETTERS),
        (kept_by_owner(whole(some.column("topic")), choice), InactiveKept.OWNER_KEEPS),
        (some.column("published").is_valid(), Protection.LOADED),
        (_within(some.column("loaded_at"), choice.period, until), InactiveKept.LOADED_LATELY),
        (pc.invert(_chosen(some, choice.topics)), InactiveKept.NOT_CHOSEN),
    )
    more = {
        "ledger_id": some.column("last_ledger_id"),
        "positions": _positions(whole(some.column("topic")), cursors),
        "physical_bytes": _unsized(some),
        "weight": _unsized(some),
    }
    return _rows(some, kept, INACTIVE_TOPICS, more)


def kept_by_owner(topics: Any, choice: InactivityChoice) -> Any:
    """Whether the own policy of a topic, or of its partitioned one, keeps it."""
    return pc.is_in(parents_of(topics), pa.array(sorted(choice.owners_keep), pa.string()))


def with_partitions(rows: pa.Table, partitions: Mapping[str, int]) -> pa.Table:
    """The same rows (``INACTIVE_TOPICS``); a partition stays where not all of its partitioned topic's go.

    ``partitions``: how many there are, by partitioned topic.
    """
    names = whole(rows.column("topic"))
    is_one, parents = pc.match_substring_regex(names, PARTITION), parents_of(names)
    going = pc.and_(is_one, rows.column("kept").is_null())
    counted = {one["values"]: one["counts"] for one in pc.value_counts(parents.filter(whole(going))).to_pylist()}
    broken = [parent for parent, count in counted.items() if count != partitions.get(parent, 0)]
    stays = pc.and_(going, pc.is_in(parents, pa.array(broken, pa.string())))
    kept = _first(rows.column("kept"), (stays, InactiveKept.PARTITION_STAYS))
    return rows.set_column(rows.column_names.index("kept"), INACTIVE_TOPICS.field("kept"), kept)


def inactive_cursors(activity: pa.Table, topics: pa.Table, choice: InactivityChoice, until: int) -> pa.Table:
    """Rows of ``INACTIVE_CURSORS`` at ``until`` (ms). ``topics``: rows of ``TOPIC_ACTIVITY`` of all their topics."""
    some = activity.append_column("inactive_since", activity.column("last_read"))
    some = some.append_column("evidence", activity.column("read_evidence"))
    some = some.filter(_inactive(some, choice.period, until))
    row = pc.index_in(some.column("topic"), whole(topics.column("topic")))
    names = whole(some.column("cursor"))
    replicated = whole(topics.column("replicated")).take(whole(row))
    kept = _first(
        whole(topics.column("protection")).take(whole(row)),
        (pc.is_in(names, pa.array([COMPACTION_CURSOR, DEDUPLICATION])), InactiveKept.SYSTEM_CURSOR),
        (pc.starts_with(names, choice.replicator), InactiveKept.REPLICATOR_CURSOR),
        *_kept_by_name(names, choice),
        (pc.invert(some.column("known")), InactiveKept.UNKNOWN_CURSOR),
        (
            pc.or_kleene(pc.fill_null(replicated, False), some.column("replicated_subscription")),
            InactiveKept.REPLICATED,
        ),
        (replicated.is_null(), InactiveKept.UNKNOWN_POLICY),
        (pa.array([choice.system_cursors is None] * len(names), pa.bool_()), InactiveKept.UNKNOWN_POLICY),
        (_within(some.column("last_active"), choice.period, until), InactiveKept.LOADED_LATELY),
        (pc.invert(_chosen(some, choice.subscriptions)), InactiveKept.NOT_CHOSEN),
    )
    last = whole(topics.column("last_ledger_id")).take(whole(row))
    sizes = {name: _unsized(some) for name in ("physical_bytes", "weight")}
    return _rows(some, kept, INACTIVE_CURSORS, {"last_ledger_id": last, **sizes})


def with_partitioned_subscriptions(rows: pa.Table, there: Mapping[tuple[str, str], int]) -> pa.Table:
    """The same rows (``INACTIVE_CURSORS``); one of a partition stays where it does not go on all partitions.

    ``there``: on how many partitions a subscription is, by partitioned topic and name.
    """
    names, cursors, kept = (rows.column(name).to_pylist() for name in ("topic", "cursor", "kept"))
    owners = parents_of(whole(rows.column("topic"))).to_pylist()
    pairs = [(o, c) if o != name else None for o, name, c in zip(owners, names, cursors, strict=True)]
    going = Counter(pair for pair, code in zip(pairs, kept, strict=True) if pair and code is None)
    stays = [pair is not None and going[pair] != there.get(pair, 0) for pair in pairs]
    found = _first(rows.column("kept"), (pa.array(stays, pa.bool_()), InactiveKept.PARTITION_STAYS))
    return rows.set_column(rows.column_names.index("kept"), INACTIVE_CURSORS.field("kept"), found)


def parents_of(topics: Any) -> Any:
    """The partitioned topics of partitions; of others their own names."""
    return pc.replace_substring_regex(topics, PARTITION, "")


def _kept_by_name(names: Any, choice: InactivityChoice) -> list[tuple[Any, InactiveKept]]:
    """What keeps cursors, and with them their topics, by their names alone."""
    system = pa.array(sorted(choice.system_cursors or ()), pa.string())
    return [
        (pc.is_in(names, system), InactiveKept.SYSTEM_CURSOR),
        (pc.match_substring_regex(names, FUNCTION), InactiveKept.FUNCTION_CURSOR),
        (pc.is_in(names, pa.array(sorted(choice.kept_subscriptions), pa.string())), InactiveKept.NAMED_KEPT),
        (pc.is_in(names, pa.array(sorted(choice.functions or ()), pa.string())), InactiveKept.FUNCTION_SUBSCRIPTION),
        (pa.array([choice.functions is None] * len(names), pa.bool_()), InactiveKept.FUNCTIONS_UNKNOWN),
    ]


def _kept_by_cursors(topics: Any, cursors: pa.Table, choice: InactivityChoice) -> list[tuple[Any, InactiveKept]]:
    """The same of topics: whether one of their cursors is kept so."""
    owners = whole(cursors.column("topic"))
    names = whole(cursors.column("cursor"))
    found = [*_kept_by_name(names, choice), (pc.equal(names, COMPACTION_CURSOR), InactiveKept.COMPACTED)]
    found.append((pc.invert(cursors.column("known")), InactiveKept.UNKNOWN_CURSOR))
    return [(pc.is_in(topics, owners.filter(whole(where))), code) for where, code in found]


def _positions(topics: Any, cursors: pa.Table) -> Any:
    """The positions of the cursors of each topic, as plans have them, sorted."""
    own = cursors.filter(pc.is_in(cursors.column("topic"), topics))
    found: dict[str, list[str]] = {}
    names = ("topic", "cursor", "ledger_id", "entry_id", "cursors_ledger_id")
    for topic, *position in zip(*(own.column(name).to_pylist() for name in names), strict=True):
        found.setdefault(topic, []).append(position_text(*position))
    return pa.array([sorted(found.get(topic, ())) for topic in topics.to_pylist()], pa.list_(pa.string()))


def _inactive(activity: pa.Table, period: int, until: int) -> Any:
    """Whether nobody used each in the period, which our history covers."""
    limit = until - period
    used = np.asarray(pc.less_equal(activity.column("inactive_since"), limit))
    watched = np.asarray(pc.less_equal(activity.column("watched_since"), limit))
    return pa.array(used & watched & np.asarray(pc.greater_equal(activity.column("scans"), 2)))


def _within(column: Any, period: int, until: int) -> Any:
    """Whether a time (ms, null for never) is within the period."""
    return pc.fill_null(pc.greater(column, until - period), False)


def _chosen(rows: pa.Table, names: frozenset[str]) -> Any:
    """Whether the settings name each topic, its partitioned one, its namespace or tenant."""
    said = pa.array(sorted(names), pa.string())
    topics, namespaces = whole(rows.column("topic")), whole(rows.column("namespace"))
    found = pc.or_(pc.is_in(topics, said), pc.is_in(parents_of(topics), said))
    tenants = pc.replace_substring_regex(namespaces, r"/.*$", "")
    return pc.or_(found, pc.or_(pc.is_in(namespaces, said), pc.is_in(tenants, said)))


def _unsized(rows: pa.Table) -> Any:
    """What :func:`~pulsar_lifecycle.lifecycle.activity.held_bytes.on_bookies` fills in."""
    return pa.nulls(rows.num_rows, pa.int64())


def _first(known: Any, *choices: tuple[Any, InactiveKept | Protection]) -> Any:
    """The first code that holds, after those that are ``known``; null for none."""
    found = whole(known)
    for where, code in choices:
        found = pc.coalesce(found, pc.if_else(whole(where), str(code), _NO_CODE))
    return whole(found)


def _rows(some: pa.Table, kept: Any, schema: pa.Schema, more: Mapping[str, Any]) -> pa.Table:
    columns = {**{name: some.column(name) for name in some.column_names}, **more, "kept": kept}
    return pa.table([columns[name] for name in schema.names], schema=schema)
