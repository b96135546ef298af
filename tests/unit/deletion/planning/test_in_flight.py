"""A plan of orphans leaves out what was sent before, as long as nothing says that the message is lost."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.inspect.automation import KINDS, decision_of
from pulsar_lifecycle.inspect.settled import PlanEnd, end_of_rows, ended_plans
from pulsar_lifecycle.journal.queries import read_intent_states
from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.scenes.orphan_scene import OrphanScene

DAY = 86_400_000


class Scene(OrphanScene):
    """Two orphans, and a queue with a message."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = topics_of(self.admin, DELETION_TOPIC)
        self.admin.topics[self.parts[0]][SUBSCRIPTION].backlog = 1

    def plan(self, kind: PlanKind = PlanKind.ORPHANS) -> PlanSummary:
        return deletion_run.make_plan(self.cluster, self.epoch, kind)[0]

    def planned(self) -> list[int]:
        return self.lake.plan(self.plan().plan_id)[1].column("ledger_id").to_pylist()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("outcome", [Outcome.SENT, Outcome.RETRYING, Outcome.WAITING])
def test_what_waits_in_the_queue_is_left_out_and_counted(scene: Scene, outcome: Outcome) -> None:
    first, second = scene.orphans
    scene.said(first, Outcome.SENT, ago=2 * DAY)
    scene.said(first, outcome, ago=60_000, phase=Phase.SEND if outcome is Outcome.SENT else Phase.DELETE)
    assert scene.planned() == [second]
    assert (scene.plan().ledgers, scene.plan().in_flight) == (1, 1)


@pytest.mark.parametrize("outcome", [Outcome.KEPT, Outcome.REFUSED, Outcome.DEAD_LETTERED])
def test_what_a_run_has_decided_since_is_planned_again(scene: Scene, outcome: Outcome) -> None:
    scene.said(scene.orphans[0], Outcome.SENT, ago=60_000)
    scene.said(scene.orphans[0], outcome, phase=Phase.DELETE)
    assert (scene.planned(), scene.plan().in_flight) == (scene.orphans, 0)


def test_what_was_sent_a_day_ago_may_be_lost_and_is_planned_again(scene: Scene) -> None:
    scene.said(scene.orphans[0], Outcome.SENT, ago=DAY + 60_000)
    scene.said(scene.orphans[1], Outcome.SEND_FAILED)
    assert scene.planned() == scene.orphans


def test_what_was_sent_before_a_restore_was_accepted_is_planned_again(scene: Scene) -> None:
    scene.said(scene.orphans[0], Outcome.SENT, ago=120_000)
    assert scene.planned() == scene.orphans[1:]
    left = scene.lake.set_aside_until
    scene.lake.set_aside_until = lambda cluster: max(left(cluster), scene.servers.clock.now_ms() - 60_000)
    assert scene.planned() == scene.orphans


@pytest.mark.parametrize("lost", ["empty", "not whole", "unanswered"])
def test_what_the_queue_may_have_lost_is_planned_again(scene: Scene, lost: str) -> None:
    scene.said(scene.orphans[0], Outcome.SENT)
    assert scene.planned() == scene.orphans[1:]
    if lost == "empty":
        scene.admin.topics[scene.parts[0]][SUBSCRIPTION].backlog = 0
    elif lost == "not whole":
        scene.admin.topics[scene.parts[1]].clear()
    else:

        def unanswered(*_: object) -> int:
            raise Unavailable("no answer")

        scene.admin.backlog = unanswered
    assert scene.planned() == scene.orphans


def test_reconcile_decides_by_itself_what_it_leaves_out(scene: Scene) -> None:
    scene.said(scene.orphans[0], Outcome.SENT)
    assert scene.plan(PlanKind.RECONCILE).ledgers == 2


def test_a_plan_that_others_have_sent_since_has_nothing_left_to_apply(scene: Scene) -> None:
    plan = scene.plan()
    rows, now = scene.lake.plan(plan.plan_id)[1], scene.servers.clock.now_ms
    scene.servers.clock.advance(60)
    scene.said(scene.orphans[0], Outcome.SENT)
    assert (ended_plans(scene.cluster, [plan], now()), end_of_rows(scene.cluster, plan, rows)) == ({}, None)
    scene.said(scene.orphans[1], Outcome.SENT)
    assert ended_plans(scene.cluster, [plan], now()) == {plan.plan_id: PlanEnd.SENT}
    assert end_of_rows(scene.cluster, plan, rows) is PlanEnd.SENT
    for ledger in scene.orphans:
        scene.said(ledger, Outcome.KEPT, phase=Phase.DELETE)
    assert ended_plans(scene.cluster, [plan], now()) == {plan.plan_id: PlanEnd.SETTLED}
    assert end_of_rows(scene.cluster, plan, rows) is PlanEnd.SETTLED


def test_a_plan_that_takes_lost_intents_in_again_goes(scene: Scene) -> None:
    """It was made after they were sent, and knows of them."""
    scene.said(scene.orphans[0], Outcome.SENT)
    scene.servers.clock.advance(60)
    scene.admin.topics[scene.parts[0]][SUBSCRIPTION].backlog = 0
    plan = scene.plan()
    assert ended_plans(scene.cluster, [plan], scene.servers.clock.now_ms()) == {}
    assert end_of_rows(scene.cluster, plan, scene.lake.plan(plan.plan_id)[1]) is None


def test_of_the_intents_only_those_of_plans_that_are_not_settled_are_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = scene.plan()
    scene.servers.clock.advance(60)
    for ledger in scene.orphans:
        scene.said(ledger, Outcome.KEPT, phase=Phase.DELETE, plan=settled.plan_id)
    scene.servers.clock.advance(60)
    plans, asked = [settled], []

    def read(journal: JournalReader, cluster: str, among: pa.Array, since: int) -> pa.Table:
        asked.append(among.to_pylist())
        return read_intent_states(journal, cluster, among, since)

    monkeypatch.setattr("pulsar_lifecycle.inspect.settled.read_intent_states", read)
    assert ended_plans(scene.cluster, plans, scene.servers.clock.now_ms()) == {settled.plan_id: PlanEnd.SETTLED}
    assert asked == []
    plans.append(scene.plan())
    assert ended_plans(scene.cluster, plans, scene.servers.clock.now_ms()) == {settled.plan_id: PlanEnd.SETTLED}
    assert asked == [scene.orphans]


@pytest.mark.parametrize("outcome", [Outcome.RETRYING, Outcome.KEPT])
def test_automation_says_whether_the_queue_has_what_others_have_sent(scene: Scene, outcome: Outcome) -> None:
    plan = scene.plan()
    kind = KindAutomation(mode=Automation.APPLY, max_share=1.0)
    settings = scene.cluster.settings.model_copy(update={"automation": AutomationSettings(orphans=kind)})
    where = replace(scene.cluster, settings=settings)
    orphans = next(one for one in KINDS if one.kind is PlanKind.ORPHANS)
    assert decision_of(where, orphans, plan.plan_id)[0].code is AutomationCode.GOES
    scene.servers.clock.advance(60)
    for ledger in scene.orphans:
        scene.said(ledger, Outcome.SENT)
        scene.said(ledger, outcome, phase=Phase.DELETE)
    said = decision_of(where, orphans, plan.plan_id)[0]
    end = PlanEnd.SETTLED if outcome is Outcome.KEPT else PlanEnd.SENT
    assert (said.code, said.text) == (AutomationCode(end), end.text)
