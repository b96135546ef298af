"""Topics as if they had other cursors: some of theirs alone, or these once messages are expired.

Belongs here: tables of ``RETENTION_TOPICS`` with another slowest cursor, and which ledgers that one needs. Pure. Not
here: what follows for a load (``lifecycle/load/load_rules.py``), the verdicts (``lifecycle/retention.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.retention import judge, slowest, whole
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.model import COMPACTION_CURSOR

_COUNT = "durable_cursors"
_SLOWEST = ("slowest_ledger_id", "slowest_entry_id")


def expired(inputs: pa.Table, topic: Any, ids: Any, entries: Any, past_ttl: Any) -> pa.Table:
    """The topics as they are once their messages are expired: the slowest cursor at the end of what is past the TTL."""
    rows = np.flatnonzero(past_ttl)
    ledger, entry = (np.asarray(inputs.column(name).fill_null(-1), np.int64).copy() for name in _SLOWEST)
    known = np.asarray(inputs.column(_SLOWEST[0]).is_valid() if inputs.num_rows else [], bool)
    ledger[topic[rows]], entry[topic[rows]] = ids[rows], entries[rows] - 1
    for name, values in zip(_SLOWEST, (ledger, entry), strict=True):
        column = pa.array(values, pa.int64(), mask=~known)
        inputs = inputs.set_column(inputs.schema.get_field_index(name), name, column)
    return inputs


def with_slowest(inputs: pa.Table, listed: pa.Table, cursors: pa.Table) -> pa.Table:
    """The topics as if these were all their cursors."""
    for name, column in zip((_COUNT, *_SLOWEST), slowest(listed, cursors), strict=True):
        inputs = inputs.set_column(inputs.schema.get_field_index(name), inputs.field(name), whole(column))
    return inputs


def without_cursors(inputs: pa.Table, listed: pa.Table, cursors: pa.Table, these: Any) -> pa.Table:
    """The topics as if some of their ``cursors`` did not exist: ``these`` (numpy)."""
    if not these.any():
        return inputs
    others = with_slowest(inputs, listed, cursors.filter(pa.array(~these)))
    owners = cursors.column("managed_ledger").filter(pa.array(these))
    return _where(pc.is_in(whole(inputs.column("managed_ledger")), whole(owners)), others, inputs)


def needed_by(inputs: pa.Table, now: int) -> Any:
    """Whether a cursor needs some of a ledger."""
    return np.asarray(pc.equal(judge(inputs, now).column("alone").cast(pa.string()), str(RetentionVerdict.CURSOR)))


def doubtful_to(inputs: pa.Table, now: int) -> Any:
    """Whether a cursor may need some of a ledger, as the cursor or the ledger is not known."""
    unknown = pa.array([str(RetentionVerdict.UNKNOWN_LEDGER), str(RetentionVerdict.UNKNOWN_CURSOR)])
    doubtful = np.asarray(pc.is_in(judge(inputs, now).column("alone").cast(pa.string()), unknown))
    there = np.asarray(pc.fill_null(pc.not_equal(inputs.column(_COUNT), 0), True))
    counts = np.asarray(whole(inputs.column("ledgers")).value_lengths().fill_null(0), np.int64)
    return doubtful & np.repeat(there, counts)


def slower_of(one: pa.Table, other: pa.Table) -> pa.Table:
    """The topics with the cursors of both: the slower of their slowest positions."""
    none, alone = (np.asarray(pc.equal(pc.fill_null(t.column(_COUNT), -1), 0)) for t in (one, other))
    pairs = [[np.asarray(t.column(name).fill_null(-1), np.int64) for name in _SLOWEST] for t in (one, other)]
    (ledger, entry), (at, then) = pairs
    take_other = none | (~alone & ((at < ledger) | ((at == ledger) & (then < entry))))
    for name in (_COUNT, *_SLOWEST):
        column = pc.if_else(pa.array(take_other), whole(other.column(name)), whole(one.column(name)))
        one = one.set_column(one.schema.get_field_index(name), one.field(name), column)
    return one


def where_any(these: Any, topic: Any, changed: pa.Table, inputs: pa.Table) -> pa.Table:
    """The cursors of ``changed`` where a topic has one of ``these`` ledgers, else those of ``inputs``."""
    return _where(pa.array(np.bincount(topic[these], minlength=inputs.num_rows) > 0), changed, inputs)


def _where(here: Any, changed: pa.Table, inputs: pa.Table) -> pa.Table:
    """The cursors of ``changed`` in some topics, those of ``inputs`` in the others."""
    for name in (_COUNT, *_SLOWEST):
        column = pc.if_else(here, whole(changed.column(name)), whole(inputs.column(name)))
        inputs = inputs.set_column(inputs.schema.get_field_index(name), inputs.field(name), column)
    return inputs


def would_compact(inputs: pa.Table, listed: pa.Table, cursors: pa.Table, limits: Any, now: int) -> Any:
    """By topic, whether brokers begin a compaction of it, or make the cursor of one, as soon as it is loaded.

    ``limits``: the compaction threshold of each (bytes), 0 for none. A topic that has one and no ``__compaction``
    gets it as it is loaded, before all its messages (``PersistentTopic.preCreateSubscriptionForCompactionIfNeeded``).
    Else more than the threshold must wait (``checkCompaction``): what is in a ledger that the cursor needs some of
    counts whole, and an unknown size as too much.
    """
    places = np.flatnonzero(limits > 0)
    found = np.zeros(len(limits), bool)
    own = cursors.filter(pc.fill_null(pc.equal(cursors.column("cursor"), COMPACTION_CURSOR), False))
    some = with_slowest(inputs.take(pa.array(places)), listed.take(pa.array(places)), own)
    verdicts = judge(some, now)
    waits = needed_by(some, now) | doubtful_to(some, now)
    size = np.asarray(verdicts.column("size").cast(pa.float64()).fill_null(np.inf))
    topic = np.asarray(whole(verdicts.column("managed_ledger")).indices, np.int64)[waits]
    behind = np.bincount(topic, weights=size[waits], minlength=len(places))
    found[places] = np.asarray(pc.fill_null(pc.equal(some.column(_COUNT), 0), True)) | (behind > limits[places])
    return found
