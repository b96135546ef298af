"""A subscription that nobody uses is named where it holds ledgers, with what lets it go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_lifecycle.cli.look.explain_topic import explain_topic as shown
from pulsar_lifecycle.inspect.explain_topic import TopicExplanation, explain_topic
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.lifecycle.inactive_loads import chosen, unused

UNUSED = "nobody has used the subscription for longer than `inactivity.period`"
LOAD = "a load (jobs plan_load and load_topics)"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    found = chosen(ActivityScene(tmp_path, monkeypatch))
    unused(found, "a")
    return found


def explained(scene: ActivityScene, *, loaded: bool = False) -> TopicExplanation:
    topic = scene.named("a")
    listed = {str(topic): "broker-1"} if loaded else {}
    return explain_topic(scene.cluster, topic, Brokers(listed, scene.servers.admin.stats_interval_ms()))


@pytest.mark.parametrize(
    ("settings", "loaded", "way"),
    [
        (lambda scene: None, False, LOAD),
        (lambda scene: None, True, "the job delete_inactive_subscriptions"),
        (
            lambda scene: scene.change(inactive_subscriptions=()),
            False,
            f"{LOAD}, once its topic is named in `load.inactive_subscriptions`",
        ),
        (
            lambda scene: scene.choose(subscriptions=()),
            False,
            f"{LOAD}, once its topic is named in `inactivity.subscriptions`",
        ),
    ],
)
def test_what_lets_it_go_is_said_where_it_holds_a_ledger(
    scene: ActivityScene, settings: Callable[[ActivityScene], None], loaded: bool, way: str
) -> None:
    settings(scene)
    scene.days(2)
    found = explained(scene, loaded=loaded)
    (own,) = found.cursors
    assert own.unused_since is not None
    assert own.unused_kept == (None if scene.settings.inactivity.subscriptions else InactiveKept.NOT_CHOSEN)
    assert found.ledgers[0].freed_by.startswith(f"{way}: {UNUSED}; or its consumers")


@pytest.mark.parametrize(
    "settings",
    [lambda scene: scene.namespace(deleted=True), lambda scene: scene.configure(lazyCursorRecovery="true")],
    ids=["its namespace is being deleted", "brokers would not know it"],
)
def test_no_load_is_named_that_no_setting_allows(
    scene: ActivityScene, settings: Callable[[ActivityScene], None]
) -> None:
    settings(scene)
    scene.change(inactive_subscriptions=())
    scene.days(2)
    assert explained(scene).ledgers[0].freed_by.startswith("its consumers")


def test_one_that_is_kept_has_the_code_and_no_way_out(scene: ActivityScene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.choose(kept_subscriptions=("s",))
    scene.days(2)
    found = explained(scene)
    assert found.cursors[0].unused_kept == InactiveKept.NAMED_KEPT
    assert UNUSED not in found.ledgers[0].freed_by
    shown(scene.cluster, scene.named("a"), as_json=False)
    assert InactiveKept.NAMED_KEPT in capsys.readouterr().out


def test_another_cursor_that_holds_the_ledger_leaves_it_there(scene: ActivityScene) -> None:
    scene.days(2)
    scene.at("a", "t", Position(scene.listed("a")[0], -1))
    assert UNUSED not in explained(scene).ledgers[0].freed_by


def test_what_moved_since_the_report_is_not_called_unused(scene: ActivityScene) -> None:
    scene.days(2)
    scene.at("a", "s", Position(scene.listed("a")[1], -1))
    assert explained(scene).cursors[0].unused_since is None


def test_without_a_report_nothing_is_called_unused(scene: ActivityScene) -> None:
    scene.scan()
    assert explained(scene).cursors[0].unused_since is None
