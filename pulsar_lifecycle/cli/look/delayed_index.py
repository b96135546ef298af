"""What ``inspect delayed`` prints. Not here: reading and judging (``inspect/delayed.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_lifecycle.cli import show

_TIMES = ("first_due", "last_due", "due", "hour")
_SIZES = ("bytes", "memory_bytes", "stored_bytes", "shared_memory_bytes", "shared_stored_bytes")
_LEFT_OUT = ("start_ledger_id", "end_ledger_id")
"""The bucket's key says them, too."""

Documents = Sequence[Mapping[str, Any]]


def print_index(document: Mapping[str, Documents]) -> None:
    """Subscriptions first: what was not read is no proof that nothing is wrong."""
    names = document["subscriptions"]
    show.text(f"subscriptions ({len(names)})", "bold cyan")
    show.table(["subscription", "buckets", "read"], [_subscription(one) for one in names], 2)
    unread = sum(not one["read"] for one in names)
    if unread:
        show.text(
            f"  not read: {unread}. Without buckets, brokers keep the delayed messages in memory alone; --whole reads "
            "the topic's entries for these subscriptions, too.",
            "bold yellow",
        )
    for part in ("buckets", "findings", "due", "capacity"):
        if not (rows := document[part]):
            continue
        show.text(f"{part} ({len(rows)})", "bold cyan")
        show.documents([_shown(row) for row in rows], 2)
    if not document["findings"]:
        show.text("Nothing is wrong with what was read." if unread < len(names) else "Nothing was read.")


def _subscription(one: Mapping[str, Any]) -> list[Any]:
    return [one["subscription"], one["buckets"], "yes" if one["read"] else "no"]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Times and sizes for people; keys without what all begin with."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or name in _LEFT_OUT:
            continue
        if name in _TIMES:
            found[name] = show.moment(value)
        elif name in _SIZES:
            found[name] = show.size(value)
        else:
            found[name] = value
    return found
