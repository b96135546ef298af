"""What every ObjectStore does: tests for the fake and for the real adapter."""

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_lifecycle.errors import Conflict, NotFound, StoreError
from pulsar_lifecycle.ports import Part
from pulsar_lifecycle.values.codes import Code
from tests.kit.refused import refused_by

BUCKET = "offloaded"
GONE_BUCKET = "no-such-bucket"
PART = 5 << 20
ASKED = {
    "head": ("k",),
    "get": ("k",),
    "put": ("k", b"x", {}),
    "begin_upload": ("k", {}),
    "upload_part": ("k", "upload", 1, b"x"),
    "complete_upload": ("k", "upload", [Part(1, "0" * 32, 1)]),
    "abort_upload": ("k", "upload"),
    "list_objects": (),
    "list_uploads": (),
    "delete_many": (["k"],),
}
METADATA = {"ManagedLedgerName": "t/ns/persistent/a%2Bb", "PulsarClusterName": "c", "role": "data"}


class ObjectStoreContract:
    """What the real adapter and the fake have in common.

    Needs the fixtures ``store`` (allowed: ``BUCKET``, which is there and empty, and ``GONE_BUCKET``, which is not) and
    ``put`` (key, bytes, metadata into ``BUCKET``).
    """

    def test_a_head_has_size_etag_time_and_user_metadata_in_lower_case(self, store, put):
        put("k-ledger-1", b"x" * 1234, METADATA)
        head = store.head(BUCKET, "k-ledger-1")
        assert (head.key, head.size) == ("k-ledger-1", 1234)
        assert dict(head.metadata) == {name.lower(): value for name, value in METADATA.items()}
        assert len(head.etag) >= 32
        assert '"' not in head.etag
        assert head.last_modified > 1_500_000_000_000

    def test_what_is_not_there_is_none_and_a_missing_bucket_is_an_error(self, store):
        assert store.head(BUCKET, "nothing") is None
        with pytest.raises(NotFound, match=rf"{GONE_BUCKET}: see object_store\.endpoint"):
            store.head(GONE_BUCKET, "nothing")
        (found,) = store.head_many(GONE_BUCKET, ["nothing"])
        assert isinstance(found, NotFound)

    def test_many_heads_come_in_order(self, store, put):
        for n in range(5):
            put(f"k{n}", b"x" * n, {})
        found = store.head_many(BUCKET, ["k3", "none", "k1", "k4"])
        assert [one and one.size for one in found] == [3, None, 1, 4]
        assert store.head_many(BUCKET, []) == []

    def test_only_the_keys_named_are_deleted_and_again_is_harmless(self, store, put):
        for n in range(4):
            put(f"k{n}", b"x", {})
        keys = ["k0", "k2", "never-there"]
        for _ in range(2):
            deleted = store.delete_many(BUCKET, keys)
            assert [(one.key, one.error, one.marker) for one in deleted] == [(key, None, False) for key in keys]
        assert [one and one.key for one in store.head_many(BUCKET, ["k0", "k1", "k2", "k3"])] == [
            None,
            "k1",
            None,
            "k3",
        ]
        assert store.delete_many(BUCKET, []) == []

    def test_more_keys_than_one_request_takes(self, store, put):
        put("last", b"x", {})
        keys = [f"absent-{n}" for n in range(1500)] + ["last"]
        assert {one.error for one in store.delete_many(BUCKET, keys)} == {None}
        assert store.head(BUCKET, "last") is None

    def test_bytes_come_back_with_their_etag_and_metadata(self, store):
        data = bytes(range(256)) * 40
        etag = store.put(BUCKET, "k", data, METADATA, "application/unknown")
        head = store.head(BUCKET, "k")
        assert (head.size, head.etag, etag) == (len(data), etag, hashlib.md5(data).hexdigest())
        assert dict(head.metadata) == {name.lower(): value for name, value in METADATA.items()}
        assert store.get(BUCKET, "k") == data
        assert store.put(BUCKET, "k", b"", {}) == hashlib.md5(b"").hexdigest()
        assert store.get(BUCKET, "k") == b""

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_bytes_can_be_sent(self, store, kind):
        data = b"not this" + b"but this" * 3
        store.put(BUCKET, "k", kind(data)[8:], {})
        assert store.get(BUCKET, "k") == data[8:]

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 4, "0123"), (3, 4, "3456"), (8, 4, "89"), (6, None, "6789"), (10, 4, ""), (99, None, ""), (4, 0, "")],
    )
    def test_a_range_is_cut_where_the_object_ends(self, store, start, length, expected):
        store.put(BUCKET, "k", b"0123456789", {})
        assert store.get(BUCKET, "k", start, length) == expected.encode()
        assert b"".join(store.stream(BUCKET, "k", start, length)) == expected.encode()

    def test_ranges_of_one_object_only(self, store):
        etag = store.put(BUCKET, "k", b"0123456789", {})
        assert store.get(BUCKET, "k", 2, 3, if_match=etag) == b"234"
        store.put(BUCKET, "k", b"abcdefghij", {})
        with pytest.raises(Conflict):
            store.get(BUCKET, "k", 5, 3, if_match=etag)
        with pytest.raises(NotFound, match="absent"):
            store.get(BUCKET, "absent", 0, 4)

    def test_a_stream_is_of_one_object_and_comes_in_pieces(self, store):
        data = bytes(range(256)) * 10_000
        etag = store.put(BUCKET, "k", data, {})
        pieces = list(store.stream(BUCKET, "k", 1, if_match=etag))
        assert b"".join(pieces) == data[1:]
        assert len(pieces) == 3
        stream = store.stream(BUCKET, "k")
        assert next(stream) == data[: len(pieces[0])]
        stream.close()
        store.put(BUCKET, "k", b"abcdefghij", {})
        with pytest.raises(Conflict):
            list(store.stream(BUCKET, "k", 5, 3, if_match=etag))
        with pytest.raises(NotFound, match="absent"):
            list(store.stream(BUCKET, "absent"))

    def test_a_listing_has_each_object_once_in_pages(self, store, put):
        for n in range(5):
            put(f"p{n}", b"x" * n, {})
        put("q+ %/\u00e4", b"x", {})
        pages = list(store.list_objects(BUCKET, "p", page=2))
        assert [len(page) for page in pages] == [2, 2, 1]
        found = {one.key: one for page in pages for one in page}
        assert {key: one.size for key, one in found.items()} == {f"p{n}": n for n in range(5)}
        head = store.head(BUCKET, "p3")
        assert (found["p3"].etag, found["p3"].last_modified) == (head.etag, head.last_modified)
        assert [one.key for page in store.list_objects(BUCKET, "q") for one in page] == ["q+ %/\u00e4"]
        assert list(store.list_objects(BUCKET, "none")) == [[]]
        behind = [one.key for page in store.list_objects(BUCKET, page=2, after="p2") for one in page]
        assert behind == ["p3", "p4", "q+ %/\u00e4"]
        assert [one.key for page in store.list_objects(BUCKET, "p", after="p2") for one in page] == ["p3", "p4"]

    def test_parts_make_one_object_whatever_the_order_they_came_in(self, store):
        parts = [random.Random(n).randbytes(PART + n) for n in (1, 2)] + [b"the end"]
        upload = store.begin_upload(BUCKET, "k", METADATA, "application/unknown")
        sent = [store.upload_part(BUCKET, "k", upload, n + 1, parts[n]) for n in (2, 0, 1)]
        assert [(part.number, part.size) for part in sent] == [(3, 7), (1, PART + 1), (2, PART + 2)]
        assert store.head(BUCKET, "k") is None
        assert list(store.list_objects(BUCKET)) == [[]]
        etag = store.complete_upload(BUCKET, "k", upload, sent)
        head = store.head(BUCKET, "k")
        assert (head.etag, head.size) == (etag, 2 * PART + 10)
        assert dict(head.metadata) == {name.lower(): value for name, value in METADATA.items()}
        assert store.get(BUCKET, "k", if_match=etag) == b"".join(parts)
        assert store.get(BUCKET, "k", PART - 1, PART, etag) == b"".join(parts)[PART - 1 : 2 * PART - 1]
        assert list(store.list_uploads(BUCKET)) == [[]]

    def test_parts_may_be_sent_by_several_threads_and_again(self, store):
        data = random.Random(0).randbytes(3 * PART)
        upload = store.begin_upload(BUCKET, "k", {})
        store.upload_part(BUCKET, "k", upload, 2, b"not this")

        def send(number: int) -> Part:
            return store.upload_part(BUCKET, "k", upload, number, memoryview(data)[(number - 1) * PART : number * PART])

        with ThreadPoolExecutor(3) as threads:
            parts = list(threads.map(send, (1, 2, 3)))
        store.complete_upload(BUCKET, "k", upload, parts)
        assert store.get(BUCKET, "k") == data

    def test_an_upload_that_lacks_a_part_makes_no_object(self, store):
        upload = store.begin_upload(BUCKET, "k", {})
        first = store.upload_part(BUCKET, "k", upload, 1, b"x" * PART)
        never = Part(2, hashlib.md5(b"never sent").hexdigest(), 10)
        with pytest.raises(StoreError, match="InvalidPart"):
            store.complete_upload(BUCKET, "k", upload, [first, never])
        store.upload_part(BUCKET, "k", upload, 1, b"y" * PART)
        with pytest.raises(StoreError, match="InvalidPart"):
            store.complete_upload(BUCKET, "k", upload, [first])
        small = [store.upload_part(BUCKET, "k", upload, number, b"too small") for number in (2, 3)]
        with pytest.raises(StoreError, match="EntityTooSmall"):
            store.complete_upload(BUCKET, "k", upload, small)
        assert store.head(BUCKET, "k") is None

    def test_an_aborted_upload_is_gone(self, store):
        upload = store.begin_upload(BUCKET, "k", {})
        part = store.upload_part(BUCKET, "k", upload, 1, b"x")
        for _ in range(2):
            store.abort_upload(BUCKET, "k", upload)
        assert list(store.list_uploads(BUCKET)) == [[]]
        with pytest.raises(NotFound):
            store.complete_upload(BUCKET, "k", upload, [part])
        assert store.head(BUCKET, "k") is None

    def test_uploads_under_way_are_listed_in_pages(self, store):
        begun = {store.begin_upload(BUCKET, key, {}): key for key in ("a1", "a1", "a2", "a3", "b")}
        pages = list(store.list_uploads(BUCKET, "a", page=2))
        assert [len(page) for page in pages] == [2, 2]
        found = [one for page in pages for one in page]
        assert {one.upload_id: one.key for one in found} == {u: key for u, key in begun.items() if key != "b"}
        assert min(one.initiated for one in found) > 1_500_000_000_000
        assert len([one for page in store.list_uploads(BUCKET) for one in page]) == 5

    def test_what_no_header_can_say_is_refused_before_it_is_sent(self, store):
        with pytest.raises(StoreError, match="ASCII"):
            store.put(BUCKET, "k", b"x", {"name": "\u00e4"})
        assert store.head(BUCKET, "k") is None

    @pytest.mark.parametrize("ask", [ask for ask in ASKED if ask not in ("head", "delete_many")])
    def test_a_missing_bucket_is_named(self, store, ask):
        with pytest.raises(NotFound, match=rf"{GONE_BUCKET}: see object_store\.endpoint"):
            list(getattr(store, ask)(GONE_BUCKET, *ASKED[ask]))

    @pytest.mark.parametrize("ask", list(ASKED))
    def test_a_bucket_that_the_settings_do_not_name_is_never_asked(self, store, ask):
        with refused_by(Code.NO_BUCKET, "elsewhere"):
            getattr(store, ask)("elsewhere", *ASKED[ask])

    def test_nor_is_one_of_several_heads(self, store):
        with refused_by(Code.NO_BUCKET, "elsewhere"):
            store.head_many("elsewhere", ["k"])
