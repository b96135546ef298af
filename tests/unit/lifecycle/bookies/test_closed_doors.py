"""Bookies whose HTTP server refuses, or talks TLS where we do not, over real sockets: named, and nothing is guessed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as pb
from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BookieDisk, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection, plan_collection
from pulsar_lifecycle.lifecycle.bookies.collection_run import CollectionRun
from pulsar_lifecycle.lifecycle.bookies.disk_run import ask
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.setting_types import Tls
from pulsar_lifecycle.settings import BookieAdminSettings
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper

GUARDED, ENCRYPTED = "guarded:3181", "encrypted:3181"


class Refusing(BaseHTTPRequestHandler):
    """Answers 403 to everything, as a proxy before a bookie does, and keeps what it was asked."""

    asked: list[str]

    def _refuse(self) -> None:
        self.asked.append(self.command)
        self.send_error(403)

    do_GET = do_PUT = _refuse  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Encrypted(ThreadingHTTPServer):
    """Talks TLS; who talks plain HTTP to it gets as far as with any certificate."""

    def finish_request(self, request: object, client_address: object) -> None:
        with ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(request, server_side=True) as wrapped:  # type: ignore[call-overload]
            super().finish_request(wrapped, client_address)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """The handshake failed."""


@contextmanager
def serving(kind: type[ThreadingHTTPServer], asked: list[str]) -> Iterator[int]:
    server = kind(("127.0.0.1", 0), type("Handler", (Refusing,), {"asked": asked}))
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Scene:
    """The two bookies, and what the one that can be asked was asked."""

    def __init__(self, guarded: int, encrypted: int) -> None:
        self.asked: list[str] = []
        self.store = FakeZooKeeper()
        session = self.store.session()
        for bookie, port in ((GUARDED, guarded), (ENCRYPTED, encrypted)):
            info = pb.BookieServiceInfoFormat()
            info.endpoints.add(id="httpserver", protocol="http", host="127.0.0.1", port=port)
            session.create(f"/ledgers/available/{bookie}", info.SerializeToString(), parents=True)
        self.settings = BookieAdminSettings(request_timeout=10)

    @contextmanager
    def bookies(self) -> Iterator[tuple[MetadataStore, HttpBookieAdmin]]:
        store = self.store.session()
        with closing(HttpBookieAdmin(store, "/ledgers", self.settings)) as admin:
            yield store, admin

    def disks(self) -> dict[str, BookieDisk]:
        placement = Placement(dict.fromkeys((GUARDED, ENCRYPTED), Placed(1 << 40, 100)))
        with self.bookies() as (_, admin):
            return {one.bookie: one for one in ask(admin, lambda: 5).judged(placement, 5)}


@pytest.fixture
def scene() -> Iterator[Scene]:
    asked: list[str] = []
    with serving(ThreadingHTTPServer, asked) as guarded, serving(Encrypted, []) as encrypted:
        scene = Scene(guarded, encrypted)
        scene.asked = asked
        yield scene


def test_each_is_named_with_why_and_none_is_to_collect(scene: Scene) -> None:
    disks = scene.disks()
    assert {name: one.verdict for name, one in disks.items()} == {
        GUARDED: DiskVerdict.DENIED,
        ENCRYPTED: DiskVerdict.UNANSWERED,
    }
    assert "403" in disks[GUARDED].detail
    for one in disks.values():
        row = one.row()
        assert [row[name] for name in ("total", "free", "live_bytes", "bytes_to_collect", "bytes_to_compact")] == (
            [None] * 5
        )
    plan = plan_collection(list(disks.values()), {}, 1)
    assert {(row.choice, row.bytes) for row in plan} == {(CollectionChoice.UNKNOWN_DISK, None)}
    assert set(scene.asked) == {"GET"}


def test_a_bookie_that_talks_plain_http_where_the_settings_say_tls_is_named(scene: Scene) -> None:
    scene.settings = BookieAdminSettings(request_timeout=10, tls=Tls())
    assert {one.verdict for one in scene.disks().values()} == {DiskVerdict.UNANSWERED}
    assert scene.asked == []


def test_one_that_shuts_its_door_after_the_plan_is_named_and_told_nothing(scene: Scene) -> None:
    plan = [
        PlannedCollection(bookie, "/r", CollectionChoice.COLLECT, 1 << 40, DiskVerdict.WAITS_FOR_GC)
        for bookie in (GUARDED, ENCRYPTED)
    ]
    clock, journal = FakeClock(), FakeJournal()
    with scene.bookies() as (store, admin):
        lease = control.take_lease(store, "collection", clock, 0, control.COLLECTION_LEASE)
        run = CollectionRun(
            "r", "c", CollectionSettings(), plan, lease.guard, store, admin, journal, clock, lambda _: None
        )
        found = {one.bookie: one for one in run.all()}
    assert {one.outcome for one in found.values()} == {Outcome.UNANSWERED}
    assert all(bookie in row.reason for bookie, row in zip(found, journal.rows, strict=True))
    assert "PUT" not in scene.asked
