"""What the pages of a retention plan, and of what applies it, show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assets.lifecycle.retention import expired_shown, plan_shown
from orchestration.trimming import shown
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.builders import A_GAP, some_why
from tests.kit.scenes.retention_scene import MB, RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def pages(scene: RetentionScene, *gaps: Gap) -> tuple[dict[str, Any], dict[str, Any]]:
    epoch = scene.scan(*gaps)
    return plan_shown(*make_retention_plan(scene.cluster, epoch), Automation.PLAN), expired_shown(
        scene.cluster, epoch.epoch_id
    )


def test_the_pages_say_how_many_how_much_and_why(scene: RetentionScene) -> None:
    first, second, last = scene.topic("a", 200, 190, 180)
    scene.servers.wait(1)
    scene.topic("young", 0, 0)
    plan, expired = pages(scene)
    assert (plan["dagster/row_count"], plan["bytes"], plan["topics"]) == (2, 2 * MB, 1)
    assert "| acme/orders | 2 | 2.0 MiB |" in plan["by namespace"].value
    assert "| expired_by_time | 2 | 2.0 MiB |" in plan["by limit"].value
    assert [record.data["ledger_id"] for record in plan["sample"].records] == [first, second]
    assert f'"plan_id": "{plan["plan id"]}"' in plan["how to apply"].value
    assert "trim_expired" in plan["how to apply"].value
    assert (expired["dagster/row_count"], expired["bytes"], expired["bytes kept"]) == (3, 3 * MB - MB + 10, 10)
    assert "| expired_by_time | namespace | last_ledger | 1 | 10 B |" in expired["by reason"].value
    assert "| expired_by_time | namespace | goes | 2 | 2.0 MiB |" in expired["by reason"].value
    assert [record.data["ledger_id"] for record in expired["largest kept"].records] == [last]


def test_a_report_only_plan_says_why_and_not_how(scene: RetentionScene) -> None:
    scene.topic("a", 200, 190)
    plan, _ = pages(scene, A_GAP)
    assert "Report only" in plan["how to apply"].value
    assert f"- {A_GAP.code}: {A_GAP}" in plan["how to apply"].value


def test_a_plan_without_rows(scene: RetentionScene) -> None:
    plan, expired = pages(scene)
    assert (plan["dagster/row_count"], expired["dagster/row_count"]) == (0, 0)
    assert "Nothing is past" in plan["how to apply"].value


def test_what_stays_is_counted_by_its_code() -> None:
    kept = [LedgerOutcome("t", n, Outcome.REFUSED, Why(Stays.CURSOR, f"cursor s stands at {n}:1"), 10) for n in (1, 2)]
    found = shown([LedgerOutcome("t", 0, Outcome.REMOVED, some_why(""), 5), *kept], dry_run=False)
    assert found["stays by"].value.splitlines()[2:] == ["| refused | cursor | 2 | 20 B |"]
