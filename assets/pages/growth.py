"""Check ``plan_growth`` of the assets of plans: whether a plan is far larger than those applied lately.

Belongs here: the check, the same for every kind that may go by itself. Not here: the rule
(``pulsar_lifecycle/runs/automation_rule.py``), measuring a plan by the journal (``inspect/automation.py``).
"""

from collections.abc import Sequence

import dagster as dg

from assets.pages import show
from pulsar_lifecycle.inspect.automation import Growth, Plan, growth_of
from pulsar_lifecycle.runs.automation_rule import Amount
from pulsar_lifecycle.runs.cluster import Cluster

GROWTH = "plan_growth"


def growth_spec(plan: dg.AssetKey, *kinds: str) -> dg.AssetCheckSpec:
    """The check of a plan's asset; ``kinds``: keys of ``[automation]`` whose rows its plans hold."""
    named = " or ".join(f"`[automation.{kind}]`" for kind in kinds)
    return dg.AssetCheckSpec(
        GROWTH,
        asset=plan,
        description="Fails where what of a plan may go by itself is far more ledgers or bytes than any plan was "
        f"applied to in the last 30 days: `max_growth`, `growth_from` and `growth_from_bytes` of {named}. "
        "In mode `apply` such a plan is never applied by itself.",
    )


def growth_result(where: Cluster, asset: dg.AssetKey, plan: Plan, *kinds: str) -> dg.AssetCheckResult:
    """What the check of an asset says of a plan. Raises what the lake raises."""
    return growth_shown(asset, [growth_of(where, kind, plan) for kind in kinds])


def growth_shown(asset: dg.AssetKey, found: Sequence[Growth]) -> dg.AssetCheckResult:
    """One result of each kind's growth: a plan may hold rows of two."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=GROWTH,
        passed=not any(one.grew for one in found),
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(map(growth_text, found)),
        metadata={name: size for one in found for name, size in _sizes(one).items()},
    )


def growth_text(one: Growth) -> str:
    """How large a plan is, and beside what."""
    if one.largest is None:
        return f"{one.kind}: {_amount(one.plan)}, so little may grow as it likes"
    far = "far more than" if one.grew else "beside"
    lately = f"{_amount(one.largest)} of the largest that was applied in 30 days"
    return f"{one.kind}: {_amount(one.plan)}, {far} the {lately}"


def _amount(some: Amount) -> str:
    return f"{some.ledgers} and {show.size(some.bytes)}"


def _sizes(one: Growth) -> dict[str, int]:
    return {one.kind: one.plan.ledgers, f"{one.kind} bytes": one.plan.bytes}
