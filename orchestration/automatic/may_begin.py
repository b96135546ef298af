"""Whether a run that the sensor ``automation`` launched may still begin: it may have waited in Dagster's queue.

Belongs here: asking the rule once more. Not here: the rule (``pulsar_lifecycle/runs/automation_rule.py``), nor anything
about runs that a person launched.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets.pages.switch import by_a_person, end_with_nothing_done, switched_off
from orchestration.automatic.at_work import BY_ITSELF
from orchestration.automatic.launches import LAUNCHES
from pulsar_lifecycle.inspect.automation import KINDS, decision_of, settings_of
from pulsar_lifecycle.runs.cluster import Cluster


def may_begin(context: dg.OpExecutionContext, where: Cluster, plan_id: str = "") -> bool:
    """Whether this run is to begin; False, and its page says why, where it may not any more, as it is.

    Others have applied its plan while it waited, or switch, settings, window or an approval do not let it go. What was
    launched by itself, and is executed again by a person, goes. Raises dagster.Failure for a run that Dagster repeats.
    """
    name = context.run.tags.get(BY_ITSELF, "")
    if not name or by_a_person(context.run):
        return True
    why = switched_off(context.instance, context.run)
    if not why:
        why = _waits(where, name, plan_id, context.run.run_config)
    if why:
        end_with_nothing_done(context, why)
        context.add_output_metadata({"nothing was done": why})
    return not why


def _waits(where: Cluster, name: str, plan_id: str, launched: Mapping[str, Any]) -> str | None:
    """Why the run is not to apply its plan by itself now; None if it is."""
    kind = next((one for one in KINDS if one.name == name), None)
    if kind is None:
        return f"this version knows no kind {name!r}"
    decision, plan = decision_of(where, kind, plan_id)
    if not decision.goes or plan is None:
        return f"{decision.code.value}: {decision.text}"
    now = LAUNCHES[name].run_config(where, plan, settings_of(where, kind))
    return None if now["ops"] == launched["ops"] else f"automation.{name} or its caps have changed since"
