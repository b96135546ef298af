"""The coverage proof: was everything that can refer to a ledger really read?

Belongs here: counting a table's rows, and the rules over the counts that make a plan actionable or report-only. No
gaps means the proof holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.values.epoch import Census, Epoch, last_covered
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.store_history import WHAT_TO_DO, StoreCounters, went_back
from pulsar_lifecycle.values.tables import Problem, stored_name

SHOWN = 1_000
"""How many paths of each kind of trouble a census keeps."""

COUNTED = ("parent", "listed", "problem")
"""The columns of ``tables.CENSUS`` that :func:`take_census` counts."""

TROUBLE = ("path", "problem", "error")
"""The columns that it needs of what was not read."""


def take_census(table: str, root: str, rows: Iterable[pa.RecordBatch], troubled: Iterable[pa.RecordBatch]) -> Census:
    """Count the rows of a metastore table (``COUNTED``); ``troubled``: ``TROUBLE`` of those not read.

    ``troubled`` is not looked at where every row is decoded, gone or empty.
    """
    counts = {"decoded": 0, "gone": 0, "empty": 0}
    parents: list[_Parents] = []
    total = 0
    for batch in rows:
        known = batch.filter(pc.is_valid(batch.column("parent"))) if batch.column("parent").null_count else batch
        problem = known.column("problem")
        counts["decoded"] += problem.null_count
        if problem.null_count < len(problem):
            counts["decoded"] += _count(pc.equal(problem, Problem.UNKNOWN_DOMAIN))
            counts["gone"] += _count(pc.equal(problem, Problem.GONE))
            counts["empty"] += _count(pc.equal(problem, Problem.EMPTY))
        total += batch.num_rows
        parents.append(_by_parent(known))
    by_parent = parents[0] if len(parents) == 1 else _merged(parents)
    corrupt: list[str] = []
    unread: list[tuple[str, str]] = []
    undecodable, missing_root = 0, False
    if total != sum(counts.values()):
        for path, problem, error in _troubles(troubled):
            if problem == Problem.CORRUPT:
                undecodable += 1
                corrupt += [path] if len(corrupt) < SHOWN else []
            elif problem == Problem.MISSING_ROOT:
                missing_root = True
            elif problem == Problem.UNREAD and len(unread) < SHOWN:
                unread.append((path, error))
    return Census(
        table,
        root,
        listed=int(by_parent.listed.sum()),
        decoded=counts["decoded"],
        gone=counts["gone"],
        empty=counts["empty"],
        corrupt=tuple(corrupt),
        unread=tuple(unread),
        mismatched=by_parent.mismatched(),
        corrupt_beyond=undecodable - len(corrupt),
        missing_root=missing_root,
    )


class _Parents(NamedTuple):
    """Some z-nodes, how many children each has by its own count (``listed``), and how many rows (``found``)."""

    names: pa.Array
    listed: Any
    found: Any

    def mismatched(self) -> tuple[str, ...]:
        """Those whose counts differ, the first ``SHOWN``."""
        differ = np.flatnonzero(self.listed != self.found)[:SHOWN]
        return tuple(self.names.take(pa.array(differ)).to_pylist()) if len(differ) else ()


def _by_parent(rows: pa.RecordBatch) -> _Parents:
    """The parents of a batch. There are few: this takes a tenth of the time of a group by."""
    parents = rows.column("parent").dictionary_encode()
    codes = parents.indices.to_numpy()
    found = np.bincount(codes, minlength=len(parents.dictionary))
    listed = np.zeros(len(found), np.int64)
    np.maximum.at(listed, codes, rows.column("listed").to_numpy())
    return _Parents(parents.dictionary, listed, found)


def _merged(parents: Sequence[_Parents]) -> _Parents:
    """The parents of several batches, which may have some in common."""
    if not parents:
        return _Parents(pa.array([], pa.string()), np.zeros(0, np.int64), np.zeros(0, np.int64))
    every = pa.concat_tables(pa.table(one._asdict()) for one in parents)
    groups = every.group_by("names", use_threads=False).aggregate([("listed", "max"), ("found", "sum")])
    names = groups.column("names").combine_chunks()
    return _Parents(names, groups.column("listed_max").to_numpy(), groups.column("found_sum").to_numpy())


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0


def _troubles(batches: Iterable[pa.RecordBatch]) -> Iterable[tuple[str, str, str]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in TROUBLE), strict=True)


ROOTS = ("managed_ledgers", "managed_cursors", "schemas")
"""Tables that every declared root must have."""


def prove(
    epoch: Epoch,
    previous: Sequence[Epoch],
    deleted_since: int,
    max_shrinkage: float,
    schema_ledgers: int,
    found: Iterable[Gap] = (),
) -> tuple[Gap, ...]:
    """The gaps of ``epoch``; empty when everything that can refer to a ledger was read.

    ``previous``: earlier epochs of the same cluster's name, any order. ``deleted_since``: ledgers our own journal
    deleted since the newest covered one. ``schema_ledgers``: ledgers tagged as schemas, so that a missing ``/schemas``
    is noticed. ``found``: gaps of what is not in the epoch's counts.
    """
    gaps: list[Gap] = []
    if epoch.shared_with is None:
        gaps.append(
            Gap(
                GapCode.SHARING_UNDECLARED,
                "bookkeeper.shared_with",
                "bookkeeper.shared_with is not set: list every other Pulsar cluster on this BookKeeper, "
                "or [] if there is none",
            )
        )
    for root in ("", *(epoch.shared_with or ())):
        for table in ROOTS if root else ("bookkeeper_ledgers", *ROOTS):
            if not any(c.table == table and c.root == root for c in epoch.census):
                where, said = stored_name(table, root), f"{namespace_location(table, root)} was not read"
                gaps.append(Gap(GapCode.TABLE_NOT_READ, where, said))
    for census in epoch.census:
        gaps.extend(_census_gaps(census, epoch.acknowledged, schema_ledgers))
    gaps.extend(found)
    if broken := broken_history(epoch, previous):
        gaps.append(broken)
    gaps.extend(_wrong_clock(epoch, previous))
    last = last_covered(previous, epoch.fingerprint)
    if last is not None:
        gaps.extend(_shrinkage(epoch, last, deleted_since, max_shrinkage))
    return tuple(gaps)


CLOCKS_DIFFER = 60_000
"""How far apart (ms) the clocks of two scans may be."""


def _wrong_clock(epoch: Epoch, previous: Sequence[Epoch]) -> list[Gap]:
    """Scans that ended before this one, and say that they ended after it: how far apart they are cannot be known."""
    later = [e for e in previous if e.finished_at > epoch.finished_at + CLOCKS_DIFFER]
    return [
        Gap(
            GapCode.CLOCK_WRONG,
            e.epoch_id,
            f"scan {e.epoch_id} was finished before this one, and is dated "
            f"{(e.finished_at - epoch.finished_at) // 60_000} minutes later: a clock was wrong. Set it right; if it "
            "was ahead, scans are covered again once the time is reached, or after "
            "`pulsar-lifecycle accept-restore --anyway REASON`",
        )
        for e in later[:1]
    ]


def broken_history(epoch: Epoch, previous: Sequence[Epoch]) -> Gap | None:
    """Why ``epoch`` is not of a later state of the store that the epochs before it saw; None if it is.

    A break stays one however far the counters have caught up since: every later epoch inherits it.
    """
    return epoch.broken or history_broken(epoch.counters, previous)


def history_broken(now: StoreCounters, previous: Sequence[Epoch]) -> Gap | None:
    """How the store of ``now`` cannot be the later state of what each of ``previous`` saw; None if it can.

    All of them are compared: which one is the last is only what the clocks of their runs said.
    """
    if known := known_break(previous):
        return known
    newest_first = sorted(previous, key=_finished_at, reverse=True)
    found = next(filter(None, (went_back(now, e.counters, f"scan {e.epoch_id}") for e in newest_first)), None)
    return replace(found, text=f"{found}; {WHAT_TO_DO}") if found else None


def known_break(epochs: Sequence[Epoch]) -> Gap | None:
    """What the newest of some epochs that found the store to have gone back says of it; None if none did."""
    return next((e.broken for e in sorted(epochs, key=_finished_at, reverse=True) if e.broken), None)


def _finished_at(epoch: Epoch) -> int:
    return epoch.finished_at


def _census_gaps(census: Census, acknowledged: Sequence[str], schema_ledgers: int) -> Iterator[Gap]:
    place, table = namespace_location(census.table, census.root), stored_name(census.table, census.root)
    for path, why in census.unread:
        what = f"{path}: {why}" if path else why
        yield Gap(GapCode.ZNODE_UNREAD, path or table, f"{place}: could not read {what}")
    if census.missing_root and (census.table != "schemas" or schema_ledgers):
        yield Gap(GapCode.ROOT_MISSING, table, f"{place}: the root does not exist")
    yield from _undecodable(census, place, table, acknowledged)
    for path in census.mismatched:
        yield Gap(GapCode.CHILDREN_DIFFER, path, f"{place}: the children of {path} do not add up")
    accounted = census.decoded + census.gone + census.empty + census.undecodable
    if census.listed != accounted:
        said = f"{place}: {census.listed} listed, but {accounted} decoded, empty or confirmed gone"
        yield Gap(GapCode.UNACCOUNTED, table, said)


OF_TOPICS = ("managed_ledgers", "topics")
"""Tables of which one z-node, a topic's, may be in both; what the first says of it holds."""


