import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as pb
from pulsar_lifecycle.errors import AccessDenied, NotFound, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.formats.bookie_status import Compaction, LedgerDirectory
from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.settings import BookieAdminSettings
from tests.kit.contracts.bookie_contract import BookieAdminContract
from tests.kit.fakes.bookie_admin import FakeBookieAdmin
from tests.kit.fakes.metadata_store import FakeZooKeeper

B = "rack-1:3181"
METRICS = """
# TYPE bookie_ACTIVE_LEDGER_TOTAL gauge
bookie_ACTIVE_LEDGER_TOTAL{indexDir="/i/current",ledgerDir="/d-1/ledgers/current"} 7
bookie_ACTIVE_ENTRY_LOG_TOTAL{indexDir="/i/current",ledgerDir="/d-1/ledgers/current"} 3
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/i/current",ledgerDir="/d-1/ledgers/current"} 3221225472
bookie_ledger_dir__d_1_ledgers_usage 69.5
bookie_BOOKIE_ADD_ENTRY{success="false",quantile="0.99"} 9.0
bookie_BOOKIE_ADD_ENTRY{success="true",quantile="0.99"} 2.5
jvm_memory_bytes_used{area="heap"} 1.0
"""
DETAILS = {
    "forceCompacting": False,
    "majorCompacting": True,
    "minorCompacting": False,
    "lastMajorCompactionTime": 5,
    "lastMinorCompactionTime": 6,
    "lastEntryLocationCompactionTime": 7,
    "majorCompactionCounter": 2,
    "minorCompactionCounter": 3,
    "entryLocationCompactionCounter": 1,
}
ANSWERS: dict[str, Any] = {
    "/api/v1/bookie/info": {"freeSpace": 40, "totalSpace": 100},
    "/api/v1/bookie/state": {"running": True, "readOnly": False, "shuttingDown": False},
    "/api/v1/bookie/gc": {"is_in_force_gc": "true"},
    "/api/v1/bookie/gc_details": [DETAILS],
    "/api/v1/bookie/gc/suspend_compaction": {"isMinorGcSuspended": "false", "isMajorGcSuspended": "true"},
    "/api/v1/bookie/list_disk_file?file_type=entrylog": {"entrylog files": "000004.log\t0.log\t1a.log\t2.log\t"},
    "/api/v1/config/server_config": {"gcWaitTime": "60000"},
    "/metrics": METRICS,
}


@dataclass
class Bookie:
    """One registered bookie behind a made-up network."""

    http: tuple[str, int] | None = ("0.0.0.0", 8000)  # what a bookie registers that listens everywhere
    read_only: bool = False
    settings: BookieAdminSettings = field(default_factory=BookieAdminSettings)
    answers: dict[str, Any] = field(default_factory=lambda: dict(ANSWERS))
    requests: list[httpx.Request] = field(default_factory=list)

    def open(self) -> HttpBookieAdmin:
        info = pb.BookieServiceInfoFormat()
        info.endpoints.add(id="bookie", protocol="bookie-rpc", host="bookie-1", port=3181)
        if self.http:
            info.endpoints.add(id="httpserver", protocol="http", host=self.http[0], port=self.http[1])
        store = FakeZooKeeper().session()
        store.create("/ledgers/available/readonly", parents=True)
        store.create(f"/ledgers/available/{'readonly/' if self.read_only else ''}{B}", info.SerializeToString())
        return HttpBookieAdmin(store, "/ledgers", self.settings, httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.get(request.url.raw_path.decode(), 404)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, text="why")
        return httpx.Response(200, text=answer) if isinstance(answer, str) else httpx.Response(200, json=answer)


class TestFakeBookieAdmin(BookieAdminContract):
    @pytest.fixture
    def bookie(self):
        return B

    @pytest.fixture
    def bookies(self):
        return FakeBookieAdmin(B)


def test_the_status_of_a_bookie():
    status = Bookie().open().status(B)
    assert (status.total, status.free, status.read_only, status.collecting) == (100, 40, False, True)
    assert (status.minor_suspended, status.major_suspended) == (False, True)
    assert (status.entry_log_files, status.entry_log_ids) == (3, (0, 2, 0x1A))  # the fourth is RocksDB's
    assert status.compactions == (Compaction(False, False, True, last_minor=6, last_major=5, minors=3, majors=2),)
    assert status.compactions[0].running
    assert status.directories == (LedgerDirectory("/d-1/ledgers", 3, 3 << 30, 7, 0.695),)
    assert status.add_latency_ms == 2.5
    assert status.configuration == {"gcWaitTime": "60000"}


