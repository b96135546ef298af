"""Many small objects of a table of the lake read as few: packs beside them hold their rows once more.

Belongs here: which packs stand for which objects, reading through them, making them. Not here: writing the objects
(``journal.py``), which stay as they are. An object never changes, and to open one takes as long as to read thousands
of rows. ``LAKE/packed/TABLE/date=YYYY-MM-DD/ID.parquet`` has the rows of the objects that its footer names. It counts
as long as all of them are listed, and no other pack that counts has one of them: so each row is read once. Packs may
be removed at any time; whoever removes objects removes the packs of their day, too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pulsar_lifecycle.io.lake import durable

PACKED = "packed"
SMALL = 16 * 1024
"""Bytes of an object that is packed, at most: of a larger one there is more to read than to open."""
TODAY = 256
"""So many objects of the newest day are packed at once."""
EARLIER = 16
"""And of a day to which hardly any more are added."""
AT_MOST = 2_000
"""Objects of one pack: all of them are in memory then."""

_OBJECTS, _COLUMNS = b"objects", b"columns"


def find(lake: str, table: str, schema: pa.Schema, columns: Sequence[str], condition: pc.Expression | None) -> pa.Table:
    """The ``columns`` of all rows of a table for which ``condition`` holds, which may be over ``date``, too.

    Raises OSError and pa.ArrowException for an object that cannot be read; a pack that cannot be is not needed.
    """
    filesystem, root = pafs.FileSystem.from_uri(lake)
    packs: Mapping[str, list[pafs.FileInfo]] = {}
    with contextlib.suppress(OSError, pa.ArrowException):  # whoever may not look there reads the objects
        packs = _listed(filesystem, f"{root}/{PACKED}/{table}")  # first: what a pack holds is older
    objects = _listed(filesystem, f"{root}/{table}")
    if not objects:
        return schema.empty_table().select(list(columns))
    reading = _Reading(lake, table, schema, filesystem)
    days = reading.days(objects, condition)
    used = {day: reading.usable(packs.get(day, ()), objects[day]) for day in days}
    if any(used.values()):
        with contextlib.suppress(OSError, pa.ArrowException):  # a pack has gone, or is broken: without any of them
            return reading.rows(objects, used, max(objects), columns, condition)
    return reading.rows(objects, {day: {} for day in days}, max(objects), columns, condition)


def paths_of(lake: str, table: str, schema: pa.Schema, day: str, objects: Sequence[pafs.FileInfo]) -> list[str]:
    """Of what to read each row of a day's ``objects`` once: packs that are there, and what is in none of them.

    A pack may be gone, or broken: then the objects have its rows. ``day``: as its folder is named. Makes no pack.
    """
    filesystem, root = pafs.FileSystem.from_uri(lake)
    used: _Packs = {}
    with contextlib.suppress(OSError, pa.ArrowException):
        packs = _listed(filesystem, f"{root}/{PACKED}/{table}/{day}").get(day, ())
        used = _Reading(lake, table, schema, filesystem).usable(packs, objects)
    packed = frozenset[str]().union(*used.values())
    return [*used, *(info.path for info in objects if info.base_name not in packed)]


def _listed(filesystem: pafs.FileSystem, folder: str) -> dict[str, list[pafs.FileInfo]]:
    """Finished objects by day, ``date=YYYY-MM-DD``."""
    found: dict[str, list[pafs.FileInfo]] = {}
    for info in filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True)):
        *_, day, name = info.path.split("/")
        if info.type is pafs.FileType.File and day.startswith(_DATE) and name[0] not in "._":
            found.setdefault(day, []).append(info)
    return found


_DATE = "date="
_Packs = Mapping[str, frozenset[str]]
"""Names of the objects of each pack, by its path."""


class _Reading:
    def __init__(self, lake: str, table: str, schema: pa.Schema, filesystem: pafs.FileSystem) -> None:
        self._lake, self._table, self._schema, self._filesystem = lake, table, schema, filesystem
        self._dated = pa.schema([*schema, pa.field("date", pa.string())])

    def days(self, objects: Iterable[str], condition: pc.Expression | None) -> list[str]:
        """Those in which there may be a row for which the condition holds."""
        dataset = self._dataset([(day, day) for day in sorted(objects)])
        return [fragment.path for fragment in dataset.get_fragments(filter=condition)]

    def usable(self, packs: Iterable[pafs.FileInfo], objects: Iterable[pafs.FileInfo]) -> _Packs:
        """Packs of a day that stand for objects of it, none of which two of them have."""
        left = {info.base_name for info in objects}
        found: dict[str, frozenset[str]] = {}
        for names, path in sorted(self._footers(packs), key=lambda one: (-len(one[0]), one[1])):
            if names <= left:
                left -= names
                found[path] = names
        return found

    def _footers(self, packs: Iterable[pafs.FileInfo]) -> Iterator[tuple[frozenset[str], str]]:
        for info in packs:
            with contextlib.suppress(OSError, pa.ArrowException):  # whatever it is, the objects are there
                metadata = pq.read_schema(info.path, filesystem=self._filesystem).metadata or {}
                if metadata.get(_COLUMNS) == self._columns and metadata.get(_OBJECTS):
                    yield frozenset(metadata[_OBJECTS].decode().split("\n")), info.path

    def rows(
        self,
        objects: Mapping[str, Sequence[pafs.FileInfo]],
        used: Mapping[str, _Packs],
        newest: str,
        columns: Sequence[str],
        condition: pc.Expression | None,
    ) -> pa.Table:
        """Of the days in ``used``, by the packs that are used; objects that are enough for another pack are packed."""
        paths: list[tuple[str, str]] = []
        found: list[pa.Table] = []
        for day, packs in used.items():
            packed = frozenset[str]().union(*packs.values())
            paths += [(path, day) for path in packs]
            loose = sorted((i for i in objects[day] if i.base_name not in packed), key=lambda info: info.base_name)
            small = [info for info in loose if info.size <= SMALL]
            if len(small) < (TODAY if day == newest else EARLIER):
                paths += [(info.path, day) for info in loose]
                continue
            paths += [(info.path, day) for info in loose if info.size > SMALL]
            for some in (small[n : n + AT_MOST] for n in range(0, len(small), AT_MOST)):
                rows = self._dataset([(info.path, day) for info in some]).to_table()
                found.append(ds.dataset(rows).to_table(columns=list(columns), filter=condition))
                self._pack(day, [info.base_name for info in some], rows)
        return pa.concat_tables([self._dataset(paths).to_table(columns=list(columns), filter=condition), *found])

    def _pack(self, day: str, names: Sequence[str], rows: pa.Table) -> None:
        """Nothing where the lake may only be read."""
        objects = "\n".join(names).encode()
        table = rows.select(self._schema.names)
        table = table.replace_schema_metadata({_OBJECTS: objects, _COLUMNS: self._columns})
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd")
        name = hashlib.sha256(objects + b"\n" + self._columns).hexdigest()[:32]
        with contextlib.suppress(OSError, pa.ArrowException):
            where = f"{self._lake}/{PACKED}/{self._table}/{day}/{name}.parquet"
            durable.store(self._lake, where, buffer.getvalue())

    @property
    def _columns(self) -> bytes:
        """The columns of this version, as bytes: packs of another version may have others."""
        return self._schema.to_string(show_field_metadata=False, show_schema_metadata=False).encode()

    def _dataset(self, paths: Sequence[tuple[str, str]]) -> ds.FileSystemDataset:
        return ds.FileSystemDataset.from_paths(
            [path for path, _ in paths],
            schema=self._dated,
            format=ds.ParquetFileFormat(),
            filesystem=self._filesystem,
            partitions=[pc.field("date") == day.removeprefix(_DATE) for _, day in paths],
        )
