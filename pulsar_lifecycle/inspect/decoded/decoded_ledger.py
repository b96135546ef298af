"""A ledger: its metadata, its owner by its tags, its replicas, its last entry, and what refers to it now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import bookie_info, ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_SCHEMA, LedgerMetadata
from pulsar_lifecycle.inspect import explain
from pulsar_lifecycle.inspect.decoded.decoded_znode import DecodedNode, decoded_znode
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Entry, LedgerReader, MetadataStore
from pulsar_lifecycle.values.owner_names import owner_in


class ReplicaState(StrEnum):
    """How a bookie is registered."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    NOT_REGISTERED = "not registered"


@dataclass(frozen=True, slots=True)
class Replica:
    """A bookie of a ledger; ``first_entry_ids``: of the segments whose ensemble has it."""

    bookie: str
    state: ReplicaState
    first_entry_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaggedOwner:
    """Whose a ledger is by its tags; empty or None for what they do not say."""

    namespace: str
    topic: str
    component: str | None
    cursor: str | None
    schema_id: str | None


@dataclass(frozen=True, slots=True)
class FoundReference:
    """A z-node, or what it leads to, that refers to a ledger. ``kind``: a key of ``references.KINDS``."""

    kind: str
    referrer: str


@dataclass(frozen=True, slots=True)
class DecodedLedger:
    """A ledger. ``metadata``: plain data under upstream's names; ``last_entry``: None where none was ever confirmed.

    Only the owner is asked for references: ``asked`` are its z-nodes, ``not_read`` says what of them could not be read.
    """

    ledger_id: int
    shown: DecodedNode
    metadata: Mapping[str, Any]
    owner: TaggedOwner
    replicas: tuple[Replica, ...]
    under_replicated: bool
    last_entry: Entry | LifecycleError | None
    references: tuple[FoundReference, ...]
    asked: tuple[str, ...]
    not_read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokenLedger:
    """A ledger of which no metadata is known: its z-node does not decode, or is empty (half deleted)."""

    ledger_id: int
    shown: DecodedNode


def decoded_ledger(
    store: MetadataStore, reader: LedgerReader, ledger_id: int, ledgers_root: str
) -> DecodedLedger | BrokenLedger:
    """All of a ledger. Raises NotFound, AccessDenied."""
    path = ledger_path.ledger_path(ledger_id, ledgers_root)
    try:
        shown = decoded_znode(store, path, ledgers_root)
    except NotFound as error:
        raise NotFound(f"{error}: BookKeeper does not have it; explain tells what the journal knows of it") from None
    if shown.value is None or isinstance(shown.value, CorruptFormat):
        return BrokenLedger(ledger_id, shown)
    metadata = ledger_metadata.decode(shown.node.data)
    row = ledger_rows([shown.node], ledgers_root).to_pylist()[0]
    namespace, topic = owner_in(row)
    owner = TaggedOwner(namespace, topic, row["component"], row["cursor"] or row["bucket_cursor"], row["schema_id"])
    schemas = [row["schema_id"]] if topic and row["component"] == COMPONENT_SCHEMA else []
    owners = [Topic.parse(topic).managed_ledger] if topic and not schemas else []
    replicas, missing = _replicas(store, metadata, ledgers_root), _under_replicated(store, ledger_id, ledgers_root)
    last_entry = reader.last_entries([(ledger_id, metadata)])[0]
    found = explain.look(store, reader, ledger_id, owners, schemas, ledgers_root)
    references = tuple(FoundReference(one["kind"], one["referrer"]) for one in found.references.to_pylist())
    return DecodedLedger(
        ledger_id, shown, shown.value, owner, replicas, missing, last_entry, references, found.asked, found.trouble
    )


def _replicas(store: MetadataStore, metadata: LedgerMetadata, root: str) -> tuple[Replica, ...]:
    bookies = list(dict.fromkeys(b for segment in metadata.segments for b in segment.bookies))
    writable, read_only = (store.read([f"{at}/{b}" for b in bookies]) for at in bookie_info.folders(root))
    return tuple(
        Replica(
            bookie,
            ReplicaState.WRITABLE
            if up is not None
            else ReplicaState.READ_ONLY
            if ro is not None
            else ReplicaState.NOT_REGISTERED,
            tuple(s.first_entry_id for s in metadata.segments if bookie in s.bookies),
        )
        for bookie, up, ro in zip(bookies, writable, read_only, strict=True)
    )


def _under_replicated(store: MetadataStore, ledger_id: int, root: str) -> bool:
    # ZkLedgerUnderreplicationManager: the id as 16 hexadecimal digits in four levels.
    digits = f"{ledger_id:016x}"
    levels = "/".join(digits[i : i + 4] for i in range(0, 16, 4))
    return store.read([f"{root}/underreplication/ledgers/{levels}/urL{ledger_id:010d}"])[0] is not None
