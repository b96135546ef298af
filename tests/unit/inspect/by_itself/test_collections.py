"""Bookies that collect by themselves: what modes, approvals, windows and growth decide of their plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_lifecycle.automation_settings import CollectionAutomation
from pulsar_lifecycle.inspect.automation import after_approval, approve_plan, decision_of, growth_of
from pulsar_lifecycle.runs.automation_rule import Amount, AutomationCode
from pulsar_lifecycle.values.gaps import Gap, GapCode
from tests.kit.command import run
from tests.kit.scenes.lifecycle.collection_scene import GB, full
from tests.kit.scenes.lifecycle.planned_collections import ALWAYS, BOOKIES, PlannedCollections

APPLY = {"mode": "apply", "window": ALWAYS, "growth_from_bytes": 1 << 40}
SHUT = {"cron": "0 0 30 2 *", "duration": "1h"}  # February 30


@pytest.fixture
def bookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedCollections:
    return PlannedCollections(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"mode": "off"}, AutomationCode.OFF),
        ({"mode": "plan"}, AutomationCode.PLAN_ONLY),
        ({"mode": "approve"}, AutomationCode.NOT_APPROVED),
        (APPLY | {"window": SHUT}, AutomationCode.WINDOW_SHUT),
        (APPLY, AutomationCode.GOES),
        (APPLY | {"max_ledgers_per_topic": 1}, AutomationCode.GOES),
        (APPLY | {"min_ledgers": 4}, AutomationCode.TOO_SMALL),
        (APPLY | {"max_ledgers": 2}, AutomationCode.OVER_CAP),
        (APPLY | {"max_share": 0.9}, AutomationCode.OVER_CAP),
        (APPLY | {"max_bytes": GB}, AutomationCode.OVER_CAP),
        (APPLY | {"growth_from_bytes": GB}, AutomationCode.GREW),
    ],
)
def test_a_mode_says_what_becomes_of_a_plan(
    bookies: PlannedCollections, said: dict[str, Any], code: AutomationCode
) -> None:
    bookies.planned()
    assert decision_of(bookies.automated(**said), BOOKIES)[0].code is code


def test_there_is_nothing_to_do_without_a_plan_or_in_an_empty_one(bookies: PlannedCollections) -> None:
    where = bookies.automated(**APPLY)
    assert decision_of(where, BOOKIES)[0].code is AutomationCode.NO_PLAN
    for bookie in "abc":
        bookies.bookies.statuses[bookie] = full(bookie, logs=5, live=5 * GB)
    bookies.planned()
    assert decision_of(where, BOOKIES)[0].code is AutomationCode.EMPTY


def test_an_approved_plan_goes_until_its_approval_expires_or_is_withdrawn(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where, plan = bookies.automated(mode="approve"), bookies.planned()
    monkeypatch.setattr("pulsar_lifecycle.cli.automation.cluster_of", lambda _: where)

    def code() -> AutomationCode:
        assert run("automation", "--json") == 0
        (said,) = [one for one in json.loads(capsys.readouterr().out) if one["kind"] == "bookies"]
        decided = decision_of(where, BOOKIES)[0].code
        assert (said["mode"], said["plan_id"], said["code"]) == ("approve", plan.plan_id, decided.value)
        return decided

    assert run("approve", plan.plan_id, plan.digest, "--by", "ann") == 0
    assert "bookies: goes: 3 bookies, " in capsys.readouterr().out
    assert code() is AutomationCode.GOES
    assert run("approve", plan.plan_id, plan.digest, "--by", "bob", "--withdraw") == 0
    capsys.readouterr()
    assert code() is AutomationCode.NOT_APPROVED
    approve_plan(where, "run-3", plan.plan_id, plan.digest, "ann")
    assert code() is AutomationCode.GOES
    bookies.clock.advance(43_200)
    assert code() is AutomationCode.APPROVAL_EXPIRED
    bookies.collect(plan)
    assert code() is AutomationCode.TAKEN


def test_deletion_that_is_switched_off_stops_no_collection(bookies: PlannedCollections) -> None:
    where, plan = bookies.automated(mode="approve"), bookies.planned()
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    off = where.settings.deletion.model_copy(update={"topicTwoPhaseDeletionEnabled": False})
    where = replace(where, settings=where.settings.model_copy(update={"deletion": off}))
    assert after_approval(where, plan.plan_id)[0].startswith("bookies: goes: ")


def test_a_plan_waits_while_the_newest_scan_is_not_to_go_by(bookies: PlannedCollections) -> None:
    where = bookies.automated(**APPLY)
    bookies.planned()
    bookies.clock.advance(60)
    bookies.scene.scan(Gap(GapCode.ZNODE_UNREAD, "/x", "it could not be read"))
    assert decision_of(where, BOOKIES)[0].code is AutomationCode.NO_SCAN


def test_growth_is_measured_by_plans_whose_bookies_were_told(bookies: PlannedCollections) -> None:
    growing = APPLY | {"growth_from": 0, "growth_from_bytes": GB, "max_growth": 2}
    where, first = bookies.automated(**growing), bookies.planned()
    assert growth_of(where, "bookies", first).largest == Amount()
    bookies.collect(first)
    for bookie in "abc":
        bookies.bookies.statuses[bookie] = full(bookie)
    second = bookies.planned()
    assert growth_of(where, "bookies", second).largest == Amount(3, first.physical_bytes)
    assert decision_of(where, BOOKIES)[0].code is AutomationCode.GOES


@pytest.mark.parametrize(
    ("said", "text"),
    [({"mode": "apply"}, "a window is needed"), ({"namespaces": ["acme"]}, "namespaces: a bookie holds those of all")],
)
def test_what_makes_no_sense_of_bookies_is_refused(said: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        CollectionAutomation.model_validate(said)
    assert CollectionAutomation.model_validate("approve").max_share == 1.0
