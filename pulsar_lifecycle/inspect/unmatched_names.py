"""Names in the settings that protect something, and that nothing of a scan has: mistyped, they protect nothing.

Not here: names that say what may go, which does no harm where nothing has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.run_settings import owner_names
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.tables import stored_name


@dataclass(frozen=True)
class UnmatchedName:
    """``key`` of the settings names ``name``, and the scan ``epoch_id`` has no topic or subscription of that name."""

    key: str
    name: str
    epoch_id: str

    def __str__(self) -> str:
        """What to do about it."""
        what = "subscription" if self.key == KEPT else "topic"
        return f"{self.key} names {self.name}: no {what} of {self.epoch_id} has that name; mistyped, it keeps nothing"


HELD, KEPT = "orphans.legal_holds", "inactivity.kept_subscriptions"


def unmatched_names(lake: Lake, epoch: Epoch, settings: Settings, now: int) -> list[UnmatchedName]:
    """Legal holds in force at ``now`` (ms) and kept subscriptions that nothing of a finished scan is called by.

    Tables are read until every name was met, so only a name that nothing has takes the time of reading them whole.
    Raises StoreError where they cannot be read.
    """
    held = {word.name: owner_names((word.name,)) for word in settings.orphans.legal_holds if word.holds(now)}
    kept = set(settings.inactivity.kept_subscriptions)
    for batch in _rows(lake, epoch, "managed_ledgers", ["namespace", "topic"], held):
        topics = zip(batch.column("namespace").to_pylist(), batch.column("topic").to_pylist(), strict=True)
        named = {name for namespace, topic in topics if topic for name in holders(namespace, topic)}
        for name in [name for name, meant in held.items() if not named.isdisjoint(meant)]:
            del held[name]
    for batch in _rows(lake, epoch, "managed_cursors", ["cursor"], kept):
        kept.difference_update(pc.unique(batch.column("cursor")).to_pylist())
    unmatched = [(HELD, name) for name in sorted(held)] + [(KEPT, name) for name in sorted(kept)]
    return [UnmatchedName(key, name, epoch.epoch_id) for key, name in unmatched]


def _rows(
    lake: Lake, epoch: Epoch, table: str, columns: list[str], wanted: Collection[str]
) -> Iterable[pa.RecordBatch]:
    """The rows of a table of every root, as long as something is ``wanted``: whoever reads them takes from that."""
    for root in ("", *(epoch.shared_with or ())):
        if wanted:
            for batch in lake.batches(lake.parts(epoch.epoch_id, stored_name(table, root)), columns):
                yield batch
                if not wanted:
                    return
