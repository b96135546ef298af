"""The two objects of an offloaded ledger: their keys and what their user metadata says of where they come from.

Belongs here: names. Not here: the objects' bytes. Upstream: ``DataBlockUtils`` and ``BlobStoreManagedLedgerOffloader``
(tiered-storage-jcloud 4.0.7); jclouds stores the names of user metadata in lower case.
"""

from __future__ import annotations

from uuid import UUID

MANAGED_LEDGER_NAME = "managedledgername"
"""User metadata: the managed ledger, ``T/NS/persistent/ENC(topic)``."""
CLUSTER_NAME = "pulsarclustername"
"""User metadata: ``clusterName`` of the broker that wrote the object."""

S3_DRIVERS = frozenset({"aws-s3", "s3"})
"""Driver names (in lower case) whose objects are in an S3 service."""

_LONG = 1 << 64


def data_key(uuid: UUID, ledger_id: int) -> str:
    """``<uuid>-ledger-<id>`` (dataBlockOffloadKey)."""
    return f"{uuid}-ledger-{ledger_id}"


def index_key(uuid: UUID, ledger_id: int) -> str:
    """``<uuid>-ledger-<id>-index`` (indexBlockOffloadKey)."""
    return f"{uuid}-ledger-{ledger_id}-index"


def uuid_of(msb: int, lsb: int) -> UUID:
    """A Java UUID of two signed longs."""
    return UUID(int=(msb % _LONG) << 64 | lsb % _LONG)
