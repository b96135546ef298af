"""Which topics need a broker that loads them, what it would free, and what keeps a topic from being loaded.

Belongs here: the rule, as codes. Pure: tables and policies come in, rows of ``TOPICS_TO_LOAD`` come out. Not here:
retention itself (``lifecycle/retention.py``), loading anything (``lifecycle/load/visits.py``). What a load changes:
the last ledger becomes a closed one of that moment, whatever its age; messages past their TTL count as acknowledged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies.listed_ledgers import on_disk
from pulsar_lifecycle.lifecycle.held.open_ledgers import with_sizes
from pulsar_lifecycle.lifecycle.load.going_subscriptions import (
    Inactive,
    ended_deduplication,
    expired_subscriptions,
    inactive_subscriptions,
)
from pulsar_lifecycle.lifecycle.load.ledgers_once_loaded import LedgersOnceLoaded, TopicTables
from pulsar_lifecycle.lifecycle.load.monitors import FUNCTION, LEFT_LOADED, Monitors, TopicDeletion, by_topic
from pulsar_lifecycle.lifecycle.load.other_cursors import would_compact
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.load_losses import REPLICATOR, LoadLoss, is_subscription
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD


class LoadNeed(StrEnum):
    """Why only a broker can free data of a topic."""

    LAST_LEDGER_EXPIRED = "last_ledger_expired"
    """Its last ledger is past its retention: a load puts a new one behind it."""
    OPEN_EXPIRED = "open_expired"
    """Its last ledger is past its retention by its age, and was never closed: a load closes it."""
    BEFORE_OPEN = "before_open"
    """Its last ledger was never closed, and is not past its retention; others before it are. Metadata leaves them to a
    broker, as one may write the last."""
    PAST_TTL = "past_ttl"
    """A subscription has not acknowledged messages that are past their TTL: brokers acknowledge them."""
    SUBSCRIPTION_EXPIRED = "subscription_expired"
    """A subscription needs ledgers, and nobody has used it for longer than `subscriptionExpirationTimeMinutes`, as the
    broker wrote down that had its topic last. Brokers count from their load on: it is deleted at the topic's broker."""
    DEDUPLICATION_ENDED = "deduplication_ended"
    """Cursor `pulsar.dedup` needs ledgers, and deduplication is off: a broker that loads the topic deletes it."""
    SUBSCRIPTION_INACTIVE = "subscription_inactive"
    """The scan's plan of inactive subscriptions has one of it, and `load.inactive_subscriptions` names the topic: it is
    deleted at the topic's broker, whatever it keeps."""


class LoadKept(StrEnum):
    """Why a topic that needs a broker is left alone."""

    WAY_IS_METADATA = "way_is_metadata"
    """`load.namespaces` does not name it: retention goes by metadata alone."""
    SUBSCRIPTION_WOULD_EXPIRE = "subscription_would_expire"
    """Its broker would delete a subscription without consumers within a day, and `load.subscription_expiry` does not
    name it; or `inactivity.kept_subscriptions` names the subscription, or a function subscribes by its name."""
    TOPIC_WOULD_BE_DELETED = "topic_would_be_deleted"
    """Its broker would delete it as inactive, and `load.topic_deletion` does not name it; or it has a subscription that
    `inactivity.kept_subscriptions` names, or a function's."""
    BACKLOG_WOULD_BE_EVICTED = "backlog_would_be_evicted"
    """It has unread messages, its broker drops those beyond a quota, and `load.backlog_eviction` does not name it."""
    COMPACTION_WOULD_BEGIN = "compaction_would_begin"
    """It has a compaction threshold, be it a global one beside its own, and `load.compaction` does not name it: its
    broker would begin a compaction, as more than that waits for one, or make a cursor `__compaction` before all its
    messages, which holds its ledgers until a compaction has read them."""
    REPLICATION_WOULD_EXPIRE = "replication_would_expire"
    """A replicator has not sent all, and its broker drops what is past its TTL. No setting lifts this."""
    MONITORS_UNKNOWN = "monitors_unknown"
    """What its broker would do by TTL, subscription expiry, backlog quota, inactivity, replication and compaction is
    not known, or by which names functions subscribe."""
    LITTLE_TO_FREE = "little_to_free"
    """A load would free less than `load.min_bytes`."""
    PARTITION_STAYS = "partition_stays"
    """An inactive subscription of it stays on another partition: it goes on all, or on none."""

    NEEDS_NO_BROKER = "needs_no_broker"
    """A broker has loaded it since the plan, and it needs none any more. Only at apply."""
    VISIT_BROKEN_OFF = "visit_broken_off"
    """A run of this plan had it loaded, and was killed before its visit was over: what stayed is for a new scan and
    plan, by metadata where that does. Only at apply."""
    BUNDLE_MOVED = "bundle_moved"
    """Its bundle changed its owner within `load.min_owner_age`: load shedding may be at it. Only at apply."""
    BROKER_BUSY = "broker_busy"
    """Its broker uses more than `load.max_broker_load`. Only at apply."""
    BROKER_UNANSWERED = "broker_unanswered"
    """A broker that does not answer owns its bundle, or may take it as nobody is known to. Only at apply."""
    BUDGET_SPENT = "budget_spent"
    """This run has loaded as many topics of its broker or bundle as it may: launch again. Only at apply."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The settings' word: tenants, namespaces and topics that may be loaded, and what brokers may do to these besides.

    ``min_bytes``: less is not worth a load. ``kept_subscriptions``: names of those that never go.
    """

    load: frozenset[str] = frozenset()
    subscription_expiry: frozenset[str] = frozenset()
    topic_deletion: frozenset[str] = frozenset()
    backlog_eviction: frozenset[str] = frozenset()
    compaction: frozenset[str] = frozenset()
    kept_subscriptions: frozenset[str] = frozenset()
    min_bytes: int = 1


