"""The metadata store that many threads share: what is asked for at once is one request, each after its own sync."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.side_by_side import shared
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import FakeDeletionQueue
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper, Operation


class Scene:
    """A store of two z-nodes, shared by threads, and what it was asked for."""

    def __init__(self) -> None:
        self.own: FakeStore = FakeZooKeeper().session()
        for name in ("a", "b"):
            self.own.create(f"/{name}", name.encode())
        self.asked: list[Operation] = []
        self.own.before = self.asked.append
        ports = Ports(self.own, FakeLedgerReader(), FakeBrokerAdmin(), FakeDeletionQueue(), FakeJournal(), FakeClock())
        self.store: MetadataStore = shared(ports).store

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.asked]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("read", ["read", "children", "scan", "write", "zxid"])
def test_a_sync_is_made_before_whatever_follows(scene: Scene, read: str) -> None:
    follows: dict[str, Callable[[], object]] = {
        "read": lambda: scene.store.read(["/a"]),
        "children": lambda: scene.store.children(["/"]),
        "scan": lambda: list(scene.store.scan(["/a"])),
        "write": lambda: scene.store.write("/a", b"", 0),
        "zxid": lambda: scene.store.zxid(),
    }
    scene.store.sync("/")
    follows[read]()
    assert scene.names == ["sync", "sync" if read == "zxid" else read]
    scene.store.read(["/a"])
    assert scene.names[2:] == ["read"]  # it was asked for once


def test_a_read_of_nothing_leaves_the_sync_to_the_next_one(scene: Scene) -> None:
    scene.store.sync("/")
    assert scene.store.read([]) == []
    scene.store.read(["/b"])
    assert scene.names == ["sync", "read"]


def test_a_sync_of_one_thread_is_none_of_another_one(scene: Scene) -> None:
    scene.store.sync("/")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(scene.store.read, ["/a"]).result()
    assert scene.names == ["read"]
    scene.store.read(["/a"])
    assert scene.names == ["read", "sync", "read"]


def test_a_sync_that_fails_fails_what_follows_it(scene: Scene) -> None:
    def fail(operation: Operation) -> None:
        if operation.name == "sync":
            raise Unavailable("no answer")

    scene.own.before = fail
    scene.store.sync("/")
    with pytest.raises(Unavailable, match="no answer"):
        scene.store.read(["/a"])


def test_threads_that_ask_at_once_are_answered_each_with_its_own(scene: Scene) -> None:
    threads = 8
    together = Barrier(threads)

    def look(number: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        together.wait()
        for _ in range(20):
            scene.store.sync("/")
            nodes = scene.store.read(["/a", "/b", f"/c{number}"])
            found += [getattr(node, "data", None) for node in nodes]
        return found

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(look, range(threads))) == [[b"a", b"b", None] * 20] * threads
    assert scene.names.count("read") == scene.names.count("sync") <= threads * 20
