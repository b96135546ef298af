"""The low watermark of a topic: the position before which everything was deleted on request.

Belongs here: the property of the managed ledger that holds it, and the rule that it never moves back. Not here: who
raises it and what is deleted then (``delete_records/``). Upstream: ``log_start_offset`` of KIP-107, which Kafka keeps
per partition; ``ManagedLedgerInfo.properties``, which brokers of Pulsar 4.0.7 read when they load a topic and write
with every change of its list of ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, ManagedLedgerInfo
from pulsar_lifecycle.model import MessagePosition

NOTHING_VISIBLE = 1 << 63
"""More than any entry's id: no entry of the ledger is visible."""


def of(properties: Mapping[str, str]) -> MessagePosition | None:
    """The low watermark that a topic's properties hold; None where nothing was deleted by position.

    Raises CorruptFormat, naming the property, for a value that is no position.
    """
    text = properties.get(LOW_WATERMARK)
    return None if text is None else decode(text)


def decode(text: str) -> MessagePosition:
    """The property's value. Raises CorruptFormat, naming the property."""
    try:
        return MessagePosition.parse(text)
    except CorruptFormat as error:
        raise CorruptFormat(f"property {LOW_WATERMARK}", error.offset, error.expected) from error


def highest(old: MessagePosition | None, asked: MessagePosition) -> MessagePosition:
    """What the low watermark becomes: it never moves back."""
    return asked if old is None else max(old, asked)


def raised(info: ManagedLedgerInfo, asked: MessagePosition) -> ManagedLedgerInfo:
    """A topic's z-node with the low watermark at ``asked``, or higher where it was; the same value if nothing changes.

    Raises CorruptFormat where the property holds no position: nothing may be put in its place.
    """
    old = of(info.properties)
    new = highest(old, asked)
    return info if new == old else replace(info, properties={**info.properties, LOW_WATERMARK: str(new)})


def first_visible(watermark: MessagePosition | None, ledger_id: int) -> int:
    """The first entry of a ledger that is not below the low watermark; ``NOTHING_VISIBLE`` if all are."""
    if watermark is None or ledger_id > watermark.ledger_id:
        return 0
    return watermark.entry_id if ledger_id == watermark.ledger_id else NOTHING_VISIBLE
