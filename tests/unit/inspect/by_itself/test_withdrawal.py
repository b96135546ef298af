"""What is said to whoever withdraws an approval."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.inspect.automation import after_withdrawal, approve_plan
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming.retention_run import apply_retention
from tests.kit.automated_cluster import automated, planned
from tests.kit.command import run
from tests.kit.scenes.retention_scene import RetentionScene


def test_who_withdraws_is_told_that_an_older_plan_goes_instead(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, older = automated(scene, monkeypatch, mode="approve"), planned(scene)
    monkeypatch.setattr("pulsar_lifecycle.cli.automation.cluster_of", lambda _: where)
    newer, _ = make_retention_plan(scene.cluster, scene.scan())
    for plan in (older, newer):
        approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    assert run("approve", newer.plan_id, newer.digest, "--by", "bob", "--withdraw") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "retention: not_approved: " in said
    assert f"; plan {older.plan_id} goes instead (goes: " in said
    assert run("approve", older.plan_id, older.digest, "--by", "bob", "--withdraw") == 0
    assert "instead" not in capsys.readouterr().out


def test_who_withdraws_too_late_is_told_so(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    apply_retention(where, "applied", Order(plan.plan_id, plan.digest, limit=1), dry_run=False)
    approve_plan(where, "run-2", plan.plan_id, plan.digest, "bob", withdraw=True)
    (said,) = after_withdrawal(where, plan.plan_id)
    assert said.startswith("retention: too late: a run has begun to apply it; ")
    assert "`pulsar-lifecycle pause`" in said
