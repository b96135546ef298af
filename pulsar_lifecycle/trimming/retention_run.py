"""Applying a retention plan by metadata: its ledgers leave their topics' lists, and no topic is loaded for it.

Belongs here: whether the plan may be applied, and whether its policies are in force still. Not here: making it
(``lifecycle/retention_planning.py``), and the effects, which are those of any trimming run (``trimming/trim.py``).

Why policies and cursors are all that is judged anew: a ledger that was closed stays as old and as big as it was, what
is listed behind it only grows, and what protects its topic is part of every trimming run.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.first_phase import LedgerOutcome, Report
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_now import RetentionNow, retention_now
from pulsar_lifecycle.trimming.trim import TrimOrder, no_report
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.trimming.trim_run import trim
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans import retention_plan

POLICIES_SEEN_FOR = 10_000
"""How long (ms) a look at the policies of a namespace serves: each topic is judged several times."""


def apply_retention(
    cluster: Cluster, run_id: str, order: Order, *, dry_run: bool, report: Report = no_report
) -> list[LedgerOutcome]:
    """Take the ledgers of a retention plan off their topics' lists, each with its message to the deletion topic first.

    A ledger stays, by code, if its policy or its cursors changed, or a rule of trimming keeps it; a topic that a broker
    has loaded by now is left to it. A dry run writes nothing. Repeating it is harmless. Raises Refused for a plan that
    is stale, report-only, of another cluster or beyond the caps; NotFound, UsageError, and as ``trim_run.trim``.
    """
    summary, some, caps = evidence.check_order(
        cluster, order, cluster.lake.retention_plan, retention_plan.digest, retention_plan.as_capped, dry_run=dry_run
    )
    orders = _orders(some, PoliciesInForce(cluster))
    return trim(
        cluster, run_id, orders, dry_run=dry_run, report=report, caps=caps,
        of_plan=summary.plan_id, planned_at=summary.created_at,
    )  # fmt: skip


def _orders(rows: pa.Table, policies: PoliciesInForce) -> list[TrimOrder]:
    ledgers: dict[str, set[int]] = {}
    planned: dict[str, tuple[int, int]] = {}
    names = ("topic", "ledger_id", "retention_minutes", "retention_mb")
    for topic, ledger, minutes, mb in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        ledgers.setdefault(topic, set()).add(ledger)
        planned[topic] = minutes, mb
    parsed = {name: Topic.parse(name) for name in ledgers}
    return [
        TrimOrder(topic, frozenset(ledgers[name]), rules=(policies.rule(topic, *planned[name]),))
        for name, topic in parsed.items()
    ]


class PoliciesInForce:
    """The retention in force, by namespace, as of at most :data:`POLICIES_SEEN_FOR` ago.

    Servers that failed at saying it are not asked again as long: of a thousand topics each would wait for its time-out.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[str, tuple[int, RetentionNow]] = {}
        self._failed: tuple[int, LifecycleError] | None = None

    def rule(self, topic: Topic, minutes: int, mb: int) -> Callable[[], Why | None]:
        """Says why nothing of a topic may go by a plan that was made with these limits; None if it may."""

        def changed() -> Why | None:
            found = self._now(str(topic.namespace))
            if found.problems:
                return Why(Stays.UNKNOWN_POLICY, "; ".join(found.problems))
            policies = found.policies
            policy = policies.of(topic) if str(topic.namespace) in policies.by_namespace else None
            if policy is None:
                text = "; ".join(found.undecodable) or "the retention in force is not known by now"
                return Why(Stays.UNKNOWN_POLICY, text)
            if (policy.minutes, policy.megabytes) == (minutes, mb):
                return None
            text = f"the retention in force is another one than the plan's by now: {policy}"
            return Why(Code.CHANGED_SINCE_PLAN, text)

        return changed

    def keeps_inactive(self, topic: Topic) -> bool:
        """Whether a policy of the topic says that it stays while it is inactive."""
        return str(topic.partitioned_parent) in self._now(str(topic.namespace)).owners_keep

    def _now(self, namespace: str) -> RetentionNow:
        now = self._cluster.clock.now_ms()
        at, found = self._seen.get(namespace, (now + 1, RetentionNow(InForce({}))))
        if not 0 <= now - at <= POLICIES_SEEN_FOR:
            if self._failed and 0 <= now - self._failed[0] <= POLICIES_SEEN_FOR:
                raise self._failed[1].with_traceback(None)
            try:
                found = retention_now(self._cluster, [namespace])
            except LifecycleError as error:
                self._failed = self._cluster.clock.now_ms(), error
                raise
            self._seen[namespace] = now, found
        return found
