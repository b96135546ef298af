"""A ZooKeeper session through kazoo: connect, credentials, reconnects, the latency probe, kazoo's errors as ours.

Belongs here: everything about the connection. Not here: which requests are made and may be repeated (``store.py``).
Source: kazoo 2.11; org.apache.zookeeper.KeeperException, 3.9.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import struct
import threading
from pathlib import Path
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    LeaseLost,
    LifecycleError,
    NotFound,
    Overloaded,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.ports import Clock
from pulsar_lifecycle.settings import ZooKeeperSettings
from pulsar_lifecycle.throttle import LatencyGuard

CONNECT_SECONDS = 10.0
"""How long the first connection may take; a reconnect has as long as the session lives."""


class ConnectionLost(Unavailable):
    """The connection broke, or no answer came, while a request was under way."""


_ERRORS: dict[type[Exception], type[LifecycleError]] = {
    zk.NoNodeError: NotFound,
    zk.NodeExistsError: Conflict,
    zk.BadVersionError: Conflict,
    zk.NotEmptyError: Conflict,
    zk.NoAuthError: AccessDenied,
    zk.AuthFailedError: AccessDenied,
    zk.InvalidACLError: AccessDenied,
    zk.SessionClosedRequireSaslError: AccessDenied,
    zk.ThrottledOpError: Overloaded,
    zk.ConnectionLoss: ConnectionLost,
    zk.ConnectionClosedError: ConnectionLost,
    zk.SessionExpiredError: ConnectionLost,
    zk.SessionMovedError: ConnectionLost,
    zk.OperationTimeoutError: ConnectionLost,
    zk.RequestTimeoutError: ConnectionLost,
    zk.CancelledError: ConnectionLost,
    zk.NotReadOnlyCallError: Unavailable,
}
"""kazoo's class -> ours; a class that is not here is a StoreError."""

_REJECTIONS = (
    zk.NoNodeError,
    zk.NodeExistsError,
    zk.BadVersionError,
    zk.NotEmptyError,
    zk.NoChildrenForEphemeralsError,
    zk.NoAuthError,
    zk.InvalidACLError,
    zk.QuotaExceededError,
    zk.ThrottledOpError,
    zk.NotReadOnlyCallError,
    zk.EphemeralOnLocalSessionError,
    zk.UnimplementedError,
    zk.BadArgumentsError,
)


def is_rejection(error: BaseException | None) -> bool:
    """Whether kazoo's error is a server's word that it did not do what was asked.

    Any other one (a lost connection, credentials refused on the way back, bytes that make no sense) leaves that open.
    """
    return isinstance(error, _REJECTIONS)


