"""What each durable cursor has not acknowledged, and how much of that is past the TTL in force.

Belongs here: the rule, as codes, and its table. Pure. Not here: where cursors stand
(``lifecycle/retention_inputs.py``), having brokers expire messages (``lifecycle/load/``). Upstream:
``PersistentTopic.checkMessageExpiry``, Pulsar 4.0.7: brokers expire messages of topics that they have loaded, and of no
other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.topics.protection import OF_TRANSACTIONS


class BacklogEnds(StrEnum):
    """What takes a cursor's backlog away, beside its consumers and an operator."""

    BROKER = "its_broker"
    """Its topic is loaded: its broker expires what is past the TTL, every `messageExpiryCheckIntervalInMinutes`."""
    LOAD = "load"
    """Some is past the TTL, and no broker has its topic loaded: it stays for ever unless one does (job `load_topics`).
    """
    SUBSCRIPTION_EXPIRED = "subscription_expired"
    """Nobody has used the subscription for longer than `subscriptionExpirationTimeMinutes`, and no broker has its topic
    loaded: it stays unless a load deletes it (job `load_topics`, `load.subscription_expiry`)."""
    LATER = "not_expired_yet"
    """There is a TTL, and no whole ledger is past it."""
    NO_TTL = "no_ttl"
    """The TTL in force is 0: nothing expires."""
    NEVER = "never_expires"
    """Brokers expire nothing of such a cursor: compaction's, transactions', one of `additionalSystemCursorNames`."""
    REPLICATOR = "replicator"
    """A replicator reads by it, which sends only while a broker has its topic loaded. What is past a TTL before it was
    sent is dropped then; job `load_topics` loads no such topic."""
    UNKNOWN = "unknown"
    """Its position, or the TTL in force, is not known."""


SUBSCRIPTION_BACKLOG = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("last_active", pa.int64()),
        pa.field("loaded", pa.bool_()),
        pa.field("bytes", pa.int64()),
        pa.field("ledgers_unsized", pa.int64()),
        pa.field("ttl_seconds", pa.int64()),
        pa.field("expired_bytes", pa.int64()),
        pa.field("ends", pa.string()),
    ]
)
"""One row per durable cursor with something behind its persisted mark-delete position, or whose position (null) is not
known. ``bytes`` of its topic's ledgers after that position, of the ledger that it stands in the entries' share; what it
acknowledged beyond its position counts as well. ``ledgers_unsized``: ledgers of these of which nobody knows the bytes.
``loaded``: a broker has the topic, or may. ``expired_bytes``: of ``bytes`` those in leading ledgers that were closed
longer ago than the TTL. ``ends``: a ``BacklogEnds``."""


def backlogs(
    cursors: pa.Table,
    listed: pa.Table,
    ledgers: Any,
    loaded: Any,
    ttl: Any,
    monitors: Monitors | None,
    gone: Any,
    now: int,
) -> pa.Table:
    """Rows of :data:`SUBSCRIPTION_BACKLOG` at ``now`` (ms), the most bytes first.

    ``cursors``: rows of ``NAMED_POSITIONS``, of these topics and others. ``listed`` (``tables.MANAGED_LEDGERS``),
    ``ledgers`` (``RETENTION_TOPICS.ledgers``), ``loaded`` (numpy, bool) and ``ttl`` (seconds, null: unknown) are of the
    same topics in the same order. ``monitors``: None where the brokers did not say. ``gone``: which of the cursors
    (numpy) are subscriptions that have expired (``load/going_subscriptions.py``).
    """
    row = whole(pc.index_in(cursors.column("managed_ledger"), whole(listed.column("managed_ledger"))))
    gone = gone[np.asarray(row.is_valid())]
    cursors, topic = cursors.filter(row.is_valid()), np.asarray(row.drop_null(), np.int64)
    known = np.asarray(pc.and_(cursors.column("ledger_id").is_valid(), cursors.column("entry_id").is_valid()))
    at, entry = (np.asarray(cursors.column(name).fill_null(0), np.int64) for name in ("ledger_id", "entry_id"))
    limit = np.asarray(pc.fill_null(ttl, 0), np.int64)
    behind = _Behind.of(ledgers, limit, now)
    size, unsized, expired = behind.sums(topic, at, entry)
    limits, limited = limit[topic], np.asarray(ttl.is_valid())[topic]
    names = whole(cursors.column("cursor")).dictionary_encode()
    distinct, place = names.dictionary.to_pylist(), np.asarray(names.indices)
    sends = np.array([monitors is not None and monitors.replicates(one) for one in distinct], bool)[place]
    can = np.array([monitors is not None and monitors.expires_messages(one) for one in distinct], bool)[place] | sends
    can &= ~_of_transactions(whole(listed.column("topic")))[topic]
    sure = known & limited & (monitors is not None)
    expired = np.where(sure & can & (limits > 0), expired, 0)
    ends = np.select(
        [
            ~sure, ~can, gone & ~loaded[topic], sends & (~loaded[topic] | (limits == 0)), limits == 0, loaded[topic],
            expired > 0,
        ],
        [
            str(code)
            for code in (
                BacklogEnds.UNKNOWN, BacklogEnds.NEVER, BacklogEnds.SUBSCRIPTION_EXPIRED, BacklogEnds.REPLICATOR,
                BacklogEnds.NO_TTL, BacklogEnds.BROKER, BacklogEnds.LOAD,
            )
        ],
        str(BacklogEnds.LATER),
    )  # fmt: skip
    shown = ~known | (size > 0) | (unsized > 0)
    owners = pa.array(topic)
    columns = {
        **{name: whole(listed.column(name)).take(owners) for name in ("topic", "namespace")},
        **{name: cursors.column(name) for name in ("cursor", "ledger_id", "entry_id", "last_active")},
        "loaded": pa.array(loaded[topic]),
        "bytes": pa.array(size, mask=~known),
        "ledgers_unsized": pa.array(unsized, mask=~known),
        "ttl_seconds": ttl.take(owners),
        "expired_bytes": pa.array(expired, mask=~sure),
        "ends": pa.array(ends.tolist(), pa.string()),
    }
    found = pa.table([columns[name] for name in SUBSCRIPTION_BACKLOG.names], schema=SUBSCRIPTION_BACKLOG)
    return found.filter(pa.array(shown)).sort_by(
        [("bytes", "descending"), ("topic", "ascending"), ("cursor", "ascending")]
    )


