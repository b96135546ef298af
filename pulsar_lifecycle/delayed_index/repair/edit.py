"""One cursor's bucket properties exchanged for others, while no broker has its topic.

Belongs here: the order of steps. Not here: which properties (``levels.py``), which cursors and whether they may be
edited at all (``repair_work.py``).

Why it is safe. A broker that loads a topic writes the topic's z-node before it reads any cursor
(``ManagedLedgerImpl.initialize``). The topic's z-node is read first, then known to be on no broker, then the cursor is
read; the transaction writes the cursor only while both have the versions that were read. So either no broker has begun
to load the topic since, or the transaction fails. Only the properties of buckets change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from pulsar_lifecycle.errors import Conflict, NotFound, OutcomeUnknown
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.ports import MetadataStore, Node

Keys = Mapping[str, str]
"""Bucket properties: key to the decimal id of its snapshot's ledger."""


class Edited(Enum):
    """What became of an edit."""

    DONE = auto()
    CHANGED = auto()
    """The cursor has other buckets, or is another one, than what was read: nothing was written."""
    RACED = auto()
    """A broker, or somebody else, wrote topic or cursor meanwhile: nothing was written."""


@dataclass(frozen=True, slots=True)
class Edit:
    """``before`` are the bucket properties that the cursor at ``path`` has, ``after`` those that it is to have."""

    path: str
    czxid: int
    before: Keys
    after: Keys


def bucket_keys(info: cursor_format.ManagedCursorInfo) -> dict[str, str]:
    """The bucket properties of a cursor."""
    return {k: v for k, v in info.cursor_properties.items() if k.startswith(cursor_format.BUCKET_PREFIX)}


def write_keys(store: MetadataStore, edit: Edit, topic: Node, checks: Sequence[tuple[str, int]]) -> Edited:
    """Exchange the properties in one transaction that checks ``topic``, as read while no broker had it, and ``checks``.

    ``checks``: z-nodes and versions (-1: any), of the lease and of the topic's ``checked_path``. An answer that got
    lost is looked up. Raises CorruptFormat for a cursor that is none.
    """
    store.sync(edit.path)
    node = store.read([edit.path])[0]
    if not isinstance(node, Node) or node.stat.czxid != edit.czxid:
        return Edited.CHANGED
    info = cursor_format.decode(node.data)
    if bucket_keys(info) == dict(edit.after):
        return Edited.DONE
    if bucket_keys(info) != dict(edit.before):
        return Edited.CHANGED
    others = {k: v for k, v in info.cursor_properties.items() if not k.startswith(cursor_format.BUCKET_PREFIX)}
    data = cursor_format.encode(replace(info, cursor_properties={**others, **edit.after}))
    try:
        store.write(edit.path, data, node.stat.version, [(topic.path, topic.stat.version), *checks])
    except (Conflict, NotFound):
        return Edited.RACED
    except OutcomeUnknown:
        return _looked_up(store, edit)
    return Edited.DONE


def _looked_up(store: MetadataStore, edit: Edit) -> Edited:
    store.sync(edit.path)
    node = store.read([edit.path])[0]
    if not isinstance(node, Node) or node.stat.czxid != edit.czxid:
        return Edited.CHANGED
    found = bucket_keys(cursor_format.decode(node.data))
    if found == dict(edit.after):
        return Edited.DONE
    return Edited.RACED if found == dict(edit.before) else Edited.CHANGED
