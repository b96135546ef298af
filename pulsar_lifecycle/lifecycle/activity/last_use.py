"""When topics and cursors were used last: what a scan sees of them, beside what the scan before saw.

Belongs here: the rule of evidence. Pure: tables in, rows of ``TOPIC_ACTIVITY`` and ``CURSOR_ACTIVITY`` out. Not here:
reading (``activity_run.py``), what is inactive (``inactive_rules.py``).

What cannot be ruled out counts as use, at the time of the look. A position that could not be read is neither use nor
rest: the next one is compared with the one before it. A z-node of another creation, or of a lower version, is
another topic or cursor: its history starts anew. A load is no use, by whomever: a broker that takes a bundle loads all
its topics. It writes the topic's z-node, and each cursor's ``lastActive`` begins again with its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.activity.activity_tables import (
    CONNECTIONS,
    CURSOR_ACTIVITY,
    TOPIC_ACTIVITY,
    UseEvidence,
)
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.topics.load_losses import is_subscription
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.topic_load import LoadReason, LoadState

LOAD_TAKES = 60_000
"""A ``lastActive`` so soon (ms) after the topic's last ledger was made is its load's own; clocks may differ by it."""

OFF = (LoadReason.AT_REST, LoadReason.NO_LEDGERS, LoadReason.LAST_LEDGER_NOT_CLOSED, LoadReason.TERMINATED)
"""Why a scan holds that no broker lists a topic, and that none did for a while."""


@dataclass(frozen=True, slots=True)
class Clients:
    """What brokers said of some topics, in the order of these. ``known``: they answered, or no broker has it.

    ``rows`` are ``CONNECTIONS``, of these and others.
    """

    rows: pa.Table
    known: Any

    @classmethod
    def of(cls, topics: Any, load_state: Any, load_reason: Any, rows: pa.Table | None) -> Clients:
        """``rows`` None: the brokers did not answer."""
        off = pc.or_(
            pc.equal(load_state, str(LoadState.UNLOADED)),
            pc.fill_null(pc.is_in(load_reason, pa.array([str(one) for one in OFF])), False),
        )
        said = CONNECTIONS.empty_table() if rows is None else rows
        listed = np.asarray(pc.is_in(topics, whole(said.column("topic"))))
        return cls(said, listed | np.asarray(pc.fill_null(off, False)))

    def published(self, topics: Any) -> Any:
        """Messages since the load; null of what no broker lists."""
        producers = self.rows.filter(pc.is_null(self.rows.column("subscription")))
        return whole(producers.column("published")).take(pc.index_in(topics, whole(producers.column("topic"))))

    def of_topics(self, topics: Any) -> Any:
        """How many clients each of these has."""
        sums = self.rows.group_by("topic").aggregate([("connected", "sum")])
        return _numbers(whole(sums.column("connected_sum")).take(pc.index_in(topics, whole(sums.column("topic")))), 0)

    def of_cursors(self, topics: Any, cursors: Any) -> Any:
        """How many consumers each of these cursors has."""
        own = self.rows.filter(self.rows.column("subscription").is_valid())
        place = pc.index_in(_pair(topics, cursors), _pair(own.column("topic"), own.column("subscription")))
        return _numbers(whole(own.column("connected")).take(place), 0)


def cursor_activity(cursors: pa.Table, topics: pa.Table, clients: Clients, previous: pa.Table, now: int) -> pa.Table:
    """Rows of ``CURSOR_ACTIVITY``, of columns of ``tables.MANAGED_CURSORS`` and the persisted marks of each.

    ``cursors`` has the columns of ``CursorMark`` and ``acknowledged`` besides. ``topics``: of all
    their topics ``managed_ledger``, ``topic``, ``inner`` (``RETENTION_TOPICS.ledgers``) and ``loaded_at``, when the
    last ledger was made (ms; null: unknown). ``previous``: rows of the scan before that count, or none.
    """
    row = whole(pc.index_in(cursors.column("managed_ledger"), whole(topics.column("managed_ledger"))))
    before = _Before.of(cursors, previous)
    own, own_before = (_numbers(one("cursors_ledger_id"), -1) for one in (cursors.column, before.column))
    position = [whole(cursors.column(name)) for name in ("ledger_id", "entry_id")]
    known = np.asarray(pc.and_(position[0].is_valid(), position[1].is_valid()))
    known &= (own >= 0) | np.asarray(whole(cursors.column("acknowledged")).is_valid())
    differs = (own < 0) & ~before.same("acknowledged")
    for name, nothing in (("ledger_id", -2), ("entry_id", -2), ("cursors_entry_id", -1)):
        differs |= _numbers(whole(cursors.column(name)), nothing) != _numbers(before.column(name), nothing)
    switched = own != own_before
    moved = known & differs | switched
    # What a new cursor ledger holds cannot be compared with what the one before it held.
    stood = {name: pc.if_else(switched, None, before.column(name)) for name in _POSITION}
    active = _numbers(cursors.column("last_active"), 0)
    loaded_at = _numbers(whole(topics.column("loaded_at")).take(row), 0)
    connected = clients.of_cursors(cursors.column("topic"), cursors.column("cursor"))
    answered = clients.known[np.asarray(row, np.int64)]

    use = _Use.of(_numbers(before.column("last_read"), 0), before.column("read_evidence"))
    use.at_least(~before.there, _numbers(cursors.column("ctime"), now), UseEvidence.CREATED)
    use.at_least(active > loaded_at + LOAD_TAKES, active, UseEvidence.LAST_ACTIVE)
    use.at_least(before.there & moved, now, UseEvidence.ACKNOWLEDGED)
    use.at_least(connected > 0, now, UseEvidence.CONNECTED)
    use.at_least(~answered, now, UseEvidence.UNKNOWN)
    nothing_new = _numbers(clients.published(whole(topics.column("topic"))), -1) == 0
    behind = [_numbers(one, -1) for one in position]
    held, unread = _held(whole(topics.column("inner")), nothing_new, np.asarray(row, np.int64), *behind)
    columns = {
        **{name: cursors.column(name) for name in CURSOR_ACTIVITY.names if name in cursors.column_names},
        **{name: whole(pc.if_else(known, cursors.column(name), one)) for name, one in stood.items()},
        "known": known,
        **before.watched(now),
        "last_read": use.at,
        "read_evidence": use.evidence,
        "bytes": held,
        "unread": unread,
    }
    return pa.table([columns[name] for name in CURSOR_ACTIVITY.names], schema=CURSOR_ACTIVITY)


def _held(inner: Any, nothing_new: Any, row: Any, ledger: Any, entry: Any) -> tuple[Any, Any]:
    """By cursor of topic ``row``: bytes of the ledgers that it keeps, and whether messages are, or may be, unread.

    It keeps the ledgers from its position on; its own unless that is read whole. ``inner``: a list of
    ``RETENTION_LEDGER`` by topic, of which the last is empty where ``nothing_new`` was written since its load.
    """
    flat, lengths = inner.flatten(), _numbers(inner.value_lengths(), 0)
    end = np.cumsum(lengths)
    ids, sizes, entries = (_numbers(flat.field(name), unknown).copy() for name, unknown in _LEDGER_FIELDS)
    last = end[nothing_new & (lengths > 0)] - 1
    entries[last] = np.maximum(entries[last], 0)
    count = lengths[row]
    of_cursor = np.repeat(np.arange(len(row)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    place = np.arange(int(count.sum())) - first + np.repeat((end - lengths)[row], count)
    ids, sizes, entries = ids[place], sizes[place], entries[place]
    at, read = ledger[of_cursor], entry[of_cursor] + 1
    kept = (ids > at) | ((ids == at) & ((entries < 0) | (read < entries)))
    unread = kept & (entries != 0)
    counted = (np.bincount(of_cursor[kept], sizes[kept], len(row)), np.bincount(of_cursor[unread], minlength=len(row)))
    return counted[0].astype(np.int64), counted[1] > 0


_POSITION = ("ledger_id", "entry_id", "cursors_entry_id", "acknowledged")
_LEDGER_FIELDS = (("ledger_id", -1), ("size", 0), ("entries", -1))


def topic_activity(
    listed: pa.Table,
    inputs: pa.Table,
    cursors: pa.Table,
    clients: Clients,
    previous: pa.Table,
    now: int,
    replicator: str,
) -> pa.Table:
    """Rows of ``TOPIC_ACTIVITY``, of rows of ``tables.MANAGED_LEDGERS`` and of ``RETENTION_TOPICS`` in the same order.

    ``listed`` has a column ``replicated``: whether policies send the topic to other clusters, null where that is not
    known. ``cursors``: rows of :func:`cursor_activity`, of these topics and others. ``replicator``: how replicators'
    cursors begin.
    """
    names = whole(listed.column("topic"))
    before, ends = _Before.of(listed, previous), _Ends.of(whole(inputs.column("ledgers")))
    published = clients.published(names)
    ends.find(_numbers(published, -1) == 0)
    same = before.same("version") & (_numbers(published, -1) == _numbers(before.column("published"), -1))
    end, was_open = before.number("end_ledger_id", -1), before.null("end_entries")
    rests = clients.known & same & (ends.ledger == end) & was_open
    lower = (ends.ledger < end) | ((ends.ledger == end) & (ends.entries <= before.number("end_entries", -1)))
    unwritten = np.where(ends.open, rests, _unwritten(ends, before))

    created = _numbers(listed.column("ctime"), now)
    write = _Use.of(before.number("last_write", 0), before.column("write_evidence"))
    write.at_least(~before.there, created, UseEvidence.CREATED)
    write.at_least(~before.there & (ends.closed_at > 0), ends.closed_at, UseEvidence.LEDGER_CLOSED)
    write.at_least(before.there & ~ends.open & ~unwritten & ~lower, now, UseEvidence.DATA_GREW)
    write.at_least((before.there | ends.open) & ~unwritten, now, UseEvidence.UNKNOWN)
    client = _Use.of(before.number("last_client", 0), before.column("client_evidence"))
    client.at_least(clients.of_topics(names) > 0, now, UseEvidence.CONNECTED)
    client.at_least(~clients.known, now, UseEvidence.UNKNOWN)
    read = _read(inputs, cursors, now, replicator)
    watched = before.watched(now)
    kept = whole(inputs.column("kept"))
    columns = {
        **{name: listed.column(name) for name in TOPIC_ACTIVITY.names if name in listed.column_names},
        **watched,
        **read,
        "watched_since": np.maximum(watched["watched_since"], read["watched_since"]),
        "replicated": pc.or_kleene(read["replicated"], whole(listed.column("replicated"))),
        "end_ledger_id": ends.ledger,
        "end_entries": pa.array(ends.entries, mask=ends.open),
        "published": published,
        "last_write": write.at,
        "write_evidence": write.evidence,
        "last_client": pa.array(client.at, mask=client.at == 0),
        "client_evidence": client.evidence,
        "last_ledger_id": ends.last,
        "ledgers": ends.count.astype(np.int32),
        "bytes": ends.bytes,
        **{name: inputs.column(name) for name in ("retention_minutes", "retention_mb")},
        "protection": pc.if_else(pc.equal(kept, str(Protection.LOADED)), pa.scalar(None, pa.string()), kept),
    }
    return pa.table([columns[name] for name in TOPIC_ACTIVITY.names], schema=TOPIC_ACTIVITY)


def _unwritten(ends: _Ends, before: _Before) -> Any:
    """Whether nothing was written to topics whose data ends where it did, and has an end that is known.

    Ledgers are trimmed from the first on: nothing that came after one that is still listed was written and trimmed.
    Without any data only the list's last ledger tells, which each load replaces.
    """
    end, entries = before.number("end_ledger_id", -1), before.number("end_entries", -1)
    was_open = before.null("end_entries")
    rests = (ends.last == before.number("last_ledger_id", -1)) & ((ends.last >= 0) | before.same("version"))
    at_same = (ends.ledger == end) & (ends.entries == entries) & ~was_open & ((ends.ledger >= 0) | rests)
    was_empty = was_open & (ends.ledger >= 0) & (ends.ledger < end)
    return at_same | was_empty


def _read(inputs: pa.Table, cursors: pa.Table, now: int, replicator: str) -> dict[str, Any]:
    """What the cursors of each topic say together; of one whose cursors could not be listed, that it may be read."""
    names = whole(cursors.column("cursor"))
    distinct = names.unique()
    clients = pa.array([is_subscription(one, replicator) for one in distinct.to_pylist()], pa.bool_())
    subscriptions = distinct.filter(clients)
    own = cursors.filter(pc.is_in(names, subscriptions)).sort_by([("last_read", "descending"), ("path", "ascending")])
    owners = whole(inputs.column("managed_ledger"))
    row = whole(pc.index_in(own.column("managed_ledger"), owners))
    own, rows = own.filter(row.is_valid()), np.asarray(row.drop_null(), np.int64)
    first = np.full(len(owners), -1, np.int64)
    first[rows[::-1]] = np.arange(len(rows))[::-1]
    place = pa.array(first, mask=first < 0)
    use = _Use.of(
        _numbers(whole(own.column("last_read")).take(place), 0), whole(own.column("read_evidence")).take(place)
    )
    use.at_least(np.asarray(pc.is_null(inputs.column("durable_cursors"))), now, UseEvidence.UNKNOWN)
    watched_since = np.zeros(len(owners), np.int64)
    np.maximum.at(watched_since, rows, _numbers(own.column("watched_since"), now))
    holding = rows[np.asarray(own.column("unread"), bool)]
    replicators = cursors.filter(pc.starts_with(names, replicator)).column("managed_ledger")
    return {
        "watched_since": watched_since,
        "last_read": pa.array(use.at, mask=use.at == 0),
        "read_evidence": use.evidence,
        "subscriptions": np.bincount(rows, minlength=len(owners)).astype(np.int32),
        "unread_subscriptions": np.bincount(holding, minlength=len(owners)).astype(np.int32),
        "replicated": pc.is_in(owners, whole(replicators)),
    }


@dataclass(slots=True)
class _Use:
    """The last use of each, 0 for none, and its evidence."""

    at: Any
    evidence: Any

    @classmethod
    def of(cls, at: Any, evidence: Any) -> _Use:
        return cls(at.copy(), whole(evidence))

    def at_least(self, where: Any, at: Any, evidence: UseEvidence) -> None:
        """Used at this time, where that is so and it is later than what is known."""
        later = where & (np.asarray(at) > self.at)
        self.at = np.where(later, at, self.at)
        self.evidence = whole(pc.if_else(pa.array(later), str(evidence), self.evidence))


@dataclass(frozen=True, slots=True)
class _Before:
    """What the scan before said of each, null where that does not count. ``there``: where it does."""

    there: Any
    rows: pa.Table
    now: pa.Table

    @classmethod
    def of(cls, now: pa.Table, previous: pa.Table) -> _Before:
        place = whole(pc.index_in(now.column("path"), whole(previous.column("path"))))
        rows = previous.take(place)
        same = pc.and_(
            pc.equal(rows.column("czxid"), now.column("czxid")),
            pc.less_equal(rows.column("version"), now.column("version")),
        )
        there = np.asarray(pc.fill_null(same, False))
        return cls(there, previous.take(pa.array(_numbers(place, 0), mask=~there)), now)

    def column(self, name: str) -> Any:
        return whole(self.rows.column(name))

    def number(self, name: str, unknown: int) -> Any:
        return _numbers(self.column(name), unknown)

    def null(self, name: str) -> Any:
        return np.asarray(pc.is_null(self.column(name)))

    def same(self, name: str) -> Any:
        return np.asarray(pc.fill_null(pc.equal(self.column(name), whole(self.now.column(name))), False))

    def watched(self, now: int) -> dict[str, Any]:
        return {
            "watched_since": np.where(self.there, self.number("watched_since", now), now),
            "scans": (self.number("scans", 0) + 1).astype(np.int32),
        }


@dataclass(slots=True)
class _Ends:
    """Where the data of each topic ends: the last ledger that has entries, or may have.

    ``open``: it is not known how many; ``last``: the last ledger of all, -1 for none.
    """

    inner: Any
    begin: Any
    end: Any
    ledger: Any
    entries: Any
    open: Any
    closed_at: Any
    last: Any
    count: Any
    bytes: Any

    @classmethod
    def of(cls, lists: Any) -> _Ends:
        inner = lists.flatten()
        count = _numbers(lists.value_lengths(), 0)
        end = np.cumsum(count)
        sizes = np.concatenate(([0], np.cumsum(_numbers(inner.field("size"), 0))))
        ids = np.concatenate((_numbers(inner.field("ledger_id"), -1), [-1]))
        nothing = np.zeros(len(count), np.int64)
        found = cls(
            inner, end - count, end, nothing, nothing, nothing, nothing,
            np.where(count > 0, ids[end - 1], -1), count, sizes[end] - sizes[end - count],
        )  # fmt: skip
        found.find(np.zeros(len(count), bool))
        return found

    def find(self, nothing_since_load: Any) -> None:
        """Find the ends; where nothing was written since the load, the last ledger that is open has no entries."""
        entries = _numbers(self.inner.field("entries"), -1).copy()
        last = self.end[nothing_since_load & (self.count > 0)] - 1
        entries[last] = np.where(entries[last] < 0, 0, entries[last])
        place = np.where(entries != 0, np.arange(len(entries)), -1)
        reached = np.concatenate((np.maximum.accumulate(place), [-1])) if len(place) else np.array([-1])
        at = np.where(self.count > 0, reached[self.end - 1], -1)
        at = np.where(at >= self.begin, at, -1)
        padded = [np.concatenate((one, [-1])) for one in (_numbers(self.inner.field("ledger_id"), -1), entries)]
        self.ledger, self.entries = (one[at] for one in padded)
        self.open = (at >= 0) & (self.entries < 0)
        self.closed_at = np.concatenate((_numbers(self.inner.field("closed_at"), 0), [0]))[at]


def _numbers(column: Any, unknown: int) -> Any:
    return np.asarray(pc.fill_null(whole(column), unknown), np.int64)


def _pair(topics: Any, cursors: Any) -> Any:
    """A topic and a cursor as one text; neither has a line break."""
    return pc.binary_join_element_wise(
        whole(topics).cast(pa.string()), whole(cursors).cast(pa.string()), "\n", null_handling="replace"
    )
