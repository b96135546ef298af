"""Plans go by themselves only as far as the caps of their kind, and of their job, let them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation
from pulsar_lifecycle.inspect.automation import KINDS, decision_of
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.runs.cluster import Cluster
from tests.kit.automated_cluster import OFFLOAD, RETENTION, automated, offload_planned, planned
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.mark.parametrize("cap", ["automation", "apply"])
def test_what_the_job_would_refuse_does_not_go(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, cap: str
) -> None:
    """Also by what ``[apply]`` says: a run that is refused would be begun, and be red, again after each scan."""
    plan = planned(scene)
    own = {"max_ledgers_per_topic": 1} if cap == "automation" else {}
    where = automated(scene, monkeypatch, mode="apply", **own)
    assert plan.ledgers == 2
    if cap == "apply":
        settings = where.settings.model_copy(
            update={"apply": where.settings.apply.model_copy(update={"max_ledgers_per_topic": 1})}
        )
        where = Cluster(settings, connect=where.connect, given=where.given)
    decision, _ = decision_of(where, RETENTION)
    assert (decision.code, decision.text.partition(":")[0]) == (AutomationCode.OVER_CAP, "max_ledgers_per_topic")


def test_what_a_plan_offloads_of_a_topic_and_what_it_deletes_of_it_have_a_cap_each(scene: RetentionScene) -> None:
    """Those ledgers count that may go by the kind: a plan holds what two of them have."""
    offload_planned(scene, 2, 3)
    kind = KindAutomation(mode=Automation.APPLY, max_share=1.0, max_ledgers_per_topic=2)
    settings = scene.settings.model_copy(
        update={"automation": AutomationSettings(offload=kind, bookkeeper_copies=kind)}
    )
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    found = {name: decision_of(where, one)[0] for name, one in OFFLOAD.items()}
    assert {name: one.code for name, one in found.items()} == {
        "offload": AutomationCode.GOES,
        "bookkeeper_copies": AutomationCode.OVER_CAP,
    }
    assert found["bookkeeper_copies"].text.startswith("max_ledgers_per_topic: 3 of one topic")


def test_settings_and_kinds_agree_for_which_kinds_the_caps_of_apply_hold() -> None:
    for kind in KINDS:
        settings = AutomationSettings.model_validate({kind.name: {"min_ledgers": 6}})
        refused = pytest.raises(ValueError, match=rf"automation\.{kind.name}\.min_ledgers")
        with refused if kind.under_apply_caps else nullcontext():
            settings.check_minimums(max_ledgers=5, max_bytes=5)
