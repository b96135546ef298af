"""What ``inspect delayed`` prints. Not here: reading and judging (``inspect/decoded/delayed.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.inspect.decoded.delayed import DecodedIndex, FoundSubscription

_TIMES = ("first_due", "last_due", "due", "hour")
_SIZES = ("bytes", "memory_bytes", "stored_bytes", "shared_memory_bytes", "shared_stored_bytes")
_LEFT_OUT = ("topic", "namespace", "start_ledger_id", "end_ledger_id")
"""The same in all rows, or what the bucket's key says, too."""


def print_index(found: DecodedIndex) -> None:
    """Subscriptions first: what was not read is no proof that nothing is wrong."""
    names = found.subscriptions
    show.text(f"subscriptions ({len(names)})", "bold cyan")
    show.table(["subscription", "buckets", "read"], [_subscription(one) for one in names], 2)
    unread = sum(not one.read for one in names)
    if unread:
        show.text(
            f"  not read: {unread}. Without buckets, brokers keep the delayed messages in memory alone; --whole reads "
            "the topic's entries for these subscriptions, too.",
            "bold yellow",
        )
    parts = (("buckets", found.buckets), ("findings", found.findings), ("due", found.due), ("capacity", found.capacity))
    for part, rows in parts:
        if rows:
            show.text(f"{part} ({len(rows)})", "bold cyan")
            show.documents([_shown(row) for row in rows], 2)
    if not found.findings:
        show.text("Nothing is wrong with what was read." if unread < len(names) else "Nothing was read.")


def _subscription(one: FoundSubscription) -> list[Any]:
    return [one.name, one.buckets, "yes" if one.read else "no"]


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
