"""What a plan that is applied without the queue shows, and when its run fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from assets.deletion import _plan_shown, outcomes_shown
from orchestration.buckets import SweepConfig, sweep_objects_job
from orchestration.jobs import ApplyConfig, RedriveConfig, apply_plan_job, deleted, redrive_job
from orchestration.lifecycle.retention import RetentionConfig, apply_retention_job
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.deletion.workers import OutcomeCount, RunEnd
from pulsar_lifecycle.runs.caps import AS_SET
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.tables import FINDINGS
from resources.lifecycle import LifecycleResource

SLOW = OutcomeCount(Outcome.NOT_DELETED, "ZooKeeper is too slow", 3, 0)
KEPT_ONE = OutcomeCount(Outcome.KEPT, "a topic lists it", 1, 0)
DELETED_ONE = OutcomeCount(Outcome.DELETED, "", 1, 10)
LIMIT = OutcomeCount(RunEnd.LIMITED, "deletion.max_messages", 1, 0)
GONE_ONE = OutcomeCount(Outcome.GONE, "", 1, 0)


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ([SLOW], "nothing was deleted, 3 ledgers stay, the first reason: not-deleted: ZooKeeper is too slow"),
        ([GONE_ONE, KEPT_ONE, SLOW], "nothing was deleted, 4 ledgers stay, the first reason: kept: a topic lists it"),
        ([DELETED_ONE, OutcomeCount(RunEnd.STOPPED, "paused", 1, 0)], "the run stopped itself: paused"),
        (
            [DELETED_ONE, OutcomeCount(RunEnd.WITHHELD, "a-partition-0: 8", 8, 0)],
            "were not handed out: 8 at a-partition-0: 8",
        ),
        ([DELETED_ONE, OutcomeCount(RunEnd.NOT_SENT_BACK, "full", 2, 0)], "stay at the head of the queue: full"),
        ([DELETED_ONE, OutcomeCount(RunEnd.NOT_COMPARED, "503", 1, 0)], "were handed out is not known: 503"),
    ],
)
def test_a_run_that_stopped_or_deleted_nothing_fails_and_shows_its_outcomes(
    outcomes: list[OutcomeCount], why: str
) -> None:
    with pytest.raises(dg.Failure, match=why) as failure:
        deleted(outcomes)
    assert "outcomes" in failure.value.metadata


@pytest.mark.parametrize("outcomes", [[], [GONE_ONE], [DELETED_ONE, SLOW], [DELETED_ONE, LIMIT]])
def test_a_run_that_deleted_some_or_had_nothing_to_do_does_not_fail(outcomes: list[OutcomeCount]) -> None:
    assert deleted(outcomes)["dagster/row_count"] == (DELETED_ONE in outcomes)


def test_pages_of_a_plan_and_of_a_run_group_by_code_with_one_sentence_of_each() -> None:
    said = (("unreferenced", "nothing refers to it"), ("not_held", "x"), ("not_held", "y"))
    rows = [
        {"ledger_id": i, "code": code, "reason": why, "physical_bytes": 10**i, "namespace": "t/n", "topic": "t"}
        for i, (code, why) in enumerate(said)
    ]
    summary = PlanSummary("p", "c", "f", "e2", "e1", 1, True, (), 3, 3, 111, 10, "d")
    lines = _plan_shown(summary, pa.Table.from_pylist(rows, FINDINGS), Automation.PLAN)["why"].value.splitlines()
    assert lines[2:] == ["| not_held | 2 | 110 B | x |", "| unreferenced | 1 | 1 B | nothing refers to it |"]
    alone = _plan_shown(replace(summary, confirmed_by=""), pa.Table.from_pylist([], FINDINGS), Automation.PLAN)
    assert alone["confirmed by scan"] == "nothing"
    held = OutcomeCount(Outcome.KEPT, "legal hold", 3, 5, Protection.LEGAL_HOLD)
    assert outcomes_shown([held])["outcomes"].value.splitlines()[2:] == ["| kept | legal_hold | 3 | 5 B | legal hold |"]


class Unreachable(LifecycleResource):
    """A cluster with nobody there: what is refused without asking it is refused before anything is done."""

    def cluster(self) -> Cluster:
        return self.without_spark()


@pytest.fixture
def unreachable(tmp_path: Path) -> LifecycleResource:
    file = tmp_path / "lifecycle.toml"
    file.write_text(
        'cluster = "c"\nzookeeper = { hosts = "127.0.0.1:1" }\nlake = { path = "/nowhere/lake" }\n'
        'pulsar = { admin_url = "http://127.0.0.1:1", service_url = "pulsar://127.0.0.1:1" }\n'
        'object_store = { buckets = ["b"] }\napply = { max_ledgers = 10, max_share = 0.01, max_bytes = 100 }\n'
    )
    return Unreachable(config_file=str(file))


def test_a_launch_has_no_caps_of_its_own() -> None:
    for config in (ApplyConfig, SweepConfig, RetentionConfig):
        assert config(plan_id="p", digest="d").order().caps == AS_SET
    assert RedriveConfig().max_messages is None


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        (apply_plan_job, "send_intents", {"max_ledgers": 11}),
        (apply_plan_job, "send_intents", {"max_share": 0.05}),
        (apply_plan_job, "send_intents", {"max_bytes": 101, "direct": True}),
        (apply_plan_job, "send_intents", {"max_ledgers_per_topic": 100_001}),
        (sweep_objects_job, "sweep", {"max_ledgers": 11}),
        (sweep_objects_job, "sweep", {"max_ledgers": 11, "dry_run": False}),
        (apply_retention_job, "trim_expired", {"max_ledgers": 11}),
        (apply_retention_job, "trim_expired", {"max_ledgers": 11, "dry_run": False}),
        (redrive_job, "redrive", {"max_messages": 11}),
        (redrive_job, "redrive", {"max_messages": 11, "dry_run": False}),
    ],
)
def test_a_launch_that_asks_for_more_than_the_settings_fails_before_anything(
    unreachable: LifecycleResource, job: dg.JobDefinition, op: str, config: dict[str, Any]
) -> None:
    plan = {} if op == "redrive" else {"plan_id": "p", "digest": "d"}
    with pytest.raises(dg.Failure, match=r": this launch asks for .* in the settings file allows"):
        job.execute_in_process(
            run_config={"ops": {op: {"config": plan | config}}}, resources={"lifecycle": unreachable}
        )
