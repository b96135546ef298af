"""The ledgers of topics as a broker has them that has loaded the topics and expired what is past its time.

Belongs here: which of them it would trim, by retention and cursors. Pure. Not here: what that means for a load
(``lifecycle/load/load_rules.py``), retention itself (``lifecycle/retention.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.load.monitors import Monitors, by_topic
from pulsar_lifecycle.lifecycle.load.other_cursors import (
    doubtful_to,
    expired,
    needed_by,
    slower_of,
    where_any,
    with_slowest,
    without_cursors,
)
from pulsar_lifecycle.lifecycle.reasons import Reason, of_topics
from pulsar_lifecycle.lifecycle.retention import judge, whole
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict


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


@dataclass(frozen=True, slots=True)
class LedgersOnceLoaded:
    """The ledgers of all topics as numpy arrays; ``ttl`` and ``ends``, the place of the last ledger, by topic.

    ``released``: none but subscriptions that are ``gone`` needs it; all else is as if those were deleted.
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
    released: Any
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
    def of(cls, tables: TopicTables, inputs: pa.Table, monitors: Monitors, gone: Any, now: int) -> LedgersOnceLoaded:
        """``gone``: which of the cursors (numpy) are subscriptions that are deleted."""
        needed = needed_by(inputs, now) if gone.any() else False
        inputs = without_cursors(inputs, tables.listed, tables.cursors, gone)
        cursors = tables.cursors.filter(pa.array(~gone))
        verdicts = judge(inputs, now)
        topic = np.asarray(whole(verdicts.column("managed_ledger")).indices, np.int64)
        last = np.append(topic[1:] != topic[:-1], True)[: len(topic)]
        ids = np.asarray(whole(verdicts.column("ledger_id")), np.int64)
        size = np.asarray(verdicts.column("size").fill_null(0), np.int64)
        alone = verdicts.column("alone").cast(pa.string())
        held = np.asarray(pc.equal(alone, str(RetentionVerdict.CURSOR)))
        empty = np.asarray(pc.equal(alone, str(RetentionVerdict.EMPTY)))
        due = np.asarray(whole(verdicts.column("expired_by")).is_valid()) & ~empty & ~held

        names = cursors.column("cursor")
        distinct = names.unique().to_pylist()
        ours = pa.array([one for one in distinct if one and monitors.expires_messages(one)], pa.string())
        sending = pa.array([one for one in distinct if one and monitors.replicates(one)], pa.string())
        expirable = pc.fill_null(pc.is_in(names, ours), False)
        moving, fixed = (
            with_slowest(inputs, tables.listed, cursors.filter(where)) for where in (expirable, pc.invert(expirable))
        )
        senders = with_slowest(inputs, tables.listed, cursors.filter(pc.is_in(names, sending)))
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
            released=needed & ~held,
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


def _upto(these: Any, topic: Any) -> Any:
    """How many of ``these`` are at, or before, a ledger in its topic."""
    upto = np.concatenate(([0], np.cumsum(these, dtype=np.int64)))
    return upto[1:] - upto[np.searchsorted(topic, topic)]
