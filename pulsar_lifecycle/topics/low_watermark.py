"""The low watermark of a topic: the position before which everything was deleted on request.

Belongs here: the properties of the managed ledger that hold it, and the rule that it never moves back. It is the
highest of them. A broker adds one for each position that it is asked to keep: a request that is stuck in it and comes
after a later one puts nothing in the later one's place. It may remove those that are passed; our own write leaves one.
Not here: who raises it and what is deleted then (``delete_records/``). Upstream: ``log_start_offset`` of KIP-107, which
Kafka keeps per partition; ``ManagedLedgerInfo.properties``, which brokers of Pulsar 4.0.7 read when they load a topic
and write with every change of its list of ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, ManagedLedgerInfo, low_watermarks
from pulsar_lifecycle.model import MessagePosition

NOTHING_VISIBLE = 1 << 63
"""More than any entry's id: no entry of the ledger is visible."""


def of(properties: Mapping[str, str]) -> MessagePosition | None:
    """The low watermark that a topic's properties hold; None where nothing was deleted by position.

    Raises CorruptFormat, naming the property, for a value that is no position.
    """
    return max((_decode(name, text) for name, text in low_watermarks(properties).items()), default=None)


def kept_by_broker(position: MessagePosition) -> dict[str, str]:
    """The property that a broker is to add, which no other position's has the name of."""
    return {f"{LOW_WATERMARK}.{position}": str(position)}


def passed(properties: Mapping[str, str]) -> list[str]:
    """Names of properties that brokers keep, and that a higher position makes needless: a broker may remove them.

    Never the one that our own write leaves: a removal that is stuck and comes late would take a later position.
    """
    highest_kept = of(properties)
    kept = {name: _decode(name, text) for name, text in low_watermarks(properties).items()}
    return [name for name, at in kept.items() if highest_kept and at < highest_kept and name in kept_by_broker(at)]


def _decode(name: str, text: str) -> MessagePosition:
    try:
        return MessagePosition.parse(text)
    except CorruptFormat as error:
        raise CorruptFormat(f"property {name}", error.offset, error.expected) from error


def highest(old: MessagePosition | None, asked: MessagePosition) -> MessagePosition:
    """What the low watermark becomes: it never moves back."""
    return asked if old is None else max(old, asked)


def raised(info: ManagedLedgerInfo, asked: MessagePosition) -> ManagedLedgerInfo:
    """A topic's z-node with the low watermark at ``asked``, or higher where it was; the same value if nothing changes.

    Raises CorruptFormat where the property holds no position: nothing may be put in its place.
    """
    old = of(info.properties)
    new = highest(old, asked)
    if new == old:
        return info
    own = low_watermarks(info.properties)
    others = {name: text for name, text in info.properties.items() if name not in own}
    return replace(info, properties={**others, LOW_WATERMARK: str(new)})


def first_visible(watermark: MessagePosition | None, ledger_id: int) -> int:
    """The first entry of a ledger that is not below the low watermark; ``NOTHING_VISIBLE`` if all are."""
    if watermark is None or ledger_id > watermark.ledger_id:
        return 0
    return watermark.entry_id if ledger_id == watermark.ledger_id else NOTHING_VISIBLE
