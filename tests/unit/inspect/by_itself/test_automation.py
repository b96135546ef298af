"""What would be applied by itself: what approvals, namespaces and growth decide, and what a look reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation
from pulsar_lifecycle.errors import NotFound, StoreError, UsageError
from pulsar_lifecycle.inspect.automation import (
    CLOCKS_APART_MS,
    AutomatedKind,
    after_approval,
    approve_plan,
    decision_of,
    growth_of,
)
from pulsar_lifecycle.journal.approvals import applied_plans
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.automation_rule import Amount, AutomationCode, PlanDecision
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.store_history import WHAT_TO_DO
from tests.kit.automated_cluster import OFFLOAD, RETENTION, automated, offload_planned, planned
from tests.kit.command import run
from tests.kit.crash import raising
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import Operation
from tests.kit.refused import refused_by
from tests.kit.scenes.retention_scene import RetentionScene


def test_nothing_goes_while_the_cluster_is_paused_or_does_not_say(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    monkeypatch.setattr("pulsar_lifecycle.cli.automation.cluster_of", lambda _: where)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    control.pause(scene.servers.open_store(), "maintenance")
    assert after_approval(where, plan.plan_id)[0].startswith("retention: paused: ")
    said = {one["kind"]: one["code"] for one in automation_said(capsys)}
    assert (said["retention"], said["orphans"]) == ("paused", "no_plan")
    control.resume(scene.servers.open_store())
    assert {one["kind"]: one["code"] for one in automation_said(capsys)}["retention"] == "goes"

    def unreachable(operation: Operation) -> None:
        raise StoreError("not connected")

    scene.before = unreachable
    assert {one["kind"]: one["code"] for one in automation_said(capsys)}["retention"] == "paused"


def test_a_kind_of_which_nothing_can_be_told_hides_no_other(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = automated(scene, monkeypatch, mode="apply")
    planned(scene)
    monkeypatch.setattr("pulsar_lifecycle.cli.automation.cluster_of", lambda _: where)

    def decided(where: Cluster, kind: AutomatedKind, plan_id: str = "") -> tuple[PlanDecision, Any]:
        if kind.name == "offload":
            raise NotFound("its scan was set aside by accept-restore")
        return decision_of(where, kind, plan_id)

    monkeypatch.setattr("pulsar_lifecycle.inspect.automation.decision_of", decided)
    said = {one["kind"]: (one["code"], one["text"]) for one in automation_said(capsys)}
    assert said["retention"][0] == "goes"
    assert said["offload"] == ("unread", "its scan was set aside by accept-restore")


def test_nothing_goes_until_a_restore_is_accepted_nor_without_journal_nor_while_deletion_is_switched_off(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    monkeypatch.setattr("pulsar_lifecycle.cli.automation.cluster_of", lambda _: where)
    back = Gap(GapCode.HISTORY_BROKEN, "", f"it went back; {WHAT_TO_DO}")
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_lifecycle.scan.history_check.broken_since", lambda *_: back)
        (said,) = [one for one in automation_said(capsys) if one["kind"] == "retention"]
        assert (said["code"], said["plan_id"]) == ("store_went_back", plan.plan_id)
        assert "`pulsar-lifecycle accept-restore REASON`" in said["text"]
        assert after_approval(where, plan.plan_id) == [f"retention: store_went_back: {back.text}"]
    full = StoreError("the lake is full")
    with monkeypatch.context() as patch:
        patch.setattr(type(where.journal), "check_writable", raising(full))
        assert after_approval(where, plan.plan_id) == [f"retention: lake_unwritable: {full}"]
    off = where.settings.deletion.model_copy(update={"topicTwoPhaseDeletionEnabled": False})
    switched_off = replace(where, settings=where.settings.model_copy(update={"deletion": off}))
    assert decision_of(switched_off, RETENTION)[0].code is AutomationCode.SWITCHED_OFF
    assert decision_of(where, RETENTION)[0].goes


def automation_said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """What command ``automation`` answers."""
    assert run("automation", "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_an_approval_expires(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(43_200)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.APPROVAL_EXPIRED


def test_who_approves_is_told_what_becomes_of_the_plan(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(scene)
    for section, code in (({"mode": "approve"}, "goes"), ({"mode": "plan"}, "plan_only"), ({"mode": "off"}, "off")):
        where = automated(scene, monkeypatch, **section)
        approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
        assert after_approval(where, plan.plan_id)[0].startswith(f"retention: {code}: ")
    where = automated(scene, monkeypatch, mode="approve", max_ledgers=1)
    assert after_approval(where, plan.plan_id)[0].startswith("retention: over_cap: max_ledgers: ")
    where = automated(scene, monkeypatch, mode="approve")
    scene.servers.clock.advance(60)
    newer = planned(scene)
    assert after_approval(where, plan.plan_id)[0].startswith("retention: goes: ")
    approve_plan(where, "run-2", newer.plan_id, newer.digest, "ann")
    assert after_approval(where, plan.plan_id) == [f"retention: plan {newer.plan_id} is newer: it goes instead (goes)"]


def test_who_approves_a_superseded_plan_is_not_told_that_another_goes_which_does_not(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, old = automated(scene, monkeypatch, mode="approve"), planned(scene)
    scene.servers.clock.advance(60)
    newer, _ = make_retention_plan(scene.cluster, scene.scan())
    for plan in (newer, old):
        approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    apply_retention(where, "applied", Order(newer.plan_id, newer.digest, limit=1), dry_run=False)
    (said,) = after_approval(where, old.plan_id)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.TAKEN
    assert said.startswith(f"retention: it does not go by itself: plan {newer.plan_id} is newer (taken: ")
    scene.servers.clock.advance(60)
    scene.topic("b", 100, 100, 100)
    newest, _ = make_retention_plan(scene.cluster, scene.scan())
    (said,) = after_approval(where, old.plan_id)
    assert said.startswith(f"retention: it does not go by itself: plan {newest.plan_id} is newer (not_approved: ")
    (said,) = after_approval(automated(scene, monkeypatch, mode="apply"), old.plan_id)
    assert said == f"retention: plan {newest.plan_id} is newer: it goes instead (goes)"


def test_an_approved_plan_waits_for_its_window_though_newer_ones_come(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = {"window": {"cron": "0 0 30 2 *", "duration": "1h"}}  # February 30
    where, plan = automated(scene, monkeypatch, mode="approve", **shut), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(3_600)
    scene.topic("b", 100, 100, 100)
    newer, _ = make_retention_plan(scene.cluster, scene.scan())

    def decided(at: Cluster) -> tuple[str, str]:
        decision, found = decision_of(at, RETENTION)
        assert found
        assert found.plan_id == decision.plan_id
        return decision.plan_id, decision.code

    assert decided(where) == (plan.plan_id, "window_shut")
    where = automated(scene, monkeypatch, mode="approve")
    assert decided(where) == (plan.plan_id, "goes")
    assert decision_of(where, RETENTION, newer.plan_id)[0].code is AutomationCode.NOT_APPROVED
    for withdraw in (False, True):  # though one that its cap keeps is approved, too
        approve_plan(where, "run-2", newer.plan_id, newer.digest, "ann", withdraw=withdraw)
        capped = automated(scene, monkeypatch, mode="approve", max_ledgers=plan.ledgers)
        assert decided(capped) == (plan.plan_id, "goes")
    where = automated(scene, monkeypatch, mode="approve")
    apply_retention(where, "applied", Order(plan.plan_id, plan.digest), dry_run=False)
    assert decided(where) == (newer.plan_id, "not_approved")
    approve_plan(where, "run-2", newer.plan_id, newer.digest, "ann")
    assert decided(where) == (newer.plan_id, "goes")
    approve_plan(where, "run-3", newer.plan_id, newer.digest, "bob", withdraw=True)
    assert decided(where) == (newer.plan_id, "not_approved")
    assert decided(automated(scene, monkeypatch, mode="apply")) == (newer.plan_id, "goes")


def test_a_plan_whose_ledgers_a_newer_one_took_does_not_go(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    newer, _ = make_retention_plan(scene.cluster, scene.scan())
    apply_retention(where, "by hand", Order(newer.plan_id, newer.digest), dry_run=False)
    assert decision_of(where, RETENTION, plan.plan_id)[0].code is AutomationCode.SETTLED


def test_what_cannot_be_approved_is_refused(scene: RetentionScene) -> None:
    plan = planned(scene)
    with refused_by(RefusalCode.PLAN_DIFFERS):
        approve_plan(scene.cluster, "r", plan.plan_id, "other", "ann")
    with pytest.raises(UsageError, match="by: say who"):
        approve_plan(scene.cluster, "r", plan.plan_id, plan.digest, " ")
    with pytest.raises(UsageError, match="never goes by itself"):
        approve_plan(scene.cluster, "r", "load-e-1", "d", "ann")
    scene.servers.clock.sleep(86_401)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        approve_plan(scene.cluster, "r", plan.plan_id, plan.digest, "ann")


def test_only_named_namespaces_go(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(scene)
    for names in (("acme/other",), ("acme/order",), ("acme/orders2",), ("acm",), ("acme2",)):
        where = automated(scene, monkeypatch, mode="apply", namespaces=names)
        assert decision_of(where, RETENTION)[0].code == AutomationCode.EMPTY, names
    for names, code in ((("acme",), "goes"), (("acme/orders",), "goes")):
        where = automated(scene, monkeypatch, mode="apply", namespaces=names)
        assert decision_of(where, RETENTION)[0].code == code


@pytest.mark.parametrize(("share", "code"), [(0.019, AutomationCode.OVER_CAP), (0.02, AutomationCode.GOES)])
def test_offloads_and_copy_deletions_are_held_to_their_share_of_the_clusters_ledgers(
    scene: RetentionScene, share: float, code: AutomationCode
) -> None:
    offload_planned(scene, 20, 20)
    kind = KindAutomation(mode=Automation.APPLY, max_share=share)
    automation = AutomationSettings(offload=kind, bookkeeper_copies=kind)
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    found = {name: decision_of(where, one)[0] for name, one in OFFLOAD.items()}
    assert {name: one.code for name, one in found.items()} == {"offload": code, "bookkeeper_copies": code}
    if code is AutomationCode.OVER_CAP:
        assert "max_share: 2.00%" in found["offload"].text


def test_a_plan_by_order_is_applied_by_its_job_alone(scene: RetentionScene) -> None:
    kind = KindAutomation(mode=Automation.APPLY, max_share=1.0)
    automation = AutomationSettings(offload=kind, bookkeeper_copies=kind)
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    ordered = offload_planned(scene, 3, 2, ordered=True)
    for one in OFFLOAD.values():
        assert decision_of(where, one)[0].code is AutomationCode.NO_PLAN
        assert decision_of(where, one, ordered.plan_id)[0].code is AutomationCode.NO_PLAN
    with pytest.raises(UsageError, match="by order"):
        approve_plan(where, "r", ordered.plan_id, ordered.digest, "ann")
    wanted = offload_planned(scene, 2, 0)
    scene.servers.clock.advance(60)
    offload_planned(scene, 3, 2, ordered=True)
    decision, _ = decision_of(where, OFFLOAD["offload"])
    assert (decision.code, decision.plan_id) == (AutomationCode.GOES, wanted.plan_id)


def test_what_a_plan_offloads_and_what_it_deletes_grow_apart(scene: RetentionScene) -> None:
    plan = offload_planned(scene, 3, 2)
    assert {name: growth_of(scene.cluster, name, plan).plan for name in OFFLOAD} == {
        "offload": Amount(3, 3),
        "bookkeeper_copies": Amount(2, 2),
    }


class Asked:
    """A journal, and the conditions for which rows were asked."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal, self.conditions = journal, list[str]()

    def find(self, condition: Any = None, columns: Any = None) -> Any:
        self.conditions.append(str(condition))
        return self._journal.find(condition, columns)

    @property
    def oldest(self) -> int:
        """Since when (ms) rows were asked for."""
        return min(int(at) for condition in self.conditions for at in re.findall(r"\(at >= (\d+)\)", condition))


