"""What every MetadataStore does: the same tests on the fake and on a real ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from pulsar_lifecycle.errors import (
    Conflict,
    LeaseLost,
    NotFound,
)
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import Children, Deletion, MetadataStore, Node, Unread
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.integration.contracts.zk_nodes import exists, fill, remove, settings
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.refused import refused_by


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
    between = store.create(f"{root}/between")
    written = store.write(f"{root}/a", b"two", created.version, [(f"{root}/beside", -1)])
    assert created.mzxid < between.czxid < written.mzxid  # what tells which loads our write of a list came before
    assert (written.version, written.czxid, written.data_length) == (1, created.czxid, 3)
    with pytest.raises(Conflict):
        store.write(f"{root}/a", b"three", created.version, [(f"{root}/beside", -1)])
    with pytest.raises(NotFound):
        store.write(f"{root}/b", b"", 0, [(f"{root}/beside", -1)])
    store.delete(f"{root}/beside", 0)
    with pytest.raises(Conflict, match="beside is not there"):
        store.write(f"{root}/a", b"three", written.version, [(f"{root}/beside", -1)])
    node = store.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert (node.data, node.stat) == (b"two", written)


def test_a_write_beside_a_version_needs_that_version(store: MetadataStore, root: str) -> None:
    created = store.create(f"{root}/a", b"one")
    beside = store.create(f"{root}/beside", b"")
    other = store.create(f"{root}/other", b"")
    checks = [(f"{root}/other", other.version), (f"{root}/beside", beside.version)]
    written = store.write(f"{root}/a", b"two", created.version, checks)
    assert written.version == 1

    store.write(f"{root}/beside", b"changed", beside.version)
    with pytest.raises(Conflict, match="beside has"):
        store.write(f"{root}/a", b"three", written.version, checks)

    node = store.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert node.data == b"two"


def test_a_sequence_grows_and_leaves_nothing(store: MetadataStore, root: str) -> None:
    numbers = [store.sequence(f"{root}/ID-") for _ in range(5)]

    assert numbers == sorted(set(numbers))
    assert store.children([root]) == [Children(root, (), 0)]
    with pytest.raises(NotFound):
        store.sequence(f"{root}/none/ID-")


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
        lambda: looking.sequence(f"{root}/ID-"),
        lambda: looking.delete(f"{root}/a", 0),
        lambda: looking.delete_many([Deletion(f"{root}/a", 0)], (root, 0)),
    ]

    for write in writes:
        with refused_by(RefusalCode.READ_ONLY):
            write()

    node = looking.read([f"{root}/a"])[0]
    assert isinstance(node, Node)
    assert node.stat.version == 0
    assert exists(looking, f"{root}/b") == [False]


def test_latency_is_a_duration(store: MetadataStore, root: str) -> None:
    assert store.latency_ms() >= 0
