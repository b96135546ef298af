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
from pulsar_lifecycle.runs.cluster import Cluster


def check_may_begin(context: dg.OpExecutionContext, where: Cluster, plan_id: str = "") -> None:
    """Raise dagster.Failure where switch, settings, window or an approval do not let this run go any more, as it is.

    What was launched by itself, and is executed again by a person, goes.
    """
    name = context.run.tags.get(BY_ITSELF, "")
    if not name or by_a_person(context.run):
        return
    why = switched_off(context.instance, context.run) or (
        bookies_wait(where) if name == BOOKIES else _against(where, name, plan_id, context.run.run_config)
    )
    if why:
        raise dg.Failure(f"launched by itself, it may not begin any more: {why}", allow_retries=False)


def bookies_wait(where: Cluster) -> str:
    """Why bookies do not collect by themselves now; empty if they may."""
    decision = bookies_decision(where)
    return "" if decision.goes else decision.text


def _against(where: Cluster, name: str, plan_id: str, launched: Mapping[str, Any]) -> str:
    kind = next((one for one in KINDS if one.name == name), None)
    if kind is None:
        return f"this version knows no kind {name!r}"
    decision, plan = decision_of(where, kind, plan_id)
    if not decision.goes or plan is None:
        return f"{decision.code.value}: {decision.text}"
    now = LAUNCHES[name].run_config(where, plan, settings_of(where, kind))
    return "" if now["ops"] == launched["ops"] else f"automation.{name} or its caps have changed since"