@pytest.mark.parametrize(
    ("kind", "code", "journal_read"),
    [
        ({"mode": "plan"}, AutomationCode.PLAN_ONLY, 1),
        ({"mode": "apply"}, AutomationCode.GOES, 2),
        ({"mode": "apply", "max_ledgers": 1}, AutomationCode.OVER_CAP, 1),
        ({"mode": "apply", "growth_from": 1}, AutomationCode.GREW, 2),
        ({"mode": "apply", "growth_from": 1, "max_growth": 1}, AutomationCode.GREW, 2),
        ({"mode": "approve", "growth_from": 1}, AutomationCode.NOT_APPROVED, 2),
    ],
)
def test_a_look_reads_no_rows_and_of_the_journal_what_decides(
    scene: RetentionScene,
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
    code: AutomationCode,
    journal_read: int,
) -> None:
    """What was applied lately is asked for only where the plan is large. One that goes is read."""
    old = planned(scene)
    scene.servers.clock.advance(20 * 86_400)
    scene.topic("b", 100, 100, 100)
    plan, asked = make_retention_plan(scene.cluster, scene.scan())[0], Asked(scene.servers.journal)
    assert plan.ledgers > old.ledgers
    if code is not AutomationCode.GOES:
        Path(scene.lake.location, "retention-plans", plan.plan_id, "rows.parquet").unlink()
    given = automated(scene, monkeypatch, **kind)
    connect = connecting(clock=lambda: scene.servers.clock, journal_reader=lambda: asked)
    where = Cluster(given.settings, connect=connect, given=scene.cluster.given)
    assert decision_of(where, RETENTION)[0].code is code
    assert len(asked.conditions) == journal_read
    assert asked.oldest >= old.created_at - CLOCKS_APART_MS


