"""The metadata store on ZooKeeper: ``ports.MetadataStore`` over kazoo.

Belongs here: sessions, credentials, bulk reads that survive a dropped connection, writes that are never repeated, and
the translation of kazoo's errors. Not here: what z-nodes mean, the bytes of the requests that kazoo lacks
(``multiread``, ``multidelete``), pacing (``throttle``). Source: kazoo 2.11, Apache ZooKeeper 3.9 (KeeperException,
DataTree.processTxn).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    LeaseLost,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    RefusedBy,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.zookeeper import multidelete
from pulsar_lifecycle.io.zookeeper.multidelete import MultiDeleteRequest
from pulsar_lifecycle.io.zookeeper.multiread import (
    MAX_REQUEST_BYTES,
    NO_AUTH,
    NO_NODE,
    BatchSize,
    MultiReadRequest,
    Reply,
)
from pulsar_lifecycle.io.zookeeper.session import ConnectionLost, ZooKeeperSession, is_rejection
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
from pulsar_lifecycle.settings import ZooKeeperSettings
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.values.refusals import RefusalCode

MAX_DELETIONS = 500
"""Deletions in one transaction; the check of the guard comes on top."""
REQUESTS_IN_FLIGHT = 4
TRIES = 5
"""How often a read, or a transaction that got lost, is tried without any answer in between."""
_OUTCOMES = {
    NO_NODE: NodeDeletion.GONE,
    multidelete.BAD_VERSION: NodeDeletion.CHANGED,
    multidelete.NOT_EMPTY: NodeDeletion.CHANGED,
}
"""What the error of a deletion makes of it; any other error is the caller's."""


