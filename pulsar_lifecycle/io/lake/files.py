"""Files of the lake: JSON documents that appear whole, and tables of epochs written in parts.

Belongs here: paths, atomic documents, parts of tables, reading back. Not here: what epochs and plans are
(``artefacts``), journal and archive (``journal``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pydantic import ValidationError

from pulsar_lifecycle.errors import ConfigError, CorruptFormat, NotFound, StoreError

T = TypeVar("T")

ROW_GROUP = 100_000
"""Rows that a part of a table gathers before it writes them."""
BATCH = 5_000
"""Rows that are read at a time: a topic's row may hold thousands of ledgers."""


class LakeFiles:
    """An absolute folder that driver and executors share, or a URI such as ``s3://bucket/prefix``.

    Raises ConfigError for a location that cannot be opened, StoreError when the lake does not answer, NotFound for what
    is not there, CorruptFormat with the file's path for what is not what a lake holds.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self._filesystem, self._root = pafs.FileSystem.from_uri(location)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"lake.path: {location} is no absolute folder or URI that answers: {error}") from error

    def exists(self) -> bool:
        """Whether anything is at its location."""
        try:
            return self._filesystem.get_file_info(self._root).type is not pafs.FileType.NotFound
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self.location}: cannot be looked at: {error}") from error

    def epoch_table(self, epoch_id: str, table: str) -> str:
        """Where Spark writes and reads a table of an epoch."""
        location = self.location.replace("s3://", "s3a://", 1) if "://" in self.location else f"file://{self.location}"
        return f"{location}/epochs/{epoch_id}/{table}"

    def read_epoch_table(
        self, epoch_id: str, table: str, columns: list[str] | None = None, ledger_id: int | None = None
    ) -> pa.Table:
        """A table of an epoch in memory, or the rows of one ledger: all of it only for small ones."""
        path = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            dataset = ds.dataset(path, format="parquet", filesystem=self._filesystem)
            if missing := sorted(set(columns or ()).difference(dataset.schema.names)):
                raise StoreError(f"{path}: no column {missing[0]}: an earlier version made this scan, run the job scan")
            return dataset.to_table(columns) if ledger_id is None else _rows_of(dataset, columns, ledger_id)
        except FileNotFoundError:
            raise NotFound(f"{path}: epoch {epoch_id} has no table {table}") from None
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {error}") from error

    def write_part(self, epoch_id: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """Write one part of a table, which nobody sees before :meth:`publish`; returns its name.

        A task that is repeated makes another part, so that whoever collects the names decides which one counts.
        """
        name = f"_{uuid4().hex}.parquet"
        folder = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            if isinstance(self._filesystem, pafs.LocalFileSystem):
                self._filesystem.create_dir(folder)
            with pq.ParquetWriter(f"{folder}/{name}", schema, filesystem=self._filesystem, compression="zstd") as part:
                for group in _gathered(batches, ROW_GROUP):
                    part.write_table(pa.Table.from_batches(group, schema))
        except OSError as error:
            raise StoreError(f"{folder}: cannot be stored: {error}") from error
        return name

    def publish(self, epoch_id: str, table: str, names: Sequence[str]) -> None:
        """Make exactly these parts the table, in place of what it was. Until it returns, the table may lack rows."""
        folder = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            for info in self._filesystem.get_file_info(pafs.FileSelector(folder, recursive=True)):
                if info.type is pafs.FileType.File and info.base_name not in names:
                    self._filesystem.delete_file(info.path)
            for number, name in enumerate(names):
                self._filesystem.move(f"{folder}/{name}", f"{folder}/part-{number:05d}.parquet")
        except OSError as error:
            raise StoreError(f"{folder}: cannot be stored: {error}") from error

    def parts(self, epoch_id: str, table: str) -> list[str]:
        """The files of a table, each for :meth:`batches`. Raises NotFound."""
        path = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            found = self._filesystem.get_file_info(pafs.FileSelector(path))
        except FileNotFoundError:
            raise NotFound(f"{path}: epoch {epoch_id} has no table {table}") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be listed: {error}") from error
        return sorted(i.path for i in found if i.extension == "parquet" and not i.base_name.startswith(("_", ".")))

    def batches(
        self, parts: Iterable[str], columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some parts of tables, a few thousand at a time. ``where`` may ask for other columns too."""
        for part in parts:
            try:
                rows = ds.dataset(part, format="parquet", filesystem=self._filesystem).to_batches(
                    columns=list(columns), filter=where, batch_size=BATCH, batch_readahead=1, fragment_readahead=1
                )
                yield from map(pa.concat_batches, _gathered(rows, BATCH))
            except (OSError, pa.ArrowException) as error:
                raise StoreError(f"{part}: cannot be read: {error}") from error

    def _folders(self, relative: str) -> list[str]:
        return [info.base_name for info in self._listed(relative) if info.type is pafs.FileType.Directory]

    def _json_files(self, relative: str) -> list[str]:
        """The names of the JSON files in a folder, sorted."""
        return sorted(info.base_name for info in self._listed(relative) if info.base_name.endswith(".json"))

    def _listed(self, relative: str) -> list[pafs.FileInfo]:
        try:
            return self._filesystem.get_file_info(pafs.FileSelector(f"{self._root}/{relative}", allow_not_found=True))
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be listed: {error}") from error

    def _written_since(self, relative: str, document: str, since: int) -> list[str]:
        """The folders whose document was written at ``since`` (ms) or later, found in one listing."""
        selector = pafs.FileSelector(f"{self._root}/{relative}", allow_not_found=True, recursive=True)
        try:
            found = [info for info in self._filesystem.get_file_info(selector) if info.base_name == document]
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be listed: {error}") from error
        return [info.path.split("/")[-2] for info in found if info.mtime_ns is None or info.mtime_ns >= since * 10**6]

    def _document(self, relative: str, make: Callable[[Mapping[str, Any]], T]) -> T | None:
        """As :meth:`_parsed`; None where there is none."""
        try:
            return self._parsed(relative, make)
        except NotFound:
            return None

    def _parsed(self, relative: str, make: Callable[[Mapping[str, Any]], T]) -> T:
        """What ``make`` makes of a JSON document."""
        data = self._read(relative)
        try:
            return make(json.loads(data))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"our own JSON document: {why}") from error

    def _write_document(self, relative: str, document: Mapping[str, Any]) -> None:
        self._write(relative, json.dumps(document, indent=1, sort_keys=True).encode())

    def _read(self, relative: str) -> bytes:
        try:
            with self._filesystem.open_input_stream(f"{self._root}/{relative}") as stream:
                return stream.read()
        except FileNotFoundError:
            raise NotFound(f"{self.location}/{relative} does not exist") from None
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be read: {error}") from error

    def _write(self, relative: str, data: bytes) -> None:
        """Appears whole or not at all."""
        path = f"{self._root}/{relative}"
        local = isinstance(self._filesystem, pafs.LocalFileSystem)
        target = f"{path}.{uuid4().hex}.tmp" if local else path
        try:
            if local:
                self._filesystem.create_dir(path.rpartition("/")[0])
            with self._filesystem.open_output_stream(target) as stream:
                stream.write(data)
            if local:
                self._filesystem.move(target, path)
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be stored: {error}") from error


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches in groups of at least ``rows`` rows, the last one of what is left."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
        if sum(b.num_rows for b in group) >= rows:
            yield group
            group = []
    if group:
        yield group


def _rows_of(dataset: ds.Dataset, columns: list[str] | None, ledger_id: int) -> pa.Table:
    """The rows of one ledger; of a row group without any, only the ids are read."""
    wanted = pc.field("ledger_id") == ledger_id
    found = [dataset.schema.empty_table().select(columns or dataset.schema.names)]
    for fragment in dataset.get_fragments(wanted):
        for group in fragment.split_by_row_group(wanted):
            if group.count_rows(wanted):
                found.append(group.to_table(dataset.schema, columns, wanted))
    return pa.concat_tables(found)