@pytest.mark.parametrize("ends_after", range(len(ANSWERS) + 1))
def test_a_collection_that_ends_between_two_requests_is_seen_at_it_or_counted(ends_after):
    """Else one that ended well would look like one that never was."""
    bookie = Bookie()
    answer = bookie.answer

    def ends(request: httpx.Request) -> httpx.Response:
        over = len(bookie.requests) >= ends_after
        bookie.answers["/api/v1/bookie/gc"] = {"is_in_force_gc": str(not over).lower()}
        bookie.answers["/api/v1/bookie/gc_details"] = [DETAILS | {"minorCompactionCounter": 4 if over else 3}]
        bookie.answers["/metrics"] = f"""{METRICS}
bookie_THREAD_RUNTIME_count{{success="true",ledgerDir="/d-1/ledgers/current"}} {9 if over else 8}
"""
        return answer(request)

    bookie.answer = ends  # type: ignore[method-assign]
    said = bookie.open().status(B)
    assert said.directories
    counted = said.compactions[0].minors, said.directories[0].collections
    assert said.collecting or counted == (4, 9)


def test_a_bookie_without_metrics_does_not_say_what_its_directories_hold():
    bookie = Bookie()
    del bookie.answers["/metrics"]
    status = bookie.open().status(B)
    assert (status.directories, status.add_latency_ms) == (None, None)


def test_no_adds_have_no_latency():
    bookie = Bookie()
    bookie.answers["/metrics"] = METRICS.replace("2.5", "NaN")
    assert bookie.open().status(B).add_latency_ms is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_server_that_listens_everywhere_is_asked_at_the_bookies_own_host(host):
    bookie = Bookie((host, 8000))
    bookie.open().status(B)
    assert {request.url.host for request in bookie.requests} == {"bookie-1"}


@pytest.mark.parametrize(
    ("runs", "ledgers", "logs", "collected"), [(0, 0, 0, False), (0, 5, 0, False), (1, 0, 0, True), (0, 5, 3, True)]
)
def test_a_bookie_says_whether_it_has_collected_since_its_start(runs, ledgers, logs, collected):
    """Its first collection counts ledgers, then entry logs before it compacts, and as a run when it ends."""
    directory = '{indexDir="/i/current",ledgerDir="/d/current"}'
    bookie = Bookie()
    bookie.answers["/metrics"] = f"""
bookie_ACTIVE_LEDGER_TOTAL{directory} {ledgers}
bookie_ACTIVE_ENTRY_LOG_TOTAL{directory} {logs}
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{directory} 0
bookie_THREAD_RUNTIME_count{{success="false", indexDir="/i/current",ledgerDir="/d/current"}} 2
bookie_THREAD_RUNTIME_count{{success="true", indexDir="/i/current",ledgerDir="/d/current"}} {runs}
"""
    assert bookie.open().status(B).collected is collected


def test_a_server_with_a_host_of_its_own_is_asked_there():
    bookie = Bookie(("admin-1", 8001))
    bookie.open().status(B)
    assert {(request.url.host, request.url.port) for request in bookie.requests} == {("admin-1", 8001)}


def test_what_a_bookie_is_told():
    bookie = Bookie()
    for path in ("gc", "gc/suspend_compaction", "gc/resume_compaction"):
        bookie.answers[f"/api/v1/bookie/{path}"] = "done"
    admin = bookie.open()
    admin.collect(B, major=False)
    admin.collect(B, major=True)
    admin.suspend_compaction(B)
    admin.resume_compaction(B)
    assert [(r.method, r.url.path.removeprefix("/api/v1/bookie/"), json.loads(r.content)) for r in bookie.requests] == [
        ("PUT", "gc", {"forceMajor": False, "forceMinor": True}),
        ("PUT", "gc", {"forceMajor": True, "forceMinor": False}),
        ("PUT", "gc/suspend_compaction", {"suspendMinor": True, "suspendMajor": True}),
        ("PUT", "gc/resume_compaction", {"resumeMinor": True, "resumeMajor": True}),
    ]


