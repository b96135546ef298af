"""The whole journal counted for the metrics (``journal/metrics.py``)."""

from __future__ import annotations

import pyarrow as pa

from pulsar_lifecycle.journal import metrics
from pulsar_lifecycle.ports import Counting, JournalReader

TALLYING = Counting(metrics.TALLY, tuple(metrics.COUNTED), metrics.tally, metrics.add_up)


def tallied(journal: JournalReader, now: int) -> pa.Table:
    """The whole journal counted, at ``now`` (ms); ``metrics.TALLY``. Raises StoreError."""
    return journal.counted(TALLYING, now)
