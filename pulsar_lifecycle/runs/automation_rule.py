"""Whether a plan is applied by itself, or why not: the rule of ``[automation]``.

Belongs here: the decision over values, as a code with its sentence. Not here: gathering them
(``inspect/automation.py``); what every application checks anew, such as the plan's scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pulsar_lifecycle.automation_settings import Automation, KindAutomation
from pulsar_lifecycle.values.plans.plan_kind import counted_of


class AutomationCode(StrEnum):
    """Why a plan is applied by itself, or not."""

    GOES = "goes"
    """It is applied now."""
    PAUSED = "paused"
    """It would be applied, but the cluster is paused, or does not say whether a run may begin."""
    STORE_WENT_BACK = "store_went_back"
    """It would be applied, but the metadata store was restored, and nobody has accepted that: the text has the command.
    """
    LAKE_UNWRITABLE = "lake_unwritable"
    """It would be applied, but nothing could be journalled: the text says why."""
    NO_SCAN = "no_scan"
    """It would be applied, but the newest scan is not to go by, such as one that is not covered: the text says why."""
    SWITCHED_OFF = "switched_off"
    """Two-phase deletion is switched off: what deletes, trims or repairs is not begun."""
    OFF = "off"
    """The mode is ``off``."""
    PLAN_ONLY = "plan_only"
    """The mode is ``plan``: an operator applies it."""
    NO_PLAN = "no_plan"
    """There is none yet."""
    UNREAD = "unread"
    """What would become of it cannot be told, such as by a scan that was set aside: the text says why."""
    REPORT_ONLY = "report_only"
    """The plan is report-only: its scan has gaps."""
    EXPIRED = "expired"
    """The plan is too old to be applied, or dated ahead of the clock by which it would be."""
    TAKEN = "taken"
    """A run has begun to apply it."""
    SENT = "sent"
    """All its intents were sent, by other runs: the queue has those that are not settled."""
    SETTLED = "settled"
    """Other runs have settled every ledger of it that goes by itself: nothing is left to apply."""
    EMPTY = "empty"
    """Nothing of what it holds goes by itself."""
    TOO_SMALL = "too_small"
    """It is below the kind's minimum: it waits for more."""
    OVER_CAP = "over_cap"
    """It is beyond a cap of its kind: an operator looks at it."""
    GREW = "grew"
    """It has far more ledgers or bytes than those applied in the last 30 days: an operator looks at it."""
    WINDOW_SHUT = "window_shut"
    """The maintenance window is not open."""
    NOT_APPROVED = "not_approved"
    """Nobody has approved it, or not this digest."""
    APPROVAL_EXPIRED = "approval_expired"
    """Its approval has expired."""


class Grown(StrEnum):
    """In what a plan is far larger than those that were applied."""

    LEDGERS = "ledgers"
    """It has far more ledgers, as caps count them."""
    BYTES = "bytes"
    """It has far more bytes."""


_NONE_APPLIED = "and none was applied in 30 days"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a plan is: ledgers, as caps count them, and their bytes."""

    ledgers: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan as the rule sees it: what of it may go by itself, and what it is a share of. Times in ms.

    ``largest_topic``: ledgers of the topic that has most of them.
    """

    plan_id: str
    digest: str
    created_at: int
    actionable: bool
    ledgers: int
    bytes: int
    cluster_ledgers: int
    taken: bool = False
    largest_topic: int = 0

    @property
    def amount(self) -> Amount:
        """What growth is measured by."""
        return Amount(self.ledgers, self.bytes)


@dataclass(frozen=True, slots=True)
class Approval:
    """Who approved which digest of a plan, when, and until when it holds (ms)."""

    by: str
    digest: str
    at: int
    until: int


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """What becomes of a kind's newest plan by itself; ``plan_id`` is empty where there is none."""

    code: AutomationCode
    text: str
    plan_id: str = ""

    @property
    def goes(self) -> bool:
        """Whether it is applied."""
        return self.code is AutomationCode.GOES


def decide(
    kind: KindAutomation,
    plan: Candidate | None,
    now: int,
    *,
    valid_for_ms: int,
    approval: Approval | None = None,
    largest_applied: Amount = Amount(),
) -> PlanDecision:
    """Whether the newest plan of a kind is applied at ``now`` (ms).

    ``largest_applied``: to how many ledgers, and to how many bytes, a plan of the kind was applied in the last 30 days,
    at most.
    """
    if kind.mode is Automation.OFF:
        return PlanDecision(AutomationCode.OFF, "automation is off for this kind")
    if plan is None:
        return PlanDecision(AutomationCode.NO_PLAN, "there is no plan of this kind yet")
    found = _against(kind, plan, now, valid_for_ms, approval, largest_applied)
    code, text = found or (AutomationCode.GOES, _goes(plan, approval if kind.mode is Automation.APPROVE else None))
    return PlanDecision(code, text, plan.plan_id)


