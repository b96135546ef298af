# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""The coverage proof: was everything that can refer to a ledger really read?

Belongs here: counting a table's rows, and the rules over the counts that make a plan actionable or report-only. A gap
is a sentence for the operator; no gaps means the proof holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from pulsar_lifecycle.plan.gaps import Gap
from pulsar_lifecycle.plan.history import UNKNOWN, WHAT_TO_DO, Marks, went_back
from pulsar_lifecycle.plan.tables import CORRUPT, EMPTY, GONE, UNREAD
from pulsar_lifecycle.words import WordKind


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of one table of one root: every listed z-node is decoded, confirmed gone, empty, corrupt or unread."""

    table: str
    root: str
    listed: int
    decoded: int
    gone: int
    empty: int
    corrupt: tuple[str, ...] = ()
    """Paths of undecodable z-nodes, :data:`SHOWN` at most."""
    unread: tuple[str, ...] = ()
    """``path: reason`` of what could not be read."""
    mismatched: tuple[str, ...] = ()
    """Parents whose own count of children differs from the rows below them."""
    corrupt_beyond: int = 0
    """Undecodable z-nodes that ``corrupt`` does not name."""

    @property
    def undecodable(self) -> int:
        """How many z-nodes could not be decoded."""
        return len(self.corrupt) + self.corrupt_beyond


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


def census_from_json(document: Mapping[str, Any]) -> Census:
    """A census from the plain values of ``dataclasses.asdict``, lists for tuples. Raises ValueError for others."""
    return _CENSUS.validate_python(document)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One scan of the cluster, with what is needed to judge it and the next one."""

    epoch_id: str
    cluster: str
    fingerprint: str
    started_at: int
    finished_at: int
    census: tuple[Census, ...]
    max_ledger_id: int
    max_czxid: int
    """Of the ledgers listed, which happens before references are read: what is not newer was looked for."""
    shared_with: tuple[str, ...] | None
    acknowledged: tuple[str, ...] = ()
    reference_errors: tuple[str, ...] = ()
    broker_errors: tuple[str, ...] = ()
    gaps: tuple[str, ...] = field(default=())
    zxid: int = 0
    """The metadata store's latest transaction when the scan ended."""
    ids_issued: int = UNKNOWN
    lease: tuple[int, int] = (UNKNOWN, UNKNOWN)
    """With ``zxid``: the store's :class:`~pulsar_lifecycle.plan.history.Marks` when the scan ended."""
    broken: str = ""
    """Why no earlier scan can be compared with this one; every later scan inherits it until it is accepted."""
    coded_gaps: tuple[Gap, ...] = ()
    """Those of ``gaps`` that have a code; scans of earlier versions have none."""
    relied_on: tuple[tuple[WordKind, str], ...] = ()
    """The operator's words, beside ``acknowledged``, without which there were more gaps: kind and subject."""

    @property
    def marks(self) -> Marks:
        """The metadata store's counters when the scan ended."""
        return Marks(self.fingerprint, self.zxid, self.ids_issued, self.lease)

    @property
    def covered(self) -> bool:
        """True when the proof holds."""
        return not self.gaps

    def covers(self, shared_with: Sequence[str] | None) -> bool:
        """Whether the proof holds for the roots that are declared now: one declared since then was not read."""
        return self.covered and shared_with is not None and set(shared_with) <= set(self.shared_with or ())

    def rests_on(self, in_force: Collection[tuple[WordKind, str]]) -> list[str]:
        """What this proof holds by, of the operator's words, that is not ``in_force`` now: it does not hold then."""
        corrupt = {path for census in self.census for path in census.corrupt}
        znodes = [(WordKind.ACKNOWLEDGED_ZNODE, path) for path in corrupt.intersection(self.acknowledged)]
        return sorted(subject for kind, subject in {*znodes, *self.relied_on} if (kind, subject) not in in_force)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Epoch:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape."""
        return _EPOCH.validate_python(document)


_CENSUS, _EPOCH = TypeAdapter(Census), TypeAdapter(Epoch)


def rests_on_withdrawn(epoch: Epoch, in_force: Collection[tuple[WordKind, str]]) -> str:
    """Why a scan proves nothing any more: it holds by a word of the operator that is withdrawn; empty if not so."""
    subjects = epoch.rests_on(in_force)
    return (
        f"scan {epoch.epoch_id} is covered only by what the settings file said then of {subjects[0]}: it does not say "
        "so any more, or that has expired; repair it or say it again, then scan again"
        if subjects
        else ""
    )


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
                gaps.append(f"{_place(table, root)} was not read")
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


def last_covered(previous: Iterable[Epoch], fingerprint: str) -> Epoch | None:
    """The newest covered epoch of a metadata store, however old: what got lost since stays a gap."""
    covered = (e for e in previous if e.covered and e.fingerprint == fingerprint)
    return max(covered, key=lambda e: e.started_at, default=None)


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
    place = _place(census.table, census.root)
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


MISSING_ROOT = "the root does not exist"
"""How an absent root is reported; a cluster that never had a schema has no ``/schemas``."""


def _shrinkage(epoch: Epoch, last: Epoch, deleted_since: int, max_shrinkage: float) -> list[str]:
    """BookKeeper's own list, by its number: what is not listed is not deleted. References: ``plan/shrinkage.py``."""
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


def _place(table: str, root: str) -> str:
    return f"{table} of {root}" if root else table
