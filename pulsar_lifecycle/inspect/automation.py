"""What would be applied by itself now, kind by kind, and approving a plan.

Belongs here: the newest plan of each kind and what is known of it. Not here: the rule (``runs/automation_rule.py``),
the launch, which is Dagster's (``orchestration/automatic/automation.py``). Looks at the lake alone, but for whether the
cluster is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.automation_settings import BEYOND_APPLY, Automation, KindAutomation
from pulsar_lifecycle.errors import LifecycleError, NotFound, RefusedBy, UsageError
from pulsar_lifecycle.inspect.growth import CLOCKS_APART_MS, largest_applied, ledgers_of, plans_since
from pulsar_lifecycle.inspect.kept_plans import KEPT, Plan, stored_plan
from pulsar_lifecycle.inspect.settled import PlanEnd, end_of_rows
from pulsar_lifecycle.journal.approvals import (
    APPLIED_WITHIN_MS,
    ApprovalRow,
    Approved,
    applied_plans,
    approval_in,
    approval_row,
    rows_about,
    withdrawals,
)
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.runs.automation_rule import (
    Amount,
    Approval,
    AutomationCode,
    Candidate,
    PlanDecision,
    decide,
    grew_too_much,
)
from pulsar_lifecycle.runs.caps import automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import check_not_paused
from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF, within
from pulsar_lifecycle.scan.evidence import check_store, usable_epoch
from pulsar_lifecycle.values.outcomes import Action
from pulsar_lifecycle.values.plans import check_digest, delete_records_plan
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode

SOON = (AutomationCode.GOES, AutomationCode.WINDOW_SHUT)
"""What becomes of a plan that nothing is in the way of but time."""
_BY_HAND = (AutomationCode.OVER_CAP, AutomationCode.TOO_SMALL, AutomationCode.GREW)
"""What becomes of a plan that no approval makes go by itself."""
_ENDS = {PlanEnd.SETTLED: AutomationCode.SETTLED, PlanEnd.SENT: AutomationCode.SENT}


@dataclass(frozen=True, slots=True)
class AutomatedKind:
    """What of a kind of plan may go by itself. ``name`` is its key in ``[automation]``; ``bytes`` the column of sizes.

    An offload plan holds what two of them have.
    """

    name: str
    kind: PlanKind
    bytes: str = "bytes"
    action: OffloadChoice | None = None
    """The rows that are of this kind, where a plan holds those of two."""
    capped: Callable[[pa.Table], pa.Table] | None = None
    """The rows as caps count them, where one row is not one ledger."""
    effects: frozenset[Action] = frozenset()
    """What it does, in the journal's words, where a plan holds rows of two kinds; empty: whatever a plan has done."""
    newest_scan: bool = True
    """Whether its run goes by the newest scan, too, beside that of the plan."""

    @property
    def deletes(self) -> bool:
        """Whether it does nothing while two-phase deletion is switched off."""
        return self.action is not OffloadChoice.OFFLOAD and self.kind is not PlanKind.COLLECTION

    @property
    def under_apply_caps(self) -> bool:
        """Whether its job applies plans under the caps of ``[apply]``."""
        return self.name not in BEYOND_APPLY

    def rows(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """What of a plan's rows may go by itself."""
        mine = rows if self.action is None else rows.filter(pc.equal(rows.column("action"), self.action.value))
        some = within(mine, names)
        return self.capped(some) if self.capped else some


KINDS = (
    AutomatedKind("orphans", PlanKind.ORPHANS, "physical_bytes", newest_scan=False),
    AutomatedKind("retention", PlanKind.RETENTION, "physical_bytes"),
    AutomatedKind(
        "offload", PlanKind.OFFLOAD, action=OffloadChoice.OFFLOAD, effects=frozenset({Action.OFFLOAD})
    ),
    AutomatedKind(
        "bookkeeper_copies", PlanKind.OFFLOAD, action=OffloadChoice.DELETE_COPY,
        effects=frozenset({Action.COPY_DELETION, Action.DELETE_LEDGER}),
    ),
    AutomatedKind("objects", PlanKind.OBJECTS, newest_scan=False),
    AutomatedKind("delayed_index", PlanKind.DELAYED_INDEX),
    AutomatedKind(
        "consumed_records", PlanKind.CONSUMED_RECORDS, "physical_bytes", capped=delete_records_plan.as_capped
    ),
    AutomatedKind("bookies", PlanKind.COLLECTION),
)  # fmt: skip
"""Every kind that may go by itself."""


def settings_of(where: Cluster, kind: AutomatedKind) -> KindAutomation:
    """What ``[automation]`` says of a kind, under the caps of ``[apply]`` where its job applies plans under these."""
    said: KindAutomation = getattr(where.settings.automation, kind.name)
    if not kind.under_apply_caps:
        return said
    return said.model_copy(update=asdict(automation_caps(where.settings, said)))


def decision_of(where: Cluster, kind: AutomatedKind, plan_id: str = "") -> tuple[PlanDecision, Plan | None]:
    """What becomes by itself of the plan named, or of a kind's newest, and that plan.

    The newest that is approved comes before newer ones that are not, if it goes, or waits only for its window; one that
    its size keeps from that is passed over. Raises what the lake raises.
    """
    decision, plan = _rule_of(where, kind, plan_id)
    if decision.goes and plan and kind.newest_scan and (why := no_scan(where, plan.fingerprint)):
        return replace(decision, code=AutomationCode.NO_SCAN, text=why), plan
    return decision, plan


def no_scan(where: Cluster, fingerprint: str = "") -> str | None:
    """Why no run may go by the newest scan now, of this metadata store or of the cluster; None if one may."""
    newest = [] if fingerprint else where.lake.epochs(cluster=where.settings.cluster)[-1:]
    try:
        usable_epoch(where, newest[0].fingerprint if newest else fingerprint, where.clock.now_ms())
    except (NotFound, RefusedBy) as error:
        return str(error)
    return None


def _rule_of(where: Cluster, kind: AutomatedKind, plan_id: str) -> tuple[PlanDecision, Plan | None]:
    settings, now = settings_of(where, kind), where.clock.now_ms()
    valid = _valid_ms(where)
    mine = _by_policy(where, kind, now - valid - CLOCKS_APART_MS) or _by_policy(where, kind, 0)
    asked = [plan for plan in mine if (plan.plan_id == plan_id if plan_id else not _set_aside(where, plan, now))]
    if not asked:
        return decide(settings, None, now, valid_for_ms=valid), None
    said: dict[str, list[ApprovalRow]] = {}
    fresh = [plan for plan in asked if 0 <= now - plan.created_at <= valid]
    if fresh and settings.mode is Automation.APPROVE:
        ids, since = [plan.plan_id for plan in fresh], min(plan.created_at for plan in fresh)
        said = rows_about(where.journal_reader, where.settings.cluster, ids, since)
    for plan in reversed(asked):
        approval = approval_in(said.get(plan.plan_id, ()))
        if not _holds(approval, plan, now):
            continue
        decision = _decided(where, kind, plan, approval)
        if decision.code in SOON:
            return decision, plan
        if decision.code not in _BY_HAND:
            break
    return _decided(where, kind, asked[-1], approval_in(said.get(asked[-1].plan_id, ()))), asked[-1]


def _set_aside(where: Cluster, plan: Plan, now: int) -> bool:
    """Whether a plan is dated after ``now`` (ms), and its scan set aside: it would hide newer ones until that date."""
    if plan.created_at <= now:
        return False
    try:
        where.lake.epoch(plan.epoch_id)
    except NotFound:
        return True
    return False


def told(where: Cluster, kind: AutomatedKind) -> PlanDecision:
    """What becomes of a kind's newest plan by itself, also where that cannot be told: no other kind waits for that."""
    try:
        return decision_of(where, kind)[0]
    except LifecycleError as error:
        return PlanDecision(AutomationCode.UNREAD, str(error))


def unless_stopped(where: Cluster, decisions: Sequence[PlanDecision]) -> list[PlanDecision]:
    """What becomes of plans while nothing may begin on the cluster, which ZooKeeper is asked for if any plan goes."""
    stopped = stopping(where) if any(one.goes for one in decisions) else None
    return [replace(stopped, plan_id=one.plan_id) if stopped and one.goes else one for one in decisions]


def stopping(where: Cluster) -> PlanDecision | None:
    """Why no run with effects may begin on the cluster now, whatever its plan; None if it may."""
    try:
        with where.ports(read_only=True) as ports:
            check_not_paused(ports.store)
            check_store(where, ports.store)
    except RefusedBy as refused:
        return PlanDecision(AutomationCode.STORE_WENT_BACK, str(refused))
    except LifecycleError as error:
        return PlanDecision(AutomationCode.PAUSED, str(error))
    try:
        where.journal.check_writable()
    except LifecycleError as error:
        return PlanDecision(AutomationCode.LAKE_UNWRITABLE, str(error))
    return None


def _valid_ms(where: Cluster) -> int:
    return int(where.settings.orphans.plan_valid_for * 1000)


def _holds(approval: Approval | None, plan: Plan, now: int) -> bool:
    return approval is not None and approval.digest == plan.digest and now < approval.until


def _decided(where: Cluster, kind: AutomatedKind, plan: Plan, approval: Approval | None) -> PlanDecision:
    settings, now, valid = settings_of(where, kind), where.clock.now_ms(), _valid_ms(where)
    early = decide(settings, _bare(plan), now, valid_for_ms=valid)
    if early.code in (AutomationCode.OFF, AutomationCode.REPORT_ONLY, AutomationCode.EXPIRED):
        return early
    ledgers, size = _sized(where, kind, plan, settings.namespaces)
    begun = max(now - APPLIED_WITHIN_MS, plan.created_at - CLOCKS_APART_MS)
    taken = applied_plans(where.journal_reader, where.settings.cluster, [plan.plan_id], begun, kind.effects)
    candidate = Candidate(
        plan.plan_id, plan.digest, plan.created_at, plan.actionable, ledgers, size,
        _cluster_ledgers(where.lake, plan), taken=bool(taken),
        largest_topic=_largest_topic(where, kind, plan, settings, ledgers),
    )  # fmt: skip

    def decided(largest: Amount) -> PlanDecision:
        return decide(settings, candidate, now, valid_for_ms=valid, approval=approval, largest_applied=largest)

    found = decided(candidate.amount)  # as if as much had been applied
    decides = found.code in SOON and settings.mode is Automation.APPLY
    if decides and grew_too_much(settings, candidate.amount, Amount()):
        grew = partial(grew_too_much, settings, candidate.amount)
        found = decided(largest_applied(where, kind, plan, now, grew))
    if found.code not in SOON:
        return found
    others = (PlanKind.ORPHANS, PlanKind.RETENTION)  # of these it is known what other runs have done
    if found.goes and kind.kind in others and (end := _end_of(where, kind, plan, settings.namespaces)):
        return replace(found, code=_ENDS[end], text=end.text)
    if kind.deletes and not where.settings.deletion.topicTwoPhaseDeletionEnabled:
        return replace(found, code=AutomationCode.SWITCHED_OFF, text=SWITCHED_OFF)
    try:
        where.lake.epoch(plan.epoch_id)  # once that is set aside, its application is refused
    except NotFound as error:
        return replace(found, code=AutomationCode.UNREAD, text=str(error))
    return found


def _end_of(where: Cluster, kind: AutomatedKind, plan: Plan, names: Sequence[str]) -> PlanEnd | None:
    return end_of_rows(where, plan, kind.rows(stored_plan(where.lake, plan.plan_id)[1], names))


@dataclass(frozen=True, slots=True)
class Growth:
    """How much of a plan may go by itself, beside the most that any of its kind was applied to in the last 30 days.

    ``largest`` is None where that was not asked: a plan of so little may grow.
    """

    kind: str
    plan: Amount
    largest: Amount | None
    grew: bool


def growth_of(where: Cluster, name: str, plan: Plan) -> Growth:
    """Whether a plan is far larger than those of a kind that were applied. Raises what lake and journal raise."""
    kind = next(one for one in KINDS if one.name == name)
    settings = settings_of(where, kind)
    amount = Amount(*_sized(where, kind, plan, settings.namespaces))
    if not grew_too_much(settings, amount, Amount()):
        return Growth(name, amount, None, False)
    largest = largest_applied(where, kind, plan, where.clock.now_ms())
    return Growth(name, amount, largest, bool(grew_too_much(settings, amount, largest)))


def _by_policy(where: Cluster, kind: AutomatedKind, since: int) -> list[Plan]:
    """Those of :func:`plans_since` that may go by themselves. What an operator ordered, its job alone applies."""
    return [plan for plan in plans_since(where, kind.kind, since) if not plan.ordered]


def _sized(where: Cluster, kind: AutomatedKind, plan: Plan, names: Sequence[str]) -> tuple[int, int]:
    """Ledgers, as caps count them, and bytes of what of a plan may go by itself. Its rows are read only for a part."""
    if isinstance(plan, PlanSummary) and not names and kind.capped is None:
        return plan.ledgers, plan.physical_bytes
    rows = kind.rows(stored_plan(where.lake, plan.plan_id)[1], names)
    return rows.num_rows, int(pc.sum(rows.column(kind.bytes)).as_py() or 0)


def _largest_topic(where: Cluster, kind: AutomatedKind, plan: Plan, settings: KindAutomation, ledgers: int) -> int:
    """Ledgers of the topic that has most of them; 0, and no rows are read, where that decides nothing."""
    caps_decide = settings.mode in (Automation.APPROVE, Automation.APPLY) and ledgers <= settings.max_ledgers
    if not caps_decide or ledgers <= settings.max_ledgers_per_topic or "topic" not in kind.kind.schema.names:
        return 0
    topics = kind.rows(stored_plan(where.lake, plan.plan_id)[1], settings.namespaces).column("topic")
    return pc.max(pc.struct_field(pc.value_counts(topics), "counts")).as_py() or 0


def approve_plan(
    where: Cluster, run_id: str, plan_id: str, digest: str, by: str, *, withdraw: bool = False
) -> Approved:
    """Journal that ``by`` approves a plan of any kind that goes by itself, or withdraws the approval.

    Raises NotFound; UsageError without a name; Refused for another digest, a report-only or expired plan, one of
    another cluster, or one whose files changed.
    """
    if not by.strip():
        raise UsageError("by: say who approves it")
    kind = kind_of(plan_id)
    if kind is None or kind not in {one.kind for one in KINDS}:
        raise UsageError(
            f"plan {plan_id}: its kind never goes by itself: apply it with its job" if kind
            else f"{plan_id!r} is no id of a plan"
        )  # fmt: skip
    plan, rows = stored_plan(where.lake, plan_id)
    if plan.ordered:
        raise UsageError(f"plan {plan_id}: it is by order: apply it with its job")
    now, cluster = where.clock.now_ms(), where.settings.cluster
    check_digest(plan_id, digest, plan.digest, KEPT[kind].digest(rows, plan.to_json()))
    if plan.cluster != cluster:
        raise RefusedBy(RefusalCode.OTHER_CLUSTER, f"plan {plan_id} is of another cluster: {plan.cluster}")
    expires = plan.created_at + int(where.settings.orphans.plan_valid_for * 1000)
    if not withdraw and not plan.actionable:
        raise RefusedBy(RefusalCode.REPORT_ONLY, f"plan {plan_id} is report-only: there is nothing to approve")
    if not withdraw and now >= expires:
        raise RefusedBy(RefusalCode.PLAN_EXPIRED, f"plan {plan_id} has expired: approve a newer one")
    until = min(expires, now + int(where.settings.automation.approval_valid_for * 1000))
    despite = withdrawals(where.journal_reader, cluster, plan_id, plan.created_at)
    approved = Approved(by.strip(), digest, until, despite)
    at = max(now, plan.created_at)  # a word about a plan is looked for from there on, whoever's clock is behind
    where.journal.record([approval_row(run_id, cluster, plan_id, approved, at, withdrawn=withdraw)])
    return approved


def after_approval(where: Cluster, plan_id: str) -> list[str]:
    """What becomes of an approved plan by itself, a sentence for each of its kinds. Raises what the lake raises."""
    said: list[str] = []
    for kind in (one for one in KINDS if one.kind is kind_of(plan_id)):
        first, _ = decision_of(where, kind)
        mine = first if first.plan_id == plan_id else decision_of(where, kind, plan_id)[0]
        (decision,) = unless_stopped(where, [mine])
        text = f"{decision.code}: {decision.text}"
        if mine.code in SOON and first.plan_id != plan_id:
            newer = f"plan {first.plan_id} is newer"
            text = (
                f"{newer}: it goes instead ({first.code})"
                if first.code in SOON
                else f"it does not go by itself: {newer} ({first.code}: {first.text})"
            )
        said.append(f"{kind.name}: {text}")
    return said


def after_withdrawal(where: Cluster, plan_id: str) -> list[str]:
    """What becomes of a plan's kinds by themselves without its approval, a sentence each. Raises what the lake raises.

    A run may have begun to apply it, and an older plan with the same ledgers may be approved, too.
    """
    said: list[str] = []
    for kind in (one for one in KINDS if one.kind is kind_of(plan_id)):
        mine, (first, _) = decision_of(where, kind, plan_id)[0], decision_of(where, kind)
        mine, first = unless_stopped(where, [mine, first])
        text = f"{mine.code}: {mine.text}"
        if mine.code is AutomationCode.TAKEN:
            text = f"too late: {mine.text}; while it is at it, `pulsar-lifecycle pause` stops it"
        if first.plan_id != plan_id and first.code in SOON:
            text += f"; plan {first.plan_id} goes instead ({first.code}: {first.text})"
        said.append(f"{kind.name}: {text}")
    return said


def _bare(plan: Plan) -> Candidate:
    """A plan as far as its own facts go: enough to say whether it is off, report-only or expired, and no more."""
    return Candidate(plan.plan_id, plan.digest, plan.created_at, plan.actionable, ledgers_of(plan), 0, 0)


def _cluster_ledgers(lake: Lake, plan: Plan) -> int:
    """What the share is of. An offload plan does not say it: its scan does."""
    return lake.epoch(plan.epoch_id).ledgers if isinstance(plan, OffloadPlan) else plan.cluster_ledgers