def _against(
    kind: KindAutomation, plan: Candidate, now: int, valid_for_ms: int, approval: Approval | None, largest: Amount
) -> tuple[AutomationCode, str] | None:
    if plan.taken:
        return AutomationCode.TAKEN, "a run has begun to apply it"
    if not plan.actionable:
        return AutomationCode.REPORT_ONLY, "it is report-only; its page says why"
    if plan.created_at > now:
        ahead = f"it is dated {(plan.created_at - now) / 1000:.0f} s ahead of this host's clock"
        return AutomationCode.EXPIRED, f"{ahead}: set the clocks right; the next scan says how to go on"
    if now - plan.created_at > valid_for_ms:
        return AutomationCode.EXPIRED, f"it is {(now - plan.created_at) // 60_000} minutes old, too old to be applied"
    if not plan.ledgers:
        return AutomationCode.EMPTY, "nothing of it goes by itself"
    if plan.ledgers < kind.min_ledgers or plan.bytes < kind.min_bytes:
        least = f"min_ledgers {kind.min_ledgers}, min_bytes {kind.min_bytes}"
        return AutomationCode.TOO_SMALL, f"{_size(plan)}: it waits for more ({least})"
    if kind.mode is Automation.PLAN:
        return AutomationCode.PLAN_ONLY, "the mode is plan: apply it with its job"
    if over := _over(kind, plan):  # before the approval, which would not help
        return AutomationCode.OVER_CAP, f"{over}: look at it, then apply it with its job"
    if kind.mode is Automation.APPROVE:
        if approval is None or approval.digest != plan.digest:
            how = f"pulsar-lifecycle approve {plan.plan_id} {plan.digest}"
            return AutomationCode.NOT_APPROVED, f"it waits for `{how}`, or job approve_plan"
        if now >= approval.until:
            return AutomationCode.APPROVAL_EXPIRED, f"the approval by {approval.by} has expired: approve it again"
    if (grown := grew_too_much(kind, plan.amount, largest)) and kind.mode is Automation.APPLY:
        what = {Grown.LEDGERS: f"{largest.ledgers} {counted_of(plan.plan_id)}", Grown.BYTES: f"{largest.bytes} bytes"}
        than = f"more than {kind.max_growth:g} times the {' and '.join(map(what.__getitem__, grown))}"
        lately = f"{than} of the largest that was applied in 30 days" if largest.ledgers else _NONE_APPLIED
        return AutomationCode.GREW, f"{_size(plan)}, {lately}: look at it, then apply it with its job"
    if kind.window and kind.window.opened_at(now) is None:
        return AutomationCode.WINDOW_SHUT, f"its window ({kind.window.cron}) is not open"
    return None


def grew_too_much(kind: KindAutomation, plan: Amount, largest_applied: Amount) -> tuple[Grown, ...]:
    """In what a plan is far larger than the last ones; empty where it is not."""
    sizes = {
        Grown.LEDGERS: (plan.ledgers, largest_applied.ledgers, kind.growth_from),
        Grown.BYTES: (plan.bytes, largest_applied.bytes, kind.growth_from_bytes),
    }
    return tuple(what for what, (now, before, least) in sizes.items() if now > least and now > kind.max_growth * before)


def _over(kind: KindAutomation, plan: Candidate) -> str:
    share = plan.ledgers / max(plan.cluster_ledgers, 1)
    if plan.ledgers > kind.max_ledgers:
        return f"max_ledgers: {plan.ledgers}, the cap is {kind.max_ledgers}"
    if plan.bytes > kind.max_bytes:
        return f"max_bytes: {plan.bytes}, the cap is {kind.max_bytes}"
    if share > kind.max_share:
        return f"max_share: {share:.2%}, the cap is {kind.max_share:.2%}"
    if plan.largest_topic > kind.max_ledgers_per_topic:
        return f"max_ledgers_per_topic: {plan.largest_topic} of one topic, the cap is {kind.max_ledgers_per_topic}"
    return ""


def _goes(plan: Candidate, approval: Approval | None) -> str:
    whose = f", approved by {approval.by}" if approval else ""
    return f"{_size(plan)}{whose}"


def _size(plan: Candidate) -> str:
    return f"{plan.ledgers} {counted_of(plan.plan_id)}, {plan.bytes} bytes"
