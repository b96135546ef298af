"""The metadata store on ZooKeeper: ``ports.MetadataStore`` over kazoo.

Belongs here: sessions, credentials, bulk reads that survive a dropped connection, writes that are never repeated, and
the translation of kazoo's errors. Not here: what z-nodes mean, the bytes of multiRead (``multiread``), pacing
(``throttle``). Source: kazoo 2.11, Apache ZooKeeper 3.9 (KeeperException, DataTree.processTxn).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    LeaseLost,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Refused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.multiread import (
    MAX_REQUEST_BYTES,
    NO_AUTH,
    NO_NODE,
    BatchSize,
    MultiReadRequest,
    Reply,
    ScanRow,
)
from pulsar_lifecycle.io.throttle import LatencyGuard, RateBudget
from pulsar_lifecycle.ports import Children, Clock, Deletion, DeletionResult, MetadataStore, Node, Stat, Unread
from pulsar_lifecycle.settings import ZooKeeperSettings

MAX_DELETIONS = 500
"""Deletions in one transaction; the check of the guard comes on top."""
REQUESTS_IN_FLIGHT = 4
ATTEMPTS = 5
"""How often a read, or the reading after a lost delete batch, is tried without any success in between."""
CONNECT_SECONDS = 10.0
_DELETE_OVERHEAD = struct.calcsize("!iBi") + struct.calcsize("!ii")
"""Bytes of one delete in a transaction besides its path: MultiHeader, path length, version."""

_ERRORS: dict[type[zk.KazooException], type[LifecycleError]] = {
    zk.NoNodeError: NotFound,
    zk.NodeExistsError: Conflict,
    zk.BadVersionError: Conflict,
    zk.NotEmptyError: Conflict,
    zk.NoAuthError: AccessDenied,
    zk.AuthFailedError: AccessDenied,
    zk.InvalidACLError: AccessDenied,
    zk.SessionClosedRequireSaslError: AccessDenied,
    zk.ThrottledOpError: Overloaded,
    zk.ConnectionLoss: Unavailable,
    zk.ConnectionClosedError: Unavailable,
    zk.SessionExpiredError: Unavailable,
    zk.SessionMovedError: Unavailable,
    zk.OperationTimeoutError: Unavailable,
    zk.RequestTimeoutError: Unavailable,
    zk.NotReadOnlyCallError: Unavailable,
    zk.CancelledError: Unavailable,
}
"""kazoo's class -> ours; what is not named here is a StoreError."""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """One step of a scan: what was found, what is not there, what is there and could not be read."""

    rows: list[ScanRow]
    gone: list[str]
    unread: list[Unread]


