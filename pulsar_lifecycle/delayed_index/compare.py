"""What an index says beside what the topic says, message by message.

Belongs here: the comparison, for millions at once. Not here: reading either, and what a difference means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet, Mask, by_ledger
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs
from pulsar_lifecycle.formats.delayed_metadata import bitmap_of

_SPARSE = 64
"""Times are set out by entry if the entries span no more than so many times their number."""
_NONE = -1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where index and topic differ; each part in no particular order."""

    missing: Indexes
    """Of the topic, and not in the index."""
    extra: Indexes
    """Of the index, and not in the topic."""
    wrong_time: Indexes
    """As the topic has them; the index has each, at other times only."""
    duplicates: Indexes
    """Of the index: all but the first of each message."""


def compare(truth: Indexes, index: Indexes) -> Comparison:
    """``truth`` has each message once."""
    parts: list[list[Indexes]] = [[], [], [], []]
    rows = dict(by_ledger(index.ledgers))
    for ledger, which in by_ledger(truth.ledgers):
        of_index = index[rows.pop(ledger)] if ledger in rows else Indexes.empty()
        for part, found in zip(parts, _compare_ledger(truth[which], of_index), strict=True):
            if len(found):
                part.append(found)
    for which in rows.values():
        first = _first_of_each(index[which].entries)
        parts[1].append(index[which][first])
        parts[3].append(index[which][~first])
    return Comparison(*(Indexes.concatenate(part) for part in parts))


def _compare_ledger(truth: Indexes, index: Indexes) -> tuple[Indexes, Indexes, Indexes, Indexes]:
    """Missing, extra, wrong time, duplicates; both of one ledger."""
    if not len(index):
        return truth, index, index, index
    if _are_alike(truth, index):
        return Indexes.empty(), Indexes.empty(), Indexes.empty(), Indexes.empty()
    return _details(truth, index)


def _are_alike(truth: Indexes, index: Indexes) -> bool:
    """Whether they surely say the same: most do, and looking up times by entry is much faster than sorting."""
    if len(truth) != len(index):
        return False
    low = int(min(truth.entries.min(), index.entries.min()))
    span = int(max(truth.entries.max(), index.entries.max())) - low + 1
    if span > _SPARSE * len(truth):
        return False
    times = np.full(span, _NONE, np.int64)
    times[index.entries - low] = index.timestamps
    return bool((times[truth.entries - low] == truth.timestamps).all())


def _details(truth: Indexes, index: Indexes) -> tuple[Indexes, Indexes, Indexes, Indexes]:
    """By sorting."""
    missing = ~np.isin(truth.entries, index.entries)
    first = _first_of_each(index.entries)
    extra = ~np.isin(index.entries, truth.entries)
    order = np.lexsort((truth.timestamps, truth.entries))
    by_entry = truth[order]
    at = np.minimum(np.searchsorted(by_entry.entries, index.entries), len(by_entry) - 1)
    agrees = ~extra & (by_entry.timestamps[at] == index.timestamps)
    right = np.isin(truth.entries, index.entries[agrees])
    return truth[missing], index[extra & first], truth[~missing & ~right], index[~first]


def _first_of_each(entries: Longs) -> Mask:
    first = np.zeros(len(entries), np.bool_)
    first[np.unique(entries, return_index=True)[1]] = True
    return first


def compare_places(truth: Indexes, described: EntrySet) -> tuple[EntrySet, EntrySet]:
    """What the topic has and the bitmaps lack, and the other way round."""
    missing, extra = {}, dict(described.bitmaps)
    for ledger, which in by_ledger(truth.ledgers):
        of_truth = bitmap_of(truth.entries[which])
        bitmap = extra.pop(ledger, None)
        if bitmap is None:
            missing[ledger] = of_truth
        elif bitmap != of_truth:
            missing[ledger] = of_truth - bitmap
            extra[ledger] = bitmap - of_truth
    return EntrySet(missing), EntrySet(extra)
