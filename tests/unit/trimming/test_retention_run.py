"""Applying a retention plan: what is as planned leaves its list, what changed since stays, by code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import NotFound, Paused, Unavailable, UsageError
from pulsar_lifecycle.formats.deletion_message import decode_deletion_message
from pulsar_lifecycle.inspect import settled
from pulsar_lifecycle.inspect.kept_plans import stored_plan
from pulsar_lifecycle.inspect.settled import PlanEnd, end_of_rows, ended_plans
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.scan.read import new_epoch_id
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.crash import Crash, raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.refused import refused_by
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene

A = Topic.parse(f"persistent://{NAMESPACE}/a")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def planned(scene: RetentionScene, *gaps: Gap) -> PlanSummary:
    return make_retention_plan(scene.cluster, scene.scan(*gaps))[0]


def applied(scene: RetentionScene, plan: PlanSummary, *, dry_run: bool = False, **order: Any) -> list[LedgerOutcome]:
    return apply_retention(scene.cluster, "run", Order(plan.plan_id, plan.digest, **order), dry_run=dry_run)


def said(outcomes: Sequence[LedgerOutcome]) -> dict[int, tuple[str, str]]:
    return {one.ledger_id: (one.outcome, one.why.code) for one in outcomes}


def test_what_is_planned_leaves_its_list_with_a_message_each(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 0, 80, cursor=2)
    young = scene.topic("young", 0, 0)
    scene.servers.admin.on_unload = raising(AssertionError("nothing is unloaded"))
    found = applied(scene, plan := planned(scene))
    assert said(found) == {ids[0]: (Outcome.REMOVED, Code.TAKEN_OFF), ids[1]: (Outcome.REMOVED, Code.TAKEN_OFF)}
    assert (scene.listed("a"), scene.listed("young")) == (ids[2:], young)
    sent = [decode_deletion_message(raw) for _, _, raw, _ in scene.servers.deletion_topics.waiting.values()]
    assert [(one.ledger_id, one.plan_id) for one in sent] == [(i, plan.plan_id) for i in ids[:2]]
    rows = {(row.plan_id, row.phase, row.outcome) for row in scene.servers.journal.rows if row.ledger_id in ids}
    assert rows == {(plan.plan_id, "send", "sent"), (plan.plan_id, "mark", "marked"), (plan.plan_id, "mark", "removed")}


def test_a_plan_with_more_ledgers_than_left_their_lists_since_is_not_read(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may have millions of rows, and there is one every hour."""
    scene.topic("a", 100, 90, 80)
    scene.topic("b", 100, 80)
    epoch, read = scene.scan(), list[str]()
    (plan, _), (other, _) = (make_retention_plan(scene.cluster, epoch) for _ in range(2))

    def stored(lake: Any, plan_id: str) -> Any:
        read.append(plan_id)
        return stored_plan(lake, plan_id)

    monkeypatch.setattr(settled, "stored_plan", stored)
    ended_plans(scene.cluster, [plan], scene.now)
    applied(scene, other, namespaces=(str(A),))
    ended_plans(scene.cluster, [plan], scene.now)
    assert read == []
    applied(scene, other)
    ended_plans(scene.cluster, [plan], scene.now)
    assert read == [plan.plan_id]


def test_a_plan_whose_ledgers_another_plan_took_has_nothing_left(scene: RetentionScene) -> None:
    scene.topic("a", 100, 90, 80)
    scene.topic("b", 100, 80)
    epoch = scene.scan()
    (plan, rows), (other, _) = (make_retention_plan(scene.cluster, epoch) for _ in range(2))

    def end() -> tuple[PlanEnd | None, PlanEnd | None]:
        return ended_plans(scene.cluster, [plan], scene.now).get(plan.plan_id), end_of_rows(scene.cluster, plan, rows)

    assert end() == (None, None)
    applied(scene, other, namespaces=(str(A),))
    assert end() == (None, None)
    applied(scene, other)
    assert end() == (PlanEnd.SETTLED, PlanEnd.SETTLED)
    assert ended_plans(scene.cluster, [make_retention_plan(scene.cluster, scene.scan())[0]], scene.now) == {}


