"""ZooKeeper in memory: one tree, many sessions; passes tests/integration/contracts/test_zk_contract.py.

``FakeZooKeeper`` is the server, ``FakeStore`` one session on it and ``ports.MetadataStore``. Faults are injected with
``before`` and ``after``: callables that get every :class:`Operation` and may raise. OutcomeUnknown raised ``before``
means that the request never arrived, raised ``after`` that only its answer got lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import RLock
from typing import TypeVar

from pulsar_lifecycle.errors import (
    Conflict,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    RefusedBy,
)
from pulsar_lifecycle.ports import (
    Children,
    Clock,
    Deletion,
    DeletionResult,
    Node,
    NodeDeletion,
    ScanBatch,
    Stat,
    Unread,
)
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.clock import FakeClock

T = TypeVar("T")

TRANSACTION = 500
BATCH = 1000
TRIES = 5


@dataclass(frozen=True, slots=True)
class Operation:
    """A request as a fault hook sees it: ``name`` is the method's, ``delete_many`` once per transaction."""

    name: str
    paths: tuple[str, ...]


Hook = Callable[[Operation], None]


@dataclass(slots=True)
class _ZNode:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int
    version: int = 0
    cversion: int = 0


class FakeZooKeeper:
    """The tree. ``unreadable`` are the paths whose ACL lets nobody read."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.lock = RLock()
        """Held by each request: tasks of a run ask from several threads."""
        self.zxid = 0
        self.sessions = 0
        self.unreadable: set[str] = set()
        self._owners: set[int] = set()
        """Sessions that ever made an ephemeral z-node."""
        self._nodes = {"/": _ZNode(b"", 0, 0, 0, 0, 0, 0)}
        self._names: dict[str, dict[str, None]] = {"/": {}}

    def session(self, *, read_only: bool = False) -> FakeStore:
        """A new session on this server."""
        self.sessions += 1
        return FakeStore(self, self.sessions, read_only)

    def stat(self, path: str) -> Stat | None:
        """The Stat of a z-node, or None."""
        node = self._nodes.get(path)
        if node is None:
            return None
        return Stat(
            node.czxid,
            node.mzxid,
            node.ctime,
            node.mtime,
            node.version,
            node.cversion,
            node.owner,
            len(node.data),
            len(self._names[path]),
            node.pzxid,
        )

    def data(self, path: str) -> bytes:
        """The data of a z-node that exists."""
        return self._nodes[path].data

    def names(self, path: str) -> tuple[str, ...]:
        """The child names of a z-node that exists."""
        return tuple(self._names[path])

    def create(self, path: str, data: bytes, owner: int) -> Stat:
        parent, name = _split(path)
        if path in self._nodes:
            raise Conflict(f"create {path}: it exists")
        if parent not in self._nodes:
            raise NotFound(f"create {path}: there is no {parent}")
        now, zxid = self.clock.now_ms(), self._next()
        self._nodes[path] = _ZNode(data, zxid, zxid, zxid, now, now, owner)
        self._owners.add(owner)
        self._names[path] = {}
        self._names[parent][name] = None
        self._child_changed(parent, zxid)
        return self._stat(path)

    def write(self, path: str, data: bytes, version: int) -> Stat:
        node = self._checked(path, version)
        node.data, node.version, node.mzxid, node.mtime = data, node.version + 1, self._next(), self.clock.now_ms()
        return self._stat(path)

    def delete(self, path: str, version: int) -> None:
        self._checked(path, version)
        if self._names[path]:
            raise Conflict(f"delete {path}: it has children")
        parent, name = _split(path)
        del self._nodes[path], self._names[path], self._names[parent][name]
        self._child_changed(parent, self._next())

    def issue_ledger_id(self) -> None:
        """What BookKeeper's id generator leaves behind: a child that came and went."""
        self._nodes["/ledgers/idgen"].cversion += 2

    def backup(self) -> dict[str, _ZNode]:
        """A copy of every z-node, as an operator's backup holds it."""
        return {path: replace(node) for path, node in self._nodes.items()}

    def restore(self, backup: Mapping[str, _ZNode], zxid: int) -> None:
        """Go back to a backup; no session survives, and the next transaction follows ``zxid``."""
        self._nodes = {path: replace(node) for path, node in backup.items() if not node.owner}
        self._names = {path: {} for path in self._nodes}
        for path in self._nodes:
            if path != "/":
                parent, name = _split(path)
                self._names[parent][name] = None
        self.zxid = zxid

    def end_session(self, session: int) -> None:
        if session in self._owners:
            for path in [path for path, node in self._nodes.items() if node.owner == session]:
                self.delete(path, -1)

    def end_all_sessions(self) -> None:
        """Each one times out, as a killed process's does."""
        for session in range(1, self.sessions + 1):
            self.end_session(session)

    def _checked(self, path: str, version: int) -> _ZNode:
        node = self._nodes.get(path)
        if node is None:
            raise NotFound(f"{path}: there is no such z-node")
        if version not in (-1, node.version):
            raise Conflict(f"{path}: has version {node.version}, not {version}")
        return node

    def _child_changed(self, parent: str, zxid: int) -> None:
        self._nodes[parent].pzxid = zxid
        self._nodes[parent].cversion += 1

    def _next(self) -> int:
        self.zxid += 1
        return self.zxid

    def _stat(self, path: str) -> Stat:
        stat = self.stat(path)
        assert stat is not None
        return stat


