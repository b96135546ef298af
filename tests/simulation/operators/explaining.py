"""What ``explain`` says just before a deletion run, and what the run does: the two must agree.

Belongs here: asking, and the law. ``explain`` asks no broker and reads no object, so a run may keep what only these
know; whatever it deletes, ``explain`` must have let go, unless a broker of the time of the scan kept it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pulsar_lifecycle.deletion.planning.orphans import NEEDS_OWNER
from pulsar_lifecycle.inspect.explain import Explanation, explain
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, Verdict
from pulsar_lifecycle.inspect.ledger_history import history_of
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.simulation.laws.deletion_laws import Violation

if TYPE_CHECKING:
    from tests.simulation.operators.operator import Operator

MOST = 6
ROOT = "/ledgers"


def explained(operator: Operator) -> dict[int, Explanation]:
    """Some of the ledgers that the queue has messages of, explained at the time that a run would go by."""
    world, cluster = operator.world, operator.cluster
    now = min(world.time.now_ms(), world.clock.now_ms())
    with cluster.ports(read_only=True) as ports:
        fingerprint = cluster_fingerprint(ports.store, ROOT)
        return {
            one: explain(
                one,
                history_of(cluster, fingerprint, one, now),
                store=ports.store,
                reader=ports.reader,
                now=now,
                ledgers_root=ROOT,
            )
            for one in sorted(world.queued())[:MOST]
        }


def check(explained: Mapping[int, Explanation], journal: Iterable[JournalRow], run_id: str) -> None:
    """Raise Violation where a run deleted what ``explain`` would not let go, or kept for good what it would."""
    for row in journal:
        found = explained.get(row.ledger_id)
        if found is None or (row.run_id, row.phase, row.action) != (run_id, "delete", Action.DELETE_LEDGER):
            continue
        told = f"explain says {found.verdict.value}, {found.answer.why}; {run_id} says {row.outcome}, {row.reason}"
        if row.outcome == Outcome.DELETED and found.verdict is not Verdict.MAY_GO and not _by_a_broker_of_then(found):
            raise Violation(f"explain: {row.ledger_id} was deleted: {told}")
        if row.outcome == Outcome.KEPT and found.verdict is Verdict.MAY_GO and not _asked_others(found):
            raise Violation(f"explain: {row.ledger_id} was kept: {told}")


def _by_a_broker_of_then(found: Explanation) -> bool:
    """Whether it is kept for what a broker told the newest scan, or must tell now: a run asks, and may be told so."""
    ledger, finding = found.ledger, found.history.finding
    if found.answer.why.code in (ExplainCode.NOT_JUDGED_YET, ExplainCode.WRITTEN_SINCE):
        return True
    return (
        found.verdict is Verdict.KEPT
        and ledger is not None
        and ledger["component"] in NEEDS_OWNER
        and finding is not None
        and finding["finding"] == Finding.KEPT
    )


def _asked_others(found: Explanation) -> bool:
    """Whether a run asks a broker or a bucket, too, before this one goes."""
    ledger = found.ledger
    return ledger is None or ledger["component"] in NEEDS_OWNER or found.history.deletes_copy(ledger)
