"""At which time a report of activity was made, where our clock is behind the metadata store's.

Not here: what a time is taken for (``last_use.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.compute as pc

from pulsar_lifecycle.ports import Lake


def not_before(lake: Lake, parts: Iterable[str], now: int, limit: int) -> int:
    """``now``, or the time of the latest write that a scan's z-nodes tell, which is later (ms).

    ``parts``: files of tables with a column ``mtime``. A use that a clock which is behind dates too early would end its
    period too early. Writes of more than ``limit`` (ms) after ``now`` do not count: the store's clock was wrong, or
    ours is so far behind that no later report goes on with this one.
    """
    where = (pc.field("mtime") > now) & (pc.field("mtime") <= now + limit)
    times = (pc.max(batch.column("mtime")).as_py() for batch in lake.batches(list(parts), ["mtime"], where))
    return max((at for at in times if at is not None), default=now)
