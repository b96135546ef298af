"""Whether the objects of a copy still are what was proven whole."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.ports import ObjectHead, ObjectStore
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified


def are_whole(objects: ObjectStore, copies: Sequence[tuple[Location, Verified]]) -> list[Why | LifecycleError | None]:
    """Of each copy why its objects are not those that were verified; None when both have the same size and ETag still.

    All heads of a bucket are asked for at once. A LifecycleError where one could not be asked for.
    """
    found: dict[Location, Why | LifecycleError | None] = {}
    for bucket in dict.fromkeys(location.bucket for location, _ in copies):
        some = [(location, verified) for location, verified in copies if location.bucket == bucket]
        keys = [key for location, _ in some for key in (location.data_key, location.index_key)]
        try:
            heads = objects.head_many(bucket, keys)
        except LifecycleError as error:
            heads = [error] * len(keys)
        for (location, verified), data, index in zip(some, heads[::2], heads[1::2], strict=True):
            found[location] = _changed(location, verified, data, index)
    return [found[location] for location, _ in copies]


def _changed(
    location: Location,
    verified: Verified,
    data: ObjectHead | LifecycleError | None,
    index: ObjectHead | LifecycleError | None,
) -> Why | LifecycleError | None:
    for head, url, size, etag in (
        (data, location.data_url, verified.data_size, verified.data_etag),
        (index, location.index_url, verified.index_size, verified.index_etag),
    ):
        if isinstance(head, LifecycleError):
            return head
        if head is None:
            return Why(Code.OBJECT_MISSING, f"{url} is not there any more")
        if (head.size, head.etag) != (size, etag):
            what = f"{size} bytes with ETag {etag} were verified, found {as_told(head)}"
            return Why(Code.COPY_DIFFERS, f"{url} is another one: {what}")
    return None


def as_told(head: ObjectHead) -> str:
    """What an object store says of an object, in words."""
    return f"{head.size} with ETag {head.etag}"
