"""The code location: one cluster, named by the settings file in ``$PULSAR_LIFECYCLE_CONFIG``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from assets.buckets import object_assets
from assets.dead_letters import dead_letters_asset
from assets.delayed_index import delayed_index_assets, namespace_delayed_index_asset
from assets.deletion import deletion_assets
from assets.external import external_assets
from assets.findings import findings_assets
from assets.lasting import lasting_assets
from assets.late_messages import late_messages_check
from assets.lifecycle.activity import activity_assets
from assets.lifecycle.bookies import bookie_assets
from assets.lifecycle.held import held_assets
from assets.lifecycle.load import load_assets
from assets.lifecycle.namespace_retention import namespace_retention_asset
from assets.lifecycle.retention import retention_assets
from assets.lifecycle.storage import storage_report_asset
from assets.metastore import metastore_assets
from assets.pages.frame import framed
from assets.reconcile import reconciliation_asset
from assets.references import coverage_asset, references_asset
from assets.tiered import offload_assets
from orchestration.automatic.alerts import failed_runs_sensor, read_only_sensor
from orchestration.automatic.automation import approve_job, automation_sensor, awaited, following, following_sensor
from orchestration.automatic.consumed_records import consumed_records_schedule, plan_consumed_records_job
from orchestration.automatic.schedules import dead_letter_sensor, looking_schedules
from orchestration.buckets import inventory_objects_job, sweep_objects_job
from orchestration.delayed_index import check_delayed_index_job, repair_delayed_index_job
from orchestration.delete_records import delete_records_job
from orchestration.jobs import apply_plan_job, delete_pending_job, redrive_job, scan_job, watch_queue_job
from orchestration.lifecycle.activity import (
    delete_inactive_subscriptions_job,
    delete_inactive_topics_job,
    report_activity_job,
)
from orchestration.lifecycle.bookies import collect_bookies_job, report_storage_job
from orchestration.lifecycle.load import load_topics_job, plan_load_job
from orchestration.lifecycle.retention import apply_retention_job, plan_retention_job
from orchestration.reconcile import reconcile_job
from orchestration.tiered import offload_job, plan_offload_job, revert_job
from orchestration.trimming import delete_topics_job, trim_topics_job
from orchestration.undo import undo_deletions_job
from pulsar_lifecycle.automation_settings import AutomationSettings
from pulsar_lifecycle.settings import CONFIG_VARIABLE, CatalogSettings, load_settings
from resources.lifecycle import LifecycleOnSpark, spark_config

UNCONFIGURED = "pulsar"
"""Cluster name while no settings file is named, so that the location loads and says what is missing when run."""


def build_defs(config_file: str = "", resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Everything for one cluster. ``resources`` overrides the real ones. Raises ConfigError for wrong settings."""
    path = config_file or os.environ.get(CONFIG_VARIABLE, "")
    settings = load_settings(path) if path else None
    cluster = settings.cluster if settings else UNCONFIGURED
    catalog = settings.catalog if settings else CatalogSettings()
    given = dict(resources or {})
    pyspark = given.get("pyspark") or LazyPySparkResource(spark_config=spark_config(settings) if settings else {})
    delete_pending = delete_pending_job(cluster)
    scan = scan_job(cluster)
    automation = settings.automation if settings else AutomationSettings()
    goes_by = awaited(automation, settings.orphans.plan_valid_for + catalog.scan_fresh_for) if settings else {}
    offload = offload_job(cluster)
    report_storage, inventory, reconcile, watch, plan_retention, check_delayed_index = (
        report_storage_job(cluster),
        inventory_objects_job(cluster),
        reconcile_job(cluster),
        watch_queue_job(cluster),
        plan_retention_job(cluster),
        check_delayed_index_job(cluster),
    )
    jobs: list[Any] = [
        scan,
        apply_plan_job,
        delete_pending,
        redrive_job,
        undo_deletions_job,
        trim_topics_job,
        delete_topics_job,
        delete_records_job,
        plan_consumed_records_job,
        reconcile,
        plan_offload_job(cluster),
        offload,
        revert_job(cluster),
        inventory,
        sweep_objects_job,
        plan_retention,
        apply_retention_job,
        approve_job,
        watch,
        plan_load_job(cluster),
        load_topics_job,
        collect_bookies_job,
        report_storage,
        report_activity_job(cluster),
        delete_inactive_topics_job,
        delete_inactive_subscriptions_job,
        check_delayed_index,
        repair_delayed_index_job,
    ]
    return dg.Definitions(
        assets=framed(_assets(cluster), catalog, following(cluster, automation), goes_by),
        asset_checks=[late_messages_check(cluster)],
        jobs=jobs,
        schedules=[
            *looking_schedules(
                cluster,
                automation.schedules,
                scan,
                inventory,
                reconcile,
                watch,
                plan_retention,
                check_delayed_index,
            ),
            consumed_records_schedule(automation.schedules.consumed_records),
        ],
        sensors=[
            dead_letter_sensor(cluster),
            automation_sensor(cluster, {job.name: job for job in jobs}, automation.look_every),
            following_sensor(cluster, automation.look_every),
            failed_runs_sensor(cluster, settings),
            read_only_sensor(cluster, report_storage),
        ],
        executor=dg.in_process_executor,
        resources={"lifecycle": LifecycleOnSpark(config_file=path, pyspark=pyspark), "pyspark": pyspark, **given},
    )


def _assets(cluster: str) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    return [
        *external_assets(cluster),
        *lasting_assets(cluster),
        *metastore_assets(cluster),
        references_asset(cluster),
        coverage_asset(cluster),
        findings_assets(cluster),
        *deletion_assets(cluster),
        dead_letters_asset(cluster),
        reconciliation_asset(cluster),
        *offload_assets(cluster),
        object_assets(cluster),
        retention_assets(cluster),
        namespace_retention_asset(cluster),
        load_assets(cluster),
        bookie_assets(cluster),
        storage_report_asset(cluster),
        held_assets(cluster),
        activity_assets(cluster),
        delayed_index_assets(cluster),
        namespace_delayed_index_asset(cluster),
    ]


defs = build_defs()
