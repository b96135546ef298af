"""What is known of offloaded copies: where brokers read them, which are asked for, begun and proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pulsar_lifecycle.formats import offload_object
from pulsar_lifecycle.formats.deletion_message import (
    PendingDeleteLedgerInfo,
)


@dataclass(frozen=True, slots=True)
class BegunAttempt:
    """An offload attempt of our own runs, by our journal: its topic, and when (ms) it last said anything of it."""

    topic: str
    last_said: int


NamespaceLocation = tuple[str, str, tuple[tuple[str, str], ...]]
"""A namespace, and by what its brokers read offloaded ledgers: driver (in lower case) and its properties."""

OffloadLocation = tuple[str, str, str, str]
"""A location of offloaded ledgers, of whatever namespace: driver (in lower case), bucket, region, endpoint."""


@dataclass(frozen=True, slots=True)
class CopyDeletion:
    """An offloaded ledger whose copy in BookKeeper our own run began to delete, and what its objects were then.

    ``czxid`` is of its z-node in BookKeeper.
    """

    topic: str
    uuid: UUID
    bucket: str
    czxid: int
    proof: Verified


class CopyNamed(StrEnum):
    """Which offloaded copy a row of the journal is about."""

    NONE = "none"
    """The ledger has none."""
    ONE = "one"
    """That of a UUID in a bucket."""
    IN_ANY_BUCKET = "in_any_bucket"
    """That of a UUID: an earlier version did not say in which bucket."""
    ANY = "any"
    """Any that the ledger has: an earlier version did not say which."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An offloaded copy that our first phase asks to be deleted; None, where its mark does not say which: any."""

    topic: str
    uuid: UUID | None = None
    bucket: str | None = None

    def asks_for(self, uuid: UUID | None, bucket: str | None) -> bool:
        """Whether this copy is asked for; None, where it is not known of which it is."""
        return self.uuid in (None, uuid) and self.bucket in (None, bucket)


def copy_of(info: PendingDeleteLedgerInfo) -> str:
    """The UUID of the offloaded copy that a message is about; empty if it is about none."""
    context = info.offload_context
    return str(offload_object.uuid_of(context.msb, context.lsb)) if context else ""


def bucket_of(info: PendingDeleteLedgerInfo) -> str:
    """The bucket where a message says that the offloaded copy is; empty if it names none."""
    return info.offload_context.metadata.get("bucket", "") if info.offload_context else ""


@dataclass(frozen=True, slots=True)
class Verified:
    """Two objects of which every byte was read, and every entry agreed with the ledger's.

    Sizes and ``length`` (of all payloads) are bytes, ``checksum`` is ``upload.digest`` of the entries.
    """

    data_size: int
    data_etag: str
    index_size: int
    index_etag: str
    entries: int
    length: int
    checksum: str


def offload_location(driver: str, metadata: Mapping[str, str]) -> OffloadLocation:
    """The location that a driver's properties name."""
    bucket, region, endpoint = (metadata.get(name, "") for name in ("bucket", "region", "serviceEndpoint"))
    return driver.lower(), bucket, region, endpoint.rstrip("/")
