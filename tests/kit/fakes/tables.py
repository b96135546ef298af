"""Arrow tables in memory that stand for files: what equal questions give is worked out once.

Belongs here: putting tables together and filtering them. Arrow needs longer to begin than for the few rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

KEPT = 256
OF_LATE = 4


class Tables:
    """Nothing changes a table: of the same one the same condition and columns give the same rows."""

    def __init__(self) -> None:
        self._whole: dict[tuple[int, ...], tuple[list[pa.RecordBatch], pa.Table]] = {}
        self._equal: dict[tuple[int, int], list[pa.Table]] = {}
        self._found: dict[int, tuple[pa.Table, list[_Found]]] = {}

    def whole(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """The table of some batches, in one piece: one of late that equals it, if there is any."""
        key = id(schema), *map(id, batches)
        if key not in self._whole:
            _make_room(self._whole)
            made = self._of_late(pa.Table.from_batches(batches, schema).combine_chunks(), key[0])
            self._whole[key] = batches, made  # keeps them, so their ids stay theirs
        return self._whole[key][1]

    def _of_late(self, made: pa.Table, schema: int) -> pa.Table:
        known = self._equal.setdefault((schema, made.num_rows), [])
        equal = next((one for one in known if one.equals(made)), None)
        if equal is None:
            known.append(equal := made)
            del known[:-OF_LATE]
        return equal

    def batches(self, table: pa.Table, condition: pc.Expression | None, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """The columns of the rows of ``table`` that match."""
        if id(table) not in self._found:
            _make_room(self._found)
            self._found[id(table)] = table, []
        known = self._found[id(table)][1]
        found = next((one for one in known if _same(one.condition, condition)), None)
        if found is None:
            found = _Found(condition, _mask(table, condition))
            known.append(found)
        key = tuple(columns)
        if key not in found.batches:
            found.batches[key] = _kept(table.select(key), found.mask)
        return found.batches[key]


@dataclass
class _Found:
    """Which rows of a table match ``condition``: those of ``mask``, or all (True) or none (False)."""

    condition: pc.Expression | None
    mask: Any
    batches: dict[tuple[str, ...], list[pa.RecordBatch]] = field(default_factory=dict[tuple[str, ...], Any])


def _same(one: pc.Expression | None, other: pc.Expression | None) -> bool:
    return one is other or (one is not None and other is not None and one.equals(other))


def _mask(table: pa.Table, condition: pc.Expression | None) -> Any:
    """Where ``condition`` holds, without other threads: handing a few rows to them takes longer than the work."""
    if condition is None or not table.num_rows:
        return True
    asked = str(condition)
    needed = table.select([name for name in table.column_names if name in asked])
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(needed))
    project = acero.Declaration("project", acero.ProjectNodeOptions([condition], ["matches"]))
    (mask,) = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False).column(0).chunks
    held = mask.true_count
    return mask if 0 < held < len(mask) else held > 0


def _kept(table: pa.Table, mask: Any) -> list[pa.RecordBatch]:
    if mask is False:
        return []
    return (table if mask is True else table.filter(mask)).to_batches()


def _make_room(kept: dict) -> None:
    if len(kept) == KEPT:
        del kept[next(iter(kept))]


def days_of(times: Sequence[int]) -> list[str]:
    """The UTC days of some times (ms)."""
    return [str(day) for day in pa.array(times, pa.int64()).cast(pa.timestamp("ms")).cast(pa.date32()).to_pylist()]