def test_a_plan_whose_ledgers_left_their_lists_before_it_was_made_has_nothing_left(scene: RetentionScene) -> None:
    """The plan before it was applied between its scan and its making: launched, it would do nothing."""
    scene.topic("a", 100, 90, 80)
    epoch = scene.scan()
    applied(scene, make_retention_plan(scene.cluster, epoch)[0])
    scene.servers.wait(2)
    late, rows = make_retention_plan(scene.cluster, epoch)
    assert late.actionable
    assert late.ledgers
    plan = replace(late, epoch_id=new_epoch_id(epoch.started_at, scene.cluster.ids))
    assert ended_plans(scene.cluster, [plan], scene.now) == {plan.plan_id: PlanEnd.SETTLED}
    assert end_of_rows(scene.cluster, plan, rows) is PlanEnd.SETTLED


def test_applying_it_again_changes_nothing(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80)
    plan = planned(scene)
    applied(scene, plan)
    assert said(applied(scene, plan)) == dict.fromkeys(ids[:2], (Outcome.NOTHING, Stays.NOT_LISTED))
    assert scene.listed("a") == ids[2:]
    assert len(scene.servers.deletion_topics.waiting) == 2


def test_a_dry_run_writes_nothing(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    before = scene.servers.zookeeper.zxid
    assert said(applied(scene, plan, dry_run=True)) == {ids[0]: (Outcome.GOES, Code.MAY_GO)}
    assert scene.servers.zookeeper.zxid == before


@pytest.mark.parametrize("minutes", [61, -1, 59])
def test_a_policy_that_changed_keeps_all(scene: RetentionScene, minutes: int) -> None:
    """A shorter one, too: its own plan says what goes by it."""
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    scene.retention(minutes, -1)
    (one,) = applied(scene, plan)
    assert (one.ledger_id, one.outcome, one.why.code) == (ids[0], Outcome.REFUSED, Code.CHANGED_SINCE_PLAN)
    assert f"{minutes} minutes" in one.reason or minutes == -1
    assert scene.listed("a") == ids


def test_a_policy_that_is_not_known_any_more_keeps_all(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    scene.servers.put(f"/admin/policies/{NAMESPACE}", b"{}")
    assert said(applied(scene, plan)) == {ids[0]: (Outcome.REFUSED, Stays.UNKNOWN_POLICY)}


def test_policies_that_cannot_be_decoded_by_now_keep_all_and_are_named(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    scene.servers.put(f"/admin/policies/{NAMESPACE}", b"\xff")
    (one,) = applied(scene, plan)
    assert (one.ledger_id, one.outcome, one.why.code) == (ids[0], Outcome.REFUSED, Stays.UNKNOWN_POLICY)
    assert f"/admin/policies/{NAMESPACE}" in one.reason
    assert scene.listed("a") == ids


def test_a_policy_that_changes_while_messages_are_sent_keeps_all(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)

    class Sending:
        def __init__(self) -> None:
            self._queue = scene.servers.open_queue()

        def send(self, *given: Any) -> Any:
            sent = self._queue.send(*given)
            scene.servers.clock.advance(60)
            scene.retention(-1, -1)
            return sent

    scene.open_queue = Sending
    assert said(applied(scene, plan)) == {ids[0]: (Outcome.REFUSED, Code.CHANGED_SINCE_PLAN)}
    assert scene.listed("a") == ids


def test_brokers_that_fail_are_asked_once_for_many_topics(scene: RetentionScene) -> None:
    names = [f"t{n}" for n in range(5)]
    for name in names:
        scene.topic(name, 100, 90, 0, cursor=1)
    plan, asked = planned(scene), []
    admin = scene.servers.admin
    configurations = admin.configurations

    def hangs() -> Any:
        asked.append(scene.now)
        scene.servers.wait(10 / 3600)
        raise Unavailable("timed out")

    admin.configurations = hangs  # type: ignore[method-assign]
    found = applied(scene, plan)
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.FAILED, Code.SERVER_FAILED)}
    assert len(asked) < len(names)
    admin.configurations = configurations  # type: ignore[method-assign]
    scene.servers.wait(20 / 3600)
    assert {one.outcome for one in applied(scene, plan)} == {Outcome.REMOVED}


def test_a_cursor_that_moved_back_keeps_what_it_needs(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80, cursor=1)
    plan = planned(scene)
    scene.position("a", Position(ids[0], 0))
    assert said(applied(scene, plan)) == {
        ids[0]: (Outcome.REMOVED, Code.TAKEN_OFF),
        ids[1]: (Outcome.REFUSED, Stays.CURSOR),
    }


def test_a_topic_that_was_loaded_meanwhile_is_left_to_its_broker(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    scene.servers.load(A)
    assert said(applied(scene, plan)) == {ids[0]: (Outcome.LEFT_TO_BROKER, Code.TOPIC_LOADED)}
    assert scene.listed("a") == ids


def test_a_topic_that_was_made_anew_keeps_its_ledgers(scene: RetentionScene) -> None:
    scene.topic("a", 100, 90)
    plan = planned(scene)
    scene.servers.remove(scene.servers.topic_path(A))
    new = scene.topic("a", 0, 0)
    scene.servers.wait(1)
    found = applied(scene, plan)
    assert {one.outcome for one in found} <= {Outcome.REFUSED, Outcome.NOTHING}
    assert scene.listed("a") == new


def test_a_hold_that_is_set_meanwhile_keeps_what_comes_after_it(scene: RetentionScene) -> None:
    ids = {name: scene.topic(name, 100, 90, 80) for name in "abc"}
    plan = planned(scene)
    order, reported = Order(plan.plan_id, plan.digest), list[str]()

    def report(found: Sequence[LedgerOutcome]) -> None:
        reported.append(found[0].topic.rpartition("/")[2])
        if len(reported) == 1:
            scene.hold(NAMESPACE)

    found = apply_retention(scene.cluster, "run", order, dry_run=False, report=report)
    first, *later = reported
    assert scene.listed(first) == ids[first][2:]
    for name in later:
        assert scene.listed(name) == ids[name]
        assert {said(found)[i] for i in ids[name][:2]} == {(Outcome.REFUSED, Protection.LEGAL_HOLD)}


def test_nothing_goes_while_nobody_knows_what_is_on_hold(scene: RetentionScene) -> None:
    """Such as while an editor writes the settings file."""
    ids = scene.topic("a", 100, 90)
    plan = planned(scene)
    text = scene.file.read_text()
    for broken in (f"{text}orphans.legal_ho", None):
        if broken is None:
            scene.file.unlink()
        else:
            scene.file.write_text(broken)
        (one,) = applied(scene, plan)
        assert (one.outcome, one.why.code) == (Outcome.REFUSED, Protection.LEGAL_HOLD)
        assert "lifecycle.toml" in one.why.text
        assert scene.listed("a") == ids
    scene.file.write_text(text)
    assert said(applied(scene, plan)) == {ids[0]: (Outcome.REMOVED, Code.TAKEN_OFF)}


def test_a_plan_that_must_not_be_applied_is_refused(scene: RetentionScene) -> None:
    scene.topic("a", 100, 90, 80)
    report = planned(scene, Gap(GapCode.ROOT_MISSING, "", "a root was not read"))
    with refused_by(RefusalCode.REPORT_ONLY):
        applied(scene, report)
    plan = planned(scene)
    with refused_by(RefusalCode.PLAN_DIFFERS):
        apply_retention(scene.cluster, "run", Order(plan.plan_id, "0" * 64), dry_run=False)
    with pytest.raises(NotFound):
        apply_retention(scene.cluster, "run", Order("another", plan.digest), dry_run=False)
    with refused_by(RefusalCode.MAX_LEDGERS):
        applied(scene, plan, caps=Lowered(max_ledgers=1))
    with pytest.raises(UsageError, match="max_ledgers"):
        applied(scene, plan, caps=Lowered(max_ledgers=1 << 40))
    control.pause(scene.servers.open_store(), "why")
    with pytest.raises(Paused):
        applied(scene, plan)
    control.resume(scene.servers.open_store())
    scene.servers.wait(25)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        applied(scene, plan)


def test_a_limit_takes_the_oldest_first(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80)
    assert said(applied(scene, planned(scene), limit=1)) == {ids[0]: (Outcome.REMOVED, Code.TAKEN_OFF)}
    assert scene.listed("a") == ids[1:]


def test_a_run_that_is_killed_anywhere_is_repeated_harmlessly(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80)
    plan = planned(scene)

    for step in count(1):
        left = [step]

        def die(operation: Operation, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Crash

        scene.before = die
        try:
            applied(scene, plan)
        except Crash:
            assert scene.listed("a") in (ids, ids[2:])
        else:
            break
    scene.before = lambda operation: None
    applied(scene, plan)
    assert scene.listed("a") == ids[2:]
