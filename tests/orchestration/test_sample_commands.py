"""A run's page has a sample of what it did, and the command that shows all of it."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.pages import show
from orchestration.definitions import build_defs
from orchestration.trimming import finish
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan, run_config
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource
from tests.kit.builders import some_why
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_sample_names_the_command_that_shows_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: scene.cluster)
    scene.topic("a", 100, 100, 100)
    summary, _ = make_retention_plan(scene.cluster, scene.scan())
    config = run_config(summary)
    config["ops"]["trim_expired"]["config"]["dry_run"] = dry_run
    job, resources = build_defs().resolve_job_def("apply_retention"), {"lifecycle": LifecycleResource()}
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(run_config=config, instance=instance, resources=resources)
    (handled,) = (event for event in done.all_events if event.is_successful_output)
    whole = show.whole_plan(summary.plan_id) if dry_run else f"`pulsar-lifecycle journal --run {done.run_id}`"
    assert handled.step_output_data.metadata["all of it"].value == whole


def test_a_run_that_fails_names_it_too() -> None:
    failed = LedgerOutcome("persistent://a/b/t", 1, Outcome.FAILED, some_why("x"), 10, "Managed-Ledger")
    with pytest.raises(dg.Failure) as raised:
        finish(False, lambda report: [failed], everything=show.everything("r1"))
    assert raised.value.metadata["all of it"].value == "`pulsar-lifecycle journal --run r1`"


def test_a_dry_run_without_a_plan_says_how_to_see_the_rest() -> None:
    assert show.everything("r1", dry_run=True)["all of it"].value == show.SAMPLE_ALONE
