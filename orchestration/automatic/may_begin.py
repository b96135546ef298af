"""Whether a run that the sensor ``automation`` launched may still begin: it may have waited in Dagster's queue.

Belongs here: asking the rule once more. Not here: the rule (``pulsar_lifecycle/runs/automation_rule.py``), nor anything
about runs that a person launched.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets.pages.switch import by_a_person, switched_off
from orchestration.automatic.at_work import BY_ITSELF
from orchestration.automatic.launches import LAUNCHES
from pulsar_lifecycle.inspect.automation import BOOKIES, KINDS, bookies_decision, decision_of, settings_of
from pulsar_lifecycle.runs.automation_rule import AutomationCode, PlanDecision
from pulsar_lifecycle.runs.cluster import Cluster

_BY_OTHERS = frozenset({AutomationCode.TAKEN, AutomationCode.SENT, AutomationCode.SETTLED})
"""Other runs have begun to apply the plan, or there is nothing left of it. Of a run that Dagster retries, it may have
been its own first try: that is no good end."""


def may_begin(context: dg.OpExecutionContext, where: Cluster, plan_id: str = "") -> bool:
    """Whether this run is to begin; False, which its page says, where others applied its plan while it waited.

    Raises dagster.Failure where switch, settings, window or an approval do not let it go any more, as it is. What was
    launched by itself, and is executed again by a person, goes.
    """
    name = context.run.tags.get(BY_ITSELF, "")
    if not name or by_a_person(context.run):
        return True
    why = switched_off(context.instance, context.run)
    if not why and name == BOOKIES:
        why = bookies_wait(where)
    elif not why:
        decision, why = _decided(where, name, plan_id, context.run.run_config)
        if decision and decision.code in _BY_OTHERS and context.run.parent_run_id is None:
            context.log.info(f"nothing was done: {why}")
            context.add_output_metadata({"nothing was done": why})
            return False
    if why:
        raise dg.Failure(f"launched by itself, it may not begin any more: {why}", allow_retries=False)
    return True


def bookies_wait(where: Cluster) -> str | None:
    """Why bookies do not collect by themselves now; None if they may."""
    decision = bookies_decision(where)
    return None if decision.goes else decision.text


def _decided(
    where: Cluster, name: str, plan_id: str, launched: Mapping[str, Any]
) -> tuple[PlanDecision | None, str | None]:
    """What becomes of the plan by itself now, and why the run is not to begin; None if it is."""
    kind = next((one for one in KINDS if one.name == name), None)
    if kind is None:
        return None, f"this version knows no kind {name!r}"
    decision, plan = decision_of(where, kind, plan_id)
    if not decision.goes or plan is None:
        return decision, f"{decision.code.value}: {decision.text}"
    now = LAUNCHES[name].run_config(where, plan, settings_of(where, kind))
    return decision, None if now["ops"] == launched["ops"] else f"automation.{name} or its caps have changed since"
