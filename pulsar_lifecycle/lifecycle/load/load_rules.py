"""Which topics need a broker that loads them, what it would free, and what keeps a topic from being loaded.

Belongs here: the rule, as codes. Pure: tables and policies come in, rows of ``TOPICS_TO_LOAD`` come out. Not here:
retention itself (``lifecycle/retention.py``), loading anything (``lifecycle/load/visits.py``). What a load changes:
the last ledger becomes a closed one of that moment, whatever its age; messages past their TTL count as acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.held.open_ledgers import with_sizes
from pulsar_lifecycle.lifecycle.load.monitors import LEFT_LOADED, Monitors, TopicDeletion, by_topic, is_subscription
from pulsar_lifecycle.lifecycle.load.other_cursors import (
    doubtful_to,
    expired,
    needed_by,
    slower_of,
    where_any,
    with_slowest,
    would_compact,
)
from pulsar_lifecycle.lifecycle.reasons import Reason, of_topics
from pulsar_lifecycle.lifecycle.retention import judge, whole
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.owner_names import holders
from pulsar_lifecycle.records.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.topics.listed_ledgers import on_disk
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE


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


class LoadKept(StrEnum):
    """Why a topic that needs a broker is left alone."""

    WAY_IS_METADATA = "way_is_metadata"
    """`load.namespaces` does not name it: retention goes by metadata alone."""
    SUBSCRIPTION_WOULD_EXPIRE = "subscription_would_expire"
    """Its broker would delete a subscription without consumers within a day, and `load.subscription_expiry` does not
    name it."""
    TOPIC_WOULD_BE_DELETED = "topic_would_be_deleted"
    """Its broker would delete it as inactive, and `load.topic_deletion` does not name it."""
    BACKLOG_WOULD_BE_EVICTED = "backlog_would_be_evicted"
    """It has unread messages, its broker drops those beyond a quota, and `load.backlog_eviction` does not name it."""
    COMPACTION_WOULD_BEGIN = "compaction_would_begin"
    """It has a compaction threshold, and `load.compaction` does not name it: its broker would begin a compaction, as
    more than that waits for one, or make a cursor `__compaction` before all its messages, which holds its ledgers until
    a compaction has read them."""
    NOT_REPLICATED_HERE = "not_replicated_here"
    """Its replication clusters leave this cluster out: its broker would delete it whole at once, whatever is unread.
    No setting lifts this."""
    REPLICATION_WOULD_EXPIRE = "replication_would_expire"
    """A replicator has not sent all, and its broker drops what is past its TTL. No setting lifts this."""
    REPLICATOR_WOULD_BE_DELETED = "replicator_would_be_deleted"
    """Its broker would delete a replicator's cursor, with what that has not sent yet: its replication clusters do not
    name that cluster any more. No setting lifts this."""
    MONITORS_UNKNOWN = "monitors_unknown"
    """What its broker would do by TTL, subscription expiry, backlog quota, inactivity, replication and compaction is
    not known."""
    LITTLE_TO_FREE = "little_to_free"
    """A load would free less than `load.min_bytes`."""

    NEEDS_NO_BROKER = "needs_no_broker"
    """A broker has loaded it since the plan, and it needs none any more. Only at apply."""
    BUNDLE_SHARED = "bundle_shared"
    """No broker owns its bundle: who takes it loads all its topics, and not all of them may be loaded. At apply."""
    BUNDLE_TOO_LARGE = "bundle_too_large"
    """No broker owns its bundle, whose topics are more than `load.max_per_bundle` or `max_per_broker`. At apply."""
    BUNDLE_MOVED = "bundle_moved"
    """Its bundle changed its owner within `load.min_owner_age`: load shedding may be at it. Only at apply."""
    BROKER_BUSY = "broker_busy"
    """Its broker uses more than `load.max_broker_load`. Only at apply."""
    BROKER_SILENT = "broker_silent"
    """A broker that does not answer owns its bundle, or may take it as nobody is known to. Only at apply."""
    BUDGET_SPENT = "budget_spent"
    """This run has loaded as many topics of its broker or bundle as it may: launch again. Only at apply."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The settings' word: tenants, namespaces and topics that may be loaded, and what brokers may do to these besides.

    ``min_bytes``: less is not worth a load.
    """

    load: frozenset[str] = frozenset()
    subscription_expiry: frozenset[str] = frozenset()
    topic_deletion: frozenset[str] = frozenset()
    backlog_eviction: frozenset[str] = frozenset()
    compaction: frozenset[str] = frozenset()
    min_bytes: int = 1


@dataclass(frozen=True, slots=True)
class TopicTables:
    """What the rule needs of some topics.

    ``listed`` (``tables.MANAGED_LEDGERS``) and ``inputs`` (``RETENTION_TOPICS``) are the same topics in the same order;
    ``ledgers`` (``tables.BOOKKEEPER_LEDGERS``) has the last ledger of each. ``cursors`` (``NAMED_POSITIONS``) are those
    of these topics. ``idle``: managed ledgers that no broker lists and whose last ledger is not closed; ``opened``:
    what bookies say of these last ledgers (``OPEN_SIZES``), where that was asked. ``level``: where the retention of
    each topic is set, null where it is unknown. ``copies``: of ledger ids, what BookKeeper has of them
    (``listed_ledgers.OF_COPY``).
    """

    listed: pa.Table
    inputs: pa.Table
    ledgers: pa.Table
    cursors: pa.Table
    idle: Any
    opened: pa.Table
    level: Any
    copies: Callable[[Any], pa.Table]


def last_of(listed: pa.Table, idle: Any, choice: LoadChoice) -> list[int]:
    """The last ledgers of those of ``idle`` (``TopicTables.idle``) that may be loaded: bookies are asked of these."""
    some = listed.filter(pc.is_in(listed.column("managed_ledger"), idle)).select(["topic", "namespace", "ledgers"])
    rows = (row for row in some.to_pylist() if not choice.load.isdisjoint(holders(row["namespace"], row["topic"])))
    return [max(one["ledger_id"] for one in row["ledgers"]) for row in rows if row["ledgers"]]


def topics_to_load(tables: TopicTables, monitors: Monitors, choice: LoadChoice, now: int) -> pa.Table:
    """Rows of ``TOPICS_TO_LOAD`` for every topic that needs a broker at ``now`` (ms), loaded or kept by a code."""
    inputs = _with_opened(_with_idle(tables.inputs, tables.idle), tables.opened)
    rows = _Ledgers.of(tables, inputs, monitors, now)
    minutes, mb = (whole(inputs.column(name)) for name in ("retention_minutes", "retention_mb"))
    limited = pc.or_(pc.greater_equal(minutes, 0), pc.greater_equal(mb, 0))
    idle = np.asarray(pc.is_in(whole(inputs.column("managed_ledger")), tables.idle))
    open_expired = rows.any_of(rows.open_expired)
    needs = {
        LoadNeed.LAST_LEDGER_EXPIRED: rows.any_of(rows.last & rows.due & ~rows.kept_before),
        LoadNeed.OPEN_EXPIRED: open_expired,
        LoadNeed.BEFORE_OPEN: rows.any_of(rows.goes & rows.due & ~rows.last) & idle & ~open_expired,
        LoadNeed.PAST_TTL: rows.any_of(rows.past_ttl) & np.asarray(pc.fill_null(limited, False)),
    }
    subscribed = np.asarray(pc.fill_null(pc.greater(inputs.column("durable_cursors"), 0), True))
    unread = rows.any_of(rows.held) | ((open_expired | needs[LoadNeed.BEFORE_OPEN]) & subscribed)
    unsent = rows.any_of(rows.unsent)
    needed = np.flatnonzero(np.logical_or.reduce(list(needs.values())))
    limits = by_topic(tables.listed, monitors.compaction)
    thresholds = np.zeros(inputs.num_rows, np.int64)
    thresholds[needed] = np.asarray(pc.fill_null(limits, 0), np.int64)[needed]
    compacts = would_compact(inputs, tables.listed, tables.cursors, thresholds, now)
    after = rows.last & ~rows.goes & ~rows.held_on & (rows.due | rows.past_ttl | rows.open_expired)
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
    found: list[dict[str, Any]] = []
    for n, row in enumerate(needed.tolist()):
        one = {name: values[n] for name, values in columns.items()}
        one |= {"unread": bool(unread[row]), "unsent": bool(unsent[row])}
        would = _monitored(one, cursors.get(one["managed_ledger"], {}), monitors, now)
        lengths = int(parts[0][row]), int(parts[1][row])
        opened = open_expired[row]
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
                "kept": _kept(one, would, choice, unknown=unknown, enough=opened or sum(lengths) >= choice.min_bytes),
            }
        )
    return pa.Table.from_pylist(found, TOPICS_TO_LOAD)


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """The ledgers of all topics as numpy arrays; ``ttl`` and ``ends``, the place of the last ledger, by topic.

    ``sized``: its bytes are known. ``held``: a cursor needs some of it; ``held_on``: even once what is ``past_ttl`` is
    expired. ``unsent``: a replicator's needs it, or may.
    ``due``: acknowledged, and past their retention now. ``past_ttl``: what subscriptions that we may expire need of
    them is past the TTL, and so is all before it. ``may_expire``: the next one, which was closed within the TTL, but
    whose messages may all be older. ``goes``: a broker that has loaded the topic and expired its messages trims them;
    ``may_go``: the same if those of ``may_expire`` go, too; ``freed``: only a broker frees it. ``misread``: a
    broker would take it for empty or past its retention, and it is not, or may not be. ``kept_before``: a ledger before
    it in its topic is neither due nor empty.
    """

    topic: Any
    topics: int
    id: Any
    size: Any
    sized: Any
    last: Any
    due: Any
    past_ttl: Any
    may_expire: Any
    held: Any
    held_on: Any
    unsent: Any
    open_expired: Any
    goes: Any
    may_go: Any
    freed: Any
    misread: Any
    kept_before: Any
    ttl: Any
    ends: Any

    @classmethod
    def of(cls, tables: TopicTables, inputs: pa.Table, monitors: Monitors, now: int) -> _Ledgers:
        verdicts = judge(inputs, now)
        topic = np.asarray(whole(verdicts.column("managed_ledger")).indices, np.int64)
        last = np.append(topic[1:] != topic[:-1], True)[: len(topic)]
        ids = np.asarray(whole(verdicts.column("ledger_id")), np.int64)
        size = np.asarray(verdicts.column("size").fill_null(0), np.int64)
        alone = verdicts.column("alone").cast(pa.string())
        held = np.asarray(pc.equal(alone, str(RetentionVerdict.CURSOR)))
        empty = np.asarray(pc.equal(alone, str(RetentionVerdict.EMPTY)))
        due = np.asarray(whole(verdicts.column("expired_by")).is_valid()) & ~empty & ~held

        names = tables.cursors.column("cursor")
        distinct = names.unique().to_pylist()
        ours = pa.array([one for one in distinct if one and monitors.expires_messages(one)], pa.string())
        sending = pa.array([one for one in distinct if one and monitors.replicates(one)], pa.string())
        expirable = pc.fill_null(pc.is_in(names, ours), False)
        moving, fixed = (
            with_slowest(inputs, tables.listed, tables.cursors.filter(where))
            for where in (expirable, pc.invert(expirable))
        )
        senders = with_slowest(inputs, tables.listed, tables.cursors.filter(pc.is_in(names, sending)))
        to_expire, unsent = needed_by(moving, now), needed_by(senders, now) | doubtful_to(senders, now)

        seconds = by_topic(tables.listed, monitors.ttl)
        limit = np.asarray(pc.fill_null(seconds, 0), np.int64)[topic] * 1000
        inner = whole(inputs.column("ledgers")).flatten()
        closed = inner.field("closed_at")
        dated = np.asarray(closed.is_valid())
        old = dated & (limit > 0) & (now - np.asarray(closed.fill_null(0), np.int64) > limit)
        young = _upto(to_expire & ~old, topic)
        past_ttl = to_expire & old & (young == 0)
        begun = np.append(True, last[:-1] | old[:-1] | ~dated[:-1])[: len(topic)]  # as the one before it was closed
        may_expire = to_expire & ~old & (young == 1) & (limit > 0) & begun
        entries = np.asarray(inner.field("entries").fill_null(0), np.int64)

        def without(these: Any) -> pa.Table:
            moved = slower_of(expired(moving, topic, ids, entries, these), fixed)
            return judge(where_any(these, topic, moved, inputs), now)

        after = without(past_ttl)
        goes = np.asarray(after.column("goes_when_loaded"))
        stamps = whole(tables.listed.column("ledgers")).flatten().field("timestamp")
        stamped = np.asarray(pc.fill_null(pc.greater(stamps, 0), False))
        unknown = np.asarray(pc.equal(alone, str(RetentionVerdict.UNKNOWN_LEDGER)))
        by_metadata = judge(tables.inputs, now).column("verdict")  # there a topic without a broker may count as loaded
        reasons = of_topics(verdicts, tables.listed, inputs, tables.ledgers, tables.idle, now).column("reason")
        ends = np.full(inputs.num_rows, -1, np.int64)
        ends[topic[last]] = np.flatnonzero(last)
        kept = np.zeros(inputs.num_rows, bool)
        kept[topic[~last & ~due & ~empty]] = True
        return cls(
            topic=topic,
            topics=inputs.num_rows,
            id=ids,
            size=size,
            sized=np.asarray(verdicts.column("size").is_valid()),
            last=last,
            due=due,
            past_ttl=past_ttl,
            may_expire=may_expire,
            held=held,
            held_on=np.asarray(pc.equal(after.column("alone").cast(pa.string()), str(RetentionVerdict.CURSOR))),
            unsent=unsent & (limit > 0),
            open_expired=np.asarray(pc.equal(reasons, str(Reason.EXPIRED_OPEN))),
            goes=goes,
            may_go=np.asarray(without(past_ttl | may_expire).column("goes_when_loaded")) if may_expire.any() else goes,
            freed=goes & ~np.asarray(pc.is_in(by_metadata.cast(pa.string()), _GOING)),
            misread=~last & (unknown | ~stamped & ~goes),
            kept_before=kept[topic],
            ttl=seconds,
            ends=ends,
        )

    def any_of(self, these: Any) -> Any:
        """By topic, whether one of its ledgers is one of ``these``."""
        return np.bincount(self.topic[these], minlength=self.topics) > 0

    def sum_of(self, these: Any, amounts: Any) -> Any:
        """By topic, the sum of the ``amounts`` of ``these`` of its ledgers."""
        return np.bincount(self.topic[these], weights=amounts[these], minlength=self.topics).astype(np.int64)


_GOING = pa.array(sorted(GOING), pa.string())


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
    """What the replicas of ledgers take; of those that are not closed, as bookies say."""
    ids = pa.array(ledgers, pa.int64())
    place = pc.index_in(ids, whole(tables.opened.column("ledger_id")))
    known = whole(tables.opened.column("physical_bytes")).take(place)
    return np.asarray(pc.coalesce(known, on_disk(ids, tables.copies(ids))), np.int64)


def _upto(these: Any, topic: Any) -> Any:
    """How many of ``these`` are at, or before, a ledger in its topic."""
    upto = np.concatenate(([0], np.cumsum(these, dtype=np.int64)))
    return upto[1:] - upto[np.searchsorted(topic, topic)]


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
) -> list[LoadKept]:
    """What its broker would do to a topic that stays loaded for ``LEFT_LOADED``, however short we mean to load it.

    ``unread``: a cursor has not acknowledged all of it, or may not have. ``unsent``: that of a replicator has not, and
    there is a TTL. ``compacts``: by its threshold ``compaction``, a compaction or the cursor of one would begin.
    """
    topic = Topic.parse(row["topic"])
    expiry = monitors.expiry.get(row["namespace"])
    known = row["namespace"] in monitors.deletion.by_namespace
    deletion: TopicDeletion | None = monitors.deletion.of(topic) if known else None
    evicted = monitors.eviction.of(topic) if known and row["unread"] else False
    replication, replicator = monitors.replication.of(topic) if known else None, monitors.replicator
    if expiry is None or deletion is None or replication is None or replicator is None:
        return [LoadKept.MONITORS_UNKNOWN]
    if evicted is None or row["ttl"] is None or row["compaction"] is None:
        return [LoadKept.MONITORS_UNKNOWN]
    subscriptions = {name: active for name, active in cursors.items() if is_subscription(name, replicator)}
    sends = {name.rpartition(".")[2] for name in cursors if name.startswith(replicator)}
    limit, until = expiry * MS_PER_MINUTE, now + LEFT_LOADED
    stays = [name for name, active in subscriptions.items() if not limit or (active and until - active <= limit)]
    found = [] if replication.here else [LoadKept.NOT_REPLICATED_HERE]
    if row["unsent"]:
        found.append(LoadKept.REPLICATION_WOULD_EXPIRE)
    if not sends <= replication.elsewhere:
        found.append(LoadKept.REPLICATOR_WOULD_BE_DELETED)
    if len(stays) < len(subscriptions):
        found.append(LoadKept.SUBSCRIPTION_WOULD_EXPIRE)
    if deletion.on and not (deletion.unsubscribed_only and stays):
        found.append(LoadKept.TOPIC_WOULD_BE_DELETED)
    if evicted:
        found.append(LoadKept.BACKLOG_WOULD_BE_EVICTED)
    if row["compacts"]:
        found.append(LoadKept.COMPACTION_WOULD_BEGIN)
    return found


def _kept(
    row: Mapping[str, Any], would: Collection[LoadKept], choice: LoadChoice, *, unknown: bool, enough: bool
) -> str | None:
    if row["kept"] is not None:
        return row["kept"]
    if row["minutes"] is None or row["mb"] is None:
        return str(RetentionVerdict.UNKNOWN_POLICY)
    if row["durable_cursors"] is None or (row["durable_cursors"] and row["slowest_ledger_id"] is None):
        return str(RetentionVerdict.UNKNOWN_CURSOR)
    names = holders(row["namespace"], row["topic"])
    ordered = {
        LoadKept.SUBSCRIPTION_WOULD_EXPIRE: choice.subscription_expiry,
        LoadKept.TOPIC_WOULD_BE_DELETED: choice.topic_deletion,
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
