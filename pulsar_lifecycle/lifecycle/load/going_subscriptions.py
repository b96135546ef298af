"""Which subscriptions of topics that no broker has are to go: past their expiration time, or inactive by our history.

Belongs here: the rules over tables. Pure. Not here: what that frees (``ledgers_once_loaded.py``), deleting one
(``unsubscribing.py``), what is inactive (``activity/inactive_rules.py``).
Upstream: ``PersistentTopic.checkInactiveSubscriptions``, ``ManagedCursorImpl``, Pulsar 4.0.7.

A broker deletes a subscription without consumers that was last active longer ago than that time; not compaction's, nor
a replicated one, but where brokers have those turned off: then we keep it all the same. It counts from its load on, as
it reads ``lastActive`` of no z-node: of a topic that is loaded seldom, and for a short while, nothing expires. So we go
by what the broker wrote that had the topic last: a client's last request, or that broker's load if it is later. It
writes that when it closes the cursor. What it had in memory when it died is lost, so such a cursor is not judged: it
names a cursor ledger, or was not written after the topic's last ledger was closed, which a broker does first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.load.monitors import FUNCTION, Monitors, by_topic
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.topics.load_losses import DEDUPLICATION
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Inactive:
    """Subscriptions that a plan of inactive ones lets go, and the settings too: by topic, the czxids by name.

    ``staying``: partitioned topics and names of those that stay on one partition, and so on all. ``planned``: a load
    plan has them, and a topic that is kept for their sake is not loaded without them.
    """

    by_topic: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    staying: frozenset[tuple[str, str]] = frozenset()
    planned: bool = False


def expired_subscriptions(
    cursors: pa.Table,
    listed: pa.Table,
    ledgers: pa.Table,
    idle: Any,
    monitors: Monitors,
    kept: Collection[str],
    now: int,
) -> Any:
    """Whether each cursor (row of ``NAMED_POSITIONS``) is a subscription that has expired at ``now`` (ms), as numpy.

    ``listed``, ``ledgers`` and ``idle`` as in ``TopicTables``; of other topics nothing has. ``kept``: names of
    subscriptions that never go. No broker may have the topics.
    """
    row = _row(cursors, listed)
    namespaces = whole(listed.column("namespace")).dictionary_encode()
    minutes = [monitors.expiry.get(name) or 0 for name in namespaces.dictionary.to_pylist()]
    limit = pa.array(minutes, pa.int64()).take(namespaces.indices).take(row)
    last_closed = _last_closed(listed, ledgers).take(row)
    active = cursors.column("last_active")
    found = _all_of(
        cursors.num_rows,
        _may_go(cursors, idle, monitors, kept),
        pc.greater(limit, 0),
        pc.greater(active, 0),
        pc.greater(pc.subtract(pa.scalar(now, pa.int64()), active), pc.multiply(limit, MS_PER_MINUTE)),
        pc.equal(cursors.column("cursors_ledger_id"), -1),
        pc.greater(cursors.column("mtime"), last_closed),
    )
    return found & ~_share_a_name(cursors, found)


def inactive_subscriptions(
    cursors: pa.Table,
    listed: pa.Table,
    unloaded: Any,
    idle: Any,
    monitors: Monitors,
    kept: Collection[str],
    named: Mapping[str, Collection[str]],
) -> Any:
    """Whether each cursor (row of ``NAMED_POSITIONS``) is one of ``named`` (``Inactive.by_topic``), as numpy.

    Only where its topic's place in ``unloaded`` (numpy, as ``listed``) says that no broker has it: elsewhere it needs
    no load. ``idle`` and ``kept`` as for :func:`expired_subscriptions`.
    """
    found = np.zeros(cursors.num_rows, bool)
    if not named:
        return found
    place = np.asarray(_row(cursors, listed).fill_null(-1), np.int64)
    topics, names = listed.column("topic").to_pylist(), cursors.column("cursor")
    any_of = pa.array(sorted({name for some in named.values() for name in some}), pa.string())
    for n in np.flatnonzero(np.asarray(pc.is_in(names, any_of))).tolist():
        at = place[n]
        found[n] = at >= 0 and unloaded[at] and names[n].as_py() in named.get(topics[at], ())
    found = _all_of(cursors.num_rows, pa.array(found), _may_go(cursors, idle, monitors, kept))
    return found & ~_share_a_name(cursors, found)


def ended_deduplication(cursors: pa.Table, listed: pa.Table, monitors: Monitors) -> Any:
    """Whether each cursor is that of deduplication, and its broker deletes it as deduplication is off, as numpy."""
    found = np.asarray(pc.fill_null(pc.equal(cursors.column("cursor"), DEDUPLICATION), False))
    if not found.any():
        return found
    off = pc.equal(by_topic(listed, monitors.deduplication), 0)
    return found & np.asarray(pc.fill_null(off.take(_row(cursors, listed)), False))


def _row(cursors: pa.Table, listed: pa.Table) -> Any:
    """The place of each cursor's topic in ``listed``."""
    return whole(pc.index_in(cursors.column("managed_ledger"), whole(listed.column("managed_ledger"))))


def _may_go(cursors: pa.Table, idle: Any, monitors: Monitors, kept: Collection[str]) -> Any:
    """Whether each is a subscription of clients, on this cluster alone, at a known place, that nobody said to keep."""
    names, place = cursors.column("cursor"), (cursors.column("ledger_id"), cursors.column("entry_id"))
    ours = [one for one in names.unique().to_pylist() if one and monitors.expires_messages(one) and one not in kept]
    conditions = (
        pc.is_in(names, pa.array(ours, pa.string())),
        pc.invert(pc.match_substring_regex(names, FUNCTION)),
        pc.invert(cursors.column("replicated_subscription")),
        pc.invert(pc.is_in(cursors.column("managed_ledger"), idle)),
        pc.and_(place[0].is_valid(), place[1].is_valid()),
    )
    return pa.array(_all_of(cursors.num_rows, *conditions))


def _all_of(rows: int, *conditions: Any) -> Any:
    found = np.ones(rows, bool)
    for condition in conditions:
        found &= np.asarray(pc.fill_null(condition, False))
    return found


def _last_closed(listed: pa.Table, ledgers: pa.Table) -> Any:
    """When (ms) the z-node of each topic's last ledger was written last; null where that is not known."""
    lists = whole(listed.column("ledgers"))
    counts = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    end = np.cumsum(counts)
    ids = lists.flatten().field("ledger_id").take(pa.array(end - 1, mask=counts == 0))
    place = pc.index_in(ids, whole(ledgers.column("ledger_id")), skip_nulls=True)
    return whole(ledgers.column("mtime")).take(whole(place))


def _share_a_name(cursors: pa.Table, these: Any) -> Any:
    """Which of ``these`` have the name of another cursor of their topic: nobody could say which one is meant."""
    if not these.any():
        return these
    pairs = pc.binary_join_element_wise(
        *(whole(cursors.column(name)).cast(pa.string()) for name in ("managed_ledger", "cursor")),
        "\n",
        null_handling="replace",
    ).dictionary_encode()
    numbers = np.asarray(pairs.indices, np.int64)
    return these & (np.bincount(numbers)[numbers] > 1)
