"""The bytes of ZooKeeper's ``multiRead``: many getData and getChildren in one request.

Belongs here: request and reply of opcode 22 and how large a batch may be. Not here: sessions and errors (``store.py``).
kazoo has no such operation, but it sends any object with ``type``, ``serialize`` and ``deserialize``.
Source: org.apache.zookeeper 3.9.3, MultiOperationRecord, MultiResponse, ZooDefs.OpCode; servers know it since 3.6.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.ports import ScanRow, Stat

GET_DATA = 4
GET_CHILDREN = 8
MULTI_READ = 22
ERROR = -1

NO_NODE = -101
NO_AUTH = -102

MAX_PATHS = 1000
MAX_REQUEST_BYTES = 512 * 1024
"""A server refuses requests of ``jute.maxbuffer`` (1 MB); half of it is enough."""
TARGET_REPLY_BYTES = 512 * 1024
"""Replies are kept under 1 MB; half of it leaves room for nodes larger than those seen so far."""
FIRST_BATCH = 64

_OPERATION = struct.Struct("!iBii")
"""MultiHeader (type, done, err) and the length of the path."""
_OPERATION_SIZE = _OPERATION.size + 1
_END = struct.pack("!iBi", -1, 1, -1)
_RESULT = struct.Struct("!iBii")
"""MultiHeader and the first int of the result: data length, number of children, or the error again."""
_RESULT_SIZE = _RESULT.size
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_STAT_SIZE = _STAT.size
_SCAN_STAT = struct.Struct("!qqqqi20xi8x")
"""Of a Stat: czxid, mzxid, ctime, mtime, version, num_children."""
_NO_WATCH = b"\0"


class MultiReadRequest:
    """One multiRead as kazoo sends it: getData of every absolute path (with the chroot), then its getChildren if asked.

    The reply stays bytes, so that the caller's thread decodes it and not the one that serves the connection.
    """

    type = MULTI_READ

    def __init__(self, paths: Sequence[str], children: bool) -> None:
        self._paths = paths
        self._children = children

    def serialize(self) -> bytes:
        """The request after kazoo's header."""
        parts: list[bytes] = []
        pack = _OPERATION.pack
        for path in self._paths:
            encoded = path.encode()
            parts += (pack(GET_DATA, 0, -1, len(encoded)), encoded, _NO_WATCH)
            if self._children:
                parts += (pack(GET_CHILDREN, 0, -1, len(encoded)), encoded, _NO_WATCH)
        parts.append(_END)
        return b"".join(parts)

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> Reply:
        """The reply, not decoded yet."""
        return Reply(buffer, offset)


