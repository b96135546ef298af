"""What growth is measured by: how much is read for that, and what of a plan counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.inspect import growth
from pulsar_lifecycle.inspect.automation import KINDS, approve_plan, decision_of, growth_of
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.automation_rule import Amount, AutomationCode
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.automated_cluster import RETENTION, automated, planned
from tests.kit.crash import raising
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.journal import FakeJournal
from tests.kit.scenes.retention_scene import RetentionScene

HOUR_MS = 3_600_000
HOURS = 700
CONSUMED = next(kind for kind in KINDS if kind.name == "consumed_records")


class Applied:
    """Plans of each of the last hours: ten ledgers of others of 1 GiB each, and one of ours, which was applied."""

    def __init__(self, scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, sizes: dict[int, int]) -> None:
        self.journal, self.finds, self.read, self.sizes = FakeJournal(), 0, list[str](), sizes
        given, self.newest = automated(scene, monkeypatch, mode="apply", growth_from=1), planned(scene)
        connect = connecting(clock=lambda: scene.servers.clock, journal_reader=lambda: self)
        self.where = Cluster(given.settings, connect=connect, given=scene.cluster.given)
        plans = [self._applied(hour) for hour in range(HOURS, 0, -1)]
        monkeypatch.setattr(
            growth, "plans_since", lambda _, __, since: [one for one in plans if one.created_at >= since]
        )
        monkeypatch.setattr(growth, "stored_plan", self._stored)
        self.now = scene.now

    def _applied(self, hour: int) -> PlanSummary:
        at, size = self.newest.created_at - hour * HOUR_MS, self.sizes.get(hour, 1)
        plan = replace(self.newest, plan_id=f"retention-{hour}", created_at=at)
        step, why = Step(Action.DELETE_LEDGER, Phase.MARK), Why(Code.MAY_GO, "so")
        about = Subject(hour, "", "persistent://acme/orders/a", size, details=())
        self.journal.record([Writer("r", plan.cluster, plan.plan_id).row(step, about, Outcome.REMOVED, why, at)])
        return replace(plan, ledgers=11, physical_bytes=(10 << 30) + size)

    def _stored(self, _: Any, plan_id: str) -> tuple[None, pa.Table]:
        self.read.append(plan_id)
        hour = int(plan_id.removeprefix("retention-"))
        ledgers, sizes = [*range(1_000, 1_010), hour], [*[1 << 30] * 10, self.sizes.get(hour, 1)]
        return None, pa.table({"topic": ["t"] * 11, "ledger_id": ledgers, "physical_bytes": sizes})

    def find(self, condition: Any = None, columns: Any = None) -> Any:
        self.finds += 1
        return self.journal.find(condition, columns)

    def largest(self, grew: Any = None) -> Amount:
        return growth.largest_applied(self.where, RETENTION, self.newest, self.now, grew)


def test_of_hourly_plans_applied_in_part_few_are_read(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was applied to most is among them, wherever it is."""
    applied = Applied(scene, monkeypatch, {500: 1 << 40})
    assert applied.largest() == Amount(1, 1 << 40)
    assert (applied.finds, applied.read) == (1, ["retention-500"])


def test_while_a_plan_grew_each_look_reads_as_few(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    applied = Applied(scene, monkeypatch, {})
    assert applied.largest(lambda _: True) == Amount(1, 1)
    assert (applied.finds, len(applied.read)) == (2, 2 * growth.MOST_READ)


def test_growth_is_asked_for_in_no_mode_but_apply(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve", growth_from=1), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    monkeypatch.setattr("pulsar_lifecycle.inspect.automation.largest_applied", raising(AssertionError("asked")))
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES


def test_the_check_measures_what_of_a_plan_goes_by_itself(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other namespaces hold stays in every plan: it would warn for ever."""
    mine = [f"persistent://acme/orders/{name}" for name in ("a", "b")]
    where = automated(scene, monkeypatch, mode="apply", growth_from=1, max_growth=2, namespaces=mine)
    scene.topic("others", *[100] * 51)
    first = planned(scene)
    apply_retention(where, "hand", Order(first.plan_id, first.digest, namespaces=tuple(mine)), dry_run=False)
    scene.topic("b", 100, 100, 100)
    second = make_retention_plan(where, scene.scan())[0]
    assert second.ledgers > 50
    found = growth_of(where, "retention", second)
    assert (found.plan.ledgers, found.largest and found.largest.ledgers, found.grew) == (2, 2, False)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.GOES


@pytest.mark.parametrize(("gone", "size"), [(False, 70), (True, 50)])
def test_of_consumed_records_the_topics_count_that_a_plan_was_applied_to(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, gone: bool, size: int
) -> None:
    """Where its rows are gone, their share of its partitions."""
    where, kind, at = scene.cluster, CONSUMED, scene.now - HOUR_MS
    plan = replace(planned(scene), plan_id="consumed-records-1", ledgers=2, physical_bytes=100, created_at=at)
    rows = {"ledgers": [[1, 2], [3]], "sizes": [[30, 40], [30]], "error": [None, None]}
    stored = pa.table({"topic": ["persistent://acme/orders/a", "persistent://acme/orders/b"], **rows})
    writer, why = Writer("r", plan.cluster, plan.plan_id), Why(Code.PLANNED, "so")
    about = Subject(-1, "", "persistent://acme/orders/a", 70, details=())
    step = Step(Action.DELETE_RECORDS, Phase.RAISE)
    where.journal.record([writer.row(step, about, Outcome.DONE, why, at)])
    monkeypatch.setattr(growth, "plans_since", lambda *_: [plan])
    monkeypatch.setattr(growth, "stored_plan", raising(NotFound("gone")) if gone else lambda *_: (plan, stored))
    newest = replace(plan, plan_id="consumed-records-2")
    assert growth.largest_applied(where, kind, newest, scene.now) == Amount(1, size)