class FakeStore:
    """One session; ``latency`` is what :meth:`latency_ms` says."""

    def __init__(self, server: FakeZooKeeper, session: int, read_only: bool) -> None:
        self.server = server
        self.before: Hook = lambda operation: None
        self.after: Hook = lambda operation: None
        self.latency = 1.0
        self._session = session
        self._read_only = read_only
        self._expired = False

    def expire(self) -> None:
        """The server ends the session; reads go on with a new one."""
        lost = any(node.owner == self._session for node in self.server._nodes.values())
        self.server.end_session(self._session)
        self._expired = self._expired or lost

    def sync(self, path: str = "/") -> None:
        self._run("sync", (path,), lambda: None)

    def zxid(self) -> int:
        return self._run("sync", ("/",), lambda: self.server.zxid)

    def read(self, paths: Sequence[str]) -> list[Node | Unread | None]:
        return self._run("read", tuple(paths), lambda: [self._node(path) for path in paths])

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        def one(path: str) -> Children | Unread | None:
            stat = self.server.stat(path)
            if stat is None or path in self.server.unreadable:
                return self._node(path)
            return Children(path, self.server.names(path), stat.num_children)

        return self._run("children", tuple(paths), lambda: [one(path) for path in paths])

    def scan(self, paths: Iterable[str], *, children: bool = False) -> Iterator[ScanBatch]:
        source = iter(paths)
        while batch := list(islice(source, BATCH)):
            yield self._run("scan", tuple(batch), lambda batch=batch: self._scanned(batch, children))

    def _scanned(self, paths: Sequence[str], children: bool) -> ScanBatch:
        found = [self._node(path) for path in paths]
        rows = [
            (
                node.path,
                node.data,
                node.stat.czxid,
                node.stat.mzxid,
                node.stat.ctime,
                node.stat.mtime,
                node.stat.version,
                node.stat.num_children,
                self.server.names(node.path) if children else (),
            )
            for node in found
            if isinstance(node, Node)
        ]
        gone = [path for path, node in zip(paths, found, strict=True) if node is None]
        return ScanBatch(rows, gone, [node for node in found if isinstance(node, Unread)])

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False) -> Stat:
        def act() -> Stat:
            above = path.split("/")[1:-1]
            if parents:
                for i in range(len(above)):
                    if self.server.stat(ancestor := "/" + "/".join(above[: i + 1])) is None:
                        self.server.create(ancestor, b"", 0)
            return self.server.create(path, data, self._session if ephemeral else 0)

        return self._effect("create", (path,), act)

    def sequence(self, prefix: str) -> int:
        def act() -> int:
            parent = prefix.rpartition("/")[0]
            stat = self.server.stat(parent)
            if stat is None:
                raise NotFound(f"create {prefix}: there is no {parent}")
            made = f"{prefix}{stat.cversion:010d}"
            self.server.create(made, b"", self._session)
            self.server.delete(made, -1)
            return stat.cversion

        return self._effect("sequence", (prefix,), act)

    def write(self, path: str, data: bytes, version: int, checks: Sequence[tuple[str, int]] = ()) -> Stat:
        def act() -> Stat:
            for checked, expected in checks:
                stat = self.server.stat(checked)
                if stat is None:
                    raise Conflict(f"write {path}: {checked} is not there")
                if expected not in (-1, stat.version):
                    raise Conflict(f"write {path}: {checked} has another version than {expected}")
            return self.server.write(path, data, version)

        return self._effect("write", (path,), act)

    def delete(self, path: str, version: int) -> None:
        self._effect("delete", (path,), lambda: self.server.delete(path, version))

    def delete_many(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        outcomes: dict[int, NodeDeletion] = {}
        for start in range(0, len(deletions), TRANSACTION):
            batch = list(range(start, min(start + TRANSACTION, len(deletions))))
            lost = 0
            while batch:
                chosen = [deletions[i] for i in batch]
                try:
                    bad = self._effect(
                        "delete_many",
                        tuple(deletion.path for deletion in chosen),
                        lambda chosen=chosen: self._transaction(chosen, guard),
                    )
                except OutcomeUnknown:
                    lost += 1
                    if lost == TRIES:
                        raise
                    for i in batch:
                        if outcome := self._outcome(deletions[i], absent=NodeDeletion.DELETED):
                            outcomes[i] = outcome
                    batch = [i for i in batch if i not in outcomes]
                    continue
                if bad is None:
                    outcomes.update(dict.fromkeys(batch, NodeDeletion.DELETED))
                    break
                position, outcomes[batch[position]] = bad
                del batch[position]
        return [DeletionResult(deletion.path, outcomes[i]) for i, deletion in enumerate(deletions)]

    def latency_ms(self) -> float:
        return self.latency

    def close(self) -> None:
        with self.server.lock:
            self.server.end_session(self._session)

    def _transaction(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> tuple[int, NodeDeletion] | None:
        """All or nothing; position and outcome of the first bad deletion, or None."""
        lease = self.server.stat(guard[0])
        if lease is None or lease.version != guard[1]:
            raise LeaseLost(f"{guard[0]} no longer has version {guard[1]}")
        seen: set[str] = set()
        for position, deletion in enumerate(deletions):
            outcome = NodeDeletion.GONE if deletion.path in seen else self._outcome(deletion, absent=NodeDeletion.GONE)
            if outcome:
                return position, outcome
            seen.add(deletion.path)
        for deletion in deletions:
            self.server.delete(deletion.path, deletion.version)
        return None

    def _outcome(self, deletion: Deletion, absent: NodeDeletion) -> NodeDeletion | None:
        """What stands in the way of a deletion; None if nothing does."""
        stat = self.server.stat(deletion.path)
        if stat is None:
            return absent
        return NodeDeletion.CHANGED if stat.version != deletion.version or stat.num_children else None

    def _node(self, path: str) -> Node | Unread | None:
        stat = self.server.stat(path)
        if stat is None:
            return None
        if path in self.server.unreadable:
            return Unread(path, "no permission to read this z-node")
        return Node(path, self.server.data(path), stat)

    def _effect(self, name: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        if self._read_only:
            raise RefusedBy(RefusalCode.READ_ONLY, "this store was opened read-only and writes nothing")
        if self._expired:
            raise LeaseLost("the session expired and its ephemeral nodes went with it")
        return self._run(name, paths, act)

    def _run(self, name: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        operation = Operation(name, paths)
        self.before(operation)
        with self.server.lock:
            result = act()
        self.after(operation)
        return result


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name
