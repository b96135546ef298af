"""The cursor property that names a bucket: its range of topic ledgers. Its value is the snapshot's ledger.

Upstream: ``Bucket.bucketKey`` and ``BucketDelayedDeliveryTracker.DELAYED_BUCKET_KEY_PREFIX``, pulsar-broker 4.0.7.
Reading all of a cursor's: ``formats.cursor.bucket_ledgers``.
"""

from __future__ import annotations

from pulsar_lifecycle.formats.cursor import BUCKET_PREFIX as PREFIX
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID

_LONG_DIGITS = len(str(MAX_LEDGER_ID))
_SHOWN = 100
"""Characters of a key that is none."""


def bucket_key(start_ledger_id: int, end_ledger_id: int) -> str:
    """The key of the bucket of topic ledgers ``start_ledger_id`` to ``end_ledger_id``, both inclusive."""
    return f"{PREFIX}_{start_ledger_id}_{end_ledger_id}"


def parse_bucket_key(key: str) -> tuple[int, int]:
    """First and last topic ledger of a key; raises ValueError for any other text."""
    prefix, _, ledgers = key.rpartition(PREFIX + "_")
    start, _, end = ledgers.partition("_")
    if prefix or not (start.isascii() and start.isdigit() and end.isascii() and end.isdigit()):
        raise ValueError(f"{key}: not {PREFIX}_<first ledger>_<last ledger>")
    if len(end) > _LONG_DIGITS or len(start) > _LONG_DIGITS:
        raise ValueError(f"{key[:_SHOWN]}: ledgers beyond {MAX_LEDGER_ID}")
    if bucket_key(int(start), int(end)) != key or not int(start) <= int(end) <= MAX_LEDGER_ID:
        raise ValueError(f"{key}: not a range of ledgers")
    return int(start), int(end)