_NONE = Inactive()


def last_of(listed: pa.Table, idle: Any, choice: LoadChoice) -> list[int]:
    """The last ledgers of those of ``idle`` (``TopicTables.idle``) that may be loaded: bookies are asked of these."""
    some = listed.filter(pc.is_in(listed.column("managed_ledger"), idle)).select(["topic", "namespace", "ledgers"])
    rows = (row for row in some.to_pylist() if not choice.load.isdisjoint(holders(row["namespace"], row["topic"])))
    return [max(one["ledger_id"] for one in row["ledgers"]) for row in rows if row["ledgers"]]


def topics_to_load(
    tables: TopicTables, monitors: Monitors, choice: LoadChoice, now: int, inactive: Inactive = _NONE
) -> pa.Table:
    """Rows of ``TOPICS_TO_LOAD`` for every topic that needs a broker at ``now`` (ms), loaded or kept by a code.

    A topic that is kept for the sake of ``inactive`` subscriptions is judged without them, if it is loaded then, and no
    plan has them.
    """
    inputs = _with_opened(_with_idle(tables.inputs, tables.idle), tables.opened)
    expired = expired_subscriptions(
        tables.cursors, tables.listed, tables.ledgers, tables.idle, monitors, choice.kept_subscriptions, now
    )
    unloaded = np.asarray(pc.fill_null(pc.not_equal(inputs.column("kept"), str(Protection.LOADED)), True))
    unused = inactive_subscriptions(
        *(tables.cursors, tables.listed, unloaded, tables.idle, monitors),
        choice.kept_subscriptions,
        inactive.by_topic,
    )
    ended = ended_deduplication(tables.cursors, tables.listed, monitors)
    found = _rows(tables, inputs, monitors, choice, now, expired & ~unused, unused, ended)
    for row in found:
        if row["kept"] is None and not inactive.staying.isdisjoint(inactive_pairs(row)):
            row["kept"] = str(LoadKept.PARTITION_STAYS)
    if not inactive.planned and any(row["kept"] and row["inactive_subscriptions"] for row in found):
        others = _rows(tables, inputs, monitors, choice, now, expired, np.zeros(len(unused), bool), ended)
        without = {row["topic"]: row for row in others if row["kept"] is None}
        found = [without.get(row["topic"], row) if row["kept"] else row for row in found]
    for row in found:
        czxids = inactive.by_topic.get(row["topic"], {})
        row["inactive_czxids"] = [czxids[name] for name in row["inactive_subscriptions"]]
    return pa.Table.from_pylist(found, TOPICS_TO_LOAD)


