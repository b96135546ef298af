"""``inspect delayed``: what it read and what not, times that people read, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from tests.kit.builders import entry
from tests.kit.command import run
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE

TOPIC = f"{NAMESPACE}/a"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    found = DelayedScene(tmp_path, monkeypatch)
    found.backlog("a")
    return found


@pytest.fixture
def command(scene: DelayedScene) -> Callable[..., int]:
    return partial(run, "inspect", "delayed", connect=scene.cluster.connect)


def test_a_whole_index_is_shown_with_times_that_people_read(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(TOPIC) == 0
    text = capsys.readouterr().out
    assert "Nothing is wrong with what was read." in text
    assert "UTC" in text

    assert command(TOPIC, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["subscriptions"] == [{"subscription": "s", "buckets": 3, "read": True}]
    assert sum(one["messages"] for one in shown["buckets"]) == 3 * COUNT


def test_a_message_may_be_delayed_until_any_time(
    scene: DelayedScene, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who takes microseconds for milliseconds, or the greatest number for never."""
    payloads = scene.servers.reader.payloads[min(scene.listed("a"))]
    payloads[3] = entry(b"m", deliver_at_time=scene.now * 1000)
    payloads[4] = entry(b"m", deliver_at_time=(1 << 63) - 1)

    assert command(TOPIC) == 1
    text = capsys.readouterr().out
    assert "after the year 9999" in text
    assert "wrong_time" in text


def test_what_is_not_read_is_said(
    scene: DelayedScene, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    scene.servers.cursor(scene.named("a"), "bare", at=1)

    assert command(TOPIC) == 0
    text = capsys.readouterr().out
    assert "not read: 1." in text
    assert "--whole" in text
    assert command(TOPIC, "--whole") == 0
    assert "not read" not in capsys.readouterr().out
    assert command(TOPIC, "--subscription", "bare") == 0
    assert "Nothing was read." in capsys.readouterr().out


def test_what_is_not_there_is_an_error_and_a_finding_is_exit_code_1(
    scene: DelayedScene, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(TOPIC, "--subscription", "nosuch") == 1
    assert "it has: s" in capsys.readouterr().err
    assert command(f"{NAMESPACE}/nosuch") == 1
    assert "does not exist" in capsys.readouterr().err
    scene.lose(min(scene.keys("a").values()))
    assert command(TOPIC) == 1
    assert "key_without_ledger" in capsys.readouterr().out


def test_a_plan_of_repairs_says_that_it_deletes_nothing(
    scene: DelayedScene, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    scene.lose(min(scene.keys("a").values()))
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    over = partial(run, connect=scene.cluster.connect)

    assert over("plan", summary.plan_id) == 0
    text = capsys.readouterr().out
    assert "repairs    1 subscription of 1 topic" in text
    assert "deletes" not in text
    assert "frees" not in text
    assert over("plans") == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if summary.plan_id in one)
    assert "1 subscription" in line
    assert " B " not in line
