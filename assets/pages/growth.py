"""Check ``plan_growth`` of the assets of plans: whether a plan is far larger than those applied lately.

Belongs here: the check, the same for every kind that may go by itself. Not here: the rule
(``pulsar_lifecycle/runs/automation_rule.py``), measuring a plan by the journal (``inspect/automation.py``).
"""

from collections.abc import Sequence

import dagster as dg

from pulsar_lifecycle.inspect.automation import Growth, Plan, growth_of
from pulsar_lifecycle.runs.cluster import Cluster

GROWTH = "plan_growth"


def growth_spec(plan: dg.AssetKey, *kinds: str) -> dg.AssetCheckSpec:
    """The check of a plan's asset; ``kinds``: keys of ``[automation]`` whose rows its plans hold."""
    named = " or ".join(f"`[automation.{kind}]`" for kind in kinds)
    return dg.AssetCheckSpec(
        GROWTH,
        asset=plan,
        description="Fails where a plan is far larger than those applied in the last 30 days: `max_growth` and "
        f"`growth_from` of {named}. In mode `apply` such a plan is never applied by itself.",
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
        metadata={one.kind: one.ledgers for one in found},
    )


def growth_text(one: Growth) -> str:
    """How large a plan is, and beside what."""
    if one.largest is None:
        return f"{one.kind}: {one.ledgers}, so few may grow as they like"
    far = f"{one.ledgers}, far more than" if one.grew else f"{one.ledgers}, beside"
    return f"{one.kind}: {far} the {one.largest} of the largest plan that was applied in 30 days"