class KazooStore:
    """``ports.MetadataStore`` on one ZooKeeper session, with a second one for the latency probe.

    Connects at the first request, in the process that makes it. ``reads_per_second`` is this caller's share of
    ``settings.reads_per_second``. ``read_only`` refuses every write. ``key`` is what messages call the settings'
    section. Raises ConfigError for settings that cannot work.

    A session that expired takes its ephemeral nodes along: reads go on with a new session, writes raise LeaseLost.
    Threads may share one.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        *,
        read_only: bool = False,
        reads_per_second: float | None = None,
        clock: Clock | None = None,
        key: str = "zookeeper",
    ) -> None:
        clock = clock or SystemClock()
        self._session = ZooKeeperSession(settings, clock, key)
        self._read_only = read_only
        self._budget = RateBudget(reads_per_second or settings.reads_per_second, clock)
        self._batch = BatchSize()
        self._syncing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- reading

    def sync(self, path: str = "/") -> None:
        """Make the following reads on this session see every write that was acknowledged before this call."""
        for tried in range(1, TRIES + 1):
            self._session.client()
            try:
                return self._sync(path)
            except ConnectionLost:
                if tried == TRIES:
                    raise
        return None

    def zxid(self) -> int:
        """The server's latest transaction id (ReplyHeader.zxid of a sync)."""
        self.sync("/")
        return self._session.client().last_zxid

    def read(self, paths: Sequence[str]) -> list[Node | Unread | None]:
        """Data and Stat of many z-nodes, in order; None where there is none. Any number of paths.

        Raises AccessDenied when the credentials are refused, Unavailable, Overloaded.
        """
        found: list[Node | Unread | None] = []
        for batch, reply in self._replies(paths, children=False):
            for path, result in zip(batch, reply.nodes(batch), strict=True):
                if isinstance(result, int):
                    found.append(self._missing(path, result))
                else:
                    found.append(Node(path, *result))
        return found

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        """Child names of many z-nodes, in order; None where the node does not exist.

        ``num_children`` comes from the Stat of a getData in the same request.
        """
        found: list[Children | Unread | None] = []
        for batch, reply in self._replies(paths, children=True):
            rows, failed = reply.rows(batch, children=True)
            codes, rows_in_order = dict(failed), iter(rows)
            for position, path in enumerate(batch):
                if position in codes:
                    found.append(self._missing(path, codes[position]))
                else:
                    row = next(rows_in_order)
                    found.append(Children(path, row[8], row[7]))
        return found

    def scan(self, paths: Iterable[str], *, children: bool = False) -> Iterator[ScanBatch]:
        """Read any number of z-nodes as bare tuples, batch by batch in the order given: the fast way to read millions.

        With ``children`` each row also has the names below it, from the same request. Errors as in :meth:`read`.
        """
        for batch, reply in self._replies(paths, children=children):
            rows, failed = reply.rows(batch, children)
            gone: list[str] = []
            unread: list[Unread] = []
            for position, code in failed:
                missing = self._missing(batch[position], code)
                if missing is None:
                    gone.append(batch[position])
                else:
                    unread.append(missing)
            yield ScanBatch(rows, gone, unread)

    def latency_ms(self) -> float:
        """Latest round trip of the latency probe on its own session, in milliseconds."""
        self._session.client()
        return self._session.latency_ms

    def _replies(self, paths: Iterable[str], children: bool) -> Iterator[tuple[list[str], Reply]]:
        """Batches and their replies, in order. A batch that a dropped connection left unanswered is asked again."""
        source = iter(paths)
        again: deque[str] = deque()
        flying: deque[tuple[list[str], Any]] = deque()
        failures = 0
        self._session.client()
        while True:
            try:
                while len(flying) < REQUESTS_IN_FLIGHT and (batch := self._batch.take(source, again, children)):
                    try:
                        flying.append((batch, self._ask(batch, children)))
                    except BaseException:
                        again.extendleft(reversed(batch))
                        raise
                if not flying:
                    return
                batch, pending = flying[0]
                reply = self._session.answer(pending, f"read of {batch[0]} and {len(batch) - 1} more")
            except ConnectionLost:
                failures += 1
                if failures >= TRIES:
                    raise
                if flying:
                    self._batch.failed(len(flying[0][0]))
                while flying:
                    again.extendleft(reversed(flying.pop()[0]))
                self._session.client()
                continue
            failures = 0
            flying.popleft()
            self._batch.answered(len(batch), len(reply))
            yield batch, reply

    def _ask(self, batch: list[str], children: bool) -> Any:
        self._session.hold()
        self._budget.take(len(batch))
        client = self._session.client()
        if self._session.sync_due:
            # A new session may have reached a server that lags behind what the old one had seen.
            with self._syncing:  # other threads' reads wait for it, too
                if self._session.sync_due:
                    self._sync("/")
        return _send(MultiReadRequest([self._session.absolute(path) for path in batch], children), client)

    def _sync(self, path: str) -> None:
        client = self._session.client()
        asked = self._session.connections  # a connection that breaks under it needs one again
        self._session.answer(client.sync_async(path), f"sync of {path}")
        self._session.synced(asked)

    def _missing(self, path: str, code: int) -> Unread | None:
        if code == NO_NODE:
            return None
        if code == NO_AUTH:
            return Unread(path, f"{self._session.key}: no permission to read this z-node")
        raise self._session.translate(code, f"read of {path}")

    # ------------------------------------------------------------------------------------------------------- writing

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False) -> Stat:
        """Create a z-node (with ``parents``, also the persistent ones above it that are missing).

        Raises Conflict if it exists, NotFound if its parent does not, OutcomeUnknown if the connection broke.
        """
        parent = path.rpartition("/")[0]
        try:
            _, stat = self._effect(
                f"create {path}",
                lambda client: client.create_async(path, data, ephemeral=ephemeral, include_data=True),
            )
        except NotFound:
            if not parents or not parent:
                raise
            with contextlib.suppress(Conflict):  # somebody else created it meanwhile
                self.create(parent, parents=True)
            return self.create(path, data, ephemeral=ephemeral)
        except OutcomeUnknown:
            if ephemeral:
                self._session.owns(path)
            raise
        if ephemeral:
            self._session.owns(path)
        return _stat(stat)

    def sequence(self, prefix: str) -> int:
        """The next number of ZooKeeper's counter below the parent of ``prefix``; the z-node that gave it goes at once.

        Raises NotFound without the parent, OutcomeUnknown if the answer got lost: then ask once more.
        """
        made = self._effect(
            f"create {prefix}",
            lambda client: client.create_async(prefix, b"", ephemeral=True, sequence=True),
        )
        with contextlib.suppress(NotFound, OutcomeUnknown):  # it is ephemeral: it goes with the session at the latest
            self._effect(f"delete {made}", lambda client: client.delete_async(made, -1))
        digits = made.rpartition("/")[2].removeprefix(prefix.rpartition("/")[2])
        try:
            return int(digits)
        except ValueError as error:
            raise StoreError(f"create {prefix}: the answer names no number: {made}") from error

    def write(self, path: str, data: bytes, version: int, checks: Sequence[tuple[str, int]] = ()) -> Stat:
        """Compare-and-set, in one transaction with ``checks`` of other z-nodes' versions (-1: that they are there).

        Raises Conflict on another version or if a check fails, NotFound, OutcomeUnknown.
        """
        what = f"write {path}"
        if not checks:
            return _stat(self._effect(what, lambda client: client.set_async(path, data, version)))

        def submit(client: KazooClient) -> Any:
            transaction = client.transaction()
            for checked, expected in checks:
                transaction.check(checked, expected)
            transaction.set_data(path, data, version)
            return transaction.commit_async()

        answers = self._effect(what, submit)
        for (checked, expected), found in zip(checks, answers, strict=False):
            if isinstance(found, NoNodeError | BadVersionError):
                there = "is not there" if isinstance(found, NoNodeError) else f"has another version than {expected}"
                raise Conflict(f"{what}: {checked} {there}")
        for found in reversed(answers):  # only one says why; the others were rolled back
            if isinstance(found, KazooException) and not isinstance(found, RolledBackError | RuntimeInconsistency):
                raise self._session.translate(found, what)
        if len(answers) != len(checks) + 1 or not isinstance(answers[-1], ZnodeStat):
            raise OutcomeUnknown(f"{what}: the answer makes no sense: {answers}")
        return _stat(answers[-1])

    def delete(self, path: str, version: int) -> None:
        """Delete one z-node. Raises Conflict on another version or if it has children, NotFound, OutcomeUnknown."""
        self._effect(f"delete {path}", lambda client: client.delete_async(path, version))
        self._session.disowns(path)

    def delete_many(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        """Delete in transactions that also check that z-node ``guard[0]`` still has version ``guard[1]``.

        Results are in the order of ``deletions``. ``changed`` also stands for a z-node that has children. Raises
        LeaseLost when the guard does not hold, Overloaded, AccessDenied, and OutcomeUnknown when the connection stays
        away or an answer makes no sense. After any of these some are deleted and some are not: read again to know.
        """
        check = multidelete.check(self._session.absolute(guard[0]), guard[1])
        operations = [multidelete.delete(self._session.absolute(d.path), d.version) for d in deletions]
        outcomes: dict[int, NodeDeletion] = {}
        todo = deque((batch, 1) for batch in _transactions(operations))
        flying: deque[tuple[list[int], int, Any]] = deque()
        try:
            while todo or flying:
                while todo and len(flying) < REQUESTS_IN_FLIGHT:
                    batch, tried = todo.popleft()
                    request = MultiDeleteRequest(check, [operations[i] for i in batch])
                    flying.append((batch, tried, self._submit(partial(_send, request))))
                batch, tried, pending = flying.popleft()
                if rest := self._finish_batch(batch, pending, deletions, guard, outcomes, last=tried == TRIES):
                    # A transaction that was answered lost an operation, which ends; only lost ones are counted.
                    todo.appendleft((rest, tried + 1 if len(rest) == len(batch) else 1))
        except Overloaded:
            raise
        except (Unavailable, CorruptFormat) as error:
            raise OutcomeUnknown(f"{error}; read again to know which deletions were done") from error
        return [DeletionResult(deletion.path, outcomes[i]) for i, deletion in enumerate(deletions)]

    def _finish_batch(
        self,
        batch: list[int],
        pending: Any,
        deletions: Sequence[Deletion],
        guard: tuple[str, int],
        outcomes: dict[int, NodeDeletion],
        *,
        last: bool,
    ) -> list[int]:
        """Wait for one transaction and enter its outcomes; returns what has to be sent again."""
        try:
            aborted = self._session.answer(pending, f"deletion of {deletions[batch[0]].path} and {len(batch) - 1} more")
        except ConnectionLost:
            if last:
                raise
            self.sync()
            return self._look_again(batch, deletions, outcomes, absent=NodeDeletion.DELETED)
        if not aborted:
            outcomes.update(dict.fromkeys(batch, NodeDeletion.DELETED))
            return []
        ((operation, code),) = aborted
        if operation == 0:
            raise LeaseLost(
                f"{self._session.key}: z-node {guard[0]} no longer has version {guard[1]}: the lease is another's"
            )
        position = operation - 1
        if code not in _OUTCOMES:
            raise self._session.translate(code, f"delete {deletions[batch[position]].path}")
        outcomes[batch[position]] = _OUTCOMES[code]
        # Many may be bad, and a transaction names only the first: look at all of them before the rest is sent.
        return self._look_again(batch[:position] + batch[position + 1 :], deletions, outcomes, absent=NodeDeletion.GONE)

    def _look_again(
        self, batch: list[int], deletions: Sequence[Deletion], outcomes: dict[int, NodeDeletion], absent: NodeDeletion
    ) -> list[int]:
        """Find out by reading what an aborted or lost transaction left; returns what is still to be deleted."""
        left: list[int] = []
        for i, node in zip(batch, self.read([deletions[i].path for i in batch]), strict=True):
            if isinstance(node, Unread):
                raise AccessDenied(f"{node.path}: {node.reason}")
            if node is None:
                outcomes[i] = absent
            elif node.stat.version != deletions[i].version:
                outcomes[i] = NodeDeletion.CHANGED
            else:
                left.append(i)
        return left

    def _effect(self, what: str, submit: Callable[[KazooClient], Any]) -> Any:
        """One write, sent once."""
        pending = self._submit(submit)
        try:
            return self._session.answer(pending, what)
        except LifecycleError as error:
            if is_rejection(error.__cause__):
                raise
            raise OutcomeUnknown(f"{error}; read again to know whether it was done") from error

    def _submit(self, submit: Callable[[KazooClient], Any]) -> Any:
        if self._read_only:
            text = f"{self._session.key}: this store was opened read-only and writes nothing"
            raise RefusedBy(RefusalCode.READ_ONLY, text)
        client = self._session.client()
        self._session.raise_if_ephemerals_lost()
        self._session.hold()
        return submit(client)

    def close(self) -> None:
        """End the session; ephemeral nodes go with it."""
        self._session.close()


def _send(request: MultiReadRequest | MultiDeleteRequest, client: KazooClient) -> Any:
    """Queue a request that kazoo has no method for; returns its pending answer."""
    pending = client.handler.async_result()
    client._call(request, pending)
    return pending


def _transactions(operations: Sequence[bytes]) -> Iterator[list[int]]:
    """Positions of the operations of each transaction."""
    batch: list[int] = []
    size = 0
    for i, operation in enumerate(operations):
        if batch and (len(batch) == MAX_DELETIONS or size + len(operation) > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += len(operation)
    if batch:
        yield batch


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.dataLength,
        stat.numChildren,
        stat.pzxid,
    )
