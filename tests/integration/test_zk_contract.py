"""What every MetadataStore does: the same tests on the fake and on a real ZooKeeper, then the real one alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Refused,
)
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import Children, Deletion, MetadataStore, Node, Unread
from pulsar_lifecycle.settings import ZooKeeperSettings
from tests.kit.fakes.cutting_proxy import CuttingProxy
from tests.kit.fakes.metadata_store import FakeZooKeeper

MULTI = 14
MULTI_READ = 22
CREATE2 = 15
SET_DATA = 5


class Server(Protocol):
    def session(self, *, read_only: bool = False) -> MetadataStore: ...

    def deny(self, path: str) -> None: ...


class _Fake:
    def __init__(self) -> None:
        self._server = FakeZooKeeper()

    def session(self, *, read_only: bool = False) -> MetadataStore:
        return self._server.session(read_only=read_only)

    def deny(self, path: str) -> None:
        self._server.unreadable.add(path)


class _Real:
    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self._open: list[KazooStore] = []

    def session(self, *, read_only: bool = False) -> KazooStore:
        store = KazooStore(settings(self.hosts), read_only=read_only)
        self._open.append(store)
        return store

    def deny(self, path: str) -> None:
        client = KazooClient(self.hosts)
        client.start()
        client.set_acls(path, [make_acl("world", "anyone", delete=True, admin=True)])
        client.stop()
        client.close()

    def close(self) -> None:
        for store in self._open:
            store.close()


def settings(hosts: str) -> ZooKeeperSettings:
    # The guard has tests of its own; on a busy test machine it must not end the others.
    return ZooKeeperSettings.model_validate(
        {"hosts": hosts, "slow_above": 30, "stop_above": 60, "session_timeout": 10, "reads_per_second": 1_000_000}
    )


@pytest.fixture(params=["fake", pytest.param("zookeeper", marks=pytest.mark.integration)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "fake":
        yield _Fake()
        return
    real = _Real(request.getfixturevalue("sandbox").zookeeper)
    yield real
    real.close()


@pytest.fixture
def store(server: Server) -> MetadataStore:
    return server.session()


@pytest.fixture
def root(store: MetadataStore) -> Iterator[str]:
    path = f"/contract-{uuid.uuid4()}"
    store.create(path)
    yield path
    remove(store, path)


def remove(store: MetadataStore, path: str) -> None:
    below = store.children([path])[0]
    paths = [f"{path}/{name}" for name in below.names] if isinstance(below, Children) else []
    for child, names in zip(paths, store.children(paths), strict=True):
        if isinstance(names, Children) and not names.names:
            store.delete(child, -1)
        else:
            remove(store, child)
    store.delete(path, -1)


def fill(store: MetadataStore, root: str, count: int) -> list[str]:
    paths = [f"{root}/n{i:05d}" for i in range(count)]
    for i, path in enumerate(paths):
        store.create(path, b"x" * (i % 300))
    return paths


def exists(store: MetadataStore, *paths: str) -> list[bool]:
    return [node is not None for node in store.read(paths)]


def test_reads_answer_in_order_with_none_for_what_is_absent(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/a", b"one")
    store.create(f"{root}/b")

    b, missing, a = store.read([f"{root}/b", f"{root}/missing/deep", f"{root}/a"])

    assert isinstance(a, Node)
    assert isinstance(b, Node)
    assert missing is None
    assert (a.path, a.data, a.stat.version, a.stat.data_length) == (f"{root}/a", b"one", 0, 3)
    assert b.data == b""
    assert a.stat.czxid == a.stat.mzxid < b.stat.czxid
    assert a.stat.ctime == a.stat.mtime > 0
    assert store.read([]) == []


def test_a_write_is_a_compare_and_set(store: MetadataStore, root: str) -> None:
    created = store.create(f"{root}/a", b"one")
    written = store.write(f"{root}/a", b"three", created.version)

    assert (written.version, written.czxid, written.data_length) == (1, created.czxid, 5)
    assert written.mzxid > created.mzxid
    with pytest.raises(Conflict):
        store.write(f"{root}/a", b"four", created.version)
    with pytest.raises(NotFound):
        store.write(f"{root}/b", b"", 0)
    node = store.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert (node.data, node.stat) == (b"three", written)


def test_a_write_beside_another_z_node_needs_it(store: MetadataStore, root: str) -> None:
    created = store.create(f"{root}/a", b"one")
    store.create(f"{root}/beside", b"")
    written = store.write(f"{root}/a", b"two", created.version, f"{root}/beside")
    assert (written.version, written.czxid, written.data_length) == (1, created.czxid, 3)
    with pytest.raises(Conflict):
        store.write(f"{root}/a", b"three", created.version, f"{root}/beside")
    with pytest.raises(NotFound):
        store.write(f"{root}/b", b"", 0, f"{root}/beside")
    store.delete(f"{root}/beside", 0)
    with pytest.raises(Conflict, match="beside is not there"):
        store.write(f"{root}/a", b"three", written.version, f"{root}/beside")
    node = store.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert (node.data, node.stat) == (b"two", written)


def test_the_transaction_id_grows_with_every_write_of_anyone(server: Server, store: MetadataStore, root: str) -> None:
    other = server.session()
    before = store.zxid()
    node = f"{root}/counted"
    created = other.create(node)
    assert before < created.czxid <= store.zxid()
    assert other.write(node, b"x", 0).mzxid <= store.zxid()


def test_create_refuses_what_exists_and_what_has_no_parent(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/a")
    with pytest.raises(Conflict):
        store.create(f"{root}/a")
    with pytest.raises(NotFound):
        store.create(f"{root}/x/y/z", b"deep")

    store.create(f"{root}/x/y/z", b"deep", parents=True)
    store.create(f"{root}/x/y/other", parents=True)

    assert exists(store, f"{root}/x", f"{root}/x/y", f"{root}/x/y/z") == [True] * 3


def test_delete_needs_the_version_and_no_children(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/a/b", parents=True)
    with pytest.raises(Conflict):
        store.delete(f"{root}/a", 0)
    with pytest.raises(Conflict):
        store.delete(f"{root}/a/b", 7)

    store.delete(f"{root}/a/b", 0)

    with pytest.raises(NotFound):
        store.delete(f"{root}/a/b", 0)


def test_children_come_with_the_count_of_their_parents_stat(store: MetadataStore, root: str) -> None:
    for name in ("b", "a", "%C3%A4+~"):
        store.create(f"{root}/p/{name}", parents=True)

    full, missing, empty = store.children([f"{root}/p", f"{root}/missing", f"{root}/p/a"])

    assert isinstance(full, Children)
    assert sorted(full.names) == ["%C3%A4+~", "a", "b"]
    assert full.num_children == 3
    assert missing is None
    assert empty == Children(f"{root}/p/a", (), 0)


def test_a_scan_says_the_same_as_reads_over_many_batches(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 2300)
    asked = [*paths[:1000], f"{root}/missing", *paths[1000:]]

    batches = list(store.scan(iter(asked)))
    nodes = store.read(paths)

    assert [row for batch in batches for row in batch.rows] == [
        (
            node.path,
            node.data,
            node.stat.czxid,
            node.stat.mzxid,
            node.stat.ctime,
            node.stat.mtime,
            node.stat.version,
            node.stat.num_children,
            (),
        )
        for node in nodes
        if isinstance(node, Node)
    ]
    assert [path for batch in batches for path in batch.gone] == [f"{root}/missing"]
    assert [batch.unread for batch in batches if batch.unread] == []
    (whole,) = store.scan([root], children=True)
    assert whole.rows[0][7] == 2300
    assert sorted(whole.rows[0][8]) == [path.rpartition("/")[2] for path in paths]


def test_a_node_without_read_permission_is_unread_not_absent(store: MetadataStore, server: Server, root: str) -> None:
    fill(store, root, 3)
    denied = f"{root}/n00001"
    server.deny(denied)

    read = store.read([denied, f"{root}/n00002"])
    below = store.children([f"{root}/n00000", denied])
    (scanned,) = store.scan([f"{root}/n00000", denied])

    assert isinstance(read[0], Unread)
    assert isinstance(read[1], Node)
    assert isinstance(below[0], Children)
    assert isinstance(below[1], Unread)
    assert [unread.path for unread in scanned.unread] == [denied]
    assert len(scanned.rows) == 1
    assert scanned.gone == []


def test_delete_many_says_what_became_of_each(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 1203)
    lease = store.create(f"{root}/lease")
    gone = [paths[0], paths[499], paths[500], paths[1202]]
    changed = [paths[1], paths[700]]
    with_child = paths[2]
    for path in gone:
        store.delete(path, 0)
    for path in changed:
        store.write(path, b"new", 0)
    store.create(f"{with_child}/child")

    results = store.delete_many([Deletion(path, 0) for path in paths], (f"{root}/lease", lease.version))

    assert [result.path for result in results] == paths
    outcomes = {result.path: result.outcome for result in results}
    assert {path for path in paths if outcomes[path] == "gone"} == set(gone)
    assert {path for path in paths if outcomes[path] == "changed"} == {*changed, with_child}
    assert {path for path in paths if outcomes[path] == "deleted"} == {*paths} - {*gone, *changed, with_child}
    below = store.children([root])[0]
    assert isinstance(below, Children)
    assert {f"{root}/{name}" for name in below.names} == {*changed, with_child, f"{root}/lease"}


def test_delete_many_twice_changes_nothing_and_nothing_is_no_transaction(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 3)
    guard = (f"{root}/lease", store.create(f"{root}/lease").version)
    deletions = [Deletion(path, 0) for path in paths]

    assert [result.outcome for result in store.delete_many(deletions, guard)] == ["deleted"] * 3
    assert [result.outcome for result in store.delete_many(deletions, guard)] == ["gone"] * 3
    assert store.delete_many([], guard) == []


@pytest.mark.parametrize("state", ["taken over", "gone"])
def test_delete_many_deletes_nothing_without_its_lease(store: MetadataStore, root: str, state: str) -> None:
    paths = fill(store, root, 5)
    lease = store.create(f"{root}/lease")
    if state == "gone":
        store.delete(f"{root}/lease", lease.version)
    else:
        store.write(f"{root}/lease", b"somebody else", lease.version)

    with pytest.raises(LeaseLost):
        store.delete_many([Deletion(path, 0) for path in paths], (f"{root}/lease", lease.version))

    assert exists(store, *paths) == [True] * 5


def test_an_ephemeral_node_goes_with_its_session(server: Server, store: MetadataStore, root: str) -> None:
    other = server.session()
    created = other.create(f"{root}/lease", b"me", ephemeral=True)

    assert created.ephemeral_owner != 0
    assert exists(store, f"{root}/lease") == [True]

    other.close()
    store.sync()

    assert exists(store, f"{root}/lease") == [False]


def test_a_read_only_store_reads_and_refuses_every_write(server: Server, store: MetadataStore, root: str) -> None:
    store.create(f"{root}/a")
    looking = server.session(read_only=True)
    writes: list[Callable[[], object]] = [
        lambda: looking.create(f"{root}/b"),
        lambda: looking.write(f"{root}/a", b"", 0),
        lambda: looking.delete(f"{root}/a", 0),
        lambda: looking.delete_many([Deletion(f"{root}/a", 0)], (root, 0)),
    ]

    for write in writes:
        with pytest.raises(Refused):
            write()

    node = looking.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert node.stat.version == 0
    assert exists(looking, f"{root}/b") == [False]


def test_latency_is_a_duration(store: MetadataStore, root: str) -> None:
    assert store.latency_ms() >= 0


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
        through_proxy.write(f"{proxied_root}/a", b"new", 0, proxied_root if beside else "")
    proxy.cut_next(CREATE2, answered=answered)
    with pytest.raises(OutcomeUnknown):
        through_proxy.create(f"{proxied_root}/b")

    a, b = through_proxy.read([f"{proxied_root}/a", f"{proxied_root}/b"])

    assert isinstance(a, Node)
    assert a.stat.version == (1 if answered else 0)
    assert (b is not None) == answered


@pytest.mark.integration
@pytest.mark.parametrize("answered", [False, True])
def test_a_lost_delete_batch_is_settled_by_reading(
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