def _of_transactions(topics: Any) -> Any:
    """Which of these topics are managed ledgers that transactions keep."""
    found = [np.asarray(pc.fill_null(pc.match_substring(topics, part), False)) for part in OF_TRANSACTIONS]
    return np.logical_or.reduce(found)


class _Behind:
    """The ledgers of all topics as numpy arrays, and sums over those after a position."""

    def __init__(
        self, begin: Any, end: Any, ids: Any, topic: Any, entries: Any, size: Any, sized: Any, old: Any
    ) -> None:
        self.begin, self.end, self.ids, self.entries, self.size = begin, end, ids, entries, size
        self.bytes = np.concatenate(([0], np.cumsum(size)))
        self.unsized = np.concatenate(([0], np.cumsum(~sized)))
        self.distinct = np.unique(ids)
        self.keys = topic * (len(self.distinct) + 1) + np.searchsorted(self.distinct, ids)
        young = np.where(~old, np.arange(len(ids)), len(ids))
        self.next_young = np.concatenate((np.minimum.accumulate(young[::-1])[::-1], [len(ids)])).astype(np.int64)

    @classmethod
    def of(cls, ledgers: Any, limit: Any, now: int) -> _Behind:
        """``limit``: the TTL of each topic in seconds, 0 for none."""
        counts = np.asarray(ledgers.value_lengths().fill_null(0), np.int64)
        end = np.cumsum(counts)
        topic = np.repeat(np.arange(len(counts)), counts)
        inner = ledgers.flatten()
        ids, entries, size, closed = (
            np.asarray(inner.field(name).fill_null(0), np.int64)
            for name in ("ledger_id", "entries", "size", "closed_at")
        )
        sized = np.asarray(pc.and_(inner.field("size").is_valid(), inner.field("entries").is_valid()))
        age = (now - closed > limit[topic] * 1000) & np.asarray(inner.field("closed_at").is_valid())
        old = sized & ((age & (limit[topic] > 0)) | (entries == 0))
        return cls(end - counts, end, ids, topic, entries, np.where(sized, size, 0), sized, old)

    def sums(self, topic: Any, at: Any, entry: Any) -> tuple[Any, Any, Any]:
        """Bytes, ledgers of unknown size, and bytes of leading old ledgers, after these positions."""
        if not len(self.ids):
            nothing = np.zeros(len(topic), np.int64)
            return nothing, nothing, nothing
        place = np.searchsorted(self.keys, topic * (len(self.distinct) + 1) + np.searchsorted(self.distinct, at))
        place = np.minimum(place, self.end[topic])
        inside = place < self.end[topic]
        here = np.where(inside, place, 0)
        inside &= self.ids[here] == at
        count = np.maximum(self.entries[here], 1)
        share = self.size[here] / count * np.clip(entry + 1, 0, self.entries[here])
        read = np.where(inside, share, 0).astype(np.int64)
        size = self.bytes[self.end[topic]] - self.bytes[place] - read
        unsized = self.unsized[self.end[topic]] - self.unsized[place]
        stop = np.minimum(self.next_young[place], self.end[topic])
        expired = self.bytes[stop] - self.bytes[place] - np.where(stop > place, read, 0)
        return size, unsized, np.maximum(expired, 0)
