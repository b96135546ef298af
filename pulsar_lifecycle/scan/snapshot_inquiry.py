"""Asking brokers which cursors they have in memory, about delayed-index snapshots that no z-node names.

Belongs here: whom a scan asks and how often, and asking. Not here: what the answer means (``scan/snapshot_memory.py``),
and what a deletion run asks (``deletion/owner_check.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_BUCKET
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node
from pulsar_lifecycle.scan import snapshot_memory
from pulsar_lifecycle.scan.snapshot_memory import Memory

MOST_ASKED = 1_000
"""Topics that one scan asks about snapshots, at most."""

PATIENCE = 10
"""Questions without an answer after which nobody is asked any more: each may have taken a request's whole timeout."""


class Inquiry:
    """Asks the owner broker of each topic once; of no more than ``most`` topics."""

    def __init__(self, store: MetadataStore, admin: BrokerAdmin, ledgers_root: str, most: int = MOST_ASKED) -> None:
        self._store, self._admin, self._root, self._most = store, admin, ledgers_root, most
        self._known: dict[str, Memory | frozenset[str]] = {}
        self._unanswered = 0

    def memory(self, topic: str, cursor: str) -> Memory:
        """What the topic's broker holds of the snapshots of ``cursor``; the topic was listed, its last ledger open."""
        if topic not in self._known:
            self._known[topic] = self._ask(topic)
        known = self._known[topic]
        return known if isinstance(known, Memory) else snapshot_memory.answered(known, cursor)

    def _ask(self, topic: str) -> Memory | frozenset[str]:
        if self._unanswered >= PATIENCE:
            return Memory.UNANSWERED
        if self._most <= 0:
            return Memory.TOO_MANY
        self._most -= 1
        try:
            parsed = Topic.parse(topic)
            if not self._still_open(parsed):
                return Memory.MOVING
            return self._admin.internal_stats(parsed).cursors
        except LifecycleError:
            self._unanswered += 1
            return Memory.UNANSWERED

    def _still_open(self, topic: Topic) -> bool:
        """A scan takes a while, and asking about a topic that was unloaded meanwhile would load it."""
        path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
        node = self._store.read([path])[0]
        if not isinstance(node, Node):
            raise CorruptFormat(path, 0, "a readable z-node")
        last = max((item.ledger_id for item in managed_ledger.decode(node.data).ledgers), default=None)
        return load_state.ledger_states(self._store, [last], self._root)[0] == "OPEN"


def with_memory(rows: Sequence[Mapping[str, Any]], inquiry: Inquiry | None, turn: int = 0) -> pa.Table:
    """The rows with the ``memory`` that they lack: ``snapshot_memory.OWNER_FACTS``.

    They have what :func:`without_asking` reads, too. No ``inquiry``: nobody is asked. Each ``turn`` but 0 asks in
    another order: topics that keep their snapshots scan after scan, or whose broker does not answer, must not use up
    all questions.
    """
    asked = sorted(rows, key=lambda row: crc32(f"{turn} {row['topic']}".encode())) if turn else rows
    return pa.Table.from_pylist(
        [{**row, "memory": _memory(row, inquiry)} for row in asked], snapshot_memory.OWNER_FACTS
    )


def _memory(row: Mapping[str, Any], inquiry: Inquiry | None) -> Memory | None:
    if not _held_perhaps(row):
        return None
    why = without_asking(row)
    if why is None:
        why = inquiry.memory(row["topic"], row["cursor"]) if inquiry else Memory.UNANSWERED
    return why


def must_ask(row: Mapping[str, Any]) -> bool:
    """Whether only its topic's broker can tell whether this is a snapshot that nobody uses."""
    return _held_perhaps(row) and without_asking(row) is None


def _held_perhaps(row: Mapping[str, Any]) -> bool:
    return row["component"] == COMPONENT_BUCKET and not snapshot_memory.rests(row["topic_exists"], row["load_state"])


def without_asking(row: Mapping[str, Any]) -> Memory | None:
    """What is known before anybody is asked (``snapshot_memory.before_asking``); None where a broker must be asked."""
    return snapshot_memory.before_asking(
        stored_cursor=bool(row["cursor_exists"]),
        broker=row["broker"],
        last_ledger=row["last_ledger_state"],
        started=row["broker_started"],
        made=row["ctime"],
    )
