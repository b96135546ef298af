"""What the last covered scan saw listed, and is listed by nothing now: references that got lost, by their weight.

Belongs here: weighing them, and how much is too much. Not here: reading the tables. A z-node's number says nothing: ten
may list all there is. What counts are the ledgers that it listed, and their bytes. A broker that deletes a topic, or
shortens its list, deletes the ledgers; so what is lost is what BookKeeper still has, as after a partial loss of the
metadata store, a damaged restore or a hand that removed z-nodes. Of a z-node that lost any such ledger, the offloaded
ones count too: their objects are then named by nothing. Likewise of one that lost all it listed, where BookKeeper has
a newer ledger of the same topic: a broker that loads an offloaded topic deletes its empty last ledger, and makes
another. Ledgers that our own first phase took off a list are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.scan import references
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.referenced import id_set
from pulsar_lifecycle.values.tables import stored_name

LISTED = pa.schema(
    [
        pa.field("referrer", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""A ledger as a z-node lists it; ``bytes`` 0 where the z-node does not say it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one table of one root (empty: ours) listed: ``rows`` gives batches of :data:`LISTED`, anew at each call."""

    table: str
    root: str
    rows: Callable[[], Iterable[pa.Table]]


def by_topics(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    """Of rows of ``tables.MANAGED_LEDGERS``: their columns ``path`` and ``ledgers``."""
    nested: Any = batch.column("ledgers")
    flat: Any = pc.list_flatten(nested)
    if not len(flat):
        return LISTED.empty_table()
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.combine_chunks()
    referrers = batch.column("path").take(pc.list_parent_indices(nested))
    return _table(referrers, flat.field("ledger_id"), pc.fill_null(flat.field("size"), 0))


def by_cursors(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    """Of rows of ``tables.MANAGED_CURSORS``."""
    return by_references(references.from_cursors(batch))


def by_schemas(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    """Of rows of ``tables.SCHEMAS``."""
    return by_references(references.from_schemas(batch))


def by_references(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    """Of rows of ``tables.REFERENCES``, those of unread references left out."""
    valid = batch.filter(pc.is_valid(batch.column("ledger_id")))
    return _table(valid.column("referrer"), valid.column("ledger_id"), pa.repeat(pa.scalar(0), valid.num_rows))


def _table(referrers: Any, ids: Any, sizes: Any) -> pa.Table:
    return pa.Table.from_arrays([referrers, ids, sizes], schema=LISTED)


class Sizes:
    """Bytes (before replication) of every ledger in BookKeeper, by id; 16 bytes of memory each."""

    def __init__(self, batches: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """``batches`` have the columns ``ledger_id`` and ``length``."""
        ids, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in batches:
            there = batch.filter(pc.is_valid(batch.column("ledger_id")))
            ids.append(np.asarray(there.column("ledger_id"), np.int64))
            lengths.append(np.asarray(pc.fill_null(there.column("length"), 0), np.int64))
        every = np.concatenate(ids)
        order = np.argsort(every, kind="stable")
        self._ids, self._lengths = every[order], np.concatenate(lengths)[order]

    def of(self, ids: Any) -> Any:
        """Bytes of these ledgers, 0 for those that are not in BookKeeper or not closed."""
        if not len(self._ids):
            return np.zeros(len(ids), np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._lengths[at], 0)


@dataclass(frozen=True)
class Now:
    """What is there now, by ledger id: ``referenced`` by anything, ``there`` in BookKeeper, taken off lists by us."""

    referenced: BitMap64
    there: BitMap64
    ours: BitMap64
    sizes: Sizes
    written: Mapping[int, str] = field(default_factory=dict[int, str])
    """Topics' ledgers in BookKeeper that are newer than what was listed, and that nothing refers to: id -> z-node."""


@dataclass(slots=True)
class Loss:
    """What one table of one root listed, and what of it is lost: ledgers (each counted once) and their bytes."""

    table: str
    root: str
    listed: BitMap64 = field(default_factory=BitMap64)
    listed_bytes: int = 0
    lost: BitMap64 = field(default_factory=BitMap64)
    lost_bytes: int = 0
    examples: dict[str, None] = field(default_factory=dict[str, None])
    """Some z-nodes that listed what is lost."""


EXAMPLES = 3


def weigh(listings: Iterable[Listing], now: Now) -> list[Loss]:
    """The losses of every table and root."""
    return [_weighed(listing, now) for listing in listings]


def _weighed(listing: Listing, now: Now) -> Loss:
    loss = Loss(listing.table, listing.root)
    for rows in listing.rows():
        if not rows.num_rows:
            continue
        ids = np.asarray(rows.column("ledger_id"), np.int64)
        sizes = np.maximum(np.asarray(rows.column("bytes"), np.int64), now.sizes.of(ids))
        here = id_set(rows.column("ledger_id"))
        first = _first(ids, here, loss.listed)
        loss.listed |= here
        loss.listed_bytes += int(sizes[first].sum())
        unnamed = here - now.referenced - now.ours
        held = unnamed & now.there
        if not held and not (unnamed and now.written):
            continue
        codes: Any = rows.column("referrer").combine_chunks().dictionary_encode()
        owner = np.asarray(codes.indices)
        bereft = np.unique(owner[_among(ids, held)])
        if now.written:
            written = np.flatnonzero(np.isin(codes.dictionary.to_pylist(), list(now.written.values())))
            bereft = np.union1d(bereft, np.setdiff1d(written, owner[~_among(ids, unnamed)])).astype(np.int64)
        lost = _among(ids, unnamed) & np.isin(owner, bereft)
        loss.lost |= BitMap64(ids[lost].astype(np.uint64))
        loss.lost_bytes += int(sizes[first & lost].sum())
        names = codes.dictionary
        for name in names.take(pa.array(bereft[:EXAMPLES])).to_pylist():
            if len(loss.examples) < EXAMPLES:
                loss.examples[name] = None
    return loss


def _first(ids: Any, here: BitMap64, before: BitMap64) -> Any:
    """Which rows are the first of their ledger."""
    mask = np.ones(len(ids), bool)
    if len(here) < len(ids):
        mask[:] = False
        mask[np.unique(ids, return_index=True)[1]] = True
    known = here & before
    return mask & ~_among(ids, known) if known else mask


def _among(ids: Any, wanted: BitMap64) -> Any:
    return np.isin(ids, np.array(wanted.to_array(), np.int64))


class Limit(StrEnum):
    """The setting that limits what may be lost."""

    SHARE = "orphans.max_shrinkage"
    LEDGERS = "orphans.max_lost_ledgers"
    BYTES = "orphans.max_lost_bytes"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be lost from one scan to the next: a share of ledgers and of bytes, and both absolutely."""

    share: float
    ledgers: int
    nbytes: int

    def exceeded(self, loss: Loss) -> Limit | None:
        """Which limit forbids the loss; None if none does."""
        ledgers, nbytes = len(loss.lost), loss.lost_bytes
        if ledgers > self.share * len(loss.listed) or nbytes > self.share * loss.listed_bytes:
            return Limit.SHARE
        if ledgers > self.ledgers:
            return Limit.LEDGERS
        return Limit.BYTES if nbytes > self.nbytes else None


def lost_references(
    listings: Sequence[Listing], now: Now, limits: Limits, still_there: Callable[[Sequence[int]], Iterable[int]]
) -> list[Gap]:
    """The gaps of what got lost.

    ``still_there``: those of these ledgers that BookKeeper has this moment. It is asked only before something is a gap:
    a topic that a broker deletes during the scan is listed by BookKeeper, which is read first, and by nothing after.
    """
    losses = weigh(listings, now)
    if any(limits.exceeded(loss) for loss in losses):
        asked = (BitMap64().union(*(loss.lost for loss in losses)) & now.there) | BitMap64(now.written)
        there = BitMap64(still_there(list(asked)))
        written = {ledger_id: path for ledger_id, path in now.written.items() if ledger_id in there}
        losses = weigh(listings, replace(now, there=now.there - (asked - there), written=written))
    return [_gap(loss, limit) for loss in losses if (limit := limits.exceeded(loss))]


def _gap(loss: Loss, limit: Limit) -> Gap:
    place = f"{loss.table} of {loss.root}" if loss.root else loss.table
    return Gap(
        GapCode.LOST_REFERENCES,
        stored_name(loss.table, loss.root),
        f"{place}: {len(loss.lost)} of {len(loss.listed)} ledgers ({loss.lost_bytes} of {loss.listed_bytes} bytes) "
        f"that the last covered scan saw listed are listed by nothing now, and BookKeeper has them still: look at "
        f"{', '.join(loss.examples)}; if nobody needs them, raise {limit} for one scan",
    )