def test_read_only_bookies_are_listed_as_such_and_asked():
    admin = Bookie(read_only=True).open()
    assert admin.bookies() == {B: True}
    assert admin.status(B).bookie == B


def test_a_bookie_without_an_http_server_is_named():
    with pytest.raises(NotFound, match=r"rack-1:3181 has no HTTP server: set httpServerEnabled=true"):
        Bookie(http=None).open().status(B)


@pytest.mark.parametrize(
    ("path", "answer", "error"),
    [
        ("/api/v1/bookie/info", 403, AccessDenied),
        ("/api/v1/bookie/info", 401, AccessDenied),
        ("/api/v1/bookie/info", 500, Unavailable),
        ("/api/v1/bookie/info", 400, StoreError),
        ("/api/v1/bookie/info", 404, StoreError),
        ("/api/v1/bookie/gc/suspend_compaction", 404, StoreError),
        ("/api/v1/bookie/info", httpx.ReadTimeout("slow"), Unavailable),
        ("/api/v1/bookie/info", "no json", StoreError),
        ("/api/v1/bookie/info", [], StoreError),
        ("/api/v1/bookie/info", {"freeSpace": "much"}, StoreError),
        ("/api/v1/bookie/state", {"readOnly": "maybe"}, StoreError),
        ("/api/v1/bookie/gc_details", [{}], StoreError),
        ("/api/v1/bookie/gc_details", [], StoreError),
        ("/api/v1/bookie/gc_details", {}, StoreError),
        ("/api/v1/config/server_config", {}, StoreError),
        ("/metrics", 500, Unavailable),
        ("/metrics", "bookie_ACTIVE_LEDGER_TOTAL{ledgerDir=\"/d\"} 7", StoreError),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_status(path, answer, error):
    bookie = Bookie()
    bookie.answers[path] = answer
    with pytest.raises(error) as caught:
        bookie.open().status(B)
    assert type(caught.value) is error


class Endless(httpx.SyncByteStream):
    """A body that goes on; ``taken``: pieces that somebody asked for."""

    def __init__(self, piece: bytes) -> None:
        self.piece, self.taken = piece, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < 1000:
            self.taken += 1
            yield self.piece


def test_an_answer_that_is_too_large_is_given_up():
    bookie, body = Bookie(), Endless(b" " * (10 << 20))
    bookie.answer = lambda _: httpx.Response(200, stream=body)  # type: ignore[method-assign]
    admin = bookie.open()
    with pytest.raises(Unavailable, match="more than 67108864 bytes"):
        admin.status(B)
    with pytest.raises(OutcomeUnknown, match="more than 67108864 bytes"):
        admin.collect(B, major=True)
    assert body.taken < 20


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-more: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", b" "),
    ],
    ids=["its head", "its body", "a body that ends with its connection"],
)
def test_an_answer_that_comes_in_drops_is_given_up(monkeypatch: pytest.MonkeyPatch, head: bytes, drop: bytes) -> None:
    """Such as one that a proxy passes on byte by byte: each byte is in time."""
    gone = Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(head)
            while not gone.wait(0.02):
                connection.sendall(drop)

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=answer, args=(listener,), daemon=True).start()
        settings = BookieAdminSettings(request_timeout=1.5)
        bookie = Bookie(http=("127.0.0.1", listener.getsockname()[1]), settings=settings)
        monkeypatch.setattr(httpx, "MockTransport", lambda _: None)
        admin = bookie.open()
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"did not end within 1\.5 s"):
            admin.status(B)
        with pytest.raises(OutcomeUnknown, match=r"did not end within 1\.5 s"):
            admin.collect(B, major=True)
        assert time.monotonic() - began < 30
        gone.set()


def test_a_lost_answer_leaves_the_outcome_of_a_command_unknown():
    bookie = Bookie()
    bookie.answers["/api/v1/bookie/gc"] = httpx.ReadTimeout("slow")
    with pytest.raises(OutcomeUnknown):
        bookie.open().collect(B, major=True)
    bookie.answers["/api/v1/bookie/gc"] = httpx.ConnectError("refused")
    with pytest.raises(Unavailable) as caught:
        bookie.open().collect(B, major=True)
    assert not isinstance(caught.value, OutcomeUnknown)