def inactive_pairs(row: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The partitioned topic of a row, or its topic, with each inactive subscription that is to go."""
    owner = str(Topic.parse(row["topic"]).partitioned_parent)
    return {(owner, name) for name in row["inactive_subscriptions"]}


def _rows(
    tables: TopicTables,
    inputs: pa.Table,
    monitors: Monitors,
    choice: LoadChoice,
    now: int,
    expired: Any,
    unused: Any,
    ended: Any,
) -> list[dict[str, Any]]:
    """``expired``, ``unused`` and ``ended``: which of the cursors (numpy) are deleted, as what."""
    gone = expired | unused | ended
    rows = LedgersOnceLoaded.of(tables, inputs, monitors, gone, now)
    minutes, mb = (whole(inputs.column(name)) for name in ("retention_minutes", "retention_mb"))
    limited = pc.or_(pc.greater_equal(minutes, 0), pc.greater_equal(mb, 0))
    idle = np.asarray(pc.is_in(whole(inputs.column("managed_ledger")), tables.idle))
    open_expired = rows.any_of(rows.open_expired)
    released = rows.any_of(rows.released) & np.asarray(pc.fill_null(limited, False))
    needs = {
        LoadNeed.LAST_LEDGER_EXPIRED: rows.any_of(rows.last & rows.due & ~rows.kept_before),
        LoadNeed.OPEN_EXPIRED: open_expired,
        LoadNeed.BEFORE_OPEN: rows.any_of(rows.goes & rows.due & ~rows.last) & idle & ~open_expired,
        LoadNeed.PAST_TTL: rows.any_of(rows.past_ttl) & np.asarray(pc.fill_null(limited, False)),
        LoadNeed.SUBSCRIPTION_EXPIRED: released & _having(tables.listed, tables.cursors, expired),
        LoadNeed.DEDUPLICATION_ENDED: released & _having(tables.listed, tables.cursors, ended),
        LoadNeed.SUBSCRIPTION_INACTIVE: _having(tables.listed, tables.cursors, unused) & (rows.ends >= 0),
    }
    subscribed = np.asarray(pc.fill_null(pc.greater(inputs.column("durable_cursors"), 0), True))
    unread = rows.any_of(rows.held | rows.released) | ((open_expired | needs[LoadNeed.BEFORE_OPEN]) & subscribed)
    unsent = rows.any_of(rows.unsent)
    needed = np.flatnonzero(np.logical_or.reduce(list(needs.values())))
    limits = by_topic(tables.listed, monitors.compaction)
    thresholds = np.zeros(inputs.num_rows, np.int64)
    thresholds[needed] = np.asarray(pc.fill_null(limits, 0), np.int64)[needed]
    compacts = would_compact(inputs, tables.listed, tables.cursors, thresholds, now)
    after = rows.last & ~rows.goes & ~rows.held_on
    after &= rows.due | rows.past_ttl | rows.open_expired | rows.released
    later = rows.any_of(after)
    parts = rows.sum_of(rows.freed, rows.size), rows.sum_of(after, rows.size)
    leaving = (rows.may_go | after | rows.last & rows.may_expire) & np.isin(rows.topic, needed)
    stored = np.zeros(len(leaving), np.int64)
    stored[leaving] = _on_disk(rows.id[leaving], tables)
    disk = rows.sum_of((rows.freed | after) & leaving, stored)
    weight = np.maximum(rows.size, stored)
    misread = rows.any_of(rows.misread)
    place = pa.array(needed)
    listed, inputs = tables.listed.take(place), inputs.take(place)
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist()
        for table, names in (
            (listed, ("topic", "namespace", "managed_ledger")),
            (inputs, ("durable_cursors", "slowest_ledger_id", "slowest_entry_id", "kept")),
        )
        for name in names
    }
    columns |= {"minutes": minutes.take(place).to_pylist(), "mb": mb.take(place).to_pylist()}
    columns |= {"compaction": limits.take(place).to_pylist(), "compacts": compacts[needed].tolist()}
    columns |= {"level": tables.level.take(place).to_pylist(), "ttl": rows.ttl.take(place).to_pylist()}
    cursors, begin = _cursors(tables.cursors, columns["managed_ledger"]), np.searchsorted(rows.topic, needed)
    past, left = (
        _cursors(tables.cursors.filter(pa.array(some)), columns["managed_ledger"]) for some in (expired, unused)
    )
    found: list[dict[str, Any]] = []
    for n, row in enumerate(needed.tolist()):
        one = {name: values[n] for name, values in columns.items()}
        one |= {"unread": bool(unread[row]), "unsent": bool(unsent[row])}
        unused_here = sorted(left.get(one["managed_ledger"], {}))
        own_cursors = {
            name: at for name, at in cursors.get(one["managed_ledger"], {}).items() if name not in unused_here
        }
        would = _monitored(one, own_cursors, monitors, now)
        never = _never_going(own_cursors, monitors, choice)
        named = never & _expiring(own_cursors, one["namespace"], monitors, now)
        lengths = int(parts[0][row]), int(parts[1][row])
        enough = bool(open_expired[row]) or bool(unused_here) or sum(lengths) >= choice.min_bytes
        unknown = misread[row] or not rows.sized[rows.ends[row]]
        own = slice(int(begin[n]), int(rows.ends[row]) + 1)
        found.append(
            {
                **one,
                "ledger_id": int(rows.id[rows.ends[row]]),
                "needs": [str(need) for need, holds in needs.items() if holds[row]],
                "monitors": [str(code) for code in would],
                "bytes": sum(lengths),
                "bytes_at_once": lengths[0],
                "physical_bytes": int(disk[row]),
                "trims": rows.id[own][rows.goes[own]].tolist(),
                "may_trim": rows.id[own][rows.may_go[own]].tolist(),
                "weights": weight[own][leaving[own]].tolist(),
                "second_visit_at": _second_visit(one["minutes"], bool(later[row]), now),
                "retention_minutes": one["minutes"],
                "retention_mb": one["mb"],
                "ttl_seconds": one["ttl"],
                "expiry_minutes": monitors.expiry.get(one["namespace"]),
                "expired_subscriptions": sorted(past.get(one["managed_ledger"], {})),
                "inactive_subscriptions": unused_here,
                "kept": _kept(one, would, choice, never, named, unknown=unknown, enough=enough),
            }
        )
    return found


def _having(listed: pa.Table, cursors: pa.Table, these: Any) -> Any:
    """By topic, whether it has one of ``these`` (numpy) cursors."""
    owners = whole(cursors.column("managed_ledger").filter(pa.array(these)))
    return np.asarray(pc.is_in(whole(listed.column("managed_ledger")), owners))


def _with_idle(inputs: pa.Table, idle: Any) -> pa.Table:
    """A topic whose last ledger was never closed counts as loaded for writing; if nobody lists it, it may be loaded."""
    kept = inputs.column("kept")
    free = pc.and_(pc.is_in(inputs.column("managed_ledger"), idle), pc.equal(kept, str(Protection.LOADED)))
    lifted = pc.if_else(pc.fill_null(free, False), pa.scalar(None, pa.string()), kept)
    return inputs.set_column(inputs.schema.get_field_index("kept"), "kept", lifted)


def _with_opened(inputs: pa.Table, opened: pa.Table) -> pa.Table:
    """A broker that loads a topic counts what is in a last ledger that was never closed."""
    lists = with_sizes(whole(inputs.column("ledgers")), opened)
    return inputs.set_column(inputs.schema.get_field_index("ledgers"), inputs.field("ledgers"), lists)


def _on_disk(ledgers: Any, tables: TopicTables) -> Any:
    """Bytes of each ledger's replicas on disk. Bookies say them of a ledger that is not closed."""
    ids = pa.array(ledgers, pa.int64())
    place = pc.index_in(ids, whole(tables.opened.column("ledger_id")))
    known = whole(tables.opened.column("physical_bytes")).take(place)
    return np.asarray(pc.coalesce(known, on_disk(ids, tables.copies(ids))), np.int64)


def _cursors(cursors: pa.Table, wanted: Collection[str]) -> dict[str, dict[str, int | None]]:
    """By managed ledger, its cursors and when each was last active (ms)."""
    some = cursors.filter(pc.is_in(cursors.column("managed_ledger"), pa.array(list(wanted), pa.string())))
    found: dict[str, dict[str, int | None]] = {}
    names = ("managed_ledger", "cursor", "last_active")
    for owner, cursor, active in zip(*(some.column(name).to_pylist() for name in names), strict=True):
        found.setdefault(owner, {})[cursor or ""] = active
    return found


def _monitored(
    row: Mapping[str, Any], cursors: Mapping[str, int | None], monitors: Monitors, now: int
) -> list[LoadKept | LoadLoss]:
    """What its broker would do to a topic at its load, or while it stays loaded for ``LEFT_LOADED``.

    However short we mean to load it. ``unread``: a cursor has not acknowledged all of it, or may not have. ``unsent``:
    that of a replicator has not, and there is a TTL. ``compacts``: by its threshold ``compaction``, a compaction or the
    cursor of one would begin.
    """
    topic = Topic.parse(row["topic"])
    lost = monitors.at_load.all_of(topic, cursors, has_cursors=row["durable_cursors"] != 0, unread=row["unread"])
    if LoadLoss.NAMESPACE_DELETED in lost:
        return [*lost]
    expiry = monitors.expiry.get(row["namespace"])
    known = row["namespace"] in monitors.deletion.by_namespace
    deletion: TopicDeletion | None = monitors.deletion.of(topic) if known else None
    evicted = monitors.eviction.of(topic) if known and row["unread"] else False
    replicator = monitors.replicator
    if expiry is None or deletion is None or replicator is None or LoadLoss.LOSS_UNKNOWN in lost:
        return [LoadKept.MONITORS_UNKNOWN]
    if evicted is None or row["ttl"] is None or row["compaction"] is None:
        return [LoadKept.MONITORS_UNKNOWN]
    subscriptions = {name for name in cursors if is_subscription(name, replicator)}
    stays = subscriptions - _expiring(cursors, row["namespace"], monitors, now)
    found: list[LoadKept | LoadLoss] = [*lost]
    if row["unsent"]:
        found.append(LoadKept.REPLICATION_WOULD_EXPIRE)
    if len(stays) < len(subscriptions):
        found.append(LoadKept.SUBSCRIPTION_WOULD_EXPIRE)
    if deletion.on and not (deletion.unsubscribed_only and stays):
        found.append(LoadKept.TOPIC_WOULD_BE_DELETED)
    if evicted:
        found.append(LoadKept.BACKLOG_WOULD_BE_EVICTED)
    if row["compacts"]:
        found.append(LoadKept.COMPACTION_WOULD_BEGIN)
    return found


def _expiring(cursors: Mapping[str, int | None], namespace: str, monitors: Monitors, now: int) -> set[str]:
    """Which subscriptions a broker would delete by their expiration time while a topic is loaded so long."""
    limit, replicator = (monitors.expiry.get(namespace) or 0) * MS_PER_MINUTE, monitors.replicator
    if not limit or replicator is None:
        return set()
    subscriptions = {name: active for name, active in cursors.items() if is_subscription(name, replicator)}
    until = now + LEFT_LOADED
    return {name for name, active in subscriptions.items() if not active or until - active > limit}


def _never_going(cursors: Collection[str], monitors: Monitors, choice: LoadChoice) -> set[str]:
    """Which subscriptions never go: the settings name them, or a function subscribes by their name."""
    subscriptions = {name for name in cursors if is_subscription(name, monitors.replicator or REPLICATOR)}
    return {name for name in subscriptions if name in choice.kept_subscriptions or re.search(FUNCTION, name)}


def _kept(
    row: Mapping[str, Any],
    would: Collection[LoadKept | LoadLoss],
    choice: LoadChoice,
    never: Collection[str],
    named: Collection[str],
    *,
    unknown: bool,
    enough: bool,
) -> str | None:
    """``never``: its subscriptions that never go; ``named``: those of them that its broker would delete."""
    if row["kept"] is not None:
        return row["kept"]
    if row["minutes"] is None or row["mb"] is None:
        return str(RetentionVerdict.UNKNOWN_POLICY)
    if row["durable_cursors"] is None or (row["durable_cursors"] and row["slowest_ledger_id"] is None):
        return str(RetentionVerdict.UNKNOWN_CURSOR)
    names = holders(row["namespace"], row["topic"])
    ordered: dict[StrEnum, frozenset[str]] = {
        LoadKept.SUBSCRIPTION_WOULD_EXPIRE: frozenset[str]() if named else choice.subscription_expiry,
        LoadKept.TOPIC_WOULD_BE_DELETED: frozenset[str]() if never else choice.topic_deletion,
        LoadKept.BACKLOG_WOULD_BE_EVICTED: choice.backlog_eviction,
        LoadKept.COMPACTION_WOULD_BEGIN: choice.compaction,
    }
    if choice.load.isdisjoint(names):
        return str(LoadKept.WAY_IS_METADATA)
    refused = next((code for code in would if ordered.get(code, frozenset[str]()).isdisjoint(names)), None)
    if refused:
        return str(refused)
    if unknown:
        return str(RetentionVerdict.UNKNOWN_LEDGER)
    return None if enough else str(LoadKept.LITTLE_TO_FREE)


def _second_visit(minutes: int | None, later: bool, now: int) -> int | None:
    return now + minutes * MS_PER_MINUTE if later and minutes is not None and minutes > 0 else None
