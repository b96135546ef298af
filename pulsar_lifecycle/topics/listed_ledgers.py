"""A ledger as its topic lists it: its offloaded copy, and the attempt that is open on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.codes import Code, Why


@dataclass(frozen=True, slots=True)
class Copy:
    """The BookKeeper copy of a ledger, by its z-node: ``row`` is of ``tables.BOOKKEEPER_LEDGERS``, None if absent.

    ``problem`` says why a deletion run would keep it; then its topic must go on listing it.
    """

    ledger_id: int
    row: Mapping[str, Any] | None
    problem: Why | None = None

    @property
    def length(self) -> int:
        """Bytes of its entries; 0 where that is not known."""
        return (self.row or {}).get("length") or 0


def copy_of(ledger_id: int, row: Mapping[str, Any] | None, topic: Topic) -> Copy:
    """The BookKeeper copy of a data ledger that ``topic`` lists."""
    return Copy(ledger_id, row, _problem(row, topic))


def _problem(row: Mapping[str, Any] | None, topic: Topic) -> Why | None:
    if row is None:
        return Why(Code.NOT_IN_BOOKKEEPER, "BookKeeper does not have it: a dangling reference")
    if row["problem"]:
        return Why(Code.NOT_IN_BOOKKEEPER, f"its z-node in BookKeeper could not be read: {row['error']}")
    if row["application"] != "pulsar" or row["component"] != "managed-ledger" or row["cursor"]:
        text = "BookKeeper's z-node does not call it a topic's data: the deletion run would keep it"
        return Why(Code.NOT_IN_BOOKKEEPER, text)
    if row["managed_ledger"] != topic.managed_ledger:
        return Why(Code.NOT_IN_BOOKKEEPER, f"BookKeeper's z-node says that it is of {row['managed_ledger']}")
    return None if row["state"] == "CLOSED" else Why(Code.NOT_IN_BOOKKEEPER, "never closed")


def open_attempt(info: ManagedLedgerInfo, ours: Collection[UUID] = ()) -> Why | None:
    """The offload attempt that a broker has open on a ledger of a topic; None if there is none.

    Nothing of such a topic is written: its broker may be at it, and the next write of its own, fenced by ours, would
    end the attempt and leave what it uploaded. ``ours`` are the UUIDs of our own open attempts.
    """
    for item in sorted(info.ledgers, key=lambda one: one.ledger_id):
        offload = item.offload
        if offload and offload.uuid and not offload.complete and offload.uuid not in ours:
            text = f"offload attempt {offload.uuid} of ledger {item.ledger_id} is not complete: {THEIRS}"
            return Why(Code.BROKERS_ATTEMPT, text)
    return None


THEIRS = (
    "its broker may be at it, so the topic is left alone whole until that is done (if it has failed, have the broker "
    "offload once more: `pulsar-admin topics offload`)"
)
