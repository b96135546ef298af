# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""The coverage proof: was everything that can refer to a ledger really read?

Belongs here: counting a table's rows, and the rules over the counts that make a plan actionable or report-only. A gap
is a sentence for the operator; no gaps means the proof holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.records.epoch import Census, Epoch, last_covered
from pulsar_lifecycle.records.history import WHAT_TO_DO, Marks, went_back
from pulsar_lifecycle.records.tables import CORRUPT, EMPTY, GONE, MISSING_ROOT, UNREAD

SHOWN = 1_000
"""How many paths of each kind of trouble a census keeps."""

COUNTED = ("parent", "listed", "error")
"""The columns of ``tables.CENSUS`` that :func:`take_census` counts."""


def take_census(table: str, root: str, rows: Iterable[pa.RecordBatch], troubled: Iterable[pa.RecordBatch]) -> Census:
    """Count the rows of a metastore table (``COUNTED``); ``troubled``: ``path`` and ``error`` of those not read.

    ``troubled`` is not looked at where every row is decoded, gone or empty.
    """
    counts = {"decoded": 0, "gone": 0, "empty": 0}
    parents: list[pa.Table] = []
    total = 0
    for batch in rows:
        known = pa.Table.from_batches([batch]).filter(pc.is_valid(batch.column("parent")))
        error = known.column("error")
        counts["decoded"] += error.null_count
        counts["gone"] += _count(pc.equal(error, GONE))
        counts["empty"] += _count(pc.equal(error, EMPTY))
        total += batch.num_rows
        parents.append(known.group_by("parent").aggregate([("listed", "max"), ("listed", "count")]))
    by_parent = pa.concat_tables(parents) if parents else _NO_PARENTS
    by_parent = by_parent.group_by("parent").aggregate([("listed_max", "max"), ("listed_count", "sum")])
    listed, found = by_parent.column("listed_max_max"), by_parent.column("listed_count_sum")
    corrupt: list[str] = []
    unread: list[str] = []
    undecodable = 0
    if total != sum(counts.values()):
        for path, error in _pairs(troubled):
            if error.startswith(CORRUPT):
                undecodable += 1
                corrupt += [path] if len(corrupt) < SHOWN else []
            elif error.startswith(UNREAD) and len(unread) < SHOWN:
                unread.append(f"{path}: {error.removeprefix(UNREAD)}")
    return Census(
        table,
        root,
        listed=pc.sum(listed).as_py() or 0,
        **counts,
        corrupt=tuple(corrupt),
        unread=tuple(unread),
        mismatched=tuple(by_parent.filter(pc.not_equal(listed, found)).column("parent").to_pylist()[:SHOWN]),
        corrupt_beyond=undecodable - len(corrupt),
    )


_NO_PARENTS = pa.table(
    {
        "parent": pa.array([], pa.string()),
        "listed_max": pa.array([], pa.int64()),
        "listed_count": pa.array([], pa.int64()),
    }
)


