"""Whatever its kind: the command that a plan's page names shows the plan, and `plans` lists it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from assets.pages import plan_links, show
from assets.tiered import plan_shown
from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation
from pulsar_lifecycle.cli.plan_pages import PAGES
from pulsar_lifecycle.inspect.kept_plans import KEPT, Plan
from pulsar_lifecycle.inspect.settled import settled_ledgers
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.command import run
from tests.kit.scenes.stored_plan import store_plan
from tests.kit.settings import write_settings

TOPIC = "persistent://shop/orders/placed"
STORE: Mapping[PlanKind, Callable[[FileLake, Any, pa.Table], str]] = {
    PlanKind.ORPHANS: FileLake.store_plan,
    PlanKind.RECONCILE: FileLake.store_plan,
    PlanKind.RETENTION: FileLake.store_retention_plan,
    PlanKind.LOAD: FileLake.store_load_plan,
    PlanKind.INACTIVE_TOPICS: FileLake.store_inactive_plan,
    PlanKind.INACTIVE_SUBSCRIPTIONS: FileLake.store_inactive_plan,
    PlanKind.DELETE_RECORDS: FileLake.store_delete_records_plan,
    PlanKind.CONSUMED_RECORDS: FileLake.store_delete_records_plan,
    PlanKind.DELAYED_INDEX: FileLake.store_repair_plan,
    PlanKind.OFFLOAD: FileLake.store_offload_plan,
    PlanKind.OBJECTS: FileLake.store_object_plan,
    PlanKind.COLLECTION: FileLake.store_collection_plan,
}


def row_of(schema: pa.Schema) -> dict[str, Any]:
    """A row with something in each column."""

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_list(kind):
            return []
        if pa.types.is_boolean(kind):
            return False
        return 7 if pa.types.is_integer(kind) else "some"

    found = {field.name: value(field.type) for field in schema}
    return found | {name: TOPIC for name in ("topic",) if name in found} | {"error": None, "kept": None}


def stored(lake: FileLake, kind: PlanKind) -> Plan:
    """A plan of one row, just made."""
    made = store_plan(lake)
    rows = pa.Table.from_pylist([row_of(kind.schema)], kind.schema)
    plan: Plan = replace(made, plan_id=f"{kind}-e1-0a")
    if kind is PlanKind.OFFLOAD:
        plan = OffloadPlan(
            f"{kind}-e1-0a", made.cluster, made.fingerprint, made.epoch_id, made.created_at, True, (), (), 1, 7,
            0, 0, 0, 0, 0, 0, "",
        )  # fmt: skip
    plan = replace(plan, digest=KEPT[kind].digest(rows, plan.to_json()))
    STORE[kind](lake, plan, rows)
    return plan


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLake:
    """Of a cluster with a bucket that nothing answers for."""
    path = write_settings(tmp_path, monkeypatch, ["tiered"], more="apply.max_share = 0.5\n")
    return FileLake(load_settings(path).lake.path)


@pytest.mark.parametrize("kind", PlanKind)
def test_the_command_on_a_plans_page_shows_it(
    lake: FileLake, kind: PlanKind, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = stored(lake, kind)
    found = re.fullmatch("Whole plan: `(.*)`", show.whole_plan(plan.plan_id))
    assert found
    program, *words = shlex.split(found[1])
    assert program == "pulsar-lifecycle"
    assert run(*words) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["plan_id"], len(said["rows"])) == (plan.plan_id, 1)
    assert said["run_config"] == PAGES[kind].run_config(plan)
    assert run("plan", plan.plan_id) == 0
    page = capsys.readouterr().out
    assert "not applied" in page
    assert f"-j {PAGES[kind].job} " in page
    assert run("plans") == 0
    listed = capsys.readouterr().out
    assert any(plan.plan_id in line and "actionable" in line for line in listed.splitlines())


@pytest.mark.parametrize("kind", PlanKind)
def test_a_plan_whose_rows_were_changed_is_refused(
    lake: FileLake, kind: PlanKind, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = stored(lake, kind)
    STORE[kind](lake, replace(plan, digest="another"), pa.Table.from_pylist([row_of(kind.schema)], kind.schema))
    assert run("plan", plan.plan_id, "--json") == 1
    assert json.loads(capsys.readouterr().out)["refusal_code"] == "plan_differs"


@pytest.mark.parametrize("kind", PlanKind)
def test_a_plan_that_cannot_be_read_is_named(
    lake: FileLake, kind: PlanKind, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = stored(lake, kind)
    (Path(lake.location) / kind.folder / plan.plan_id / "plan.json").write_text("{}")
    assert run("plans") == 0
    assert plan.plan_id in capsys.readouterr().err


@pytest.mark.parametrize("plan_id", ["", "p", "offload", "retention", "offloads-e1-0a", "inactive-e1-0a"])
def test_what_is_no_plans_id_is_of_no_kind(lake: FileLake, plan_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of(plan_id) is None
    assert run("plan", plan_id) == 1
    assert "ids begin with orphans-, " in capsys.readouterr().err


def test_each_kind_is_told_by_its_own_ids_and_a_page_is_of_one_kind() -> None:
    assert [kind_of(f"{kind}-20261124T101112000-abc123-1f2e") for kind in PlanKind] == list(PlanKind)
    assert set(STORE) == set(KEPT) == set(PAGES) == set(PlanKind)
    by_run = {PlanKind.DELETE_RECORDS, PlanKind.CONSUMED_RECORDS}
    assert set(plan_links.PAGE_OF) == set(PlanKind) - by_run


def test_the_page_of_an_offload_plan_names_the_command(lake: FileLake) -> None:
    plan = stored(lake, PlanKind.OFFLOAD)
    assert isinstance(plan, OffloadPlan)
    settings = load_settings()
    shown = plan_shown(plan, lake.offload_plan(plan.plan_id)[1], settings)
    assert f"`pulsar-lifecycle plan {plan.plan_id} --json`" in shown["how to apply"].md_str


def test_the_page_of_an_offload_plan_says_that_the_sensor_applies_it_unless_it_is_by_order(lake: FileLake) -> None:
    plan, settings = stored(lake, PlanKind.OFFLOAD), load_settings()
    assert isinstance(plan, OffloadPlan)
    automation = AutomationSettings(offload=KindAutomation(mode=Automation.APPLY))
    settings, rows = settings.model_copy(update={"automation": automation}), lake.offload_plan(plan.plan_id)[1]
    by_itself = [
        "Sensor `automation`" in plan_shown(one, rows, settings)["how to apply"].md_str
        for one in (plan, replace(plan, ordered=True))
    ]
    assert by_itself == [True, False]
    nothing = plan_shown(replace(plan, ledgers=0, bytes=0), rows.slice(0, 0), settings)["how to apply"].md_str
    assert nothing == "Nothing to offload, and no copy in BookKeeper to delete."


ENDED = {
    PlanKind.OFFLOAD: [(Action.OFFLOAD, Phase.OFFLOAD, Outcome.OFFLOADED)],
    PlanKind.OBJECTS: [
        (Action.DELETE_OFFLOADED, Phase.DELETE, Outcome.DELETED),
        (Action.ABORT_UPLOAD, Phase.ABORT_UPLOAD, Outcome.ABORTED),
    ],
}


@pytest.mark.parametrize("kind", ENDED)
def test_rows_of_offloads_and_objects_are_settled_one_by_one(lake: FileLake, kind: PlanKind) -> None:
    one = row_of(kind.schema)
    rows = [one | {"action": "offload"}, one | {"action": "delete_copy", "ledger_id": 8}]
    if kind is PlanKind.OBJECTS:
        rows = [one | {"uuid": str(UUID(int=1)), "upload_id": ""}, one | {"uuid": str(UUID(int=2)), "upload_id": "up"}]
    plan_id, journal = f"{kind}-e1-0a", FileJournal(lake.location)
    for at, (action, phase, outcome) in enumerate(ENDED[kind]):
        detail = json.dumps({"uuid": str(UUID(int=1))} if action is not Action.ABORT_UPLOAD else {"upload": "up"})
        row = JournalRow("r", "test", plan_id, 7, "ML", TOPIC, action, phase, outcome, "", 5, "", detail, at)
        journal.record([row])
    settled = settled_ledgers(plan_id, pa.Table.from_pylist(rows, kind.schema), journal.find())
    assert settled == len(ENDED[kind])


def test_a_plan_summary_and_an_offload_plan_say_how_many_rows_they_have() -> None:
    summary = PlanSummary("retention-1", "c", "f", "e", "", 1, True, (), 3, 1, 1, 1, "")
    plan = OffloadPlan("offload-1", "c", "f", "e", 1, True, (), (), 2, 1, 3, 1, 0, 0, 0, 0, "")
    assert (summary.rows, plan.rows) == (3, 5)
