"""Retention by schedule: how far it goes, under which caps, and what it leaves to an operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from orchestration.automation import OFF, keep_retention
from orchestration.definitions import build_defs
from pulsar_lifecycle.errors import ConfigError, Refused
from pulsar_lifecycle.run_settings import Automation
from pulsar_lifecycle.runs.caps import Lowered, automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import load_settings
from resources.lifecycle import LifecycleResource
from tests.kit.builders import A_GAP
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.settings import write_settings


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def kept(scene: RetentionScene, **automation: Any) -> tuple[dict[str, Any], list[str]]:
    """What a run by schedule shows, and the assets that it materialized."""
    settings = scene.settings
    changed = settings.model_copy(update={"automation": settings.automation.model_copy(update=automation)})
    where = Cluster(changed, connect=scene.cluster.connect, given=scene.cluster.given)
    pages: list[str] = []
    return keep_retention(where, "run-1", lambda name, metadata: pages.append(name)), pages


def test_it_does_nothing_unless_the_settings_say_so(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100)
    scene.scan()
    assert kept(scene) == ({"not done": OFF}, [])
    assert scene.listed("a") == ids


def test_a_plan_alone_changes_nothing(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100)
    scene.scan()
    shown, pages = kept(scene, retention=Automation.PLAN)
    assert (shown["ledgers"], pages) == (1, ["expired_ledgers", "retention_plan"])
    assert scene.listed("a") == ids


def test_it_applies_its_own_plan_within_its_caps(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    kept(scene, retention=Automation.APPLY)
    assert scene.listed("a") == ids[2:]


@pytest.mark.parametrize(
    "cap", [{"max_ledgers": 1}, {"max_share": 0.001}, {"max_bytes": 1}, {"max_ledgers_per_topic": 1}]
)
def test_nothing_of_a_plan_beyond_a_cap_is_applied(scene: RetentionScene, cap: dict[str, Any]) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    with pytest.raises(Refused, match=next(iter(cap))):
        kept(scene, retention=Automation.APPLY, **cap)
    assert scene.listed("a") == ids


def test_a_scan_that_is_not_covered_is_not_planned_from(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100)
    scene.scan(A_GAP)
    with pytest.raises(Refused, match="not covered"):
        kept(scene, retention=Automation.APPLY)


def test_the_caps_of_a_launch_by_hand_hold_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "apply.max_ledgers = 5\nautomation.max_share = 0.02\n"
    settings = load_settings(str(write_settings(tmp_path, monkeypatch, more=more)))
    assert automation_caps(settings) == Lowered(5, 0.02, 10 << 40, 1_000)


def test_another_word_than_the_three_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"automation\.retention"):
        load_settings(str(write_settings(tmp_path, monkeypatch, more='automation.retention = "yes"\n')))


@pytest.mark.parametrize(("said", "rings"), [("off", False), ("plan", True), ("apply", True)])
def test_the_schedule_rings_for_what_is_switched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, rings: bool
) -> None:
    file = str(write_settings(tmp_path, monkeypatch, more=f'automation.retention = "{said}"\n'))
    schedule = build_defs(file).get_repository_def().get_schedule_def("nightly_retention")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    with dg.build_schedule_context(resources={"lifecycle": LifecycleResource(config_file=file)}) as context:
        found = schedule.evaluate_tick(context)
    assert bool(found.run_requests) is rings
