"""The pipeline as an operator drives it: Dagster jobs, the plan's page, the coverage check, the journal's events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from pulsar_lifecycle.deletion.planning.confirmed_orphans import run_config
from pulsar_lifecycle.values.gaps import GapCode
from sandbox.cluster import Cluster
from sandbox.planting import plant
from tests.integration.jobs import Jobs, key
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    emptied,
    existing,
    new_namespace,
    wait_unlisted,
    waiting,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {one.check_name: one for one in result.get_asset_check_evaluations()}


def test_an_operator_scans_applies_what_the_page_says_and_deletes(
    sandbox: Cluster, pipelines: Callable[..., Pipeline], instance: dg.DagsterInstance
) -> None:
    namespace = new_namespace(sandbox, "jobs")
    leaked = f"persistent://{namespace}/leaked"
    orphans = {entry.ledger_id for entry in plant.orphan_data(sandbox, leaked)}
    lost = f"persistent://{namespace}/lost"
    plant.dangling(sandbox, lost)
    wait_unlisted(sandbox, [leaked, lost])
    pipeline = pipelines({"apply": {"max_share": 1.0}, "deletion": PATIENT})
    jobs = Jobs(pipeline, instance)
    jobs.run("scan")
    checks = checks_of(jobs.run("scan"))
    assert checks["coverage"].passed, checks["coverage"].description
    assert checks["topics_can_load"].passed, checks["topics_can_load"].description
    dangling = checks["no_dangling_references"]
    assert (dangling.passed, dangling.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert lost in str(dangling.metadata["topics"].value)
    page = jobs.page("deletion_plan")
    assert page["actionable"]
    assert page["dagster/row_count"] >= len(orphans)
    summary, rows = pipeline.where.lake.plan(page["plan id"])
    assert orphans <= set(rows.column("ledger_id").to_pylist())
    (said,) = re.findall(r"```json\n(.*?)```", "\n".join(str(value) for value in page.values()), re.DOTALL)
    config = json.loads(said)
    assert config == run_config(summary)

    jobs.run("apply_plan", config)
    assert waiting(sandbox) == summary.ledgers
    deleting = jobs.run("delete_pending")
    assert jobs.page("ledger_deletions")["dagster/row_count"] == summary.ledgers
    assert not existing(sandbox, orphans)
    assert emptied(sandbox)
    for ledger in orphans:
        assert [(row["run_id"], row["outcome"]) for row in pipeline.journal(ledger)] == [(deleting.run_id, "deleted")]
    wanted = dg.AssetRecordsFilter(key("deletions_by_namespace"), asset_partitions=[namespace])
    (event,) = instance.fetch_materializations(wanted, limit=10).records
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["dagster/row_count"].value == len(orphans)


def test_the_coverage_check_says_what_is_missing_and_the_plan_says_report_only(
    pipelines: Callable[..., Pipeline], instance: dg.DagsterInstance
) -> None:
    jobs = Jobs(pipelines({"bookkeeper": {"shared_with": None}}), instance)
    check = checks_of(jobs.run("scan"))["coverage"]
    assert not check.passed
    assert f"{GapCode.SHARING_UNDECLARED}: " in (check.description or "")
    page = jobs.page("deletion_plan")
    assert not page["actionable"]
    assert any(f"{GapCode.SHARING_UNDECLARED}: " in str(value) for value in page.values())
