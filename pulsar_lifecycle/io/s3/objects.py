"""Buckets of tiered storage over S3: ``ports.ObjectStore`` on boto3.

Belongs here: which requests make an operation, and what their answers prove. Not here: the client and its errors
(``io.s3.client``), what an object's key or metadata means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from pulsar_lifecycle.errors import Conflict, LifecycleError, NotFound, RefusedBy, StoreError, Unavailable
from pulsar_lifecycle.io.s3.client import BROKEN_OFF, Body, no_bucket, open_client, our_errors
from pulsar_lifecycle.ports import OCTET_STREAM, ObjectDeletion, ObjectHead, ObjectSummary, Part, Payload, Upload
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.values.codes import Code

DELETE_LIMIT = 1000
"""Keys of one DeleteObjects request (S3 API)."""

READ_SIZE = 8 << 20
"""Bytes that a body is read in: a range of at most this is never copied, a break loses at most this."""
PIECE_SIZE = 1 << 20
"""Bytes of a stream's piece: few enough for the processor's cache."""


class S3ObjectStore:
    """One client with its pool of connections; threads may share it."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._known: set[str] = set()
        self._client = open_client(settings)
        self._pool = ThreadPoolExecutor(settings.connections, "object-store")

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        """HeadObject; as a HEAD cannot tell a missing bucket from a missing key, the first None asks for the bucket."""
        self._check(bucket)
        try:
            with our_errors(f"s3://{bucket}/{key}", bucket):
                found = self._client.head_object(Bucket=bucket, Key=key)
        except NotFound:
            self._check_exists(bucket)
            return None
        return ObjectHead(
            key,
            found["ContentLength"],
            _etag(found),
            _ms(found["LastModified"]),
            {name.lower(): value for name, value in found.get("Metadata", {}).items()},
        )

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        """HeadObject over every connection of the pool; not of the rest, once all of these were without an answer."""
        self._check(bucket)
        unanswered: list[Unavailable] = []

        def one(key: str) -> ObjectHead | LifecycleError | None:
            seen = unanswered.copy()  # another thread may clear it
            if len(seen) >= self._settings.connections:
                return seen[-1]  # each of them took all its tries, and the next ones would
            try:
                found = self.head(bucket, key)
            except Unavailable as error:
                unanswered.append(error)
                return error
            except LifecycleError as error:
                return error
            unanswered.clear()
            return found

        return list(self._pool.map(one, keys))

    def get(self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = "") -> bytes:
        """GetObject; a body that breaks off is asked for again from there on, as often as the settings say."""
        self._check(bucket)
        pieces = list(self._stream(bucket, key, start, length, if_match, READ_SIZE))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stream(
        self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = ""
    ) -> Generator[bytes, None, None]:
        """As :meth:`get`."""
        self._check(bucket)
        return self._stream(bucket, key, start, length, if_match, PIECE_SIZE)

    def list_objects(
        self, bucket: str, prefix: str = "", page: int = 1000, after: str = ""
    ) -> Iterator[list[ObjectSummary]]:
        """ListObjectsV2."""
        self._check(bucket)
        return self._list_objects(bucket, prefix, page, after)

    def put(
        self, bucket: str, key: str, data: Payload, metadata: Mapping[str, str], content_type: str = OCTET_STREAM
    ) -> str:
        """PutObject with Content-MD5; its retries write the same bytes."""
        self._check(bucket)
        what = f"s3://{bucket}/{key}"
        body = Body(data)
        with our_errors(what, bucket, writing=True):
            answer = self._client.put_object(
                Bucket=bucket,
                Key=key,
                Body=body,
                ContentLength=body.size,
                ContentMD5=body.content_md5,
                ContentType=content_type,
                Metadata=dict(metadata),
            )
        return body.stored_as(answer, what)

    def begin_upload(self, bucket: str, key: str, metadata: Mapping[str, str], content_type: str = OCTET_STREAM) -> str:
        """CreateMultipartUpload; a retry may leave one behind."""
        self._check(bucket)
        with our_errors(f"s3://{bucket}/{key}", bucket):
            answer = self._client.create_multipart_upload(
                Bucket=bucket, Key=key, ContentType=content_type, Metadata=dict(metadata)
            )
        return answer["UploadId"]

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: Payload) -> Part:
        """UploadPart with Content-MD5."""
        self._check(bucket)
        what = f"s3://{bucket}/{key} part {number}"
        body = Body(data)
        with our_errors(what, bucket):
            answer = self._client.upload_part(
                Bucket=bucket,
                Key=key,
                UploadId=upload_id,
                PartNumber=number,
                Body=body,
                ContentLength=body.size,
                ContentMD5=body.content_md5,
            )
        return Part(number, body.stored_as(answer, what), body.size)

    def complete_upload(self, bucket: str, key: str, upload_id: str, parts: Sequence[Part]) -> str:
        """CompleteMultipartUpload; an error inside a 200 answer is one (botocore makes it a 500)."""
        self._check(bucket)
        listed = [
            {"PartNumber": part.number, "ETag": f'"{part.etag}"'}
            for part in sorted(parts, key=lambda part: part.number)
        ]
        with our_errors(f"s3://{bucket}/{key}", bucket, writing=True):
            answer = self._client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": listed}
            )
        return _etag(answer)

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """AbortMultipartUpload."""
        self._check(bucket)
        try:
            with our_errors(f"s3://{bucket}/{key}", bucket):
                self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        except NotFound:
            self._check_exists(bucket)

    def list_uploads(self, bucket: str, prefix: str = "", page: int = 1000) -> Iterator[list[Upload]]:
        """ListMultipartUploads."""
        self._check(bucket)
        return self._list_uploads(bucket, prefix, page)

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        """DeleteObjects of up to a thousand keys each; its retries are harmless."""
        self._check(bucket)
        results: list[ObjectDeletion] = []
        for start in range(0, len(keys), DELETE_LIMIT):
            batch = keys[start : start + DELETE_LIMIT]
            try:
                with our_errors(f"s3://{bucket}", bucket):
                    answer = self._client.delete_objects(
                        Bucket=bucket, Delete={"Objects": [{"Key": key} for key in batch]}
                    )
            except LifecycleError as error:
                results += [ObjectDeletion(key, str(error)) for key in batch]
                continue
            done = {one["Key"]: bool(one.get("DeleteMarker")) for one in answer.get("Deleted", [])}
            errors = {one["Key"]: f"{one.get('Code')}: {one.get('Message')}" for one in answer.get("Errors", [])}
            for key in batch:
                error = errors.get(key, None if key in done else "the answer does not name it")
                results.append(ObjectDeletion(key, error, done.get(key, False)))
        return results

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown()
        self._client.close()

    def _stream(
        self, bucket: str, key: str, start: int, length: int | None, if_match: str, size: int
    ) -> Generator[bytes, None, None]:
        """The bytes in pieces of ``size``."""
        what = f"s3://{bucket}/{key}"
        if length == 0:
            return
        at, end, broken = start, None if length is None else start + length, ""
        for _ in range(self._settings.tries):
            found = self._open(what, bucket, key, at, end, if_match)
            if found is None and at > start:
                raise Conflict(f"{what}: now ends before byte {at}, it had {end}")
            if found is None:
                return
            end, if_match = found.end, found.etag
            with closing(found.body):
                while at < end:
                    piece, broken = found.read(min(end - at, size))
                    if not piece:
                        break
                    at += len(piece)
                    yield piece
            if at == end:
                return
        tries = self._settings.tries
        raise Unavailable(f"{what}: the answer broke off at byte {at} of {end}, after {tries} tries: {broken}")

    def _open(self, what: str, bucket: str, key: str, start: int, end: int | None, if_match: str) -> _Answer | None:
        """One GetObject of [start, end), not yet read; None where the object ends before ``start``."""
        asked: dict[str, Any] = {}
        if start or end is not None:
            asked["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if if_match:
            asked["IfMatch"] = f'"{if_match}"'
        with our_errors(what, bucket):
            try:
                found = self._client.get_object(Bucket=bucket, Key=key, **asked)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 416:
                    return None
                raise
        answer = _Answer(found["Body"], start, start + found.get("ContentLength", -1), _etag(found))
        try:
            if if_match and answer.etag != if_match:
                raise Conflict(f"{what}: expected ETag {if_match}, found {answer.etag}")
            if answer.end < start:
                raise StoreError(f"{what}: the answer does not say how long it is")
            if "Range" in asked:
                answer.check_range(what, found.get("ContentRange", ""), end)
        except StoreError:
            answer.body.close()
            raise
        return answer

    def _list_objects(self, bucket: str, prefix: str, page: int, after: str) -> Iterator[list[ObjectSummary]]:
        markers = {"ContinuationToken": "NextContinuationToken"}
        begin = {"StartAfter": after} if after else {}
        for answer in _pages(self._client.list_objects_v2, bucket, prefix, markers, MaxKeys=page, **begin):
            yield [
                ObjectSummary(one["Key"], one["Size"], _etag(one), _ms(one["LastModified"]))
                for one in answer.get("Contents", [])
            ]

    def _list_uploads(self, bucket: str, prefix: str, page: int) -> Iterator[list[Upload]]:
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for answer in _pages(self._client.list_multipart_uploads, bucket, prefix, markers, MaxUploads=page):
            yield [Upload(one["Key"], one["UploadId"], _ms(one["Initiated"])) for one in answer.get("Uploads", [])]

    def _check(self, bucket: str) -> None:
        if bucket not in self._settings.buckets:
            raise RefusedBy(Code.NO_BUCKET, f"bucket {bucket} is not one of object_store.buckets")

    def _check_exists(self, bucket: str) -> None:
        if bucket in self._known:
            return
        try:
            with our_errors(f"bucket {bucket}"):
                self._client.head_bucket(Bucket=bucket)
        except NotFound:
            raise no_bucket(bucket) from None
        self._known.add(bucket)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The bytes [start, end) of an object, on their way."""

    body: Any
    start: int
    end: int
    etag: str

    def check_range(self, what: str, content_range: str, end: int | None) -> None:
        """Raises StoreError when the answer is not about [start, end), or what there is of it."""
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
        first, last, size = map(int, found.groups()) if found else (0, 0, 0)
        expected = size if end is None else min(end, size)
        if (first, last + 1) != (self.start, expected) or self.end != expected:
            raise StoreError(
                f"{what}: asked for bytes {self.start}-{'' if end is None else end - 1}, "
                f"the answer has {self.end - self.start} and calls them {content_range!r}"
            )

    def read(self, size: int) -> tuple[bytes, str]:
        """The next bytes, or none and why."""
        try:
            piece = self.body.read(size)
        except BROKEN_OFF as error:
            return b"", str(error)
        return piece, "" if piece else "the connection was closed"


def _pages(
    ask: Callable[..., dict[str, Any]], bucket: str, prefix: str, markers: dict[str, str], **limit: int | str
) -> Iterator[dict[str, Any]]:
    """A listing's answers; ``markers``: parameters of the next request and where the answer has them."""
    what = f"listing s3://{bucket}/{prefix}"
    where: dict[str, Any] = {}
    while True:
        with our_errors(what, bucket):
            answer = ask(Bucket=bucket, Prefix=prefix, **limit, **where)
        yield answer
        if not answer.get("IsTruncated"):
            return
        following = {name: answer[found] for name, found in markers.items() if answer.get(found)}
        if not following or following == where:
            raise StoreError(f"{what}: there is more, and the answer does not say where it goes on")
        where = following


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
