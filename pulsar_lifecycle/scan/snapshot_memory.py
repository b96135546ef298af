"""What a broker can know of a delayed-index snapshot that no cursor's z-node names.

Belongs here: the rule that frees such a snapshot, over what was read and answered. Not here: asking
(``scan/snapshot_inquiry.py``). Pointers of a non-durable subscription, and pointers whose write was swallowed, live in
the broker's memory only, for as long as the topic stays loaded: neither a missing cursor z-node nor a trimmed range
says that nobody needs the snapshot. Source: ManagedCursorImpl.computeCursorProperties, Bucket, ManagedLedgerImpl
(4.0.7).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import unquote_plus

import pyarrow as pa

from pulsar_lifecycle.values.tables import FINDINGS
from pulsar_lifecycle.values.topic_load import LoadState

OWNER_FACTS = pa.schema(
    [
        *FINDINGS,
        pa.field("topic_exists", pa.bool_()),
        pa.field("load_state", pa.string()),
        pa.field("compaction", pa.string()),
        pa.field("memory", pa.string()),
    ]
)
"""Pending findings joined with what is known of their topic; nulls where there is no such topic. ``memory``: what its
broker can hold of a delayed-index snapshot (:class:`Memory`), null for other components and where it rests."""

RESTING = (LoadState.UNLOADED, LoadState.NEVER_LOADED)
"""Load states in which no broker has anything of a topic in memory."""


def rests(topic_exists: bool | None, load_state: str | None) -> bool:
    """Whether no broker has anything of a topic in memory: it is gone, or at rest."""
    return not topic_exists or load_state in RESTING


RESTART_MARGIN = 3_600_000
"""By how much (ms) a broker must have started after a snapshot was made: their times come from two clocks."""


class Memory(StrEnum):
    """What the broker of a topic that counts as loaded can hold of an unreferenced snapshot."""

    NOTHING = "nothing"
    """It started after the snapshot was made, and says that the topic has no cursor of that name."""
    STORED_CURSOR = "stored_cursor"
    """Not asked: the cursor has a z-node, so it has the cursor in memory."""
    UNLISTED = "unlisted"
    """Not asked: no broker lists the topic."""
    MOVING = "moving"
    """Not asked: the topic's last ledger is not open, so it is being loaded or unloaded."""
    LOADED_BEFORE = "loaded_before"
    """Not asked: its broker is not known to have started after the snapshot was made."""
    TOO_MANY = "too_many"
    """Not asked: the scan had asked about as many topics as it may."""
    UNANSWERED = "unanswered"
    """Asked, and there was no answer that could be read."""
    HELD_CURSOR = "held_cursor"
    """It has a cursor of that name in memory."""


KEPT_BECAUSE = {
    Memory.STORED_CURSOR: "its cursor exists on a loaded topic: the broker may use this snapshot by memory alone",
    Memory.UNLISTED: "its topic counts as loaded and no broker lists it: who has it in memory cannot be asked",
    Memory.MOVING: "its topic is being loaded or unloaded: its broker cannot be asked",
    Memory.LOADED_BEFORE: "its topic is loaded, perhaps since before this snapshot was made: the broker may use it by "
    "memory alone until the topic rests or the broker was restarted",
    Memory.TOO_MANY: "its topic is loaded, and this scan asked about as many topics as it may: the next one goes on",
    Memory.UNANSWERED: "its topic is loaded, and the broker did not say which cursors it has",
    Memory.HELD_CURSOR: "its topic's broker has a cursor of that name in memory",
}
"""Why a snapshot stays, by what its topic's broker can hold."""

NOT_ASKED = "its topic counts as loaded, and its broker was not asked"
"""Why a snapshot stays of which none of these is known."""


def before_asking(
    *, stored_cursor: bool, broker: str | None, last_ledger: str | None, started: int | None, made: int | None
) -> Memory | None:
    """Why the broker of a topic that counts as loaded need not be asked about a snapshot; None: ask it.

    ``last_ledger`` is the state of the topic's last ledger, ``started`` when its broker did, ``made`` when the snapshot
    was (ms; None: not known). A broker that started later took the topic later, and whoever has it now did, too: it
    can only know snapshots that a cursor's z-node names.
    """
    if stored_cursor:
        return Memory.STORED_CURSOR
    if not broker:
        return Memory.UNLISTED
    if last_ledger != "OPEN":
        return Memory.MOVING
    if not started or not made or started <= made + RESTART_MARGIN:
        return Memory.LOADED_BEFORE
    return None


def answered(cursors: Iterable[str] | None, cursor: str) -> Memory:
    """What the names of all cursors in a broker's memory say of the snapshots of ``cursor``; None: no answer.

    A durable cursor has its subscription's name encoded, a non-durable one as it is. The tag on a snapshot has either
    decoded (Bucket.asyncSaveBucketSnapshot), so a non-durable ``a+b`` is ``a b`` there.
    """
    if cursors is None:
        return Memory.UNANSWERED
    held = any(cursor in (name, unquote_plus(name)) for name in cursors)
    return Memory.HELD_CURSOR if held else Memory.NOTHING