class Reply:
    """A multiRead's reply; decode it with the paths that were asked for, in their order.

    Both decoders raise CorruptFormat if it is not the reply to that request.
    """

    __slots__ = ("_buffer", "_offset")

    def __init__(self, buffer: bytes, offset: int) -> None:
        self._buffer = buffer
        self._offset = offset

    def __len__(self) -> int:
        return len(self._buffer)

    def __repr__(self) -> str:
        return f"Reply({len(self)} bytes)"  # kazoo logs replies

    def nodes(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | int]:
        """Per path: data and whole Stat, or the error code. For requests without children."""
        buffer, offset = self._buffer, self._offset
        found: list[tuple[bytes, Stat] | int] = []
        try:
            for _ in paths:
                kind, _, error, size = _RESULT.unpack_from(buffer, offset)
                offset += _RESULT_SIZE
                if kind == GET_DATA:
                    end = offset + size if size > 0 else offset
                    stat = _STAT.unpack_from(buffer, end)
                    found.append((buffer[offset:end], Stat(*stat[:6], *stat[7:])))  # aversion (6) says nothing here
                    offset = end + _STAT_SIZE
                elif kind == ERROR:
                    found.append(error)
                else:
                    raise _unexpected(offset, kind)
        except struct.error as error:
            raise _cut(offset, error) from error
        self._check_end(offset)
        return found

    def rows(self, paths: Sequence[str], children: bool) -> tuple[list[ScanRow], list[tuple[int, int]]]:
        """What a scan keeps of each node that is there, and (position in ``paths``, error code) of the others."""
        buffer, offset = self._buffer, self._offset
        rows: list[ScanRow] = []
        failed: list[tuple[int, int]] = []
        result, stat = _RESULT.unpack_from, _SCAN_STAT.unpack_from
        try:
            for position, path in enumerate(paths):
                kind, _, code, size = result(buffer, offset)
                offset += _RESULT_SIZE
                data, values = b"", ()
                if kind == GET_DATA:
                    end = offset + size if size > 0 else offset
                    data, values = buffer[offset:end], stat(buffer, end)
                    offset = end + _STAT_SIZE
                elif kind != ERROR:
                    raise _unexpected(offset, kind)
                if not children:
                    if kind == GET_DATA:
                        rows.append((path, data, *values, ()))
                    else:
                        failed.append((position, code))
                    continue
                names_kind, _, names_code, count = result(buffer, offset)
                offset += _RESULT_SIZE
                names: tuple[str, ...] = ()
                if names_kind == GET_CHILDREN:
                    names, offset = self._names(offset, count)
                elif names_kind != ERROR:
                    raise _unexpected(offset, names_kind)
                if kind == GET_DATA and names_kind == GET_CHILDREN:
                    rows.append((path, data, *values, names))
                else:
                    failed.append((position, code or names_code))
        except struct.error as error:
            raise _cut(offset, error) from error
        self._check_end(offset)
        return rows, failed

    def _names(self, offset: int, count: int) -> tuple[tuple[str, ...], int]:
        buffer, length = self._buffer, _INT.unpack_from
        names: list[str] = []
        for _ in range(count):
            start = offset + 4
            offset = start + length(buffer, offset)[0]
            names.append(buffer[start:offset].decode())
        return tuple(names), offset

    def _check_end(self, offset: int) -> None:
        if self._buffer[offset:] != _END:
            raise CorruptFormat("multiRead reply", offset, "the end after the last result")


def _unexpected(offset: int, kind: int) -> CorruptFormat:
    return CorruptFormat("multiRead reply", offset, f"a result of getData, getChildren or error, found type {kind}")


def _cut(offset: int, error: struct.error) -> CorruptFormat:
    return CorruptFormat("multiRead reply", offset, f"more bytes ({error})")


class BatchSize:
    """How many paths go into the next request: what fits by bytes seen so far, fewer after a failure.

    Sizes follow the largest of the last batch's average and half the former estimate, so they shrink at once and grow
    slowly. Not more than ``MAX_PATHS``.
    """

    def __init__(self) -> None:
        self._limit = FIRST_BATCH
        self._bytes_per_path = 0.0

    def take(self, paths: Iterator[str], again: deque[str], children: bool) -> list[str]:
        """The next batch, out of ``again`` first; empty at the end. What does not fit goes back into ``again``."""
        fitting = int(TARGET_REPLY_BYTES / self._bytes_per_path) if self._bytes_per_path else MAX_PATHS
        wanted = max(1, min(self._limit, fitting))
        batch = [again.popleft() for _ in range(min(wanted, len(again)))]
        batch += islice(paths, wanted - len(batch))
        operations = 2 if children else 1
        while len(batch) > 1:
            size = operations * (len(batch) * _OPERATION_SIZE + sum(len(path.encode()) for path in batch))
            if size <= MAX_REQUEST_BYTES:
                break
            keep = len(batch) // 2
            again.extendleft(reversed(batch[keep:]))
            del batch[keep:]
        return batch

    def answered(self, paths: int, reply_bytes: int) -> None:
        """Learn from a reply."""
        self._bytes_per_path = max(reply_bytes / paths, self._bytes_per_path / 2)
        self._limit = min(MAX_PATHS, max(self._limit, 2 * paths))

    def failed(self, paths: int) -> None:
        """The connection broke under a request of ``paths``: ask for half of it next time."""
        self._limit = max(1, paths // 2)
