"""What a bucket says and loses, on the fake here and on a real S3 server in tests/integration; errors by class."""

import base64
import hashlib
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from pulsar_lifecycle.errors import AccessDenied, ConfigError, StoreError, Unavailable
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.setting_types import SecretRef
from pulsar_lifecycle.settings import ObjectStoreSettings
from tests.kit.contracts.object_contract import BUCKET, GONE_BUCKET, ObjectStoreContract
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore


class TestFakeObjectStore(ObjectStoreContract):
    @pytest.fixture
    def service(self):
        service = FakeBuckets(FakeClock())
        service.create(BUCKET)
        return service

    @pytest.fixture
    def store(self, service):
        return FakeObjectStore(service, [BUCKET, GONE_BUCKET])

    @pytest.fixture
    def put(self, service):
        return lambda key, data, metadata: service.put(BUCKET, key, data, metadata)


# --------------------------------------------------------------------------------------- answers that no server gives


class Answers(BaseHTTPRequestHandler):
    """Whatever the test tells it to say."""

    protocol_version = "HTTP/1.1"  # which knows "Expect: 100-continue"
    answer: tuple[int, str] = (200, "")
    seen: list[tuple[str, str, dict[str, str], bytes]]

    def _say(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        status, text = self.server.answer
        if status == 0:
            self.close_connection = True
            return
        data = b"" if self.command == "HEAD" else text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    do_HEAD = do_POST = do_GET = do_PUT = _say  # noqa: N815 - the names that http.server calls

    def log_message(self, *args: object) -> None:
        pass

    def handle_error(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *args: None
    server.seen, server.answer = [], (200, "")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def settings(port: int, **changes: object) -> ObjectStoreSettings:
    values = {
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key": {"env": "TEST_S3_ACCESS"},
        "secret_key": {"env": "TEST_S3_SECRET"},
        "buckets": (BUCKET,),
        "addressing": "path",
        "tries": 1,
        "read_timeout": 5,
    }
    return ObjectStoreSettings.model_validate(values | changes)


@pytest.fixture
def open_store(monkeypatch):
    monkeypatch.setenv("TEST_S3_ACCESS", "access")
    monkeypatch.setenv("TEST_S3_SECRET", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    stores = []

    def make(*args, **changes):
        stores.append(S3ObjectStore(settings(*args, **changes)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


ERRORS = [
    (403, "AccessDenied", AccessDenied),
    (401, "InvalidAccessKeyId", AccessDenied),
    (503, "SlowDown", Unavailable),
    (500, "InternalError", Unavailable),
    (502, "BadGateway", Unavailable),
    (429, "TooManyRequests", Unavailable),
    (400, "InvalidRequest", StoreError),
]


@pytest.mark.parametrize(("status", "code", "error"), ERRORS)
def test_a_vendor_error_becomes_ours(server, open_store, status, code, error):
    server.answer = status, f"<Error><Code>{code}</Code><Message>because</Message></Error>"
    store = open_store(server.server_port)
    with pytest.raises(error) as raised:
        store.head(BUCKET, "k")
    assert type(raised.value) is error
    (one,) = store.delete_many(BUCKET, ["k"])
    assert code in one.error


def test_no_answer_is_unavailable_and_a_deletion_without_one_has_an_error(server, open_store):
    server.answer = 0, ""
    store = open_store(server.server_port)
    with pytest.raises(Unavailable):
        store.head(BUCKET, "k")
    assert store.delete_many(BUCKET, ["k"])[0].error
    closed = open_store(9)
    with pytest.raises(Unavailable):
        closed.head(BUCKET, "k")


def test_a_service_that_does_not_answer_is_not_asked_for_each_of_many_keys(server, open_store):
    server.answer = 0, ""
    store = open_store(server.server_port, connections=4)
    found = store.head_many(BUCKET, [f"k{number}" for number in range(100)])
    assert {type(one) for one in found} == {Unavailable}
    assert len(found) == 100
    assert 4 <= len(server.seen) < 8


def test_requests_go_where_the_settings_say_and_are_retried_as_often(server, open_store):
    server.answer = 503, "<Error><Code>SlowDown</Code></Error>"
    store = open_store(server.server_port, tries=2)
    with pytest.raises(Unavailable):
        store.head(BUCKET, "k")
    assert [(command, path) for command, path, _, _ in server.seen] == [("HEAD", f"/{BUCKET}/k")] * 2


def test_each_key_of_a_deletion_has_its_own_outcome(server, open_store):
    server.answer = (
        200,
        "<DeleteResult><Deleted><Key>a</Key></Deleted>"
        "<Deleted><Key>b</Key><DeleteMarker>true</DeleteMarker></Deleted>"
        "<Error><Key>c</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>",
    )
    deleted = open_store(server.server_port).delete_many(BUCKET, ["a", "b", "c", "d"])
    assert [(one.key, one.marker) for one in deleted] == [("a", False), ("b", True), ("c", False), ("d", False)]
    assert [one.error for one in deleted] == [None, None, "AccessDenied: no", "the answer does not name it"]
    ((_, _, headers, _),) = server.seen
    assert headers["Content-MD5"]


@pytest.mark.parametrize(
    ("sign", "signed"), [(True, hashlib.sha256(b"bytes").hexdigest()), (False, "UNSIGNED-PAYLOAD")]
)
def test_an_upload_carries_its_md5_signed_and_no_checksum_that_not_every_service_knows(
    server, open_store, sign, signed
):
    store = open_store(server.server_port, sign_payload=sign)
    store.put(BUCKET, "k", b"bytes", {})
    store.upload_part(BUCKET, "k", "upload", 1, b"bytes")
    for _, _, headers, body in server.seen:
        known = {name.lower(): value for name, value in headers.items()}
        assert body == b"bytes"
        assert base64.b64decode(known["content-md5"]) == hashlib.md5(b"bytes").digest()
        assert "content-md5" in known["authorization"]
        assert known["x-amz-content-sha256"] == signed
        assert not [
            name for name in known if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer"))
        ]
        assert "transfer-encoding" not in known


def test_a_secret_that_is_not_there_is_named(monkeypatch):
    monkeypatch.delenv("TEST_S3_ACCESS", raising=False)
    with pytest.raises(ConfigError, match=r"object_store\.access_key"):
        S3ObjectStore(settings(1))


@pytest.mark.parametrize(
    "wrong", [{"access_key": None}, {"buckets": ()}, {"endpoint": "127.0.0.1:1"}, {"endpoint": "http://h/path"}]
)
def test_settings_that_cannot_be_right_are_refused(wrong):
    with pytest.raises(ValidationError):
        settings(1, **wrong)


def test_secrets_show_nowhere(open_store, server):
    store = open_store(server.server_port)
    server.answer = 403, "<Error><Code>AccessDenied</Code></Error>"
    with pytest.raises(AccessDenied) as raised:
        store.head(BUCKET, "k")
    shown = io.StringIO()
    print(repr(store.__dict__.get("_settings")), raised.value, file=shown)
    assert "secret'" not in shown.getvalue().replace("TEST_S3_SECRET'", "")
    assert isinstance(settings(1).secret_key, SecretRef)
