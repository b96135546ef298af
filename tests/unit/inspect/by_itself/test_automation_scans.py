"""Plans that do not go by themselves for the sake of a scan: set aside, dated ahead, or too poor to go by."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.inspect.automation import decision_of, told
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.values.gaps import Gap, GapCode
from tests.kit.automated_cluster import RETENTION, automated, planned
from tests.kit.scenes.retention_scene import RetentionScene


def test_no_plan_goes_whose_scan_was_set_aside(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    where.lake.set_scans_aside(where.settings.cluster, plan.created_at + 1, "restored", "mary")
    assert told(where, RETENTION).code is AutomationCode.UNREAD


def test_no_plan_goes_whose_run_the_newest_scan_would_refuse(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    assert decision_of(where, RETENTION)[0].goes
    scene.scan(Gap(GapCode.BROKERS_UNANSWERED, "", "a broker is away"))
    decision, held = decision_of(where, RETENTION)
    assert (decision.code, decision.plan_id) == (AutomationCode.NO_SCAN, plan.plan_id)
    assert "a broker is away" in decision.text
    assert held == plan


def test_a_plan_that_a_clock_dated_ahead_hides_no_other_once_its_scan_is_set_aside(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = automated(scene, monkeypatch, mode="apply")
    scene.servers.clock.advance(7_200)
    ahead = planned(scene)
    scene.servers.clock.advance(-7_200)
    assert decision_of(where, RETENTION)[0].plan_id == ahead.plan_id
    where.lake.set_scans_aside(where.settings.cluster, scene.now, "the clock was ahead", "mary")
    assert decision_of(where, RETENTION)[0].code is AutomationCode.NO_PLAN
    scene.servers.clock.advance(60)
    newer, _ = make_retention_plan(scene.cluster, scene.scan())
    assert decision_of(where, RETENTION)[0].plan_id == newer.plan_id
