"""How many bytes the metadata places on each bookie: ensembles, segments and striping, over whole tables.

Pure. Not here: what a bookie's disk really holds (``bookie_disk.py``). Upstream: ``RoundRobinDistributionSchedule``,
bookkeeper-server 4.17: of an ensemble of E bookies each holds write quorum / E of a segment's entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.ledger_metadata import Segment, parse_ensembles

ENTRY_OVERHEAD = 40
"""Bytes that an entry log has for an entry beside its payload: its size, ledger id, entry id, LAC, length, and CRC32C.
"""
PLACEMENT_COLUMNS = ["ensembles", "ensemble_size", "write_quorum", "entries", "length"]
"""The columns of ``tables.BOOKKEEPER_LEDGERS`` that :func:`placed` needs."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What metadata places on one bookie.

    ``bytes`` of closed ledgers, with what an entry log adds to each entry. ``ledgers`` have a segment there;
    ``unsized`` of them are not closed, so that nobody knows their bytes without asking; ``under_replicated`` lack a
    copy, there or on another bookie of theirs.
    """

    bytes: int = 0
    ledgers: int = 0
    unsized: int = 0
    under_replicated: int = 0

    def __add__(self, other: Placed) -> Placed:
        return Placed(
            self.bytes + other.bytes,
            self.ledgers + other.ledgers,
            self.unsized + other.unsized,
            self.under_replicated + other.under_replicated,
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """By bookie id; ``unknown`` ledgers have no ensemble that could be read."""

    bookies: Mapping[str, Placed]
    unknown: int = 0


def placed(ledgers: pa.Table) -> Placement:
    """The placement of ledgers (``PLACEMENT_COLUMNS``). A bookie may get a rounded half byte more or less a group."""
    known = ledgers.filter(ledgers.column("ensembles").is_valid())
    several = pc.match_substring(known.column("ensembles"), "|")
    found: dict[str, Placed] = {}
    grouped = (
        known.filter(pc.invert(several))
        .append_column("closed", known.filter(pc.invert(several)).column("length").is_valid())
        .group_by(["ensembles", "ensemble_size", "write_quorum", "closed"])
        .aggregate([("length", "sum"), ("entries", "sum"), ([], "count_all")])
    )
    for row in grouped.to_pylist():
        (segment,) = parse_ensembles(row["ensembles"])
        total = (row["length_sum"] or 0) + ENTRY_OVERHEAD * (row["entries_sum"] or 0)
        share = round(total * row["write_quorum"] / max(1, row["ensemble_size"]))
        count = row["count_all"]
        _add(found, set(segment.bookies), Placed(share, count, 0 if row["closed"] else count))
    for row in known.filter(several).to_pylist():
        _add_segments(found, row)
    return Placement(found, ledgers.num_rows - known.num_rows)


def under_replicated(ledgers: pa.Table) -> Placement:
    """On which bookies ledgers (``ensembles``) are that lack a copy; counts nothing else of them."""
    found: dict[str, Placed] = {}
    for text in ledgers.column("ensembles").drop_null().to_pylist():
        bookies = {bookie for segment in parse_ensembles(text) for bookie in segment.bookies}
        _add(found, bookies, Placed(under_replicated=1))
    return Placement(found)


def total(parts: Iterable[Placement]) -> Placement:
    """The sum of the placements of parts of a table."""
    found: dict[str, Placed] = {}
    unknown = 0
    for part in parts:
        unknown += part.unknown
        for bookie, more in part.bookies.items():
            found[bookie] = found.get(bookie, Placed()) + more
    return Placement(found, unknown)


def _add_segments(found: dict[str, Placed], row: Mapping[str, Any]) -> None:
    """A ledger with several segments; its bytes are spread evenly over its entries."""
    segments = parse_ensembles(row["ensembles"])
    entries, closed = row["entries"] or 0, row["length"] is not None
    each = (row["length"] or 0) / entries + ENTRY_OVERHEAD if entries else 0.0
    here: dict[str, float] = {}
    for segment, end in zip(segments, _ends(segments, entries), strict=True):
        held = max(0, end - segment.first_entry_id) * row["write_quorum"] / max(1, len(segment.bookies))
        for bookie in segment.bookies:
            here[bookie] = here.get(bookie, 0.0) + held * each
    for bookie, amount in here.items():
        _add(found, {bookie}, Placed(round(amount), 1, 0 if closed else 1))


def _ends(segments: tuple[Segment, ...], entries: int) -> list[int]:
    return [*(min(one.first_entry_id, entries) for one in segments[1:]), entries]


def _add(found: dict[str, Placed], bookies: set[str], more: Placed) -> None:
    for bookie in bookies:
        found[bookie] = found.get(bookie, Placed()) + more
