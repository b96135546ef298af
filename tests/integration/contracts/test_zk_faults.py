"""What a real ZooKeeper alone shows: chroots, permissions, lost connections and sessions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    OutcomeUnknown,
)
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import Deletion, Node
from tests.integration.contracts.zk_nodes import exists, fill, remove, settings
from tests.kit.fakes.cutting_proxy import CuttingProxy

MULTI = 14
MULTI_READ = 22
CREATE2 = 15
SET_DATA = 5


# ------------------------------------------------------------------------------------ transactions, real ZooKeeper only


@pytest.mark.integration
def test_delete_many_deletes_below_the_chroot_alone(sandbox: object) -> None:
    hosts = sandbox.zookeeper  # type: ignore[attr-defined]
    chroot = f"/contract-{uuid.uuid4()}"
    with KazooStore(settings(hosts)) as outside:
        outside.create(chroot)
        for path in ("/a", "/lease", f"{chroot}/a", f"{chroot}/lease"):
            outside.create(path)
        with KazooStore(settings(f"{hosts}{chroot}")) as inside:
            results = inside.delete_many([Deletion("/a", 0)], ("/lease", 0))

        assert [(result.path, result.outcome) for result in results] == [("/a", "deleted")]
        assert exists(outside, "/a", f"{chroot}/a") == [True, False]
        for path in ("/a", "/lease"):
            outside.delete(path, 0)
        remove(outside, chroot)


@pytest.mark.integration
def test_delete_many_without_permission_deletes_nothing(sandbox: object) -> None:
    hosts = sandbox.zookeeper  # type: ignore[attr-defined]
    root = f"/contract-{uuid.uuid4()}"
    with KazooStore(settings(hosts)) as store:
        store.create(root)
        paths = fill(store, root, 2)
        protect(hosts, root, delete=False)

        with pytest.raises(AccessDenied, match=paths[0]):
            store.delete_many([Deletion(path, 0) for path in paths], ("/", 0))

        protect(hosts, root, delete=True)
        assert exists(store, *paths) == [True] * 2
        remove(store, root)


def protect(hosts: str, path: str, *, delete: bool) -> None:
    """Whether anyone may delete what is below ``path``."""
    client = KazooClient(hosts)
    client.start()
    client.set_acls(path, [make_acl("world", "anyone", read=True, create=True, delete=delete, admin=True)])
    client.stop()
    client.close()


# ------------------------------------------------------------------------------- lost connections, real ZooKeeper only


@pytest.fixture
def proxy(sandbox: object) -> Iterator[CuttingProxy]:
    with CuttingProxy(sandbox.zookeeper) as proxy:  # type: ignore[attr-defined]
        yield proxy


@pytest.fixture
def through_proxy(proxy: CuttingProxy) -> Iterator[KazooStore]:
    with KazooStore(settings(f"127.0.0.1:{proxy.port}")) as store:
        yield store


@pytest.fixture
def proxied_root(through_proxy: KazooStore) -> Iterator[str]:
    path = f"/contract-{uuid.uuid4()}"
    through_proxy.create(path)
    yield path
    remove(through_proxy, path)


@pytest.mark.integration
@pytest.mark.parametrize("answered", [False, True])
def test_reads_go_on_after_a_dropped_connection(
    proxy: CuttingProxy, through_proxy: KazooStore, proxied_root: str, answered: bool
) -> None:
    paths = fill(through_proxy, proxied_root, 1500)
    proxy.cut_next(MULTI_READ, answered=answered)

    nodes = through_proxy.read(paths)

    assert proxy.cuts == 1
    assert [node.path for node in nodes if isinstance(node, Node)] == paths


@pytest.mark.integration
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_a_write_is_never_repeated(
    proxy: CuttingProxy, through_proxy: KazooStore, proxied_root: str, answered: bool, beside: bool
) -> None:
    through_proxy.create(f"{proxied_root}/a")
    proxy.cut_next(MULTI if beside else SET_DATA, answered=answered)
    with pytest.raises(OutcomeUnknown):
        through_proxy.write(f"{proxied_root}/a", b"new", 0, [(proxied_root, -1)] if beside else ())
    proxy.cut_next(CREATE2, answered=answered)
    with pytest.raises(OutcomeUnknown):
        through_proxy.create(f"{proxied_root}/b")

    a, b = through_proxy.read([f"{proxied_root}/a", f"{proxied_root}/b"])

    assert isinstance(a, Node)
    assert a.stat.version == (1 if answered else 0)
    assert (b is not None) == answered


@pytest.mark.integration
@pytest.mark.parametrize("answered", [False, True])
def test_a_lost_delete_batch_is_resolved_by_reading(
    proxy: CuttingProxy, through_proxy: KazooStore, proxied_root: str, answered: bool
) -> None:
    paths = fill(through_proxy, proxied_root, 700)
    guard = (f"{proxied_root}/lease", through_proxy.create(f"{proxied_root}/lease").version)
    proxy.cut_next(MULTI, answered=answered)

    results = through_proxy.delete_many([Deletion(path, 0) for path in paths], guard)

    assert proxy.cuts == 1
    assert {result.outcome for result in results} == {"deleted"}
    assert exists(through_proxy, *paths) == [False] * 700


@pytest.mark.integration
def test_transactions_of_long_paths_are_smaller(
    proxy: CuttingProxy, through_proxy: KazooStore, proxied_root: str
) -> None:
    paths = [f"{proxied_root}/{i}{'x' * 3000}" for i in range(300)]
    for path in paths:
        through_proxy.create(path)
    guard = (f"{proxied_root}/lease", through_proxy.create(f"{proxied_root}/lease").version)

    results = through_proxy.delete_many([Deletion(path, 0) for path in paths], guard)

    assert {result.outcome for result in results} == {"deleted"}
    assert proxy.opcodes[MULTI] == 2


@pytest.mark.integration
def test_an_expired_session_forbids_writes_and_not_reads(through_proxy: KazooStore, proxied_root: str) -> None:
    through_proxy.create(f"{proxied_root}/lease", ephemeral=True)
    client = through_proxy._session.client()
    # Whoever has a session's id and password can close it: the server then treats it as expired.
    thief = KazooClient(f"127.0.0.1:{client.hosts[0][1]}", client_id=client.client_id)
    thief.start()
    thief.stop()
    thief.close()

    with pytest.raises((LeaseLost, OutcomeUnknown)):
        through_proxy.create(f"{proxied_root}/a")
    assert exists(through_proxy, proxied_root, f"{proxied_root}/lease") == [True, False]
    with pytest.raises(LeaseLost, match="lease"):
        through_proxy.write(proxied_root, b"", -1)

    through_proxy.close()
