"""Which closed ledgers an order means: given by id, or those of a topic or a namespace that are still in BookKeeper.

Belongs here: finding them in the metadata store, and saying which were left out and why. Not here: reading their
entries (``ports.LedgerReader``). Looking loads no topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import CorruptFormat, NotFound, Unavailable, UsageError
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.metastore import walk
from pulsar_lifecycle.model import PARTITION_SUFFIX, Namespace, Topic
from pulsar_lifecycle.ports import Children, MetadataStore, Node, Unread

MAX_RANGE = 1_000_000
"""Ids that may be named as ranges."""
_RANGE = re.compile(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?")


@dataclass(frozen=True)
class ClosedLedgers:
    """Ledgers in the order asked for, and by id why others are not among them.

    ``topics``: the z-nodes' paths of those that list them, by id, where they were asked for by topic.
    """

    ledgers: tuple[tuple[int, LedgerMetadata], ...]
    left_out: Mapping[int, str]
    topics: Mapping[int, str] = field(default_factory=dict[int, str])


def by_id(store: MetadataStore, text: str, root: str = "/ledgers") -> ClosedLedgers:
    """``3,5-9``: of a range, the ledgers that there are and that are closed; an id by itself must be one.

    Raises NotFound, CorruptFormat, Unavailable, and UsageError for text of another form and for an open ledger.
    """
    single: list[int] = []
    wanted: dict[int, None] = {}
    for item in text.split(","):
        found = _RANGE.fullmatch(item)
        if found is None or (found[2] and int(found[2]) < int(found[1])):
            raise UsageError(f"ledgers: expected ids and ranges such as 3,5-9, found {item.strip()!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if len(wanted) + last - first >= MAX_RANGE:
            raise UsageError(f"ledgers: more than {MAX_RANGE:,} ids")
        if not found[2]:
            single.append(first)
        wanted.update(dict.fromkeys(range(first, last + 1)))
    chosen, absent = _closed(store, list(wanted), root)
    for ledger_id in single:
        if ledger_id in absent:
            raise NotFound(f"ledger {ledger_id}: it has no z-node")
        if ledger_id in chosen.left_out:
            raise UsageError(f"ledger {ledger_id}: {chosen.left_out[ledger_id]}")
    return chosen


def of_topic(store: MetadataStore, topic: Topic, root: str = "/ledgers") -> ClosedLedgers:
    """The ledgers of a topic, or of all partitions of a partitioned one; what is being written is left out.

    Raises NotFound for a topic that is not there, or that lists a ledger which is not; CorruptFormat, Unavailable.
    """
    return _of_nodes(store, paths_of(store, topic), root)


def of_namespace(store: MetadataStore, namespace: Namespace, root: str = "/ledgers") -> ClosedLedgers:
    """The ledgers of all topics of a namespace, as :func:`of_topic`; NotFound for one that never had a topic."""
    return _of_nodes(store, paths_of(store, namespace), root)


def paths_of(store: MetadataStore, owner: Topic | Namespace) -> list[str]:
    """The z-nodes of a topic and its partitions, or of all topics of a namespace, in order; raises NotFound."""
    if isinstance(owner, Namespace):
        parent = f"{walk.MANAGED_LEDGERS_ROOT}/{owner}/persistent"
        return [f"{parent}/{name}" for name in sorted(_children(store, parent))]
    parent, _, own = f"{walk.MANAGED_LEDGERS_ROOT}/{owner.managed_ledger}".rpartition("/")
    partition = re.compile(re.escape(own) + PARTITION_SUFFIX)
    names = [name for name in _children(store, parent) if name == own or partition.fullmatch(name)]
    if not names:
        raise NotFound(f"topic {owner}: it has no z-node below {parent}")
    return [f"{parent}/{name}" for name in sorted(names, key=lambda n: (len(n), n))]


def read_nodes(store: MetadataStore, paths: Sequence[str]) -> Iterator[tuple[str, Node | None]]:
    """Each path with its z-node, None where there is none (any more); raises Unavailable for one that is not shown."""
    for path, node in zip(paths, store.read(paths), strict=True):
        if isinstance(node, Unread):
            raise Unavailable(f"{path}: {node.reason}")
        yield path, node


_OFFLOADED = "only its offloaded copy is left"


def _children(store: MetadataStore, path: str) -> Sequence[str]:
    (found,) = store.children([path])
    if found is None:
        raise NotFound(f"{path}: there is no such z-node")
    if not isinstance(found, Children):
        raise Unavailable(f"{path}: {found.reason}")
    return found.names


def _of_nodes(store: MetadataStore, paths: Sequence[str], root: str) -> ClosedLedgers:
    listed: dict[int, str] = {}
    offloaded: dict[int, str] = {}
    for path, node in read_nodes(store, paths):
        if node is None:  # deleted since it was listed
            continue
        for info in managed_ledger.decode(node.data).ledgers:
            if info.offload and info.offload.complete and info.offload.bookkeeper_deleted:
                offloaded[info.ledger_id] = _OFFLOADED
            else:
                listed[info.ledger_id] = path
    chosen, absent = _closed(store, list(listed), root)
    for ledger_id in absent:
        raise NotFound(f"ledger {ledger_id}, which {listed[ledger_id]} lists: it has no z-node")
    return ClosedLedgers(chosen.ledgers, {**chosen.left_out, **offloaded}, listed)


def _closed(store: MetadataStore, ids: Sequence[int], root: str) -> tuple[ClosedLedgers, list[int]]:
    """Those that are closed, and why others are not among them; and those that have no z-node."""
    ledgers: list[tuple[int, LedgerMetadata]] = []
    left_out: dict[int, str] = {}
    absent: list[int] = []
    for (path, node), ledger_id in zip(
        read_nodes(store, [ledger_path.ledger_path(i, root) for i in ids]), ids, strict=True
    ):
        if node is None:
            absent.append(ledger_id)
            continue
        try:
            metadata = ledger_metadata.decode(node.data)
        except CorruptFormat as error:
            raise CorruptFormat(path, error.offset, error.expected) from error
        if metadata.state != LedgerState.CLOSED:
            left_out[ledger_id] = f"it is {metadata.state.name}: only closed ledgers are read"
        else:
            ledgers.append((ledger_id, metadata))
    return ClosedLedgers(tuple(ledgers), left_out), absent
