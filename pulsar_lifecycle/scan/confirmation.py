"""What several scans say together: what one of them found in use is not confirmed by the others.

Belongs here: joining what scans found. Not here: one scan's own rule (``deletion/planning/orphans.py``), which
scans are asked. Metadata that is taken away and put back, by an operator or a half-done restore, may be away at the
first and at the last of them: only those in between tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import pyarrow as pa
from pyroaring import BitMap64

from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.owner_names import parent_of
from pulsar_lifecycle.values.referenced import Referenced

T = TypeVar("T")


def in_use_at_any(scans: Iterable[Referenced]) -> Referenced:
    """What at least one of the scans found in use."""
    found = Referenced()
    for scan in scans:
        found = found.merge(scan)
    return found


def confirmed_by_all(rows: pa.Table, in_use: Referenced, shadow_sources: Collection[str]) -> pa.Table:
    """Rows of a plan whose ledgers are not ``in_use``, and whose topics are not ``shadow_sources`` (full names)."""
    used, sources = in_use.needed | in_use.offloaded, frozenset(shadow_sources)
    ids, topics = rows.column("ledger_id").to_pylist(), rows.column("topic").to_pylist()
    free = [
        ledger_id not in used and sources.isdisjoint((topic, parent_of(topic)))
        for ledger_id, topic in zip(ids, topics, strict=True)
    ]
    return rows.filter(pa.array(free, pa.bool_()))


def valid_marks(
    marks: Mapping[tuple[int, T], int],
    set_aside_until: int,
    before: int,
    kept: Iterable[Epoch],
    found_by: Callable[[str], Referenced],
) -> dict[tuple[int, T], int]:
    """Marks that no scan begun before ``before`` (ms) refuted, and that were not made before a restore was accepted.

    ``set_aside_until``: when that was (ms); ``kept``: scans of the same metadata store; ``found_by``: what the scan of
    this id found in use.
    """
    marks = {mark: at for mark, at in marks.items() if at > set_aside_until}
    oldest = min(marks.values(), default=before)
    later = (e for e in kept if oldest < e.started_at < before)
    return unrefuted(marks, ((e.started_at, found_by(e.epoch_id)) for e in later))


def unrefuted(marks: Mapping[tuple[int, T], int], scans: Iterable[tuple[int, Referenced]]) -> dict[tuple[int, T], int]:
    """Marks, as given, but those whose ledger a scan that began later (ms) found in use again.

    ``scans``: when each began (ms), and what it found. The first phase's write was undone, or never done.
    """
    marked = BitMap64(ledger_id for ledger_id, _ in marks)
    last_in_use: dict[int, int] = {}
    for began, refs in scans:
        for ledger_id in (refs.needed | refs.offloaded) & marked:
            last_in_use[ledger_id] = max(began, last_in_use.get(ledger_id, began))
    return {mark: at for mark, at in marks.items() if at >= last_in_use.get(mark[0], at)}