@pytest.mark.parametrize("behind", [600, 7_200])
def test_what_was_said_last_counts_though_a_clock_is_behind(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """The withdrawal comes from a host whose clock is behind that of who approved, or of who made the plan."""
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    scene.servers.clock.advance(3_600)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(-behind)
    approve_plan(where, "run-2", plan.plan_id, plan.digest, "bob", withdraw=True)
    scene.servers.clock.advance(behind)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.NOT_APPROVED
    scene.servers.clock.advance(-behind)
    approve_plan(where, "run-3", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(behind)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES


@pytest.mark.parametrize("behind", [-600, 0, 600])
def test_a_withdrawal_at_the_same_moment_as_an_approval_counts(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """Neither of both who speak sees the other's word, whichever clock is behind."""
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    before = FakeJournal()
    connect = connecting(
        clock=lambda: scene.servers.clock, journal=lambda: scene.servers.journal, journal_reader=lambda: before
    )
    bob = Cluster(where.settings, connect=connect, given=scene.cluster.given)
    scene.servers.clock.advance(3_600)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(-behind)
    approve_plan(bob, "run-2", plan.plan_id, plan.digest, "bob", withdraw=True)
    scene.servers.clock.advance(behind)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.NOT_APPROVED
    approve_plan(where, "run-3", plan.plan_id, plan.digest, "ann")
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES


def test_growth_is_measured_by_what_was_applied(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large plan of which an operator applied one ledger says nothing of how much may go by itself."""
    growing = {"mode": "apply", "growth_from": 1, "max_growth": 1}
    where, plan = automated(scene, monkeypatch, **growing), planned(scene)
    done = apply_retention(where, "hand", Order(plan.plan_id, plan.digest, limit=1), dry_run=False)
    assert [one.outcome for one in done] == ["removed"]
    assert applied_plans(where.journal_reader, "test", [plan.plan_id], 0) == {plan.plan_id: 1}
    scene.topic("b", 100, 100, 100)
    make_retention_plan(where, scene.scan())
    decision, newest = decision_of(where, RETENTION)
    assert decision.code is AutomationCode.GREW
    assert newest
    assert growth_of(where, "retention", newest).largest == Amount(1, plan.physical_bytes // 2)


def test_bytes_grow_though_ledgers_do_not(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ledgers of twenty times the bytes wait for an operator, who applies them once."""
    where, plan = automated(scene, monkeypatch, mode="apply", growth_from_bytes=100), planned(scene)
    apply_retention(where, "hand", Order(plan.plan_id, plan.digest), dry_run=False)
    scene.servers.replicate(scene.topic("b", 100, 100, 100), 1, 10 * plan.physical_bytes)
    large = make_retention_plan(where, scene.scan())[0]
    assert (large.ledgers, large.physical_bytes) == (plan.ledgers, 20 * plan.physical_bytes)
    decision = decision_of(where, RETENTION)[0]
    assert decision.code is AutomationCode.GREW
    assert f"{large.physical_bytes} bytes, more than 10 times the {plan.physical_bytes} bytes" in decision.text
    assert growth_of(where, "retention", large).grew
    apply_retention(where, "hand", Order(large.plan_id, large.digest), dry_run=False)
    scene.servers.replicate(scene.topic("c", 100, 100, 100), 1, 10 * plan.physical_bytes)
    make_retention_plan(where, scene.scan())
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES


def test_of_a_plan_applied_in_part_the_bytes_of_what_it_was_applied_to_count(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few topics go by themselves, the others' ledgers say nothing of how many bytes theirs have."""
    mine = [f"persistent://acme/orders/{name}" for name in ("a", "b", "c")]
    where = automated(scene, monkeypatch, mode="apply", growth_from_bytes=100, namespaces=mine)
    scene.topic("small", *[100] * 51)

    def large(name: str, mebibytes: int) -> PlanSummary:
        scene.servers.replicate(scene.topic(name, 100, 100), 1, mebibytes << 20)
        return make_retention_plan(where, scene.scan())[0]

    first = large("a", 10)
    apply_retention(where, "hand", Order(first.plan_id, first.digest, namespaces=tuple(mine)), dry_run=False)
    second = large("b", 20)
    assert growth_of(where, "retention", second).largest == Amount(1, 10 << 20)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES
    large("c", 101)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GREW
    monkeypatch.setattr("pulsar_lifecycle.inspect.growth.stored_plan", raising(NotFound("its rows are gone")))
    assert growth_of(where, "retention", second).largest == Amount(1, 205_612)  # by its share then


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([(Action.OFFLOAD, Outcome.PREPARED), (Action.OFFLOAD, Outcome.VERIFIED)], "offload"),
        ([(Action.OFFLOAD, Outcome.VERIFIED), (Action.COPY_DELETION, Outcome.MARKED)], "bookkeeper_copies"),
        ([(Action.OFFLOAD, Outcome.VERIFIED), (Action.COPY_DELETION, Outcome.PROOF_FAILED)], "bookkeeper_copies"),
    ],
)
def test_offload_and_copy_deletion_by_the_same_plan_do_not_take_each_other_for_done(
    scene: RetentionScene, rows: list[tuple[Action, Outcome]], taken: str
) -> None:
    """A copy deletion proves it first, with the row that an offload has, too."""
    where, about = scene.cluster, Subject(7, "", "persistent://acme/orders/a", details=())
    writer, why = Writer("run", "test", "offload-1"), Why(Code.MAY_GO, "so")
    said = [writer.row(Step(action, Phase.OFFLOAD), about, outcome, why, scene.now) for action, outcome in rows]
    where.journal.record(said)
    found = {
        name: applied_plans(where.journal_reader, "test", ["offload-1"], scene.now - 1, kind.effects)
        for name, kind in OFFLOAD.items()
    }
    assert found == {name: {"offload-1": 1} if name == taken else {} for name in ("offload", "bookkeeper_copies")}
