"""Which ledgers of unloaded topics a broker would trim, had it loaded them: retention, as a rule over whole tables.

Belongs here: the rule. Pure: policies, cursors and ledgers come in (``verdicts.RETENTION_TOPICS``), a verdict per
ledger comes out. Not here: reading any of it, removing anything. Upstream: ``ManagedLedgerImpl.internalTrimLedgers``,
``initializeBookKeeper`` and ``ManagedCursorImpl.recoveredCursor``, managed-ledger 4.0.7. What a broker does:

1. It loads the topic. Ledgers without entries leave the list. The last ledger becomes a closed one of that moment, and
   a new one is current.
2. The slowest durable cursor frees the ledgers below the one of its mark-delete position, and that one too if the
   position is its last entry. Without a durable cursor all are free.
3. From the oldest on, free ledgers go that were closed longer ago than the retention time, or that the retention size
   has no room for beside those after them. The first that stays ends it.

The rule differs where a broker loses something: the last ledger stays, and so does what is not known. A broker takes a
ledger whose closing time its z-node does not say for one of 1970, and one whose entries it does not say for empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.verdicts import GOING, RETENTION_VERDICTS, RetentionVerdict
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import BYTES_PER_MB, MS_PER_MINUTE

_CODES: tuple[RetentionVerdict | Protection, ...] = (*RetentionVerdict, *Protection)
_NUMBER: dict[RetentionVerdict | Protection, int] = {code: number for number, code in enumerate(_CODES)}
_UNPREDICTED = (_NUMBER[Protection.TERMINATED], _NUMBER[Protection.SHADOW_TOPIC])
"""Topics that brokers load in another way."""


def judge(topics: pa.Table, now: int, kept_copies: Any = ()) -> pa.Table:
    """Verdicts (``RETENTION_VERDICTS``) of every ledger of ``topics`` (``RETENTION_TOPICS``) at ``now`` (ms).

    ``kept_copies``: ids of ledgers of which a deletion run would keep a copy. What goes of a topic is a prefix of its
    ledgers without the last. Raises ValueError for ledgers that do not ascend
    by id, and for a ``kept`` that is no ``Protection``.
    """
    rows = _Rows.of(topics)
    policy, cursors = rows.minutes_known & rows.mb_known, rows.cursors_known
    mb, minutes = rows.mb[rows.topic], rows.minutes[rows.topic]
    limit = np.maximum(minutes, 0) * MS_PER_MINUTE
    by_size = (mb >= 0) & (rows.bytes_after() >= np.maximum(mb, 0) * BYTES_PER_MB)
    by_time = (minutes >= 0) & rows.dated & (now - rows.closed_at > limit)
    free = rows.free()
    held = np.isin(rows.ledger_id, np.asarray(kept_copies, np.int64))
    known = (policy & cursors)[rows.topic]
    past = known & rows.full & (by_size | by_time)
    due = past & free

    goes = ~rows.behind(~(rows.empty | due) | held | rows.last | (rows.kept >= 0)[rows.topic] | ~known)
    at_once = np.where(rows.last, known & rows.full & free & ((mb == 0) | (minutes == 0)), due)
    loaded = (rows.empty | ~rows.behind(~(rows.empty | at_once))) & ~np.isin(rows.kept, _UNPREDICTED)[rows.topic]

    by = _first(
        (rows.empty, RetentionVerdict.EMPTY),
        (((mb == 0) & by_size) | ((minutes == 0) & by_time), RetentionVerdict.NO_RETENTION),
        (by_time, RetentionVerdict.EXPIRED_BY_TIME),
        (np.ones(len(free), bool), RetentionVerdict.EXPIRED_BY_SIZE),
    )
    alone = _first(
        (~cursors[rows.topic], RetentionVerdict.UNKNOWN_CURSOR),
        (~(rows.empty | rows.full), RetentionVerdict.UNKNOWN_LEDGER),
        (rows.empty, RetentionVerdict.EMPTY),
        (~free, RetentionVerdict.CURSOR),
        (~policy[rows.topic], RetentionVerdict.UNKNOWN_POLICY),
        *((due & (by == _NUMBER[code]), code) for code in sorted(GOING)),
        ((minutes >= 0) & ~rows.dated, RetentionVerdict.UNKNOWN_LEDGER),
        (minutes >= 0, RetentionVerdict.WITHIN_TIME),
        (mb >= 0, RetentionVerdict.WITHIN_SIZE),
        (np.ones(len(free), bool), RetentionVerdict.FOREVER),
    )
    stays = _first(
        *(((rows.kept == _NUMBER[code])[rows.topic], code) for code in Protection),
        (~policy[rows.topic], RetentionVerdict.UNKNOWN_POLICY),
        (~cursors[rows.topic], RetentionVerdict.UNKNOWN_CURSOR),
        (rows.last, RetentionVerdict.LAST_LEDGER),
        ((due | rows.empty) & held, RetentionVerdict.COPY),
        (due | rows.empty, RetentionVerdict.NOT_PREFIX),
    )
    stays = np.where(stays >= 0, stays, alone)
    ends = rows.dated & policy[rows.topic] & (minutes >= 0)
    codes = pa.array([str(code) for code in _CODES])
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(rows.topic.astype(np.int32)), whole(topics.column("managed_ledger"))),
        pa.array(rows.ledger_id),
        pa.array(rows.size, mask=~rows.sized),
        pa.DictionaryArray.from_arrays(pa.array(np.where(goes, by, stays)), codes),
        pa.DictionaryArray.from_arrays(pa.array(by, mask=~(goes | past)), codes),
        pa.array(rows.closed_at + limit, mask=~ends),
        pa.array(loaded),
        pa.DictionaryArray.from_arrays(pa.array(alone), codes),
    ]
    return pa.Table.from_arrays(columns, schema=RETENTION_VERDICTS)


@dataclass(frozen=True)
class _Rows:
    """The columns as numpy arrays: those up to ``kept`` by topic, the others by ledger. Unknown numbers are 0.

    ``topic``: the row of a ledger's topic. ``kept``: the number of a code, or -1. ``empty`` and ``full``: known to be
    without, or with, entries.
    """

    begin: Any
    end: Any
    minutes: Any
    minutes_known: Any
    mb: Any
    mb_known: Any
    cursors: Any
    cursors_known: Any
    slowest_ledger: Any
    slowest_entry: Any
    kept: Any

    topic: Any
    ledger_id: Any
    entries: Any
    size: Any
    sized: Any
    closed_at: Any
    dated: Any
    last: Any
    empty: Any
    full: Any

    @classmethod
    def of(cls, topics: pa.Table) -> _Rows:
        """Of a table of ``RETENTION_TOPICS``. Raises ValueError as :func:`judge` does."""
        lists = whole(topics.column("ledgers"))
        counts = np.asarray(lists.value_lengths().fill_null(0), np.int64)
        end = np.cumsum(counts)
        topic = np.repeat(np.arange(len(counts)), counts)
        # A list array that is null somewhere, or a slice, has more below it than it shows.
        ledgers = lists.flatten()
        ids, there = _numbers(ledgers.field("ledger_id"))
        if not there.all() or ((topic[1:] == topic[:-1]) & (ids[1:] <= ids[:-1])).any():
            raise ValueError("the ledgers of a topic do not ascend by id")
        last = np.zeros(len(ids), bool)
        last[end[counts > 0] - 1] = True
        entries, counted = _numbers(ledgers.field("entries"))
        size, sized = _numbers(ledgers.field("size"))
        closed_at, dated = _numbers(ledgers.field("closed_at"))
        minutes, minutes_known = _numbers(whole(topics.column("retention_minutes")))
        mb, mb_known = _numbers(whole(topics.column("retention_mb")))
        cursors, cursors_counted = _numbers(whole(topics.column("durable_cursors")))
        slowest_ledger, positioned = _numbers(whole(topics.column("slowest_ledger_id")))
        slowest_entry, at_entry = _numbers(whole(topics.column("slowest_entry_id")))
        return cls(
            begin=end - counts,
            end=end,
            minutes=minutes,
            minutes_known=minutes_known,
            mb=mb,
            mb_known=mb_known,
            cursors=cursors,
            cursors_known=cursors_counted & ((cursors == 0) | (positioned & at_entry)),
            slowest_ledger=slowest_ledger,
            slowest_entry=slowest_entry,
            kept=_kept(topics),
            topic=topic,
            ledger_id=ids,
            entries=entries,
            size=size,
            sized=sized,
            closed_at=closed_at,
            dated=dated,
            last=last,
            empty=counted & (entries == 0),
            full=counted & (entries > 0) & sized,
        )

    def behind(self, these: Any) -> Any:
        """Whether a ledger, or one before it in its topic, is one of ``these``."""
        upto = _sums(these)
        return upto[1:] > upto[self.begin][self.topic]

    def after(self, amounts: Any) -> Any:
        """The sum of ``amounts`` over the ledgers of its topic after a ledger."""
        upto = _sums(amounts)
        return upto[self.end][self.topic] - upto[1:]

    def bytes_after(self) -> Any:
        """Bytes of all ledgers of its topic after a ledger; those of unknown ones do not count."""
        return self.after(np.where(self.full, self.size, 0))

    def free(self) -> Any:
        """Whether no durable cursor needs a ledger any more; meaningless where cursors are unknown.

        A cursor beyond the end of the last ledger with entries is one at its end: brokers move it back.
        """
        ledger, entry = self.slowest_ledger[self.topic], self.slowest_entry[self.topic]
        final = self.after(~self.empty) == 0
        at_end = (entry + 1 == self.entries) | (final & (entry + 1 > self.entries))
        none = (self.cursors == 0)[self.topic]
        return none | (self.ledger_id < ledger) | ((self.ledger_id == ledger) & at_end)


def _sums(amounts: Any) -> Any:
    """Sums of the first 0, 1, 2, ... amounts."""
    return np.concatenate(([0], np.cumsum(amounts, dtype=np.int64)))


def _kept(topics: pa.Table) -> Any:
    codes = whole(topics.column("kept")).dictionary_encode()
    found = codes.dictionary.to_pylist()
    if strange := sorted(set(found) - set(Protection)):
        raise ValueError(f"{strange[0]!r} keeps no topic")
    numbers = np.array([_NUMBER[Protection(code)] for code in found] or [-1], np.int8)
    return np.where(codes.is_valid(), numbers[codes.indices.fill_null(0)], -1)


def _first(*choices: tuple[Any, RetentionVerdict | Protection]) -> Any:
    """Of each row the number of the first code that holds, -1 where none does."""
    return np.select([where for where, _ in choices], [np.int8(_NUMBER[code]) for _, code in choices], np.int8(-1))


def whole(column: Any) -> Any:
    """A column, or an array, in one piece."""
    found = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _numbers(column: Any) -> tuple[Any, Any]:
    """The numbers, 0 for null, and where they are known."""
    known = np.asarray(column.is_valid())
    return np.asarray(column.fill_null(0) if column.null_count else column, dtype=np.int64), known


def slowest(topics: pa.Table, positions: pa.Table) -> tuple[Any, Any, Any]:
    """By topic: how many durable cursors, and the lowest position; null where one of them is unknown.

    ``topics``: rows of ``tables.MANAGED_LEDGERS``; ``positions``: of ``POSITIONS``, of these topics and others.
    """
    row = pc.index_in(positions.column("path"), topics.column("path").combine_chunks())
    known = pc.and_(positions.column("ledger_id").is_valid(), positions.column("entry_id").is_valid())
    unknown = positions.filter(pc.or_(pc.is_null(row), pc.invert(known))).column("path").unique()
    there = positions.append_column("row", row).filter(row.is_valid())
    ordered = there.sort_by([("row", "ascending"), ("ledger_id", "ascending"), ("entry_id", "ascending")])
    rows = np.asarray(ordered.column("row"), np.int64)
    first = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1]))) if len(rows) else rows
    count = np.bincount(rows, minlength=topics.num_rows).astype(np.int32)
    place = np.zeros(topics.num_rows, np.int64)
    place[rows[first]] = first
    lost = _at_or_below(whole(topics.column("path")), whole(unknown))
    none = (count == 0) | lost
    taken = pa.array(place, mask=none)
    slowest = [ordered.column(name).take(taken) for name in ("ledger_id", "entry_id")]
    return pa.array(count, mask=lost), slowest[0], slowest[1]


def _at_or_below(paths: Any, tops: Any) -> Any:
    """Whether a path is one of ``tops`` or below one. Those may be many, as while a bookie does not answer."""
    found = np.asarray(pc.is_in(paths, tops))
    above = tops.filter(pc.invert(pc.is_in(tops, paths)))
    while len(above) and len(paths) and pc.any(pc.not_equal(paths, "")).as_py():
        paths = pc.replace_substring_regex(paths, r"/?[^/]*$", "")
        found = found | np.asarray(pc.is_in(paths, above))
    return found
