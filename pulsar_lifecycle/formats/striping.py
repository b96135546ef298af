"""Which bookies hold which entries of a ledger, and which entries tell whether they still do.

Belongs here: arithmetic on a ledger's metadata. Not here: asking a bookie (``io/bookkeeper/reader.py``).
Upstream: ``RoundRobinDistributionSchedule``, bookkeeper-server 4.17.2: entry e of a segment is on ``write_quorum``
bookies of its ensemble, starting at index e mod ensemble size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, Segment

EVERY_ENTRY_UP_TO = 1_000
"""Entries of a ledger small enough to be checked whole, if it is also no longer than :data:`EVERY_BYTE_UP_TO`."""
EVERY_BYTE_UP_TO = 1 << 20
STRIPES = 16
"""Of each segment of a larger ledger: runs of entries, evenly spaced, each long enough to meet every bookie."""


def segment_of(metadata: LedgerMetadata, entry_id: int) -> Segment:
    """The segment that an entry lies in."""
    return _segment(metadata.segments, entry_id)


def segment_end(metadata: LedgerMetadata, entry_id: int, last: int) -> int:
    """The last entry, up to ``last``, that has the same ensemble as ``entry_id``."""
    return min((s.first_entry_id - 1 for s in metadata.segments if s.first_entry_id > entry_id), default=last)


def replicas(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies that have an entry, in write-set order."""
    return write_set(metadata.segments, metadata.write_quorum, entry_id)


def write_set(segments: Sequence[Segment], write_quorum: int, entry_id: int) -> list[str]:
    """:func:`replicas` of a ledger with these segments."""
    bookies = _segment(segments, entry_id).bookies
    return [bookies[(entry_id + i) % len(bookies)] for i in range(write_quorum)]


def is_covered(silent: Sequence[bool], write_quorum: int, ack_quorum: int) -> bool:
    """Whether the bookies of a last ensemble that are not ``silent`` know of every acknowledged entry.

    Of the bookies of any entry fewer than ``ack_quorum`` may be silent (``RRQuorumCoverageSet``).
    """
    size = len(silent)
    return all(sum(silent[(i + j) % size] for j in range(write_quorum)) < ack_quorum for i in range(size))


def _segment(segments: Sequence[Segment], entry_id: int) -> Segment:
    return next(segment for segment in reversed(segments) if segment.first_entry_id <= entry_id)


def ranges(metadata: LedgerMetadata) -> Iterator[tuple[int, int]]:
    """First and last entry, both inclusive, of every segment of a closed ledger that has entries."""
    at = 0
    while at <= metadata.last_entry_id:
        end = min(metadata.last_entry_id, segment_end(metadata, at, metadata.last_entry_id))
        yield at, end
        at = end + 1


def is_small(metadata: LedgerMetadata) -> bool:
    """Whether a check of a closed ledger asks for every entry."""
    return metadata.last_entry_id < EVERY_ENTRY_UP_TO and metadata.length <= EVERY_BYTE_UP_TO


def telling_entries(metadata: LedgerMetadata) -> list[int]:
    """Entries of a closed ledger to ask every replica for, ascending; the same ones each time.

    All of a small ledger. Of each segment of another: its first and last entry and :data:`STRIPES` runs in all, each as
    long as the ensemble is wide, so that every bookie of every ensemble is asked for entries of its own.
    """
    if is_small(metadata):
        return list(range(metadata.last_entry_id + 1))
    chosen: set[int] = set()
    for first, last in ranges(metadata):
        furthest = max(first, last - metadata.ensemble_size + 1)
        for n in range(STRIPES):
            start = first + (furthest - first) * n // (STRIPES - 1)
            chosen.update(range(start, min(last, start + metadata.ensemble_size - 1) + 1))
    return sorted(chosen)
