"""The bytes of a ZooKeeper ``multi`` that deletes: one check, then deletions by version, all or none.

Belongs here: request and reply. Not here: sessions, and what is done about a deletion that failed (``store.py``).
kazoo's own transaction costs more time per operation than the server does; it sends any object with ``type``,
``serialize`` and ``deserialize``. Source: org.apache.zookeeper 3.9.3, MultiOperationRecord, MultiResponse,
ZooDefs.OpCode, DataTree.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pulsar_lifecycle.errors import CorruptFormat

DELETE = 2
CHECK = 13
MULTI = 14
ERROR = -1

BAD_VERSION = -103
NOT_EMPTY = -111
NOT_TO_BLAME = (0, -2)
"""Codes of operations that another one aborted: before it (KeeperException.Code.OK), and after it
(RUNTIMEINCONSISTENCY)."""

_HEADER = struct.Struct("!iBi")
"""MultiHeader: type, done, err."""
_OPERATION = struct.Struct("!iBii")
"""MultiHeader and the length of the path."""
_INT = struct.Struct("!i")
_FAILED = struct.Struct("!iBii")
"""MultiHeader and ErrorResult, which says the error again."""
_CHECKED = _HEADER.pack(CHECK, 0, 0)
_DELETED = _HEADER.pack(DELETE, 0, 0)
_END = _HEADER.pack(-1, 1, -1)


def check(path: str, version: int) -> bytes:
    """The operation that aborts all others unless the z-node has this version; ``path`` with the chroot."""
    return _operation(CHECK, path, version)


def delete(path: str, version: int) -> bytes:
    """The operation that deletes a z-node of this version; ``path`` with the chroot."""
    return _operation(DELETE, path, version)


def _operation(kind: int, path: str, version: int) -> bytes:
    encoded = path.encode()
    return _OPERATION.pack(kind, 0, -1, len(encoded)) + encoded + _INT.pack(version)


class MultiDeleteRequest:
    """One ``multi`` as kazoo sends it, of one :func:`check` and any number of :func:`delete`."""

    type = MULTI

    def __init__(self, guard: bytes, deletions: Sequence[bytes]) -> None:
        self._guard = guard
        self._deletions = deletions

    def serialize(self) -> bytes:
        """The request after kazoo's header."""
        return b"".join((self._guard, *self._deletions, _END))

    def deserialize(self, buffer: bytes, offset: int) -> list[tuple[int, int]]:
        """Nothing if all was done, else which operation aborted it, 0 the check, and its error code.

        A list, because kazoo looks through what a ``multi`` returns for names to take the chroot off. Raises
        CorruptFormat if it is not the reply to this request.
        """
        count = len(self._deletions)
        if buffer[offset:] == b"".join((_CHECKED, _DELETED * count, _END)):
            return []
        try:
            results = list(_FAILED.iter_unpack(buffer[offset : -_HEADER.size]))
        except struct.error as error:
            raise CorruptFormat("multi reply", offset, f"errors alone ({error})") from error
        blamed = [(i, code) for i, (_, _, _, code) in enumerate(results) if code not in NOT_TO_BLAME]
        if (
            buffer[-_HEADER.size :] != _END
            or len(results) != count + 1
            or not blamed
            or any(kind != ERROR for kind, *_ in results)
        ):
            raise CorruptFormat("multi reply", offset, f"{count + 1} results, all done or aborted by one of them")
        return blamed[:1]