def _count(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0


def _pairs(batches: Iterable[pa.RecordBatch]) -> Iterable[tuple[str, str]]:
    for batch in batches:
        yield from zip(batch.column("path").to_pylist(), batch.column("error").to_pylist(), strict=True)


ROOTS = ("managed_ledgers", "managed_cursors", "schemas")
"""Tables that every declared root must have."""


def prove(
    epoch: Epoch, previous: Sequence[Epoch], deleted_since: int, max_shrinkage: float, schema_ledgers: int
) -> tuple[str, ...]:
    """The gaps of ``epoch``; empty when everything that can refer to a ledger was read.

    ``previous``: earlier epochs of the same cluster's name, any order. ``deleted_since``: ledgers our own journal
    deleted since the newest covered one. ``schema_ledgers``: ledgers tagged as schemas, so that a missing ``/schemas``
    is noticed.
    """
    gaps: list[str] = []
    if epoch.shared_with is None:
        gaps.append(
            "bookkeeper.shared_with is not set: list every other Pulsar cluster on this BookKeeper, "
            "or [] if there is none"
        )
    for root in ("", *(epoch.shared_with or ())):
        for table in ROOTS if root else ("bookkeeper_ledgers", *ROOTS):
            if not any(c.table == table and c.root == root for c in epoch.census):
                gaps.append(f"{namespace_location(table, root)} was not read")
    for census in epoch.census:
        gaps.extend(_census_gaps(census, epoch.acknowledged, schema_ledgers))
    gaps.extend(f"reference not read: {error}" for error in epoch.reference_errors)
    gaps.extend(f"broker not heard: {error}" for error in epoch.broker_errors)
    gaps.extend(gap.text for gap in epoch.coded_gaps)
    broken = broken_history(epoch, previous)
    if broken:
        gaps.append(broken)
    gaps.extend(_wrong_clock(epoch, previous))
    last = last_covered(previous, epoch.fingerprint)
    if last is not None:
        gaps.extend(_shrinkage(epoch, last, deleted_since, max_shrinkage))
    return tuple(gaps)


CLOCKS_DIFFER = 60_000
"""How far apart (ms) the clocks of two scans may be."""


def _wrong_clock(epoch: Epoch, previous: Sequence[Epoch]) -> list[str]:
    """Scans that ended before this one, and say that they ended after it: how far apart they are cannot be known."""
    later = [e for e in previous if e.finished_at > epoch.finished_at + CLOCKS_DIFFER]
    return [
        f"scan {e.epoch_id} was finished before this one, and is dated {(e.finished_at - epoch.finished_at) // 60_000} "
        "minutes later: a clock was wrong. Set it right; if it was ahead, scans are covered again once the time is "
        "reached, or after `pulsar-lifecycle accept-restore --anyway REASON`"
        for e in later[:1]
    ]


def broken_history(epoch: Epoch, previous: Sequence[Epoch]) -> str:
    """Why ``epoch`` is not of a later state of the store that the epochs before it saw; empty if it is.

    A break stays one however far the counters have caught up since: every later epoch inherits it.
    """
    return epoch.broken or history_broken(epoch.marks, previous)


def history_broken(now: Marks, previous: Sequence[Epoch]) -> str:
    """How the store of ``now`` cannot be the later state of what each of ``previous`` saw; empty if it can.

    All of them are compared: which one is the last is only what the clocks of their runs said.
    """
    newest_first = sorted(previous, key=lambda e: e.finished_at, reverse=True)
    known = next((e.broken for e in newest_first if e.broken), "")
    if known:
        return known
    found = next(filter(None, (went_back(now, e.marks, f"scan {e.epoch_id}") for e in newest_first)), "")
    return f"{found}; {WHAT_TO_DO}" if found else ""


def _census_gaps(census: Census, acknowledged: Sequence[str], schema_ledgers: int) -> list[str]:
    place = namespace_location(census.table, census.root)
    gaps = [
        f"{place}: could not read {what}" for what in census.unread if not _no_schemas(census, what, schema_ledgers)
    ]
    if census.table == "managed_ledgers":
        gaps.extend(
            f"{place}: cannot decode {path}; it may be a shadow topic, which needs ledgers of other namespaces, so no "
            "acknowledgement lifts this: repair or remove the topic"
            for path in census.corrupt
        )
    elif census.table != "bookkeeper_ledgers":  # an undecodable ledger z-node refers to nothing: it is a finding
        gaps.extend(
            f"{place}: cannot decode {path}; look at it, then put its path into orphans.acknowledged_znodes"
            for path in census.corrupt
            if path not in acknowledged
        )
    if census.corrupt_beyond and census.table != "bookkeeper_ledgers":
        gaps.append(f"{place}: cannot decode {census.corrupt_beyond} more z-nodes")
    gaps.extend(f"{place}: the children of {path} do not add up" for path in census.mismatched)
    accounted = census.decoded + census.gone + census.empty + census.undecodable
    if census.listed != accounted:
        gaps.append(f"{place}: {census.listed} listed, but {accounted} decoded, empty or confirmed gone")
    return gaps


def _no_schemas(census: Census, what: str, schema_ledgers: int) -> bool:
    return census.table == "schemas" and what.endswith(MISSING_ROOT) and schema_ledgers == 0


def _shrinkage(epoch: Epoch, last: Epoch, deleted_since: int, max_shrinkage: float) -> list[str]:
    """BookKeeper's own list, by its number: what is not listed is not deleted. References: ``scan/shrinkage.py``."""
    before, now = (
        next((c for c in e.census if (c.table, c.root) == ("bookkeeper_ledgers", "")), None) for e in (last, epoch)
    )
    if before is None or now is None:
        return []
    lost = before.listed - now.listed - deleted_since
    if lost <= max_shrinkage * before.listed or lost <= SMALL_SHRINKAGE:
        return []
    return [
        f"bookkeeper_ledgers: the listing shrank from {before.listed} to {now.listed}, {deleted_since} of them deleted "
        "by us (orphans.max_shrinkage)"
    ]


SMALL_SHRINKAGE = 100
"""BookKeeper's list may always lose this many: brokers delete what they trim."""


def namespace_location(table: str, root: str) -> str:
    """A table of a root, in words."""
    return f"{table} of {root}" if root else table
