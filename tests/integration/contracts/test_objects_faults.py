"""The object store over a network that cuts, loses, delays and refuses, in front of the sandbox's S3 server."""

import hashlib
import random
from collections.abc import Callable, Iterator

import pytest

from pulsar_lifecycle.errors import AccessDenied, Conflict, NotFound, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.io.s3.objects import PIECE_SIZE, READ_SIZE, S3ObjectStore
from tests.kit.contracts.object_contract import ASKED, BUCKET, PART
from tests.kit.fakes.http_proxy import Answer, CutAnswer, CutRequest, FaultyHttpProxy, Hang, Replace

pytestmark = pytest.mark.integration

SLOW_DOWN = Answer(503, "<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>")
DATA = random.Random(0).randbytes(READ_SIZE + 5000)


@pytest.fixture
def proxy(service) -> Iterator[FaultyHttpProxy]:
    with FaultyHttpProxy(service["endpoint"]) as running:
        yield running


@pytest.fixture
def through(proxy, open_store, s3) -> Callable[..., S3ObjectStore]:
    """Makes stores that reach the server through the proxy; the bucket holds ``k`` and no upload."""
    if BUCKET not in {found["Name"] for found in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    s3.delete_object(Bucket=BUCKET, Key="new")
    for found in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        s3.abort_multipart_upload(Bucket=BUCKET, Key=found["Key"], UploadId=found["UploadId"])

    def make(**changes):
        return open_store(endpoint=f"http://127.0.0.1:{proxy.port}", **{"tries": 3, "addressing": "path"} | changes)

    return make


def asked(proxy: FaultyHttpProxy, method: str) -> int:
    return [method for method, _ in proxy.seen].count(method)


# ------------------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("after", [0, 1, 70_000, READ_SIZE, READ_SIZE + 4998])
def test_a_body_that_breaks_off_is_taken_up_where_it_broke(proxy, through, after):
    store = through()
    proxy.next(CutAnswer(after), "GET", times=2)
    assert store.get(BUCKET, "k", 1) == DATA[1:]
    assert asked(proxy, "GET") >= 2


@pytest.mark.parametrize("after", [0, 1, PIECE_SIZE, PIECE_SIZE + 70_000])
def test_nor_does_a_stream_lose_anything(proxy, through, after):
    store = through()
    proxy.next(CutAnswer(after), "GET", times=2)
    assert b"".join(store.stream(BUCKET, "k", 1, 3 * PIECE_SIZE)) == DATA[1 : 3 * PIECE_SIZE + 1]
    assert asked(proxy, "GET") >= 2


def test_only_so_often(proxy, through):
    proxy.next(CutAnswer(100), "GET", times=9)
    with pytest.raises(Unavailable, match="broke off at byte 310 of 1010"):
        through().get(BUCKET, "k", 10, 1000)
    assert asked(proxy, "GET") == 3


def test_an_object_replaced_between_two_tries_is_not_mixed(proxy, through, s3):
    store = through()
    proxy.next(CutAnswer(100), "GET")
    answer = proxy.fault

    def replaced(method, url):
        if asked(proxy, "GET"):
            s3.put_object(Bucket=BUCKET, Key="k", Body=b"other" * 300)
        return answer(method, url)

    proxy.fault = replaced
    with pytest.raises(Conflict, match="PreconditionFailed"):
        store.get(BUCKET, "k", 0, 1000)


def test_nor_is_one_that_is_too_short_now(proxy, through):
    proxy.next(CutAnswer(100), "GET")
    proxy.next(Answer(416, "<Error><Code>InvalidRange</Code></Error>"), "GET")
    with pytest.raises(Conflict, match="ends before byte 100"):
        through().get(BUCKET, "k", 0, 1000)


def test_a_server_that_ignores_ranges_is_found_out(proxy, through):
    proxy.next(Replace(200, "the whole object"), "GET")
    with pytest.raises(StoreError, match="asked for bytes 4-7"):
        through().get(BUCKET, "k", 4, 4)


def test_a_server_that_is_slow_for_a_while_is_asked_again_and_one_that_stays_so_is_unavailable(proxy, through):
    store = through(read_timeout=5)
    proxy.next(Hang(), "GET")
    assert store.get(BUCKET, "k", 0, 10) == DATA[:10]
    proxy.next(Hang(), "GET", times=9)
    with pytest.raises(Unavailable):
        store.get(BUCKET, "k", 0, 10)
    assert asked(proxy, "GET") == 2 + 3


# ------------------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, CutRequest(0), CutRequest(100_000), Replace(0), Replace(500)], ids=lambda fault: str(fault)
)
@pytest.mark.parametrize("sign_payload", [True, False])
def test_what_got_lost_twice_is_sent_whole_the_third_time(proxy, through, fault, sign_payload):
    store = through(sign_payload=sign_payload)
    proxy.next(fault, "PUT", times=2)
    etag = store.put(BUCKET, "new", memoryview(DATA), {})
    assert store.get(BUCKET, "new", if_match=etag) == DATA
    upload = store.begin_upload(BUCKET, "new", {})
    proxy.next(fault, "PUT", "partNumber=2", times=2)
    parts = [store.upload_part(BUCKET, "new", upload, n, bytes([n]) * PART) for n in (1, 2)]
    store.complete_upload(BUCKET, "new", upload, parts)
    assert store.get(BUCKET, "new") == b"\1" * PART + b"\2" * PART
    assert asked(proxy, "PUT") == 3 + 1 + 3


