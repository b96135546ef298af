"""The two objects of an offloaded ledger: their keys and what their user metadata says of where they come from.

Belongs here: names. Not here: the objects' bytes (:mod:`offload_data`, :mod:`offload_index`). Upstream:
``DataBlockUtils`` and ``BlobStoreManagedLedgerOffloader`` (tiered-storage-jcloud 4.0.7); jclouds stores the names of
user metadata in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat

MANAGED_LEDGER_NAME = "managedledgername"
"""User metadata: the managed ledger, ``T/NS/persistent/ENC(topic)``."""
CLUSTER_NAME = "pulsarclustername"
"""User metadata: ``clusterName`` of the broker that wrote the object."""
ROLE = "role"
"""User metadata: one of :class:`Role`."""
FORMAT_VERSION = "s3managedledgeroffloaderformatversion"
"""User metadata, whatever the driver: a broker reads no object that does not say :data:`CURRENT_VERSION` here."""
SOFTWARE_VERSION = "s3managedledgeroffloadersoftwareversion"
"""User metadata: the version of what wrote the object; nobody checks it."""
SOFTWARE_GIT_SHA = "s3managedledgeroffloadersoftwaregitsha"
"""User metadata: the commit of what wrote the object; nobody checks it."""
CURRENT_VERSION = "1"

S3_DRIVERS = frozenset({"aws-s3", "s3"})
"""Driver names (in lower case) whose objects are in an S3 service."""

_LONG = 1 << 64
_KEY = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-ledger-(0|[1-9][0-9]{0,18})(-index)?", re.ASCII)


class Role(StrEnum):
    """Which of the two objects, as their user metadata has it."""

    DATA = "data"
    INDEX = "index"


CONTENT_TYPES = {Role.DATA: "application/unknown", Role.INDEX: "application/octet-stream"}
"""The Content-Type that the broker's offloader gives each."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """What the key of an object of a standard offload says."""

    uuid: UUID
    ledger_id: int
    role: Role

    def __str__(self) -> str:
        return (data_key if self.role is Role.DATA else index_key)(self.uuid, self.ledger_id)


def data_key(uuid: UUID, ledger_id: int) -> str:
    """``<uuid>-ledger-<id>`` (dataBlockOffloadKey)."""
    return f"{uuid}-ledger-{ledger_id}"


def index_key(uuid: UUID, ledger_id: int) -> str:
    """``<uuid>-ledger-<id>-index`` (indexBlockOffloadKey)."""
    return f"{uuid}-ledger-{ledger_id}-index"


def parse_key(key: str) -> ObjectKey | None:
    """The inverse of both; None for every other key, those of the streaming offload (``<uuid>[-index]``) too."""
    match = _KEY.fullmatch(key)
    if match is None or int(match[2]) >= _LONG >> 1:
        return None
    return ObjectKey(UUID(match[1]), int(match[2]), Role.INDEX if match[3] else Role.DATA)


def uuid_of(msb: int, lsb: int) -> UUID:
    """A Java UUID of two signed longs."""
    return UUID(int=(msb % _LONG) << 64 | lsb % _LONG)


def halves(uuid: UUID) -> tuple[int, int]:
    """The inverse of :func:`uuid_of`: most and least significant half, signed."""
    return _signed(uuid.int >> 64), _signed(uuid.int % _LONG)


def user_metadata(
    role: Role, *, cluster: str, managed_ledger: str, software_version: str, software_git_sha: str
) -> dict[str, str]:
    """User metadata of an object, all that the broker's offloader puts there.

    ``managed_ledger`` is ``T/NS/persistent/ENC(topic)``. Raises ValueError for what no HTTP header carries unchanged:
    empty text, anything but printable ASCII, blanks at the ends.
    """
    found = {
        MANAGED_LEDGER_NAME: managed_ledger,
        CLUSTER_NAME: cluster,
        ROLE: role.value,
        FORMAT_VERSION: CURRENT_VERSION,
        SOFTWARE_VERSION: software_version,
        SOFTWARE_GIT_SHA: software_git_sha,
    }
    for name, value in found.items():
        if not (value.isascii() and value.isprintable() and value and value == value.strip()):
            raise ValueError(f"user metadata {name}: {value!r} does not fit a header")
    return found


def check_version(metadata: Mapping[str, str]) -> None:
    """DataBlockUtils.VERSION_CHECK, which brokers apply to every GET of both objects.

    Raises CorruptFormat if the user metadata names no format version, UnsupportedFormat if it names another one.
    """
    version = metadata.get(FORMAT_VERSION)
    if version is None:
        raise CorruptFormat("offload object", 0, f"user metadata {FORMAT_VERSION}")
    if version != CURRENT_VERSION:
        raise UnsupportedFormat("offload object", 0, f"format version {CURRENT_VERSION}, found {version!r}")


def _signed(half: int) -> int:
    return half - _LONG if half >= _LONG >> 1 else half