class KazooStore:
    """``ports.MetadataStore`` on one ZooKeeper session, with a second one for the latency probe.

    Connects at the first request, in the process that makes it. ``reads_per_second`` is this caller's share of
    ``settings.reads_per_second``. ``read_only`` refuses every write. ``key`` is what messages call the settings'
    section. Raises ConfigError for settings that cannot work.

    A session that expired takes its ephemeral nodes along: reads go on with a new session, writes raise LeaseLost.
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
        self._settings = settings
        self._key = key
        self._read_only = read_only
        self._clock = clock or SystemClock()
        self._budget = RateBudget(reads_per_second or settings.reads_per_second, self._clock)
        self._guard = LatencyGuard(self._probe, settings.slow_above, settings.stop_above, self._clock)
        self._batch = BatchSize()
        self._warning = _LastWarning()
        self._process = 0
        self._client: KazooClient | None = None
        self._probe_client: KazooClient | None = None
        self._live = threading.Event()
        self._sync_owed = False
        self._denied = False
        self._ephemerals: list[str] = []
        self._lost_ephemerals = False
        self._answer_seconds = settings.session_timeout + 5.0
        self._new_client()  # settings that cannot work fail here, not at the first read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- reading

    def sync(self, path: str = "/") -> None:
        """Make the following reads on this session see every write that was acknowledged before this call."""
        for attempt in range(1, ATTEMPTS + 1):
            self._connected()
            try:
                return self._sync(path)
            except Unavailable:
                if attempt == ATTEMPTS:
                    raise
        return None

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
            rows_left = iter(rows)
            codes = dict(failed)
            for path in batch:
                if path in codes:
                    found.append(self._missing(path, codes[path]))
                else:
                    row = next(rows_left)
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
            for path, code in failed:
                missing = self._missing(path, code)
                if missing is None:
                    gone.append(path)
                else:
                    unread.append(missing)
            yield ScanBatch(rows, gone, unread)

    def latency_ms(self) -> float:
        """Latest round trip of the latency probe on its own session, in milliseconds."""
        self._connected()
        return self._guard.latency_ms

    def _replies(self, paths: Iterable[str], children: bool) -> Iterator[tuple[list[str], Reply]]:
        """Batches and their replies, in order. A batch that a dropped connection left unanswered is asked again."""
        source = iter(paths)
        again: deque[str] = deque()
        flying: deque[tuple[list[str], Any]] = deque()
        failures = 0
        self._connected()
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
                reply = self._answer(pending, f"read of {batch[0]} and {len(batch) - 1} more")
            except Overloaded:
                raise
            except Unavailable:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                if flying:
                    self._batch.failed(len(flying[0][0]))
                while flying:
                    again.extendleft(reversed(flying.pop()[0]))
                self._connected()
                continue
            failures = 0
            flying.popleft()
            self._batch.answered(len(batch), len(reply))
            yield batch, reply

    def _ask(self, batch: list[str], children: bool) -> Any:
        self._guard.hold()
        self._budget.take(len(batch))
        client = self._connected()
        if self._sync_owed:
            # A new session may have reached a server that lags behind what the old one had seen.
            self._sync("/")
        pending = client.handler.async_result()
        client._call(MultiReadRequest([self._absolute(path) for path in batch], children), pending)
        return pending

    def _sync(self, path: str) -> None:
        self._sync_owed = False
        try:
            self._answer(self._connected().sync_async(path), f"sync of {path}")
        except LifecycleError:
            self._sync_owed = True
            raise

    def _missing(self, path: str, code: int) -> Unread | None:
        if code == NO_NODE:
            return None
        if code == NO_AUTH:
            return Unread(path, f"{self._key}: no permission to read this z-node")
        raise self._translate(_error_of(code), f"read of {path}")

    # ------------------------------------------------------------------------------------------------------- writing

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False) -> Stat:
        """Create a z-node (with ``parents``, also the persistent ones above it that are missing).

        Raises Conflict if it exists, NotFound if its parent does not, OutcomeUnknown if the connection broke.
        """

        def submit(client: KazooClient) -> Any:
            return client.create_async(path, data, ephemeral=ephemeral, include_data=True)

        try:
            _, stat = self._effect(f"create {path}", submit)
        except NotFound:
            parent = path.rpartition("/")[0]
            if not parents or not parent:
                raise
            with contextlib.suppress(Conflict):  # somebody else created it meanwhile
                self.create(parent, parents=True)
            _, stat = self._effect(f"create {path}", submit)
        if ephemeral:
            self._ephemerals.append(path)
        return _stat(stat)

    def write(self, path: str, data: bytes, version: int) -> Stat:
        """Compare-and-set. Raises Conflict on another version, NotFound, OutcomeUnknown."""
        return _stat(self._effect(f"write {path}", lambda client: client.set_async(path, data, version)))

    def delete(self, path: str, version: int) -> None:
        """Delete one z-node. Raises Conflict on another version or if it has children, NotFound, OutcomeUnknown."""
        self._effect(f"delete {path}", lambda client: client.delete_async(path, version))
        if path in self._ephemerals:
            self._ephemerals.remove(path)

    def delete_many(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        """Delete in transactions that also check that z-node ``guard[0]`` still has version ``guard[1]``.

        Results are in the order of ``deletions``. ``changed`` also stands for a z-node that has children. Raises
        LeaseLost when the guard does not hold, Overloaded, AccessDenied, and OutcomeUnknown when the connection stays
        away: after any of these some are deleted and some are not; read again to know which.
        """
        outcomes: dict[int, str] = {}
        todo = deque((batch, 1) for batch in _transactions(deletions))
        flying: deque[tuple[list[int], int, Any]] = deque()
        try:
            while todo or flying:
                while todo and len(flying) < REQUESTS_IN_FLIGHT:
                    batch, attempt = todo.popleft()
                    flying.append((batch, attempt, self._send_deletions([deletions[i] for i in batch], guard)))
                batch, attempt, pending = flying.popleft()
                if rest := self._settle(batch, pending, deletions, guard, outcomes, last=attempt == ATTEMPTS):
                    # A transaction that was answered lost an operation, which ends; only lost ones are counted.
                    todo.appendleft((rest, attempt + 1 if len(rest) == len(batch) else 1))
        except Overloaded:
            raise
        except Unavailable as error:
            raise OutcomeUnknown(f"{error}; read again to know which deletions were done") from error
        return [DeletionResult(deletion.path, outcomes[i]) for i, deletion in enumerate(deletions)]

    def _settle(
        self,
        batch: list[int],
        pending: Any,
        deletions: Sequence[Deletion],
        guard: tuple[str, int],
        outcomes: dict[int, str],
        *,
        last: bool,
    ) -> list[int]:
        """Wait for one transaction and enter its outcomes; returns what has to be sent again."""
        try:
            results = self._answer(pending, f"deletion of {deletions[batch[0]].path} and {len(batch) - 1} more")
        except Overloaded:
            raise
        except Unavailable:
            if last:
                raise
            self.sync()
            return self._look_again(batch, deletions, outcomes, absent="deleted")
        failed = self._failed_operation(results, [deletions[i] for i in batch], guard)
        if failed is None:
            outcomes.update(dict.fromkeys(batch, "deleted"))
            return []
        position, outcome = failed
        outcomes[batch[position]] = outcome
        # Many may be bad, and a transaction names only the first: look at all of them before the rest is sent.
        return self._look_again(batch[:position] + batch[position + 1 :], deletions, outcomes, absent="gone")

    def _send_deletions(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> Any:
        def submit(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.check(*guard)
            for deletion in deletions:
                transaction.delete(deletion.path, deletion.version)
            return transaction.commit_async()

        return self._submit(submit)

    def _failed_operation(
        self, results: list[Any], deletions: Sequence[Deletion], guard: tuple[str, int]
    ) -> tuple[int, str] | None:
        """Position and outcome of the deletion that aborted the transaction; None if it went through."""
        errors = (zk.RolledBackError, zk.RuntimeInconsistency)
        bad = next((i for i, r in enumerate(results) if isinstance(r, Exception) and not isinstance(r, errors)), None)
        if bad is None:
            return None
        if bad == 0:
            raise LeaseLost(
                f"{self._key}: z-node {guard[0]} no longer has version {guard[1]}: another controller took the lease"
            ) from results[0]
        if isinstance(results[bad], zk.NoNodeError):
            return bad - 1, "gone"
        if isinstance(results[bad], zk.BadVersionError | zk.NotEmptyError):
            return bad - 1, "changed"
        raise self._translate(results[bad], f"delete {deletions[bad - 1].path}")

    def _look_again(
        self, batch: list[int], deletions: Sequence[Deletion], outcomes: dict[int, str], absent: str
    ) -> list[int]:
        """Settle by reading what an aborted or lost transaction left; returns what is still to be deleted."""
        left: list[int] = []
        for i, node in zip(batch, self.read([deletions[i].path for i in batch]), strict=True):
            if isinstance(node, Unread):
                raise AccessDenied(f"{node.path}: {node.reason}")
            if node is None:
                outcomes[i] = absent
            elif node.stat.version != deletions[i].version:
                outcomes[i] = "changed"
            else:
                left.append(i)
        return left

    def _effect(self, what: str, submit: Callable[[KazooClient], Any]) -> Any:
        """One write, sent once."""
        pending = self._submit(submit)
        try:
            return self._answer(pending, what)
        except Overloaded:
            raise
        except Unavailable as error:
            raise OutcomeUnknown(f"{error}; read again to know whether it was done") from error

    def _submit(self, submit: Callable[[KazooClient], Any]) -> Any:
        if self._read_only:
            raise Refused(f"{self._key}: this store was opened read-only and writes nothing")
        client = self._connected()
        if self._lost_ephemerals:
            raise LeaseLost(
                f"{self._key}: the session expired and with it {', '.join(self._ephemerals)}; start the run again"
            )
        self._guard.hold()
        return submit(client)

    # ------------------------------------------------------------------------------------------------------ sessions

    def close(self) -> None:
        """End the session; ephemeral nodes go with it."""
        self._drop()
        self._ephemerals.clear()

    def _drop(self) -> None:
        mine = self._process == os.getpid()  # a forked child must not end its parent's sessions
        clients = [client for client in (self._client, self._probe_client) if client is not None]
        self._client = self._probe_client = None
        self._guard.stop()
        if mine:
            for client in clients:
                _end(client)

    def _connected(self) -> KazooClient:
        """The client, connected; waits for a reconnect as long as a session may last."""
        if self._client is None or self._process != os.getpid():
            self._connect()
        client = self._client
        assert client is not None
        self._raise_if_denied()
        if not self._live.wait(self._settings.session_timeout):
            raise Unavailable(f"{self._key}.hosts: no connection to {self._settings.hosts}{self._warning}")
        return client

    def _connect(self) -> None:
        if self._process != os.getpid():
            self._drop()
            self._ephemerals.clear()
            self._process = os.getpid()
        self._lost_ephemerals = bool(self._ephemerals)
        self._denied = False
        self._live.clear()
        client = self._client = self._new_client()
        client.add_listener(lambda state: self._state_changed(client, state))
        wait = min(CONNECT_SECONDS, self._settings.session_timeout)
        try:
            if not client.start_async().wait(wait):
                raise Unavailable(
                    f"{self._key}.hosts: nothing usable at {self._settings.hosts} within {wait:.0f} s{self._warning}"
                )
            # A connect string with a chroot that is not there would make every z-node look absent.
            if client.chroot and self._answer(client.exists_async("/"), "look for the chroot") is None:
                raise ConfigError(f"{self._key}.hosts: the chroot {client.chroot} does not exist")
        except LifecycleError:
            self._drop()
            raise
        self._probe_client = self._new_client()
        self._probe_client.start_async()
        self._guard.start()

    def _new_client(self) -> KazooClient:
        settings, tls, sasl = self._settings, self._settings.tls, None
        if tls:
            for name in ("ca_file", "cert_file", "key_file"):
                file = getattr(tls, name)
                if file and not Path(file).is_file():
                    raise ConfigError(f"{self._key}.tls.{name}: {file} does not exist")
        if settings.sasl_mechanism:
            if importlib.util.find_spec("puresasl") is None:
                raise ConfigError(f"{self._key}.sasl_mechanism: needs the package pure-sasl: pip install kazoo[sasl]")
            sasl = {"mechanism": settings.sasl_mechanism}
            if settings.sasl_username:
                sasl["username"] = settings.sasl_username
            if settings.sasl_password:
                sasl["password"] = settings.sasl_password.resolve(f"{self._key}.sasl_password")
        auth = [("digest", settings.digest.resolve(f"{self._key}.digest"))] if settings.digest else []
        try:
            return KazooClient(
                hosts=settings.hosts,
                timeout=settings.session_timeout,
                connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
                auth_data=auth,
                sasl_options=sasl,
                use_ssl=tls is not None,
                ca=(tls and tls.ca_file) or None,
                certfile=(tls and tls.cert_file) or None,
                keyfile=(tls and tls.key_file) or None,
                verify_certs=tls is None or tls.verify,
                check_hostname=tls is not None and tls.verify,
                logger=self._warning.logger(),
            )
        except ValueError as error:
            raise ConfigError(
                f"{self._key}.hosts: expected host:port,host:port[/chroot], found {settings.hosts!r}: {error}"
            ) from error

    def _state_changed(self, client: KazooClient, state: str) -> None:
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._live.set()
            return
        self._live.clear()
        self._sync_owed = True
        if state == KazooState.LOST:
            self._denied = self._denied or client.client_state == KeeperState.AUTH_FAILED
            self._lost_ephemerals = self._lost_ephemerals or bool(self._ephemerals)

    def _probe(self) -> None:
        client = self._probe_client
        if client is None:
            return
        try:
            client.exists_async("/").get(timeout=2 * self._settings.stop_above)
        except (zk.KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"{self._key}: latency probe: {_describe(error)}") from error

    def _answer(self, pending: Any, what: str) -> Any:
        try:
            return pending.get(timeout=self._answer_seconds)
        except KazooTimeoutError as error:
            # The request may still wait in kazoo's queue: end the session, or a reconnect would send it much later.
            self._drop()
            raise Unavailable(f"{self._key}: {what}: no answer within {self._answer_seconds:.0f} s") from error
        except (zk.KazooException, RuntimeError, struct.error) as error:
            self._raise_if_denied()
            raise self._translate(error, what) from error

    def _translate(self, error: BaseException, what: str) -> LifecycleError:
        where = f"{self._key} at {self._settings.hosts}: {what}"
        ours = next((_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS), StoreError)
        hint = "; multiRead needs ZooKeeper 3.6 or newer" if isinstance(error, zk.UnimplementedError) else ""
        return ours(f"{where}: {_describe(error)}{hint}")

    def _raise_if_denied(self) -> None:
        if self._denied:
            raise AccessDenied(f"{self._key}: {self._settings.hosts} refused the credentials{self._warning}")

    def _absolute(self, path: str) -> str:
        chroot = self._client.chroot if self._client else ""
        return (chroot if path == "/" else chroot + path) if chroot else path


def cluster_fingerprint(store: MetadataStore, ledgers_root: str) -> str:
    """What tells this cluster from every other one: 32 hexadecimal digits, the same for its whole life.

    A SHA-256 over BookKeeper's INSTANCEID, if there is one, and czxid and ctime of ``ledgers_root`` and
    ``/managed-ledgers`` (DESIGN section 5, Identity). Raises NotFound where there is no Pulsar cluster.
    """
    roots = (ledgers_root, "/managed-ledgers")
    instance, *nodes = store.read([f"{ledgers_root}/INSTANCEID", *roots])
    parts: list[str] = []
    for path, node in zip(roots, nodes, strict=True):
        if node is None:
            raise NotFound(f"{path}: there is no such z-node, so this is not the metadata store of a Pulsar cluster")
        if isinstance(node, Unread):
            raise AccessDenied(f"{path}: {node.reason}")
        parts.append(f"{node.stat.czxid}:{node.stat.ctime}")
    if isinstance(instance, Unread):
        raise AccessDenied(f"{instance.path}: {instance.reason}")
    if instance is not None:
        parts.append(instance.data.decode("ascii", "backslashreplace").strip())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _transactions(deletions: Sequence[Deletion]) -> Iterator[list[int]]:
    """Positions of the deletions of each transaction."""
    batch: list[int] = []
    size = 0
    for i, deletion in enumerate(deletions):
        cost = _DELETE_OVERHEAD + len(deletion.path.encode())
        if batch and (len(batch) == MAX_DELETIONS or size + cost > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += cost
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


def _error_of(code: int) -> Exception:
    kind = zk.EXCEPTIONS.get(code)
    return kind() if kind else StoreError(f"error code {code}")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except zk.KazooException:
        pass  # its threads are daemons, and the server ends the session by itself


class _LastWarning(logging.Handler):
    """Remembers kazoo's last warning, which says why a connection failed; also passes it on to kazoo's own logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._text = ""

    def logger(self) -> logging.Logger:
        """A logger for one client. Debug is left out: kazoo would log the credentials it sends."""
        logger = logging.Logger("kazoo.client", logging.INFO)
        logger.parent = logging.getLogger("kazoo.client")
        logger.addHandler(self)
        return logger

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._text = record.getMessage()

    def __str__(self) -> str:
        return f" ({self._text})" if self._text else ""
