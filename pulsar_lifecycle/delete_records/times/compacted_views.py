"""Whether the compacted view of a topic holds messages that a request deleted.

Belongs here: one look at the first entry of the view, which has the lowest position of all; views that brokers left
behind. Not here: what a plan refuses (``cut_rules.py``). A compaction may begin once an apply has judged its partition,
and end before the ledgers leave the list: then it has copied what was about to go. Source:
``AbstractTwoPhaseCompactor``, Pulsar 4.0.7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.request import TopicPartition
from pulsar_lifecycle.delete_records.topic_view import compacted_view
from pulsar_lifecycle.errors import LifecycleError, NotFound, Unavailable
from pulsar_lifecycle.formats import compacted_entry
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, MessagePosition, cursor_name
from pulsar_lifecycle.ports import Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan.stored_references import metadata_of
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError


def holding_views(
    ports: Ports, root: str, below: Mapping[TopicPartition, MessagePosition]
) -> dict[TopicPartition, Refusal]:
    """Topics whose compacted view has messages from ``below`` a position, or may have. One read of all cursors."""
    paths = [f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}" for topic in below]
    nodes = ports.store.read([f"{path}/{COMPACTION_CURSOR}" for path in paths])
    found: dict[TopicPartition, Refusal] = {}
    for (topic, position), path, node in zip(below.items(), paths, nodes, strict=True):
        if node is None:
            continue
        try:
            if isinstance(node, Unread):
                raise Unavailable(f"{node.path} cannot be read: {node.reason}")
            refusal = _holding(ports, root, path, node.data, position)
        except LifecycleError as error:
            text = f"whether its compacted view holds what was deleted is not known: {error}"
            refusal = Refusal.plain(RecordsError.UNREAD, text)
        if refusal:
            found[topic] = refusal
    return found


def _holding(ports: Ports, root: str, path: str, data: bytes, below: MessagePosition) -> Refusal | None:
    cursors = {COMPACTION_CURSOR: cursor_format.decode(data)}
    view = compacted_view(ports, root, path, cursors)
    if view is None:
        at = snapshot.positions(ports, root, path, cursors)[cursor_name(COMPACTION_CURSOR)]
        if MessagePosition(max(at.ledger_id, 0), at.entry_id + 1) > below:
            return None
        text = (
            "it is being compacted, perhaps since before it was deleted: wait until that has ended, or delete "
            f"subscription {COMPACTION_CURSOR}, then ask again"
        )
        return Refusal.plain(RecordsError.TIMEOUT, text)
    first = _first(ports, root, view)
    if first is None or isinstance(first, NotFound) or first >= below:
        return None
    text = (
        f"its compacted view, ledger {view}, was made while it was deleted, and holds messages from {first.entry} on: "
        "send a tombstone for each key of it, have it compacted again, then ask again"
    )
    return Refusal.plain(RecordsError.COMPACTED_VIEW, text)


def _first(ports: Ports, root: str, view: int) -> MessagePosition | NotFound | None:
    """The position of the first message of a view; None if it has none, NotFound if it is gone."""
    (metadata,) = metadata_of(ports.store, [view], root)
    if isinstance(metadata, NotFound):
        return metadata
    if isinstance(metadata, LifecycleError):
        raise metadata
    if metadata.state is LedgerState.CLOSED and metadata.last_entry_id == -1:
        return None
    (entry,) = ports.reader.read(view, metadata, 0, 0)
    first, _ = compacted_entry.decode(entry.payload)
    return MessagePosition(first.ledger_id, first.entry_id)


def left_views(
    ports: Ports,
    root: str,
    views: Mapping[TopicPartition, Collection[int]],
    below: Mapping[TopicPartition, MessagePosition],
) -> dict[TopicPartition, set[int]]:
    """Of these ``views``, those that are not their topic's any more, and have messages from ``below``, or may have."""
    found: dict[TopicPartition, set[int]] = {}
    for topic, ledgers in views.items():
        path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
        (node,) = ports.store.read([f"{path}/{COMPACTION_CURSOR}"])
        try:
            cursors = {COMPACTION_CURSOR: cursor_format.decode(node.data)} if isinstance(node, Node) else {}
            current = compacted_view(ports, root, path, cursors)
        except LifecycleError:  # of that, holding_views says that it is not known
            current = None
        found[topic] = {i for i in ledgers if i != current and not _is_above(ports, root, i, below[topic])}
    return found


def _is_above(ports: Ports, root: str, view: int, position: MessagePosition) -> bool:
    try:
        first = _first(ports, root, view)
    except LifecycleError:
        return False
    return not isinstance(first, NotFound) and (first is None or first >= position)
