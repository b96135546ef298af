"""Buckets in memory; passes the contract of tests/unit/io/s3/test_objects.py.

``FakeBuckets`` is the service, ``FakeObjectStore`` a client of it and ``ports.ObjectStore``. Faults are injected with
``before`` and ``after``: callables that get the method's name, the bucket and the keys (one request each) and may
raise. Unavailable raised ``after`` a deletion means that only its answer got lost.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from pulsar_lifecycle.errors import (
    Conflict,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    Refused,
    RefusedBy,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.s3.objects import PIECE_SIZE
from pulsar_lifecycle.ports import (
    OCTET_STREAM,
    Clock,
    ObjectDeletion,
    ObjectHead,
    ObjectSummary,
    Part,
    Payload,
    Upload,
)
from pulsar_lifecycle.values.codes import Code

Hook = Callable[[str, str, Sequence[str]], None]


@dataclass
class OpenUpload:
    """An upload under way: what was sent of it, by part number."""

    bucket: str
    listed: Upload
    metadata: Mapping[str, str]
    content_type: str
    parts: dict[int, bytes] = field(default_factory=dict[int, bytes])


@dataclass
class FakeBuckets:
    """``objects`` by bucket and key, ``data`` their bytes; ``versioned`` buckets keep those of what was deleted.

    ``uploads`` are those under way, by id; all parts but the last of one have at least ``part_minimum`` bytes.
    """

    clock: Clock
    objects: dict[str, dict[str, ObjectHead]] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)
    data: dict[tuple[str, str], bytes] = field(default_factory=dict)
    content_types: dict[tuple[str, str], str] = field(default_factory=dict)
    uploads: dict[str, OpenUpload] = field(default_factory=dict)
    part_minimum: int = 5 << 20
    ids: Iterator[int] = field(default_factory=count)

    def create(self, bucket: str) -> None:
        self.objects.setdefault(bucket, {})

    def put(
        self,
        bucket: str,
        key: str,
        data: bytes,
        metadata: Mapping[str, str] | None = None,
        content_type: str = OCTET_STREAM,
        etag: str = "",
    ) -> str:
        etag = etag or _md5(data)
        stored = {name.lower(): value for name, value in (metadata or {}).items()}
        self.objects[bucket][key] = ObjectHead(key, len(data), etag, self.clock.now_ms(), stored)
        self.data[bucket, key] = data
        self.content_types[bucket, key] = content_type
        return etag

    def keys(self, bucket: str) -> set[str]:
        return set(self.objects[bucket])


class FakeObjectStore:
    """Threads may share it."""

    def __init__(self, service: FakeBuckets, allowed: Sequence[str] | None = None) -> None:
        self.service = service
        self.allowed = allowed
        self.before: Hook = lambda name, bucket, keys: None
        self.after: Hook = lambda name, bucket, keys: None
        self.requests: list[tuple[str, str, tuple[str, ...]]] = []
        self._lock = threading.Lock()

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        self._ask("head", bucket, [key])
        return self.service.objects[bucket].get(key)

    def get(self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = "") -> bytes:
        self._ask("get", bucket, [key])
        head = self.service.objects[bucket].get(key)
        if head is None:
            raise NotFound(f"s3://{bucket}/{key}: there is no such object")
        if if_match and head.etag != if_match:
            raise Conflict(f"s3://{bucket}/{key}: expected ETag {if_match}, found {head.etag}")
        end = None if length is None else start + length
        return self.service.data[bucket, key][start:end]

    def stream(
        self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = ""
    ) -> Generator[bytes, None, None]:
        data = self.get(bucket, key, start, length, if_match)
        return (data[at : at + PIECE_SIZE] for at in range(0, len(data), PIECE_SIZE))

    def put(
        self, bucket: str, key: str, data: Payload, metadata: Mapping[str, str], content_type: str = OCTET_STREAM
    ) -> str:
        with self._writing("put", bucket, key):
            return self.service.put(bucket, key, bytes(data), _ascii(metadata), content_type)

    def begin_upload(self, bucket: str, key: str, metadata: Mapping[str, str], content_type: str = OCTET_STREAM) -> str:
        self._ask("begin_upload", bucket, [key])
        with self._lock:
            listed = Upload(key, f"upload-{next(self.service.ids):06}", self.service.clock.now_ms())
            self.service.uploads[listed.upload_id] = OpenUpload(bucket, listed, _ascii(metadata), content_type)
        self.after("begin_upload", bucket, [key])
        return listed.upload_id

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: Payload) -> Part:
        self._ask("upload_part", bucket, [key])
        sent = bytes(data)
        self._upload(bucket, key, upload_id).parts[number] = sent
        self.after("upload_part", bucket, [key])
        return Part(number, _md5(sent), len(sent))

    def complete_upload(self, bucket: str, key: str, upload_id: str, parts: Sequence[Part]) -> str:
        with self._writing("complete_upload", bucket, key):
            upload = self._upload(bucket, key, upload_id)
            listed = sorted(parts, key=lambda part: part.number)
            sent = [upload.parts[part.number] for part in listed if part.number in upload.parts]
            if not listed or [_md5(data) for data in sent] != [part.etag for part in listed]:
                raise StoreError(f"s3://{bucket}/{key}: InvalidPart")
            if any(len(data) < self.service.part_minimum for data in sent[:-1]):
                raise StoreError(f"s3://{bucket}/{key}: EntityTooSmall")
            etag = f"{_md5(bytes.fromhex(''.join(part.etag for part in listed)))}-{len(listed)}"
            del self.service.uploads[upload_id]
            return self.service.put(bucket, key, b"".join(sent), upload.metadata, upload.content_type, etag)

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        self._ask("abort_upload", bucket, [key])
        self.service.uploads.pop(upload_id, None)
        self.after("abort_upload", bucket, [key])

    def list_objects(
        self, bucket: str, prefix: str = "", page: int = 1000, after: str = ""
    ) -> Iterator[list[ObjectSummary]]:
        self._check(bucket)
        return self._list_objects(bucket, prefix, page, after)

    def list_uploads(self, bucket: str, prefix: str = "", page: int = 1000) -> Iterator[list[Upload]]:
        self._check(bucket)
        return self._list_uploads(bucket, prefix, page)

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        self._check(bucket)
        found: list[ObjectHead | LifecycleError | None] = []
        for key in keys:
            try:
                found.append(self.head(bucket, key))
            except LifecycleError as error:
                found.append(error)
        return found

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        try:
            self._ask("delete_many", bucket, keys)
            for key in keys:
                self.service.objects[bucket].pop(key, None)
                if bucket not in self.service.versioned:
                    self.service.data.pop((bucket, key), None)
            self.after("delete_many", bucket, keys)
        except Refused:
            raise
        except LifecycleError as error:
            return [ObjectDeletion(key, str(error)) for key in keys]
        return [ObjectDeletion(key, marker=bucket in self.service.versioned) for key in keys]

    def close(self) -> None:
        pass

    def _ask(self, name: str, bucket: str, keys: Sequence[str]) -> None:
        self._check(bucket)
        self.requests.append((name, bucket, tuple(keys)))
        self.before(name, bucket, keys)
        if bucket not in self.service.objects:
            raise NotFound(f"there is no bucket {bucket}: see object_store.endpoint and object_store.buckets")

    @contextmanager
    def _writing(self, name: str, bucket: str, key: str) -> Iterator[None]:
        try:
            self._ask(name, bucket, [key])
            yield
            self.after(name, bucket, [key])
        except Unavailable as error:
            raise OutcomeUnknown(str(error)) from error

    def _upload(self, bucket: str, key: str, upload_id: str) -> OpenUpload:
        found = self.service.uploads.get(upload_id)
        if found is None or (found.bucket, found.listed.key) != (bucket, key):
            raise NotFound(f"s3://{bucket}/{key}: there is no upload {upload_id}")
        return found

    def _list_objects(self, bucket: str, prefix: str, page: int, after: str) -> Iterator[list[ObjectSummary]]:
        while True:
            self._ask("list_objects", bucket, [prefix])
            heads = self.service.objects[bucket]
            keys = sorted(key for key in heads if key.startswith(prefix) and key > after)
            shown = [heads[key] for key in keys[:page]]
            yield [ObjectSummary(head.key, head.size, head.etag, head.last_modified) for head in shown]
            if len(keys) <= page:
                return
            after = shown[-1].key

    def _list_uploads(self, bucket: str, prefix: str, page: int) -> Iterator[list[Upload]]:
        after = ("", "")
        while True:
            self._ask("list_uploads", bucket, [prefix])
            found = [one.listed for one in self.service.uploads.values() if one.bucket == bucket]
            left = sorted(
                (one for one in found if one.key.startswith(prefix) and (one.key, one.upload_id) > after),
                key=lambda one: (one.key, one.upload_id),
            )
            yield left[:page]
            if len(left) <= page:
                return
            after = left[page - 1].key, left[page - 1].upload_id

    def _check(self, bucket: str) -> None:
        if self.allowed is not None and bucket not in self.allowed:
            raise RefusedBy(Code.NO_BUCKET, f"bucket {bucket} is not one of object_store.buckets")


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _ascii(metadata: Mapping[str, str]) -> Mapping[str, str]:
    if not all(name.isascii() and value.isascii() for name, value in metadata.items()):
        raise StoreError("user metadata may have ASCII characters only")
    return metadata
