"""Arrow tables in memory that stand for files: what equal questions give is worked out once.

Belongs here: putting tables together and filtering them. Arrow needs longer to begin than for the few rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

KEPT = 256


class Tables:
    """Nothing changes a table: of the same one the same condition gives the same rows."""

    def __init__(self) -> None:
        self._whole: dict[tuple[int, ...], tuple[list[pa.RecordBatch], pa.Table]] = {}
        self._found: dict[int, tuple[pa.Table, list[tuple[pc.Expression, pa.Table]]]] = {}

    def whole(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """The table of some batches: the same one for the same batches."""
        key = id(schema), *map(id, batches)
        if key not in self._whole:
            _make_room(self._whole)
            self._whole[key] = batches, pa.Table.from_batches(batches, schema)  # keeps them, so their ids stay theirs
        return self._whole[key][1]

    def filtered(self, table: pa.Table, condition: pc.Expression | None) -> pa.Table:
        """The rows of ``table`` that match."""
        if condition is None or not table.num_rows:
            return table
        if id(table) not in self._found:
            _make_room(self._found)
            self._found[id(table)] = table, []
        known = self._found[id(table)][1]
        for one, found in known:
            if one.equals(condition):
                return found
        found = _filtered(table, condition)
        known.append((condition, found))
        return found


def _filtered(table: pa.Table, condition: pc.Expression) -> pa.Table:
    """``table.filter(condition)``, without other threads: handing a few rows to them takes longer than the work."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    kept = acero.Declaration("filter", acero.FilterNodeOptions(condition))
    return acero.Declaration.from_sequence([source, kept]).to_table(use_threads=False)


def _make_room(kept: dict) -> None:
    if len(kept) == KEPT:
        del kept[next(iter(kept))]


def days_of(times: Sequence[int]) -> list[str]:
    """The UTC days of some times (ms)."""
    return [str(day) for day in pa.array(times, pa.int64()).cast(pa.timestamp("ms")).cast(pa.date32()).to_pylist()]