def _undecodable(census: Census, place: str, table: str, acknowledged: Sequence[str]) -> Iterator[Gap]:
    if census.table == "bookkeeper_ledgers":  # an undecodable ledger z-node refers to nothing: it is a finding
        return
    topics = census.table == "managed_ledgers"
    what_to_do = (
        "it may be a shadow topic, which needs ledgers of other namespaces, so no acknowledgement lifts this: repair "
        "or remove the topic"
        if census.table in OF_TOPICS
        else "look at it, then put its path into orphans.acknowledged_znodes"
    )
    for path in census.corrupt:
        if topics or path not in acknowledged:
            yield Gap(GapCode.ZNODE_UNDECODABLE, path, f"{place}: cannot decode {path}; {what_to_do}")
    if census.corrupt_beyond:
        said = f"{place}: cannot decode {census.corrupt_beyond} more z-nodes"
        yield Gap(GapCode.ZNODE_UNDECODABLE, table, said)


def _shrinkage(epoch: Epoch, last: Epoch, deleted_since: int, max_shrinkage: float) -> list[Gap]:
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
        Gap(
            GapCode.LISTING_SHRANK,
            "bookkeeper_ledgers",
            f"bookkeeper_ledgers: the listing shrank from {before.listed} to {now.listed}, {deleted_since} of them "
            "deleted by us (orphans.max_shrinkage)",
        )
    ]


SMALL_SHRINKAGE = 100
"""BookKeeper's list may always lose this many: brokers delete what they trim."""


def namespace_location(table: str, root: str) -> str:
    """A table of a root, in words."""
    return f"{table} of {root}" if root else table
