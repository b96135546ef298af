"""Journal and archive as Parquet objects in the lake: append-only, one closed object per call.

Belongs here: where their objects lie, writing and reading them. Not here: their columns (``values/tables.py``), what
is recorded, and when. Layout: ``LAKE/journal/date=YYYY-MM-DD/ID.parquet`` (UTC), and ``LAKE/archive/...`` likewise.
Snapshots of delayed indexes that repairs replaced lie beside them, in ``LAKE/snapshots``.
Names that begin with a dot are unfinished objects; this module and Spark skip them. ``LAKE/tallies/date=YYYY-MM-DD.
parquet`` are counts of past days that save reading them again, and ``LAKE/packed`` has the rows of many small objects
once more (``packs.py``); both may be removed at any time.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake import counts, durable, packs
from pulsar_lifecycle.ports import Archived, ArchivedSnapshot, Counting, JournalRow
from pulsar_lifecycle.values import tables

JOURNAL = "journal"
ARCHIVE = "archive"
SNAPSHOTS = "snapshots"
PROBE, PROBE_BYTES = ".writable", 4_096
"""What tells whether the journal can be written: a block of a disk, little where a bucket keeps every version."""


class FileJournal:
    """Journal and archive below ``lake``: an absolute folder, or a URI such as ``s3://bucket/prefix``.

    Any number of processes may write at the same time. Credentials of an object store are those of its usual
    environment.
    """

    def __init__(self, lake: str) -> None:
        self._lake = lake

    def record(self, rows: Sequence[JournalRow]) -> str:
        """Store rows as one object and return its location; no rows, no object, and an empty location.

        Raises StoreError when they are not known to be durable.
        """
        return self._store(JOURNAL, tables.JOURNAL, rows)

    def check_writable(self) -> None:
        """Store :data:`PROBE` beside the days: readers skip its name. Raises StoreError."""
        self._put(f"{self._lake}/{JOURNAL}/{PROBE}", pa.py_buffer(bytes(PROBE_BYTES)))

    def archive(self, nodes: Sequence[Archived]) -> str:
        """Store z-nodes as one object and return its location, like :meth:`record`."""
        return self._store(ARCHIVE, tables.ARCHIVE, nodes)

    def archive_snapshots(self, snapshots: Sequence[ArchivedSnapshot]) -> str:
        """Store snapshots as one object and return its location, like :meth:`record`."""
        return self._store(SNAPSHOTS, tables.SNAPSHOTS, snapshots)

    def find(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of the journal; a condition on ``date`` skips the objects of other days. Raises StoreError."""
        return self._find(JOURNAL, tables.JOURNAL, condition, columns)

    def find_archived(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of the archive, like :meth:`find`."""
        return self._find(ARCHIVE, tables.ARCHIVE, condition, columns)

    def find_snapshots(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Snapshots that were kept, like :meth:`find`."""
        return self._find(SNAPSHOTS, tables.SNAPSHOTS, condition, columns)

    def counted(self, counting: Counting, now: int) -> pa.Table:
        """All rows of the journal counted, as the port says; of a past day that was counted only its listing is read.

        Raises StoreError.
        """
        return counts.counted(self._lake, JOURNAL, tables.JOURNAL, counting, now)

    def _find(
        self, kind: str, schema: pa.Schema, condition: pc.Expression | None, columns: Sequence[str] | None
    ) -> pa.Table:
        where = f"{self._lake}/{kind}"
        try:
            return packs.find(self._lake, kind, schema, columns or schema.names, condition)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{where}: cannot be read: {error}") from error

    def _store(
        self, kind: str, schema: pa.Schema, rows: Sequence[JournalRow] | Sequence[Archived] | Sequence[ArchivedSnapshot]
    ) -> str:
        if not rows:
            return ""
        day = datetime.fromtimestamp(rows[0].at / 1000, UTC).date().isoformat()
        columns = zip(*map(attrgetter(*schema.names), rows), strict=True)
        table = pa.table(dict(zip(schema.names, columns, strict=True)), schema)
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd")
        where = f"{self._lake}/{kind}/date={day}/{uuid.uuid4().hex}.parquet"
        self._put(where, buffer.getvalue())
        return where

    def _put(self, where: str, data: pa.Buffer) -> None:
        try:
            durable.store(self._lake, where, data)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{where}: cannot be stored durably: {error}") from error
