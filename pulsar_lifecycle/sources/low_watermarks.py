"""What of a ledger's entries its topic still shows: nothing below the topic's low watermark.

Belongs here: whose a ledger is, and where its visible entries begin. Not here: the property (``topics/low_watermark``),
leaving entries out (:mod:`entries`, :mod:`offloaded`, :mod:`messages`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import (
    COMPONENT_MANAGED_LEDGER,
    TAG_COMPONENT,
    TAG_CURSOR,
    TAG_MANAGED_LEDGER,
    LedgerMetadata,
)
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.topics import low_watermark

OPTION = "below_low_watermark"
"""The sources' option to show everything that is there."""


def watermarks_of(store: MetadataStore, topics: Iterable[str]) -> dict[str, MessagePosition]:
    """The low watermarks of topics that have one, by their z-nodes' paths.

    Raises CorruptFormat naming the z-node, Unavailable for one that is not shown.
    """
    found: dict[str, MessagePosition] = {}
    for path, node in closed_ledgers.read_nodes(store, list(dict.fromkeys(topics))):
        try:
            watermark = low_watermark.of(managed_ledger.decode(node.data).properties) if node else None
        except CorruptFormat as error:
            raise CorruptFormat(f"{path}: {error.what}", error.offset, error.expected) from error
        if watermark is not None:
            found[path] = watermark
    return found


def topic_of(metadata: LedgerMetadata) -> str:
    """The z-node's path of the topic whose messages a ledger holds, by its tags; empty where it holds none."""
    tags = metadata.custom_metadata
    if tags.get(TAG_COMPONENT) != COMPONENT_MANAGED_LEDGER.encode() or TAG_CURSOR in tags:
        return ""
    return f"{MANAGED_LEDGERS_ROOT}/{tags.get(TAG_MANAGED_LEDGER, b'').decode(errors='replace')}"


def first_shown(watermark: MessagePosition | None, ledger_id: int) -> MessagePosition:
    """The first message of a ledger that is shown; its entry may be one that the ledger does not have."""
    begin = MessagePosition(ledger_id, low_watermark.first_visible(watermark, ledger_id))
    return watermark if watermark is not None and begin.entry == watermark.entry else begin