def test_a_write_without_an_answer_says_so(proxy, through):
    store = through()
    proxy.next(Replace(0), "PUT", times=9)
    with pytest.raises(OutcomeUnknown):
        store.put(BUCKET, "new", b"x" * 100, {})
    assert store.head(BUCKET, "new").size == 100
    with pytest.raises(Unavailable) as raised:
        store.upload_part(BUCKET, "new", "any", 1, b"x")
    assert not isinstance(raised.value, OutcomeUnknown)


def test_a_service_that_stores_other_bytes_is_found_out(proxy, through):
    store = through()
    answer = proxy.fault
    wrong = hashlib.md5(b"wrong").hexdigest()
    proxy.fault = lambda method, url: answer(method, url) or (Answer(200, "") if method == "PUT" else None)
    assert store.put(BUCKET, "new", b"right", {}) == ""
    store._client.meta.events.register(
        "after-call.s3.UploadPart", lambda parsed, **_: parsed.__setitem__("ETag", f'"{wrong}"')
    )
    with pytest.raises(StoreError, match=wrong):
        store.upload_part(BUCKET, "new", "any", 1, b"right")


def parts_of(store: S3ObjectStore, upload: str) -> list:
    return [store.upload_part(BUCKET, "new", upload, n, bytes([n]) * PART) for n in (1, 2)]


def test_a_completion_whose_answer_is_lost_is_asked_again_and_never_called_a_failure(proxy, through):
    store = through()
    upload = store.begin_upload(BUCKET, "new", {})
    parts = parts_of(store, upload)
    proxy.next(Replace(0), "POST", "uploadId=")
    etag = store.complete_upload(BUCKET, "new", upload, parts)
    assert store.get(BUCKET, "new", if_match=etag) == b"\1" * PART + b"\2" * PART

    upload = store.begin_upload(BUCKET, "new", {})
    parts = parts_of(store, upload)
    proxy.next(Replace(0), "POST", "uploadId=", times=3)
    with pytest.raises(OutcomeUnknown):
        store.complete_upload(BUCKET, "new", upload, parts)
    assert store.head(BUCKET, "new").size == 2 * PART


