"""Reports of activity by a clock that was wrong, or without the policies of a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.lifecycle.activity.activity_run import build_activity
from tests.kit.scenes.lifecycle.activity_scene import DAY, ActivityScene, kept
from tests.kit.scenes.retention_scene import NAMESPACE


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return ActivityScene(tmp_path, monkeypatch)


@pytest.mark.parametrize("behind", [24, 36])
def test_a_clock_that_was_behind_makes_nothing_inactive_before_its_period(scene: ActivityScene, behind: int) -> None:
    """Somebody was connected then; the store's time is known from what it was written last."""
    scene.used("old", "s")
    scene.servers.wait(24 * 30)
    scene.used("other")
    scene.clients("old", producers=1, published=0, s=1)
    used_at = scene.now
    scene.servers.wait(-behind)
    scene.report()
    scene.unlisted("old")
    scene.servers.wait(behind)
    while scene.now < used_at + 6.5 * DAY:
        report = scene.days(0)
        assert "old" not in kept(report.topics)
        assert "old/s" not in kept(report.cursors)
        scene.servers.wait(11)
    report = scene.days(1)
    assert {"old", "other"} <= set(kept(report.topics))


def test_policies_that_cannot_be_decoded_keep_their_own_namespace_alone(scene: ActivityScene) -> None:
    scene.used("old", "s")
    scene.topic("odd", 24 * 60, 24 * 60, namespace="acme/strange")
    scene.choose(topics=("acme",), subscriptions=("acme",))
    scene.days(7)
    scene.servers.put("/admin/policies/acme/strange", b"5")
    report = build_activity(scene.cluster, scene.scan(namespaces=frozenset({NAMESPACE, "acme/strange"})))
    assert kept(report.topics) == {"old": None, "odd": "unknown_policy"}
    assert kept(report.cursors) == {"old/s": None}
    assert report.problems == ()
    assert ["/admin/policies/acme/strange" in one for one in report.undecodable] == [True]
