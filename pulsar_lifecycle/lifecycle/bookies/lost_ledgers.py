"""Ledgers that no broker can open, or read to their end, while bookies of theirs are not registered.

Pure. Belongs here: what the metadata of ledgers and the registered bookies prove. Not here: which topics that concerns
(``load/failing_loads.py``). Upstream, bookkeeper-server 4.17.2: ``LedgerOpenOp`` asks no bookie about a closed ledger,
and recovers any other; ``ReadLastConfirmedOp`` and ``RRQuorumCoverageSet`` say which bookies of the last ensemble must
answer for that; ``PendingReadOp`` fails once no bookie of an entry's write set answers. Pulsar 4.0.7 knows the address
of a registered bookie alone (``PulsarRegistrationClient.getBookieServiceInfo``).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.ledger_metadata import LedgerState, parse_ensembles
from pulsar_lifecycle.formats.striping import is_covered, write_set
from pulsar_lifecycle.values.tables import Problem


class LedgerLoss(StrEnum):
    """What a broker cannot do with a ledger."""

    UNRECOVERABLE = "unrecoverable"
    """It is not closed, and too few bookies of its last ensemble are registered to close it."""
    LAST_ENTRY_AWAY = "last_entry_away"
    """It is closed, and no bookie that has its last entry is registered."""
    NO_METADATA = "no_metadata"
    """Its z-node is there and has no data."""


LOST = pa.schema(
    [pa.field("ledger_id", pa.int64()), pa.field("loss", pa.string()), pa.field("away", pa.list_(pa.string()))]
)
"""One row per ledger of which something is lost: a :class:`LedgerLoss`. ``away``: its bookies that are not registered,
of its last ensemble, or that should have its last entry."""
LOSS_COLUMNS = ("ledger_id", "state", "entries", "ensembles", "write_quorum", "ack_quorum", "problem")
"""The columns of ``tables.BOOKKEEPER_LEDGERS`` that :func:`lost_ledgers` needs."""


def lost_ledgers(ledgers: pa.Table, registered: Set[str]) -> pa.Table:
    """Which of some ledgers (:data:`LOSS_COLUMNS`) are lost so, as :data:`LOST`; ``registered``: ids of bookies."""
    bare = ledgers.filter(pc.equal(ledgers.column("problem"), Problem.EMPTY.value)).column("ledger_id").to_pylist()
    rows = [{"ledger_id": one, "loss": LedgerLoss.NO_METADATA.value, "away": []} for one in bare]
    known = ledgers.filter(pc.and_(ledgers.column("problem").is_null(), ledgers.column("ensembles").is_valid()))
    for row in known.filter(_may_be_lost(known, registered)).to_pylist():
        segments, quorum = parse_ensembles(row["ensembles"]), row["write_quorum"]
        if row["state"] != _CLOSED:
            last = segments[-1].bookies
            silent = [one not in registered for one in last]
            if not is_covered(silent, quorum, row["ack_quorum"] or quorum):
                rows.append(_lost(row, LedgerLoss.UNRECOVERABLE, [one for one in last if one not in registered]))
        elif row["entries"] and registered.isdisjoint(having := write_set(segments, quorum, row["entries"] - 1)):
            rows.append(_lost(row, LedgerLoss.LAST_ENTRY_AWAY, having))
    return pa.Table.from_pylist(rows, LOST)


_CLOSED = LedgerState.CLOSED.name


def _may_be_lost(known: pa.Table, registered: Set[str]) -> pa.Array:
    """Those with enough silent bookies in an ensemble. With one bookie down mostly none: few are looked at singly."""
    encoded = pc.dictionary_encode(known.column("ensembles").combine_chunks())
    most = [
        max(sum(one not in registered for one in segment.bookies) for segment in parse_ensembles(text))
        for text in encoded.dictionary.to_pylist()
    ]
    silent = np.array(most, np.int64)[np.asarray(encoded.indices, np.int64)]
    write, ack = (np.asarray(known.column(name).fill_null(0), np.int64) for name in ("write_quorum", "ack_quorum"))
    closed = np.asarray(pc.equal(known.column("state"), _CLOSED))
    return pa.array(silent >= np.where(closed | (ack == 0), write, ack))


def _lost(row: dict[str, Any], loss: LedgerLoss, away: Sequence[str]) -> dict[str, Any]:
    return {"ledger_id": row["ledger_id"], "loss": loss.value, "away": list(away)}
