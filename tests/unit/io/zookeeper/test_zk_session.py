"""Settings that cannot work, and servers that are not there: which error, naming what."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo import exceptions as zk

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.zookeeper.session import ZooKeeperSession
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.settings import ZooKeeperSettings
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hosts": ":2181/chroot"}, r"shared\.hosts"),
        ({"hosts": "host:notaport"}, r"shared\.hosts"),
        ({"tls": {"ca_file": "/nowhere/ca.pem"}}, r"shared\.tls\.ca_file: /nowhere/ca\.pem"),
        ({"tls": {"key_file": "/nowhere/key.pem"}}, r"shared\.tls\.key_file"),
        ({"digest": {"env": "NO_SUCH_VARIABLE"}}, r"shared\.digest\.env: .*NO_SUCH_VARIABLE"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        KazooStore(ZooKeeperSettings.model_validate({"hosts": "host:2181", **settings}), key="shared")


def test_nobody_there_is_unavailable_and_says_where_and_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = ZooKeeperSettings(hosts=f"127.0.0.1:{port}", session_timeout=3)

    with (
        KazooStore(settings) as store,
        pytest.raises(Unavailable, match=rf"zookeeper\.hosts: .*127\.0\.0\.1:{port}.*refused"),
    ):
        store.read(["/"])


@pytest.mark.parametrize(
    ("kazoo_says", "ours"),
    [
        (zk.BadVersionError(), Conflict),
        (zk.NoNodeError(), NotFound),
        (zk.NoAuthError(), AccessDenied),
        (zk.BadArgumentsError(), StoreError),
        (zk.ConnectionLoss(), OutcomeUnknown),
        (zk.AuthFailedError(), OutcomeUnknown),  # of a reconnect: what was sent before may have been done
        (zk.SystemZookeeperError(), OutcomeUnknown),
        (zk.MarshallingError(), OutcomeUnknown),
        (RuntimeError("xids do not match"), OutcomeUnknown),
        (struct.error("unpack requires a buffer of 4 bytes"), OutcomeUnknown),
    ],
)
def test_only_a_rejection_proves_that_a_write_was_not_done(
    monkeypatch: pytest.MonkeyPatch, kazoo_says: Exception, ours: type[Exception]
) -> None:
    def answer(timeout: float) -> Any:
        raise kazoo_says

    client = SimpleNamespace(set_async=lambda *given: SimpleNamespace(get=answer))
    monkeypatch.setattr(ZooKeeperSession, "client", lambda session: client)
    monkeypatch.setattr(ZooKeeperSession, "hold", lambda session: None)

    with pytest.raises(ours) as raised:
        KazooStore(ZooKeeperSettings(hosts="host:2181")).write("/a", b"", 0)
    assert type(raised.value) is ours


def cluster(clock: FakeClock) -> FakeStore:
    store = FakeZooKeeper(clock).session()
    store.create("/ledgers")
    store.create("/managed-ledgers")
    return store


def test_a_fingerprint_lasts_and_tells_clusters_apart() -> None:
    clock = FakeClock()
    store = cluster(clock)
    before = cluster_fingerprint(store, "/ledgers")
    store.create("/ledgers/00/0000/L0001", parents=True)
    store.write("/managed-ledgers", b"touched", -1)

    assert cluster_fingerprint(store, "/ledgers") == before
    assert len(before) == 32

    clock.advance(1)
    assert cluster_fingerprint(cluster(clock), "/ledgers") != before
    store.create("/ledgers/INSTANCEID", b"7e0f3e6c-8e4d-4a54-a7b4-4f5b6f0a0001")
    assert cluster_fingerprint(store, "/ledgers") != before
