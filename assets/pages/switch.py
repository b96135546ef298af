"""Whether the sensor that launched a run is still on: the run may have waited in Dagster's queue.

Belongs here: what a run's tags and Dagster's storage say of the one switch; ending a run that may not begin any more.
Not here: the sensor itself (``orchestration/automatic/automation.py``), nor what else may keep its runs from beginning.
"""

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorStatus
from dagster._core.storage.tags import RETRY_NUMBER_TAG, SENSOR_NAME_TAG

from assets.names import NOTHING_DONE

SWITCH = "automation"
"""The sensor that launches everything with effects."""
OFF = (InstigatorStatus.STOPPED, InstigatorStatus.DECLARED_IN_CODE)
"""It ships stopped, so what is as the code declares it is off."""


def by_a_person(run: dg.DagsterRun) -> bool:
    """Whether a person executes a run again. Dagster does so, too, where the instance retries runs."""
    return run.parent_run_id is not None and RETRY_NUMBER_TAG not in run.tags


def by_the_switch(run: dg.DagsterRun) -> bool:
    """Whether the switch launched a run, and no person executes it again."""
    return run.tags.get(SENSOR_NAME_TAG) == SWITCH and not by_a_person(run)


def switched_off(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Why a run that the switch launched may not begin any more; None where it may, or a person launched it."""
    if not by_the_switch(run) or run.remote_job_origin is None:
        return None
    location = run.remote_job_origin.repository_origin.get_selector_id()
    states = instance.all_instigator_state(
        repository_selector_id=location, instigator_type=InstigatorType.SENSOR, instigator_statuses=set(OFF)
    )
    return f"sensor {SWITCH} is switched off" if any(one.name == SWITCH for one in states) else None


def end_with_nothing_done(context: dg.OpExecutionContext | dg.AssetExecutionContext, why: str) -> None:
    """Mark a run that may not begin any more: it has done nothing, and is no failed try. Its log says why.

    Raises dagster.Failure for one that Dagster repeats: its first try may have begun, and that is no good end.
    """
    run = context.run
    if run.parent_run_id is not None:
        raise dg.Failure(f"launched by itself, it may not begin any more: {why}", allow_retries=False)
    context.instance.add_run_tags(run.run_id, {NOTHING_DONE: run.run_id})
    context.log.info(f"nothing was done: {why}")
