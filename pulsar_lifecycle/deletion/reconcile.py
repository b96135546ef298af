"""Deriving intents again for some namespaces: after a rollback of brokers or a restore of ZooKeeper.

Belongs here: choosing rows for a plan like any other, and applying it. Not here: the rules
(``planning/confirmed_orphans.py``, ``journal/intents.py``), making and applying plans (``deletion/deletion_run.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion_queue.queue_topics import pending_where_subscribed
from pulsar_lifecycle.errors import RefusedBy, UsageError
from pulsar_lifecycle.journal.intents import NamespaceIntents, by_namespace, still_there, to_send, unknown
from pulsar_lifecycle.journal.queries import read_intent_states
from pulsar_lifecycle.runs.apply import Applied
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.values.gaps import in_words
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode


@dataclass(frozen=True, slots=True)
class Reconciled:
    """``namespace_intents``: how it was before; ``summary``, ``rows``: the plan; ``applied`` is None in a dry run.

    ``unknown`` are namespaces of the request that nothing is known of. ``unsubscribed`` are partitions of the queue
    that lacked the subscription: ``backlog`` counts them as empty.
    """

    namespace_intents: list[NamespaceIntents]
    backlog: int
    summary: PlanSummary
    rows: pa.Table
    applied: Applied | None
    unknown: tuple[str, ...] = ()
    unsubscribed: tuple[str, ...] = ()


def reconcile(
    cluster: Cluster,
    run_id: str,
    namespaces: Collection[str],
    *,
    apply: bool,
    resend: bool,
    progress: Callable[[str], None],
    deleted_too: bool = False,
) -> Reconciled:
    """Plan the confirmed orphans of some namespaces (none: of all), and send their intents if ``apply``.

    It looks at the newest scan, without what was deleted since. What the journal says is in flight is left out, unless
    ``resend`` or the queue is empty: then those messages are lost. A deletion run finds a ledger whose intent was sent
    twice gone. Raises Refused, NotFound; with ``apply`` also Paused, UsageError for unknown namespaces unless
    ``deleted_too``, and Refused for a report-only plan or one that exceeds the settings' caps.
    """
    settings = cluster.settings
    with cluster.ports(read_only=True) as ports:
        may = evidence.check_may_act if apply else evidence.check_store
        epoch = evidence.newest_epoch(cluster, may(cluster, ports.store))
        backlog, unsubscribed = pending_where_subscribed(ports.admin)
    intents = read_intent_states(cluster.journal_reader, settings.cluster)
    confirmed = list[pa.Table]()

    def chosen(rows: pa.Table) -> pa.Table:
        if namespaces:
            rows = rows.filter(pc.is_in(rows.column("namespace"), pa.array(sorted(namespaces), pa.string())))
        rows = still_there(rows, intents, epoch.started_at)
        confirmed.append(rows)
        return rows if resend or not backlog else to_send(rows, intents)

    summary, rows = deletion_run.make_plan(cluster, epoch, PlanKind.RECONCILE, chosen)
    namespace_intents = by_namespace(intents, confirmed[0], namespaces or None)
    strange = unknown(namespace_intents, cluster.lake.context(epoch.epoch_id).namespaces) if namespaces else []
    if apply and strange and not deleted_too:
        raise UsageError(f"namespaces: {', '.join(strange)}: no such namespace, and nothing of it is left")
    applied = None
    if apply and not summary.actionable:
        raise RefusedBy(RefusalCode.REPORT_ONLY, f"plan {summary.plan_id} is report-only: " + in_words(summary.gaps))
    if apply and summary.ledgers:
        applied = deletion_run.apply_plan(cluster, run_id, Order(summary.plan_id, summary.digest), progress)
    return Reconciled(namespace_intents, backlog, summary, rows, applied, tuple(strange), tuple(map(str, unsubscribed)))
