"""What a run that was refused before it did anything leaves on pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from orchestration.definitions import build_defs
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan, run_config
from pulsar_lifecycle.runs import control
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.assets_scene import observed
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    found = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: found.cluster)
    return found


def test_a_run_that_is_refused_says_so_on_its_plans_page_and_the_queues(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100, 100)
    summary, _ = make_retention_plan(scene.cluster, scene.scan())
    config = run_config(summary)
    config["ops"]["trim_expired"]["config"] |= {"dry_run": False, "max_ledgers": 1}
    job, resources = build_defs().resolve_job_def("apply_retention"), {"lifecycle": LifecycleResource()}
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(config, instance=instance, resources=resources, raise_on_error=False)
        assert not result.success
        for name in ("retention_plan", "ledger_deletion_topic"):
            (page,) = observed(instance, name)
            found = page["run"], page["refused"], page["plan id"]
            assert found == (result.run_id, "max_ledgers", summary.plan_id)
        assert observed(instance, "journal") == []


TOPIC = "persistent://shop/orders/a"


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        ("trim_topics", "trim", {"topics": [{"topic": TOPIC, "ledgers": [1]}], "dry_run": False}),
        ("delete_topics", "delete_whole_topics", {"topics": [TOPIC], "dry_run": False}),
    ],
)
def test_a_sender_without_a_plan_that_is_paused_says_so_on_the_queues_page(
    scene: RetentionScene, job: str, op: str, config: dict[str, Any]
) -> None:
    scene.topic("a", 100, 100, 100)
    scene.scan()
    control.pause(scene.servers.open_store(), "look first")
    ops = {"ops": {op: {"config": config}}}
    with dg.DagsterInstance.ephemeral() as instance:
        result = (
            build_defs()
            .resolve_job_def(job)
            .execute_in_process(
                ops, instance=instance, resources={"lifecycle": LifecycleResource()}, raise_on_error=False
            )
        )
        assert not result.success
        (page,) = observed(instance, "ledger_deletion_topic")
        assert (page["run"], page["refused"]) == (result.run_id, "paused")
        assert "plan id" not in page
