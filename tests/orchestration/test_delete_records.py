"""Job ``delete_records``, whole: a plan, what applies it, its answer, its page; the plan of ``consumed_records``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pytest

from assets.names import PLAN
from assets.pages.show import SAMPLE
from orchestration.automatic.consumed_records import NOTHING_NAMED
from orchestration.definitions import build_defs
from orchestration.delete_records import of_both
from pulsar_lifecycle.delete_records.request import Lacks
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from resources.lifecycle import LifecycleResource
from tests.kit.records.records_scene import RecordsScene

Page = Mapping[str, Any]


class Jobs:
    """Jobs over a scene, launched as from the UI."""

    def __init__(self, scene: RecordsScene, instance: dg.DagsterInstance) -> None:
        self.scene, self.instance, self.run_id = scene, instance, ""

    def __call__(self, job: str, config: Mapping[str, Any] | None = None) -> tuple[Page, str]:
        """What its page shows, and what it failed with, empty if it did not."""
        scene = self.scene

        class Simulated(LifecycleResource):
            def cluster(self) -> Cluster:
                return scene.where

        done = (
            build_defs()
            .resolve_job_def(job)
            .execute_in_process(
                run_config=dict(config or {}),
                resources={"lifecycle": Simulated()},
                instance=self.instance,
                raise_on_error=False,
            )
        )
        self.run_id = done.run_id
        failures = [event.step_failure_data.user_failure_data for event in done.all_events if event.is_step_failure]
        assert done.success is not bool(failures)
        if failures:
            assert failures[0] is not None
            return plain(failures[0].metadata), str(failures[0].description)
        (output,) = [e.event_specific_data for e in done.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
        return plain(output.metadata), ""  # type: ignore[union-attr]

    def delete_records(self, **config: Any) -> tuple[Page, str]:
        """Job ``delete_records``."""
        return self("delete_records", {"ops": {"delete_before": {"config": config}}})

    def plan_of_its_run(self) -> str:
        """By the tag of the newest run."""
        run = self.instance.get_run_by_id(self.run_id)
        assert run is not None
        return run.tags.get(PLAN, "")


def plain(metadata: Any) -> Page:
    """A table as its rows."""
    tables = {
        name: [one.data for one in v.records] for name, v in metadata.items() if isinstance(v, dg.TableMetadataValue)
    }
    return {name: value.value for name, value in metadata.items()} | tables


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Jobs(RecordsScene(2), instance)


def test_records_are_planned_applied_and_answered(jobs: Jobs) -> None:
    scene = jobs.scene
    ids = scene.ids[scene.topic]
    good, bad = {"topic": str(scene.topic), "offset": f"{ids[2]}:3"}, {"topic": str(scene.topics[1]), "offset": "7:99"}
    page, failure = jobs.delete_records(partitions=[good, bad])
    assert (failure, page["partitions"], page["with an error"]) == ("", 2, 1)
    assert page["undo"] == "until the bookies collect"
    failed, planned = page["sample"]
    assert (failed["partition"], failed["error"]) == (str(scene.topics[1]), RecordsError.NO_SUCH_POSITION)
    assert (planned["low watermark"], planned["first readable"]) == (f"{ids[2]}:3", f"{ids[2]}:0")
    assert planned["below it"].startswith("3 messages, ")
    assert scene.listed() == ids

    apply = page["to apply it"]["ops"]["delete_before"]["config"]
    page, failure = jobs.delete_records(**apply)
    assert (failure, page["dry run"], page["errors"], scene.listed()) == ("", True, 2, ids)

    apply |= {"dry_run": False}
    page, failure = jobs.delete_records(**apply)
    assert "2 of 2 partitions fail this run" in failure
    assert (page["errors"], scene.listed()) == (2, ids[2:])
    assert {row["code"] for row in page["sample"]} == {RecordsError.NO_SUCH_POSITION, Lacks.DELETION}
    assert jobs.plan_of_its_run() == apply["plan_id"]

    scene.delete()
    page, failure = jobs.delete_records(**apply)
    assert "1 of 2 partitions fail this run" in failure
    answers = {row["partition"]: row["low_watermark"] for row in page["sample"]}
    assert answers == {str(scene.topic): f"{ids[2]}:3", str(scene.topics[1]): "-1"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"plan_id": "p", "digest": "d", "no_undo": True}, "no_undo: of a plan"),
        ({"plan_id": "p", "digest": "d", "collect": True}, "collect goes with finish"),
        ({"finish": True, "wait_for_bookies": True}, "wait_for_bookies, finish: of an apply"),
        ({"dry_run": False}, "dry_run = false: belongs to the apply"),
    ],
)
def test_a_plan_and_its_apply_refuse_what_belongs_to_the_other(jobs: Jobs, config: Page, said: str) -> None:
    asked = {} if "plan_id" in config else {"partitions": [{"topic": str(jobs.scene.topic), "offset": "-1"}]}
    assert said in jobs.delete_records(**{**asked, **config})[1]


def test_neither_a_plan_nor_partitions_is_refused(jobs: Jobs) -> None:
    assert "give either partitions, for a plan, or plan_id and digest" in jobs.delete_records()[1]


def test_what_was_consumed_is_planned_and_applied(jobs: Jobs) -> None:
    scene = jobs.scene
    assert jobs("plan_consumed_records") == ({"not done": NOTHING_NAMED}, "")
    scene.consumed = {"acme/orders": ("billing",), "acme/oders": ("billing",)}
    scene.cursor("billing", 2, 4)
    page, failure = jobs("plan_consumed_records")
    assert "acme/oders" in page["namespaces without a topic"]
    ids = scene.ids[scene.topic]
    assert (failure, page["partitions"], page["stopped"]) == ("", 1, 1)
    (stopped,) = page["what is stopped"]
    assert (stopped["partition"], stopped["code"]) == (str(scene.topics[1]), Code.SUBSCRIPTION_MISSING)
    (planned,) = page["sample"]
    assert (planned["partition"], planned["low watermark"]) == (str(scene.topic), f"{ids[2]}:5")

    apply = page["to apply it"]["ops"]["delete_before"]["config"] | {"dry_run": False}
    page, failure = jobs.delete_records(**apply)  # nobody waits for the deletion
    assert (failure, page["errors"], scene.listed()) == ("", 1, ids[2:])
    scene.delete()
    page, failure = jobs.delete_records(**apply, wait=60)
    assert (failure, page["errors"], page["sample"][0]["low_watermark"]) == ("", 0, f"{ids[2]}:5")


@pytest.mark.parametrize(
    ("failed", "fine", "shown"),
    [(0, 9, (0, 9)), (9, 0, (9, 0)), (90, 90, (25, 25)), (90, 3, (47, 3)), (3, 90, (3, 47)), (90, 0, (SAMPLE, 0))],
)
def test_partitions_with_an_error_hide_no_others(failed: int, fine: int, shown: tuple[int, int]) -> None:
    rows: list[dict[str, Any]] = [{"error": None}] * fine + [{"error": "cursor_below"}] * failed
    found = [row["error"] is None for row in of_both(rows)]
    assert (found.count(False), found.count(True)) == shown
    assert found == sorted(found)
