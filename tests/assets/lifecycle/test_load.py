"""What the pages of a load plan, and of what applies it, show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.lifecycle.load import needing_shown, plan_shown
from orchestration.lifecycle.load import load_topics_job, shown
from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.lifecycle.load_runs import OWN, expired, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadScene:
    return LoadScene(tmp_path, monkeypatch)


def test_the_pages_say_what_needs_a_broker_and_when_the_rest_goes(scene: LoadScene) -> None:
    (last,) = scene.topic("a", 200, cursor=0)
    scene.servers.wait(1)
    epoch = scene.scan()
    summary, rows = make_load_plan(scene.cluster, epoch)
    plan, table = plan_shown(summary, rows), needing_shown(scene.cluster, epoch.epoch_id)
    assert (plan["dagster/row_count"], plan["bytes"], plan["bytes at once"]) == (1, 10, 0)
    assert plan["second visit"].startswith("1 topics, the last at 2023-11-15T0")
    assert "plan_retention" in plan["how to apply"].value
    assert f'"plan_id": "{plan["plan id"]}"' in plan["how to apply"].value
    assert "| acme/orders | 1 | 10 B |" in plan["by namespace"].value
    assert "| last_ledger_expired | is loaded | 1 | 10 B |" in table["by need"].value
    assert table["largest kept"].value == "nothing"
    assert last == rows.column("ledger_id").to_pylist()[0]


def test_what_is_kept_is_shown_with_its_code(scene: LoadScene) -> None:
    scene.change(namespaces=())
    scene.topic("a", 200, cursor=0)
    scene.servers.wait(1)
    epoch = scene.scan()
    plan = plan_shown(*make_load_plan(scene.cluster, epoch))
    table = needing_shown(scene.cluster, epoch.epoch_id)
    assert plan["how to apply"].value == "No topic needs a broker that may be loaded."
    assert "| last_ledger_expired | way_is_metadata | 1 | 10 B |" in table["by need"].value
    assert [record.data["kept"] for record in table["largest kept"].records] == ["way_is_metadata"]


def test_a_run_shows_failures_first() -> None:
    done = [
        LoadedTopic("b", Outcome.DONE, Why(LoadStep.IN_METADATA, "well"), 7, 1_700_000_000_000, ("s",)),
        LoadedTopic("c", Outcome.LEFT, Why(LoadKept.BROKER_BUSY, "busy")),
        LoadedTopic("d", Outcome.FAILED, Why(LoadStep.NOT_IN_TIME, "late")),
    ]
    page = shown(done, dry_run=False)
    assert [record.data["topic"] for record in page["sample"].records] == ["d", "c", "b"]
    assert page["freed"] == 7
    assert page["subscriptions deleted"] == 1
    assert page["second visit"] == "1 topics, the last at 2023-11-14T22:13:20+00:00"
    assert "| failed | not_in_time | 1 |" in page["by outcome"].value


def launched(scene: LoadScene, plan: PlanSummary, **config: Any) -> tuple[dict[str, Any], str]:
    """Job ``load_topics``: what its page shows, and what it failed with, empty if it did not."""

    class Given(LifecycleResource):
        def cluster(self) -> Cluster:
            return scene.cluster

    order = {"plan_id": plan.plan_id, "digest": plan.digest, "dry_run": False}
    done = load_topics_job.execute_in_process(
        run_config={"ops": {"load": {"config": order | config}}},
        resources={"lifecycle": Given(config_file="")},
        raise_on_error=False,
    )
    failures = [event.step_failure_data.user_failure_data for event in done.all_events if event.is_step_failure]
    assert done.success is not bool(failures)
    if not failures:
        page = done.get_asset_materialization_events()
        assert page == []
        (output,) = [e.event_specific_data for e in done.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
        return plain(output.metadata), ""  # type: ignore[union-attr]
    assert failures[0] is not None
    return plain(failures[0].metadata), str(failures[0].description)


def plain(metadata: Any) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items()}


def test_a_job_is_green_where_topics_were_left_alone(scene: LoadScene) -> None:
    scene.work()
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, *"ab")
    assert launched(scene, plan, dry_run=True)[1] == ""
    scene.change(max_per_bundle=1)
    page, failure = launched(scene, plan)
    assert failure == ""
    assert "| done | in_metadata | 1 |" in page["by outcome"]
    assert "| left | budget_spent | 1 |" in page["by outcome"]


def test_a_job_is_red_where_one_topic_failed_and_says_its_code_and_what_was_done(scene: LoadScene) -> None:
    scene.work()
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, *"ab")
    scene.servers.admin.unanswered[Topic.parse(f"{OWN}a")] = StoreError("409: no")
    page, failure = launched(scene, plan)
    assert failure == f"1 of 2 topics failed, the first: {OWN}a (server_failed): 409: no"
    assert "| done | in_metadata | 1 |" in page["by outcome"]
    assert page["freed"] > 0


def test_a_job_that_is_refused_or_paused_says_the_code(scene: LoadScene) -> None:
    scene.work()
    expired(scene)
    plan = planned(scene, "a")
    assert launched(scene, plan, digest="other")[1].startswith("refused (plan_differs): ")
    control.pause(scene.servers.open_store(), "by hand")
    assert launched(scene, plan)[1].startswith("refused: paused: ")
    control.resume(scene.servers.open_store())
    scene.servers.admin.on_trim = lambda topic: control.pause(scene.servers.open_store(), "by hand")
    assert launched(scene, plan)[1].startswith("stopped: paused: ")
    assert scene.is_loaded("a")  # until the next run
