"""The summary of a plan of ledgers, whatever they go for: what is stored beside its rows.

Belongs here: its fields, and making it of a scan and rows. Not here: a kind's rows and digest (the modules beside this
one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gap, Gaps
from pulsar_lifecycle.values.plans.plan_kind import PlanKind


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What is stored beside a plan's rows and covered by nothing but itself; ``digest`` covers the rows.

    ``actionable`` is false for a report-only plan; ``gaps`` then says what was missing. ``ordered``: an operator asked
    for it, and it may have what no plan has that is made by itself. ``in_flight``: ledgers that it leaves out, as their
    intents wait in the queue.
    """

    plan_id: str
    cluster: str
    fingerprint: str
    epoch_id: str
    confirmed_by: str
    created_at: int
    actionable: bool
    gaps: Gaps
    ledgers: int
    logical_bytes: int
    physical_bytes: int
    cluster_ledgers: int
    digest: str
    ordered: bool = False
    in_flight: int = 0

    @property
    def rows(self) -> int:
        """How many rows it has; ``ledgers`` as its kind counts them."""
        return self.ledgers

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanSummary:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape.

        A repair plan of an earlier version does not say whether it is by order: it counts as one.
        """
        repairs = str(document.get("plan_id", "")).startswith(f"{PlanKind.DELAYED_INDEX}-")
        return _SUMMARY.validate_python({"ordered": repairs, **document})


_SUMMARY = TypeAdapter(PlanSummary)


def summary_of(
    kind: PlanKind,
    token: str,
    epoch: Epoch,
    gaps: Sequence[Gap],
    created_at: int,
    rows: pa.Table,
    digest: Callable[[pa.Table, Mapping[str, Any]], str],
    *,
    logical: str = "bytes",
    physical: str = "bytes",
    confirmed_by: str = "",
    cluster_ledgers: int | None = None,
) -> PlanSummary:
    """The summary of a plan with these rows, made of an epoch; ``kind`` begins its id, ``token`` ends it.

    ``digest`` is that of its kind; ``logical`` and ``physical`` name the columns of its sizes in bytes.
    ``cluster_ledgers``: what its share is of, where that is not BookKeeper's ledgers.
    """
    logical_bytes, physical_bytes = (int(pc.sum(rows.column(name)).as_py() or 0) for name in (logical, physical))
    if cluster_ledgers is None:
        cluster_ledgers = epoch.ledgers
    summary = PlanSummary(
        f"{kind}-{epoch.epoch_id}-{token}", epoch.cluster, epoch.fingerprint, epoch.epoch_id, confirmed_by,
        created_at, not gaps, tuple(gaps), rows.num_rows, logical_bytes, physical_bytes, cluster_ledgers, "",
    )  # fmt: skip
    return replace(summary, digest=digest(rows, summary.to_json()))