class ZooKeeperSession:
    """One session for requests and one for the latency probe; connects when first asked for its client.

    A forked child that finds its parent's session connects anew and leaves the parent's alone. kazoo replaces an
    expired session by itself; what got lost with it is remembered here: ``sync_due`` (a new session may have reached a
    server that lags behind what the old one had seen) and the ephemeral nodes. Threads may share it.
    """

    def __init__(self, settings: ZooKeeperSettings, clock: Clock, key: str) -> None:
        self.key = key
        self.sync_due = False
        self.connections = 0
        """Counts those that were lost or made: what a sync was asked for before one is due again."""
        self._connecting = threading.RLock()
        self._settings = settings
        self._guard = LatencyGuard(self._probe, settings.slow_above, settings.stop_above, clock)
        self._warning = _LastWarning()
        self._process = 0
        self._client: KazooClient | None = None
        self._probe_client: KazooClient | None = None
        self._live = threading.Event()
        self._denied = False
        self._ephemerals: set[str] = set()
        self._lost_ephemerals = False
        self._answer_seconds = settings.session_timeout + 5.0
        self._chroot = self._new_client().chroot or ""  # settings that cannot work fail here, not at the first request

    def client(self) -> KazooClient:
        """The client, connected; waits for a reconnect as long as the session may live.

        Raises Unavailable when nothing answers, AccessDenied when the credentials are refused, ConfigError.
        """
        with self._connecting:
            if self._client is None or self._process != os.getpid():
                self._connect()
            client = self._client
        assert client is not None
        self._raise_if_denied()
        if not self._live.wait(self._settings.session_timeout):
            self._raise_if_denied()
            raise Unavailable(f"{self.key}.hosts: no connection to {self._settings.hosts}{self._warning}")
        return client

    def answer(self, pending: Any, what: str) -> Any:
        """Wait for kazoo's answer to ``what``. Raises ConnectionLost, or the server's error as ours."""
        try:
            return pending.get(timeout=self._answer_seconds)
        except KazooTimeoutError as error:
            # The request may still wait in kazoo's queue: end the session, or a reconnect would send it much later.
            self._drop()
            raise ConnectionLost(f"{self.key}: {what}: no answer within {self._answer_seconds:.0f} s") from error
        except (zk.KazooException, RuntimeError, struct.error) as error:
            self._raise_if_denied()
            raise self.translate(error, what) from error

    def translate(self, error: BaseException | int, what: str) -> LifecycleError:
        """Our error for kazoo's, or for a server's error code."""
        if isinstance(error, int):
            kind = zk.EXCEPTIONS.get(error)
            error = kind() if kind else RuntimeError(f"error code {error}")
        ours = next((_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS), StoreError)
        hint = "; multiRead needs ZooKeeper 3.6 or newer" if isinstance(error, zk.UnimplementedError) else ""
        said = f"{type(error).__name__} {error}".strip()
        return ours(f"{self.key} at {self._settings.hosts}: {what}: {said}{hint}")

    def absolute(self, path: str) -> str:
        """The path with the connect string's chroot, for requests that kazoo does not know."""
        return (self._chroot if path == "/" else self._chroot + path) if self._chroot else path

    def hold(self) -> None:
        """Wait while ZooKeeper is slow; raises Overloaded when it is too slow."""
        self._guard.hold()

    @property
    def latency_ms(self) -> float:
        """Latest round trip of the probe."""
        return self._guard.latency_ms

    def owns(self, ephemeral: str) -> None:
        """From now on the session's end means that ``ephemeral`` is gone."""
        self._ephemerals.add(ephemeral)

    def synced(self, connections: int) -> None:
        """A sync was answered that was asked for when there had been so many :attr:`connections`."""
        if connections == self.connections:
            self.sync_due = False

    def disowns(self, path: str) -> None:
        """``path`` was deleted on purpose."""
        self._ephemerals.discard(path)

    def raise_if_ephemerals_lost(self) -> None:
        """Raise LeaseLost once a session has ended that held ephemeral nodes."""
        if self._lost_ephemerals:
            lost = ", ".join(sorted(self._ephemerals))
            raise LeaseLost(f"{self.key}: the session expired and {lost} went with it; start the run again")

    def close(self) -> None:
        """End the sessions; ephemeral nodes go with them. Asking for the client again connects again."""
        self._drop()
        self._ephemerals.clear()
        self._lost_ephemerals = False

    # -------------------------------------------------------------------------------------------------------- private

    def _connect(self) -> None:
        if self._process != os.getpid():
            self.close()
            self._process = os.getpid()
        self._lost_ephemerals = bool(self._ephemerals)
        self._denied = False
        self._warning.fatal = None
        self._live.clear()
        self._sync_is_due()  # another server than the one that listed may lag behind it
        client = self._client = self._new_client()
        client.add_listener(lambda state: self._state_changed(client, state))
        wait = min(CONNECT_SECONDS, self._settings.session_timeout)
        try:
            if not client.start_async().wait(wait):
                raise Unavailable(
                    f"{self.key}.hosts: nothing usable at {self._settings.hosts} within {wait:.0f} s{self._warning}"
                )
            # A connect string with a chroot that is not there would make every z-node look absent.
            if client.chroot and self.answer(client.exists_async("/"), "look for the chroot") is None:
                raise ConfigError(f"{self.key}.hosts: the chroot {client.chroot} does not exist")
        except LifecycleError:
            self._drop()
            raise
        self._probe_client = self._new_client()
        self._probe_client.start_async()
        self._guard.start()

    def _drop(self) -> None:
        with self._connecting:
            mine = self._process == os.getpid()
            clients = [client for client in (self._client, self._probe_client) if client is not None]
            self._client = self._probe_client = None
            self.connections += 1
            self.sync_due = bool(clients)
            self._guard.stop()
        if mine:
            for client in clients:
                _end(client)

    def _sync_is_due(self) -> None:
        self.connections += 1
        self.sync_due = True

    def _new_client(self) -> KazooClient:
        settings, tls = self._settings, self._settings.tls
        for name in ("ca_file", "cert_file", "key_file") if tls else ():
            file = getattr(tls, name)
            if file and not Path(file).is_file():
                raise ConfigError(f"{self.key}.tls.{name}: {file} does not exist")
        digest = [("digest", settings.digest.resolve(f"{self.key}.digest"))] if settings.digest else []
        try:
            return KazooClient(
                hosts=settings.hosts,
                timeout=settings.session_timeout,
                connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
                auth_data=digest,
                sasl_options=self._sasl_options(),
                use_ssl=tls is not None,
                ca=(tls and tls.ca_file) or None,
                certfile=(tls and tls.cert_file) or None,
                keyfile=(tls and tls.key) or None,
                check_hostname=tls is not None and tls.verify,
                logger=self._warning.logger(),
            )
        except ValueError as error:
            raise ConfigError(
                f"{self.key}.hosts: expected host:port,host:port[/chroot], found {settings.hosts!r}: {error}"
            ) from error

    def _sasl_options(self) -> dict[str, str] | None:
        settings = self._settings
        if not settings.sasl_mechanism:
            return None
        if importlib.util.find_spec("puresasl") is None:
            raise ConfigError(f"{self.key}.sasl_mechanism: needs the package pure-sasl: pip install 'kazoo[sasl]'")
        options: dict[str, str] = {"mechanism": settings.sasl_mechanism}
        if settings.sasl_username:
            options["principal" if settings.sasl_mechanism == "GSSAPI" else "username"] = settings.sasl_username
        if settings.sasl_password:
            options["password"] = settings.sasl_password.resolve(f"{self.key}.sasl_password")
        return options

    def _state_changed(self, client: KazooClient, state: str) -> None:
        """Called by kazoo in its own thread."""
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._live.set()
            return
        self._live.clear()
        self._sync_is_due()
        if state == KazooState.LOST:
            self._denied = self._denied or client.client_state == KeeperState.AUTH_FAILED
            self._lost_ephemerals = self._lost_ephemerals or bool(self._ephemerals)

    def _raise_if_denied(self) -> None:
        # kazoo's loop dies of a server that answers SASL with an error, and says so only in its log.
        fatal = self._warning.fatal
        if self._denied or (fatal and isinstance(self.translate(fatal, "connect"), AccessDenied)):
            raise AccessDenied(f"{self.key}: {self._settings.hosts} refused the credentials{self._warning}")

    def _probe(self) -> None:
        client = self._probe_client
        if client is None or not client.connected:
            raise Unavailable(f"{self.key}: latency probe: no connection")
        try:
            client.exists_async("/").get(timeout=2 * self._settings.stop_above)
        except KazooTimeoutError:
            return  # no answer yet: that is its latency
        except zk.KazooException as error:
            raise self.translate(error, "latency probe") from error


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except zk.KazooException:
        pass  # its threads are daemons, and the server ends the session by itself


class _LastWarning(logging.Handler):
    """Remembers kazoo's last warning, which says why a connection failed; also passes it on to kazoo's own logger.

    ``fatal`` is the exception that ended kazoo's connection loop.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.fatal: BaseException | None = None
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
        if record.exc_info and isinstance(record.exc_info[1], zk.KazooException):
            self.fatal = record.exc_info[1]
            self._text = type(self.fatal).__name__

    def __str__(self) -> str:
        return f" ({self._text})" if self._text else ""
