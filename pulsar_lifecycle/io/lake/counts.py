"""The whole journal counted, day by day: what a past day came to is kept beside it.

Belongs here: which days must be counted again. Not here: how rows are counted, which is the caller's.
"""

from __future__ import annotations

import contextlib
import hashlib
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake import durable, packs
from pulsar_lifecycle.ports import Counting

TALLIES = "tallies"


def counted(lake: str, table: str, schema: pa.Schema, counting: Counting, now: int) -> pa.Table:
    """All rows of a ``table`` of the lake counted, at ``now`` (ms). Raises StoreError.

    Of a past day only its listing is read, as long as it holds the objects that were there when it was last counted.
    """
    where, today = f"{lake}/{table}", datetime.fromtimestamp(now / 1000, UTC).date().isoformat()
    try:
        filesystem, path = pafs.FileSystem.from_uri(where)
        selector = pafs.FileSelector(path, allow_not_found=True)
        days = [i.path for i in filesystem.get_file_info(selector) if i.type is pafs.FileType.Directory]
        counts = [_count_of(lake, table, filesystem, day, today, schema, counting) for day in days]
        return counting.add_up(counts)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot be read: {error}") from error


AT_ONCE = 500_000
"""Rows that are counted at once."""

_OBJECTS = b"journal objects"


def _count_of(
    lake: str, kind: str, filesystem: pafs.FileSystem, folder: str, today: str, schema: pa.Schema, counting: Counting
) -> pa.Table:
    """Count one day's folder, or read what was counted when it held the same objects."""
    found = filesystem.get_file_info(pafs.FileSelector(folder))
    objects = sorted(
        (i for i in found if i.extension == "parquet" and not i.base_name.startswith(".")), key=lambda info: info.path
    )
    names = hashlib.sha256("\n".join(info.base_name for info in objects).encode()).hexdigest().encode()
    day = folder.rpartition("/")[2]
    kept = f"{TALLIES}/{day}.parquet"
    if day != f"date={today}":
        with contextlib.suppress(OSError, pa.ArrowException):  # there is none, or half of one: count again
            table = pq.read_table(f"{pafs.FileSystem.from_uri(lake)[1]}/{kept}", filesystem=filesystem)
            if (table.schema.metadata or {}).get(_OBJECTS) == names:
                return table.select(counting.schema.names).cast(counting.schema)
    paths = [info.path for info in objects]
    try:
        table = _count(packs.paths_of(lake, kind, schema, day, objects), filesystem, schema, counting)
    except (OSError, pa.ArrowException):  # perhaps of a pack, which is not needed
        table = _count(paths, filesystem, schema, counting)
    if day != f"date={today}":
        buffer = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({_OBJECTS: names}), buffer)
        with contextlib.suppress(OSError, pa.ArrowException):  # a lake that may only be read is counted anew each time
            durable.store(lake, f"{lake}/{kept}", buffer.getvalue())
    return table


def _count(paths: list[str], filesystem: pafs.FileSystem, schema: pa.Schema, counting: Counting) -> pa.Table:
    dataset = ds.dataset(paths, schema, format="parquet", filesystem=filesystem)
    table, waiting, rows = counting.schema.empty_table(), list[pa.RecordBatch](), 0
    for batch in dataset.scanner(columns=list(counting.columns)).to_batches():
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= AT_ONCE:
            table = counting.add_up([table, counting.count(pa.Table.from_batches(waiting))])
            waiting, rows = [], 0
    if waiting:
        table = counting.add_up([table, counting.count(pa.Table.from_batches(waiting))])
    return table
