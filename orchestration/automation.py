"""Job ``keep_retention``: the retention plan of the newest scan, and, if the settings say so, its application.

Belongs here: doing by schedule what ``plan_retention`` and ``apply_retention`` do by hand, as far as ``[automation]``
goes. Not here: any rule of theirs.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.names import EPOCH, key
from assets.retention import expired_shown, plan_shown
from orchestration.failures import wrong_configuration_fails
from orchestration.trimming import finish
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.run_settings import Automation
from pulsar_lifecycle.runs.caps import Order, automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.evidence import newest_epoch
from pulsar_lifecycle.trimming.retention_run import apply_retention
from resources.lifecycle import LifecycleResource

OFF = 'automation.retention is "off": set it to "plan" or "apply" in the settings file'
Materialized = Callable[[str, dict[str, Any]], None]
"""Called with what the page of an asset shows."""


def keep_retention(where: Cluster, run_id: str, materialized: Materialized) -> dict[str, Any]:
    """Plan, and apply the plan where ``automation.retention`` is ``apply``; what the run's page shows.

    Nothing is done where it is ``off``. Raises Refused for a plan that is report-only or beyond the caps of
    ``[automation]``: none of it is applied then, and it waits for an operator.
    """
    mode = where.settings.automation.retention
    if mode is Automation.OFF:
        return {"not done": OFF}
    with where.ports(read_only=True) as ports:
        fingerprint = cluster_fingerprint(ports.store, where.settings.bookkeeper.ledgers_root)
    epoch = newest_epoch(where, fingerprint)
    summary, rows = make_retention_plan(where, epoch)
    materialized("expired_ledgers", {EPOCH: epoch.epoch_id, **expired_shown(where, epoch.epoch_id)})
    materialized("retention_plan", {EPOCH: epoch.epoch_id, **plan_shown(summary, rows)})
    planned = {"plan id": summary.plan_id, "ledgers": summary.ledgers, "bytes on disk": summary.physical_bytes}
    if mode is not Automation.APPLY or not summary.ledgers:
        return planned
    order = Order(summary.plan_id, summary.digest, automation_caps(where.settings))
    done = finish(False, lambda report: apply_retention(where, run_id, order, dry_run=False, report=report))
    return planned | done


def keep_retention_job(cluster: str) -> dg.JobDefinition:
    """One op; the pages of both assets say what it found."""

    @dg.op(
        name="retain",
        description='Make the retention plan. With `automation.retention = "apply"` apply it at once, whole, unless it '
        "exceeds the caps of `[automation]`: then nothing is done, and the run fails.",
    )
    @wrong_configuration_fails()
    def retain(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
        def materialized(name: str, metadata: dict[str, Any]) -> None:
            context.log_event(dg.AssetMaterialization(key(cluster, name), metadata=metadata))

        context.add_output_metadata(keep_retention(lifecycle.cluster(), context.run_id, materialized))

    @dg.job(
        name="keep_retention",
        executor_def=dg.in_process_executor,
        description="Plan what is past its retention in topics that no broker has loaded and, if "
        '`automation.retention` is `"apply"`, have it leave its topics, under the caps of `[automation]`. Loads no '
        "topic.",
    )
    def keep() -> None:
        retain()

    return keep


def retention_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every night, half an hour after a scan; rings for nothing while ``automation.retention`` is ``off``."""

    @dg.schedule(
        name="nightly_retention",
        job=job,
        cron_schedule="37 2 * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Starts `keep_retention`, unless `automation.retention` is `off`.",
    )
    def nightly(lifecycle: LifecycleResource) -> dg.RunRequest | dg.SkipReason:
        off = lifecycle.without_spark().settings.automation.retention is Automation.OFF
        return dg.SkipReason(OFF) if off else dg.RunRequest()

    return nightly