def test_an_upload_that_only_the_second_try_misses_may_have_been_completed_by_the_first(proxy, through):
    store = through()
    gone = Answer(404, "<Error><Code>NoSuchUpload</Code></Error>")
    proxy.next(gone, "POST", "uploadId=")
    with pytest.raises(NotFound):
        store.complete_upload(BUCKET, "new", "any", ASKED["complete_upload"][2])
    proxy.next(Replace(0), "POST", "uploadId=")
    proxy.next(gone, "POST", "uploadId=")
    with pytest.raises(OutcomeUnknown, match="NoSuchUpload"):
        store.complete_upload(BUCKET, "new", "any", ASKED["complete_upload"][2])


def test_an_error_inside_a_good_answer_is_an_error(proxy, through):
    store = through()
    upload = store.begin_upload(BUCKET, "new", {})
    parts = parts_of(store, upload)
    proxy.next(Answer(200, "<Error><Code>InternalError</Code><Message>Try again</Message></Error>"), "POST", times=2)
    store.complete_upload(BUCKET, "new", upload, parts)
    assert asked(proxy, "POST") == 1 + 3
    proxy.next(Answer(200, "<Error><Code>InternalError</Code><Message>Try again</Message></Error>"), "POST", times=9)
    with pytest.raises(OutcomeUnknown, match="InternalError"):
        store.complete_upload(BUCKET, "new", upload, parts)


def test_a_part_that_the_service_lost_fails_the_upload_for_good(proxy, through):
    store = through()
    upload = store.begin_upload(BUCKET, "new", {})
    parts = parts_of(store, upload)
    proxy.next(Answer(200, ""), "PUT", "partNumber=3")
    swallowed = store.upload_part(BUCKET, "new", upload, 3, b"never arrives")
    assert swallowed.etag == ""
    with pytest.raises(StoreError, match="InvalidPart") as raised:
        store.complete_upload(BUCKET, "new", upload, [*parts, swallowed])
    assert not isinstance(raised.value, Unavailable)
    assert store.head(BUCKET, "new") is None
    assert [one.upload_id for page in store.list_uploads(BUCKET) for one in page] == [upload]
    store.abort_upload(BUCKET, "new", upload)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("ask", [ask for ask in ASKED if ask != "delete_many"])
def test_wrong_credentials_are_denied_and_shown_nowhere(service, through, ask):
    store = through(secret="wrong-secret")
    with pytest.raises(AccessDenied) as raised:
        list(getattr(store, ask)(BUCKET, *ASKED[ask]))
    assert "wrong-secret" not in str(raised.value)
    assert service["secret_key"] not in str(raised.value)


def test_a_large_part_with_wrong_credentials_is_denied_before_it_is_sent(proxy, through):
    store = through(secret="wrong-secret")
    with pytest.raises(AccessDenied):
        store.upload_part(BUCKET, "new", "any", 1, DATA)
    assert asked(proxy, "PUT") == 1


@pytest.mark.parametrize("ask", [ask for ask in ASKED if ask != "delete_many"])
def test_a_service_that_asks_for_less_is_unavailable_after_the_tries(proxy, through, ask):
    method = {"head": "HEAD", "put": "PUT", "upload_part": "PUT", "abort_upload": "DELETE"}.get(ask, "GET")
    if ask in ("begin_upload", "complete_upload"):
        method = "POST"
    proxy.next(SLOW_DOWN, method, times=9)
    store = through(tries=2)
    with pytest.raises(Unavailable, match=r"SlowDown|503"):
        list(getattr(store, ask)(BUCKET, *ASKED[ask]))
    assert asked(proxy, method) == 2


def test_a_listing_that_is_cut_short_is_not_taken_for_whole(proxy, through):
    store = through()
    store.put(BUCKET, "new", b"x", {})
    proxy.next(Answer(200, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"), "GET")
    pages = store.list_objects(BUCKET)
    assert next(pages) == []
    with pytest.raises(StoreError, match="there is more"):
        next(pages)
    proxy.next(SLOW_DOWN, "GET", "continuation-token", times=9)
    pages = store.list_objects(BUCKET, page=1)
    assert len(next(pages)) == 1
    with pytest.raises(Unavailable):
        next(pages)
