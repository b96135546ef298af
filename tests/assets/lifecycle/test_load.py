"""What the pages of a load plan, and of what applies it, show."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.lifecycle.load import needing_shown, plan_shown
from orchestration.lifecycle.load import shown
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic, LoadStep
from pulsar_lifecycle.records.codes import Why
from pulsar_lifecycle.records.outcomes import Outcome
from tests.kit.scenes.load_scene import LoadScene


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
        LoadedTopic("b", Outcome.DONE, Why(LoadStep.VERIFIED, "well"), 7, 1_700_000_000_000),
        LoadedTopic("c", Outcome.LEFT, Why(LoadKept.BROKER_BUSY, "busy")),
        LoadedTopic("d", Outcome.FAILED, Why(LoadStep.NOT_IN_TIME, "late")),
    ]
    page = shown(done, dry_run=False)
    assert [record.data["topic"] for record in page["sample"].records] == ["d", "c", "b"]
    assert page["freed"] == 7
    assert page["second visit"] == "1 topics, the last at 2023-11-14T22:13:20+00:00"
    assert "| failed | not_in_time | 1 |" in page["by outcome"].value
