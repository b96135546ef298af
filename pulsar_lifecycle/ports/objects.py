"""Buckets of tiered storage: objects read, uploaded in parts, listed and deleted."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_lifecycle.errors import LifecycleError

Payload = bytes | bytearray | memoryview
"""The bytes of an object or a part."""

OCTET_STREAM = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What a bucket knows of an object without its bytes; the keys of ``metadata`` (user metadata) in lower case."""

    key: str
    size: int
    etag: str
    last_modified: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """What became of one deletion: done, or nothing was there, if ``error`` is None.

    ``marker``: the bucket is versioned, and the bytes stay behind a delete marker.
    """

    key: str
    error: str | None = None
    marker: bool = False


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """An object as a listing shows it; ``etag`` without quotes."""

    key: str
    size: int
    etag: str
    last_modified: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload that the service has acknowledged; numbers start at 1."""

    number: int
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun and neither completed nor aborted: its parts take space that no object shows."""

    key: str
    upload_id: str
    initiated: int


class ObjectStore(Protocol):
    """Buckets of an S3 service; only those that the settings name, any other raises Refused. Threads may share one.

    Every method raises NotFound for a bucket that is not there, AccessDenied, and Unavailable after the configured
    tries.
    """

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        """An object's head, None where there is no such object."""
        ...

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        """:meth:`head` of many objects at once, in order; what it would raise stands in the list."""
        ...

    def get(self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = "") -> bytes:
        """The bytes [``start``, ``start + length``), or to the end; fewer only where the object ends.

        Raises NotFound for an object that is not there, Conflict when its ETag is not, or no longer, ``if_match``:
        pass the head's to read one object in several ranges. An answer that breaks off is taken up where it broke.
        """
        ...

    def stream(
        self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = ""
    ) -> Generator[bytes, None, None]:
        """:meth:`get` in pieces, as they come, by one request. Close it if it is not read to its end."""
        ...

    def list_objects(
        self, bucket: str, prefix: str = "", page: int = 1000, after: str = ""
    ) -> Iterator[list[ObjectSummary]]:
        """The objects whose key begins with ``prefix``, in pages of at most ``page``, which is at most 1000.

        In the order of their keys; ``after`` leaves out those up to it. A listing that ends before the service says
        that it is complete raises.
        """
        ...

    def put(
        self, bucket: str, key: str, data: Payload, metadata: Mapping[str, str], content_type: str = OCTET_STREAM
    ) -> str:
        """Write an object in one request, over one of that key; returns its ETag.

        Raises OutcomeUnknown when no answer tells: read its head.
        """
        ...

    def begin_upload(self, bucket: str, key: str, metadata: Mapping[str, str], content_type: str = OCTET_STREAM) -> str:
        """Begin an object in parts; returns the upload's id. :meth:`list_uploads` shows one whose answer got lost."""
        ...

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: Payload) -> Part:
        """Send part ``number`` (1 to 10,000); may be repeated, the last one counts.

        All parts but the last need 5 MiB. Several may be under way at once. ``data`` is not copied: leave it alone
        until this returns. Raises NotFound for an upload that is not there (any more).
        """
        ...

    def complete_upload(self, bucket: str, key: str, upload_id: str, parts: Sequence[Part]) -> str:
        """Make the parts one object, over one of that key; returns its ETag.

        Raises OutcomeUnknown when no answer tells: read the object's head. StoreError when a part is missing or is
        another one now, NotFound for an upload that is not there: then no object was made.
        """
        ...

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Drop an upload and its parts; one that is not there (any more) is fine.

        No part may be under way: the service may keep one that arrives afterwards.
        """
        ...

    def list_uploads(self, bucket: str, prefix: str = "", page: int = 1000) -> Iterator[list[Upload]]:
        """The uploads under way whose key begins with ``prefix``, in pages like :meth:`list_objects`."""
        ...

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        """Delete objects in batches, in order; an absent one counts as deleted.

        What could not be asked for, or was asked for without an answer, has an ``error``: read again.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
