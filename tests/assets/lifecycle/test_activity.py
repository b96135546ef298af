"""The pages of inactive topics and subscriptions, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from assets.lifecycle.activity import check_result, history_shown, inactive_shown
from pulsar_lifecycle.cli.plan_pages import PAGES, InactivePlans
from pulsar_lifecycle.inspect.kept_plans import KEPT, known_kind
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from tests.kit.command import run
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.retention_scene import NAMESPACE


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    found = ActivityScene(tmp_path, monkeypatch)
    found.choose(period=86_400.0)
    return found


def test_the_pages_say_what_keeps_what_is_inactive(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.used("unread", "s", read=False)
    first = history_shown(scene.report())
    assert first["goes on with scan"].startswith("none")
    report = scene.days(2)
    assert history_shown(report)["inactive subscriptions"] == 2
    page = inactive_shown(report.topics)
    assert page["dagster/row_count"] == 2
    assert "| may be deleted | 1 | 1.0 MiB |" in page["by what keeps them"].value
    assert "| unread_messages | 1 | 1.0 MiB |" in page["by what keeps them"].value
    largest = inactive_shown(report.cursors)["largest"].records
    assert [record.data["topic"].rpartition("/")[2] for record in largest] == ["unread", "old"]
    twice = inactive_shown(pa.concat_tables([report.cursors, report.cursors]))
    assert twice["bytes"] == inactive_shown(report.cursors)["bytes"] > 0  # they keep the same data
    assert check_result(report.partitions).passed


def test_the_check_names_partitioned_topics_that_are_not_whole(scene: ActivityScene) -> None:
    scene.used("lone-partition-0")
    found = check_result(scene.report().partitions)
    assert not found.passed
    (record,) = found.metadata["partitioned topics"].records
    assert record.data["code"] == "no_metadata"


def test_the_command_shows_the_newest_report(scene: ActivityScene, capsys: pytest.CaptureFixture[str]) -> None:
    connect = scene.cluster.connect
    scene.used("old", "s")
    scene.used("unread", "s", read=False)
    scene.days(2)
    assert run("inactive", connect=connect) == 0
    assert "2 inactive topics" in capsys.readouterr().out
    assert run("inactive", "--json", "--code", "none", connect=connect) == 0
    assert [row["topic"] for row in json.loads(capsys.readouterr().out)["rows"]] == [f"persistent://{NAMESPACE}/old"]
    assert run("inactive", "--subscriptions", connect=connect) == 0
    assert "2 inactive subscriptions" in capsys.readouterr().out
    assert run("inactive", "--code", "unraed", connect=connect) == 2


def test_a_plan_of_subscriptions_counts_the_bytes_of_a_topic_once(scene: ActivityScene) -> None:
    scene.used("old", "s", "t", read=False)
    report = scene.days(2)
    assert scene.epoch
    (topics, _), (made, rows) = make_inactive_plans(scene.cluster, scene.epoch, report)
    assert made.logical_bytes == max(rows.column("bytes").to_pylist()) > 0
    assert made.physical_bytes == max(rows.column("physical_bytes").to_pylist()) > 0
    kind = InactivePlans(subscriptions=True)
    assert KEPT[PlanKind.INACTIVE_SUBSCRIPTIONS].digest(rows, made.to_json()) == made.digest
    (deletes, keep) = kind.facts(made, rows)
    assert deletes == ("deletes", "2 subscriptions of 1 topic")
    assert keep[1].startswith("20 B on disk, 1.0 MB logical")
    assert sum(count for _, count, _ in kind.groups(rows)["namespace"]) == 2
    assert [size for _, _, size in kind.groups(rows)["namespace"]] == ["2.0 MB"]  # of each ledger the larger size
    assert PAGES[known_kind(topics.plan_id)].what == "topic"
