# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""The whole journal counted, day by day."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake.journal import JOURNAL, JOURNAL_SCHEMA
from pulsar_lifecycle.journal import metrics

TALLIES = "tallies"


def tallied(lake: str, now: int) -> pa.Table:
    """The whole journal counted, at ``now`` (ms); ``metrics.TALLY``.

    Of a past day only its listing is read, as long as it holds the objects that were there when it was last counted.
    """
    where, today = f"{lake}/{JOURNAL}", datetime.fromtimestamp(now / 1000, UTC).date().isoformat()
    try:
        filesystem, path = pafs.FileSystem.from_uri(where)
        selector = pafs.FileSelector(path, allow_not_found=True)
        days = [i.path for i in filesystem.get_file_info(selector) if i.type is pafs.FileType.Directory]
        return metrics.add_up(
            [_tally_of(filesystem, day, f"{path.removesuffix(JOURNAL)}{TALLIES}", today) for day in days]
        )
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot be read: {error}") from error


AT_ONCE = 500_000
"""Rows that are counted at once."""

_OBJECTS = b"journal objects"


def _tally_of(filesystem: pafs.FileSystem, folder: str, tallies: str, today: str) -> pa.Table:
    """Count one day's folder, or read what was counted when it held the same objects."""
    found = filesystem.get_file_info(pafs.FileSelector(folder))
    objects = sorted(i.path for i in found if i.extension == "parquet" and not i.base_name.startswith("."))
    names = hashlib.sha256("\n".join(name.rpartition("/")[2] for name in objects).encode()).hexdigest().encode()
    day = folder.rpartition("/")[2]
    kept = f"{tallies}/{day}.parquet"
    if day != f"date={today}":
        with contextlib.suppress(OSError, pa.ArrowException):  # there is none, or half of one: count again
            table = pq.read_table(kept, filesystem=filesystem)
            if (table.schema.metadata or {}).get(_OBJECTS) == names:
                return table.select(metrics.TALLY.names).cast(metrics.TALLY)
    dataset = ds.dataset(objects, JOURNAL_SCHEMA, format="parquet", filesystem=filesystem)
    table, waiting, rows = metrics.TALLY.empty_table(), list[pa.RecordBatch](), 0
    for batch in dataset.scanner(columns=metrics.COUNTED).to_batches():
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= AT_ONCE:
            table = metrics.add_up([table, metrics.tally(pa.Table.from_batches(waiting))])
            waiting, rows = [], 0
    if waiting:
        table = metrics.add_up([table, metrics.tally(pa.Table.from_batches(waiting))])
    if day != f"date={today}":
        with contextlib.suppress(OSError):  # a lake that may only be read is counted anew each time
            filesystem.create_dir(tallies)
            unfinished = f"{tallies}/.{uuid.uuid4().hex}.tmp"
            pq.write_table(table.replace_schema_metadata({_OBJECTS: names}), unfinished, filesystem=filesystem)
            filesystem.move(unfinished, kept)
    return table
