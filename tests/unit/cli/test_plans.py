"""Commands that list and show plans and findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_lifecycle.deletion.planning import confirmed_orphans
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans import load_plan, retention_plan
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.plans.retention_plan import EXPIRED_LEDGERS
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import FINDINGS, REFERENCES
from tests.kit.command import command_over, run
from tests.kit.scenes.stored_plan import TOPIC, store_scan
from tests.kit.simulated.cluster import SimulatedCluster, data_tags


def test_plans_lists_what_can_be_applied(plan: PlanSummary, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plans") == 0
    out = capsys.readouterr().out
    assert "orphans-1" in out
    assert "actionable for 23 h" in out
    assert run("plans", "--json") == 0
    assert [p["plan_id"] for p in json.loads(capsys.readouterr().out)] == ["orphans-1"]


def test_plans_calls_none_actionable_that_holds_nothing(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = replace(plan, plan_id="retention-1", ledgers=0)
    FileLake(load_settings(settings_file).lake.path).store_retention_plan(empty, EXPIRED_LEDGERS.empty_table())
    assert run("plans") == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("retention-1")]
    assert line.endswith("holds nothing")


def test_plans_says_that_a_newer_one_of_the_kind_is_there(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, none = FileLake(load_settings(settings_file).lake.path), pa.Table.from_pylist([], FINDINGS)
    lake.store_plan(replace(plan, plan_id="orphans-2", created_at=plan.created_at + 1), none)
    lake.store_plan(replace(plan, plan_id="orphans-3", created_at=plan.created_at + 2, cluster="another"), none)
    assert run("plans") == 0
    shown = capsys.readouterr().out
    assert shown.count("actionable for 23 h") == 2
    assert shown.count("a newer one is there") == 1
    assert shown.index("orphans-2") < shown.index("orphans-1") < shown.index("a newer one is there")


def test_plans_names_those_of_kinds_that_it_does_not_know(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    lake.store_plan(replace(plan, plan_id="unheard-of-1"), pa.Table.from_pylist([], FINDINGS))
    assert run("plans") == 0
    printed = capsys.readouterr()
    assert "orphans-1" in printed.out
    assert "unheard-of-1" not in printed.out
    assert "left out: plan unheard-of-1" in printed.err


@pytest.mark.parametrize(("outcome", "left"), [("deleted", False), ("kept", False), ("retrying", True)])
def test_plans_says_of_which_nothing_is_left_to_apply(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str], outcome: Outcome, left: bool
) -> None:
    at, action = plan.created_at + 1, Action.DELETE_LEDGER
    sent = JournalRow(
        "r", "test", plan.plan_id, 7, "ML", TOPIC, action, Phase.SEND, Outcome.SENT, "", 5, "", "{}", at, code="planned"
    )
    journal = FileJournal(load_settings(settings_file).lake.path)
    journal.record([sent])
    assert run("plans") == 0
    assert "all its intents were sent" in capsys.readouterr().out
    journal.record([replace(sent, phase=Phase.DELETE, outcome=outcome)])
    assert run("plans") == 0
    shown = capsys.readouterr().out
    assert ("all its intents were sent" in shown, "nothing is left to apply" in shown) == (left, not left)
    assert run("plan", plan.plan_id) == 0
    shown = capsys.readouterr().out
    assert ("all its intents were sent" in shown, "to apply it" in shown) == (left, False)


@pytest.mark.parametrize(("outcome", "left"), [("kept", False), ("retrying", True)])
def test_explain_and_status_call_no_plan_actionable_of_which_nothing_is_left_to_apply(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str], outcome: Outcome, left: bool
) -> None:
    cluster, topic = SimulatedCluster(), Topic.parse("persistent://shop/orders/x")
    ledger, store = cluster.ledger(data_tags(topic)), cluster.open_store()
    fingerprint, location = cluster_fingerprint(store, "/ledgers"), load_settings(settings_file).lake.path
    lake, now = FileLake(location), plan.created_at
    settings_file.write_text(settings_file.read_text() + "bookkeeper.shared_with = []\n")

    def scanned(name: str, began: int) -> None:
        epoch = Epoch(name, "test", fingerprint, began, began, (), 10**9, 10**9, ())
        lake.store_epoch(epoch, Referenced(), Context(began, 1, frozenset({"shop/orders"})))
        lake.publish(name, "references", [lake.write_part(name, "references", REFERENCES, [])])

    for hours in (40, 10):
        scanned(f"e-{hours}", now - hours * 3_600_000)
    row = {"ledger_id": ledger, "finding": "orphan", "code": "unreferenced", "reason": "", "topic": str(topic)}
    mine = replace(plan, plan_id="orphans-2", fingerprint=fingerprint, created_at=now, epoch_id="e-40")
    lake.store_plan(mine, pa.Table.from_pylist([row], FINDINGS))
    action = Action.DELETE_LEDGER
    FileJournal(location).record(
        [
            JournalRow(
                "r", "test", "orphans-2", ledger, "ML", str(topic), action, Phase.DELETE, outcome, "", 5, "", "{}", now
            )
        ]
    )
    run = command_over(stores=lambda *_, **__: cluster.open_store(), reader=lambda: cluster.reader)
    assert run("explain", str(ledger)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("nothing is left to apply" in shown, "no actionable plan has it" in shown) == (not left, not left)
    run("status")
    shown = " ".join(capsys.readouterr().out.split())
    assert ("all its intents were sent" in shown, "nothing is left to apply" in shown) == (left, not left)
    lake.set_scans_aside("test", now - 1_000, "restored", "mary")
    scanned("e-0", now)
    assert run("explain", str(ledger)) == 0
    assert "orphans-2: " not in capsys.readouterr().out


def test_plans_lists_a_plan_whose_rows_are_gone(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = load_settings(settings_file).lake.path
    row = JournalRow(
        "r", "test", plan.plan_id, 7, "ML", TOPIC, Action.DELETE_LEDGER, Phase.SEND, Outcome.SENT, "", 5, "", "{}",
        plan.created_at, code="planned",
    )  # fmt: skip
    FileJournal(lake).record([row])
    (rows,) = (Path(lake) / "plans" / plan.plan_id).glob("*.parquet")
    rows.unlink()
    assert run("plans") == 0
    assert "actionable for 23 h" in capsys.readouterr().out


def test_findings_are_grouped_and_listed_by_code(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    assert run("findings") == 1
    assert "run the job `scan`" in capsys.readouterr().err
    store_scan(lake, 1_700_000_000_000)
    said = (("kept", "legal_hold"), ("kept", "other_open"), ("kept", "legal_hold"), ("too_young", "too_young"))
    rows = [
        {"ledger_id": i, "finding": finding, "code": code, "reason": code, "topic": TOPIC, "physical_bytes": i}
        for i, (finding, code) in enumerate(said)
    ]
    table = pa.Table.from_pylist(rows, FINDINGS)
    lake.publish("e1", "findings", [lake.write_part("e1", "findings", FINDINGS, table.to_batches())])
    assert run("findings", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["ledgers"], one["bytes"]) for one in found["by_code"]] == [
        ("legal_hold", 2, 2),
        ("other_open", 1, 1),
        ("too_young", 1, 3),
    ]
    assert "rows" not in found
    for option, wanted in (("--code", "legal_hold"), ("--finding", "kept")):
        assert run("findings", option, wanted, "--json") == 0
        listed = json.loads(capsys.readouterr().out)["rows"]
        assert {row["ledger_id"] for row in listed} == ({0, 2} if option == "--code" else {0, 1, 2})
        assert run("findings", option, wanted) == 0
        assert TOPIC in capsys.readouterr().out
    assert run("findings", "--code", "legal_holt") == 2
    assert "did you mean legal_hold" in capsys.readouterr().err


def test_a_scan_of_an_earlier_version_has_no_codes_and_says_so(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    store_scan(lake, 1_700_000_000_000)
    earlier = pa.schema([field for field in FINDINGS if field.name != "code"])
    lake.publish("e1", "findings", [lake.write_part("e1", "findings", earlier, earlier.empty_table().to_batches())])
    assert run("findings") == 1
    assert "no column code: an earlier version made this scan, run the job scan" in capsys.readouterr().err


def test_the_run_config_is_the_one_of_the_plans_page(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "orphans-1", "--run-config") == 0
    assert json.loads(capsys.readouterr().out) == confirmed_orphans.run_config(plan)


def test_a_plan_shows_what_it_deletes_and_how_to_apply_it(
    plan: PlanSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "orphans-1") == 0
    out = capsys.readouterr().out
    for part in (plan.digest, TOPIC, "10.00% of 10", "2.0 KB on disk", "--run-config > apply.json", "not applied"):
        assert part in out


def test_a_retention_plan_is_listed_and_shown_like_others(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "ledger_id": 8,
        "topic": TOPIC,
        "namespace": "shop/orders",
        "bytes": 1000,
        "physical_bytes": 2000,
        "expired_by": "expired_by_time",
        "expired_at": 1_700_000_000_000,
        "retention_minutes": 60,
        "retention_mb": -1,
        "level": "namespace",
        "kept": None,
    }
    rows = pa.Table.from_pylist([row], schema=EXPIRED_LEDGERS)
    made = replace(plan, plan_id="retention-1", logical_bytes=1000, physical_bytes=1000)
    made = replace(made, digest=retention_plan.digest(rows, made.to_json()))
    FileLake(load_settings(settings_file).lake.path).store_retention_plan(made, rows)
    assert run("plans", "--json") == 0
    assert {p["plan_id"] for p in json.loads(capsys.readouterr().out)} == {"orphans-1", "retention-1"}
    assert run("plan", "retention-1") == 0
    out = capsys.readouterr().out
    for part in (made.digest, TOPIC, "expired_by_time", "shop/orders", "-j apply_retention", "not applied"):
        assert part in out
    assert run("plan", "retention-1", "--run-config") == 0
    assert json.loads(capsys.readouterr().out) == retention_planning.run_config(made)
    removed = JournalRow(
        "r", "test", "retention-1", 8, "ML", TOPIC, Action.DELETE_LEDGER, "mark", "removed", "", 5, "", "{}", 1
    )
    FileJournal(load_settings(settings_file).lake.path).record([removed])
    assert run("plan", "retention-1") == 0
    assert "1 of its ledgers: nothing is left to apply" in capsys.readouterr().out


def test_a_load_plan_is_listed_and_shown_like_others(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "ledger_id": 8,
        "topic": TOPIC,
        "namespace": "shop/orders",
        "needs": ["last_ledger_expired", "past_ttl"],
        "monitors": [],
        "bytes": 1000,
        "bytes_at_once": 10,
        "physical_bytes": 3000,
        "weights": [3000],
        "second_visit_at": 1_700_000_000_000,
    }
    rows = pa.Table.from_pylist([row], schema=TOPICS_TO_LOAD)
    made = replace(plan, plan_id="load-1", logical_bytes=1000, physical_bytes=3000)
    made = replace(made, digest=load_plan.digest(rows, made.to_json()))
    FileLake(load_settings(settings_file).lake.path).store_load_plan(made, rows)
    assert run("plans", "--json") == 0
    assert {p["plan_id"] for p in json.loads(capsys.readouterr().out)} == {"orphans-1", "load-1"}
    assert run("plan", "load-1") == 0
    out = capsys.readouterr().out
    for part in (made.digest, TOPIC, "last_ledger_expired, past_ttl", "shop/orders", "-j load_topics", "not applied"):
        assert part in out
    assert run("plan", "load-1", "--run-config") == 0
    assert json.loads(capsys.readouterr().out) == load_planning.run_config(made)
    through = JournalRow(
        "r", "test", "load-1", -1, "", TOPIC, Action.LOAD_TOPIC, "unload", "done", "", 5, "", "{}", 1
    )  # fmt: skip
    FileJournal(load_settings(settings_file).lake.path).record([through])
    assert run("plan", "load-1") == 0
    assert "1 of its topics: nothing is left to apply" in capsys.readouterr().out


def test_a_plan_says_how_many_of_its_ledgers_are_settled(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = JournalRow(
        "r", "test", plan.plan_id, 7, "ML", TOPIC, Action.DELETE_LEDGER, "send", "sent", "planned", 5, "", "{}", 1
    )
    journal = FileJournal(load_settings(settings_file).lake.path)
    for row, settled in ((sent, False), (replace(sent, phase="delete", outcome="deleted", at=2), True)):
        journal.record([row])
        assert run("plan", "orphans-1") == 0
        out = capsys.readouterr().out
        assert ("1 of its ledgers: nothing is left to apply" in out) == settled
        assert ("dagster job execute -m orchestration.definitions -a defs -j apply_plan" in out) != settled
    assert run("plan", "orphans-1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settled"] == 1


def test_a_plan_that_would_be_refused_says_why_and_ends_with_1(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(settings_file.read_text().replace("max_share = 0.5", "max_share = 0.05"))
    assert run("plan", "orphans-1") == 1
    out = capsys.readouterr().out
    assert "max_share: 10.0%" in out
    assert "apply.json" not in out


def test_plans_are_refused_until_a_restore_that_a_scan_found_is_accepted(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    back = Gap(GapCode.HISTORY_BROKEN, "", "it went back")
    found = Epoch("e9", "test", "f", plan.created_at, plan.created_at, (), 1, 1, (), broken=back)
    lake.store_epoch(found, Referenced(), Context(plan.created_at, 1, frozenset()))
    assert run("plan", "orphans-1") == 1
    said = capsys.readouterr().out
    assert "apply.json" not in said
    assert "it went back" in said
    assert run("plans") == 0
    assert "every run with effects is refused: it went back" in capsys.readouterr().out
    assert run("accept-restore", "backup of 02:00", "--by", "mary") == 0
    assert "what was found: it went back" in capsys.readouterr().out
    assert run("plans") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "is refused" not in out
    assert "its scan was set aside, or is gone" in out


def test_a_plan_that_is_switched_off_is_refused(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(settings_file.read_text() + "deletion = { topicTwoPhaseDeletionEnabled = false }\n")
    assert run("plan", "orphans-1") == 1
    out = capsys.readouterr().out
    assert "topicTwoPhaseDeletionEnabled is false" in " ".join(out.split())
    assert "apply.json" not in out


def test_a_plan_of_an_old_scan_is_refused(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    store_scan(lake, plan.created_at - 25 * 3_600_000)
    assert run("plan", "orphans-1") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "its scan e1 is 1500 minutes old" in out
    assert "apply.json" not in out
    lake.set_scans_aside("test", plan.created_at, "restored")
    assert run("plan", "orphans-1") == 1
    assert "set aside by accept-restore" in " ".join(capsys.readouterr().out.split())


def test_a_plan_whose_file_was_changed_is_refused(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FileLake(load_settings(settings_file).lake.path).store_plan(plan, FINDINGS.empty_table())
    assert run("plan", "orphans-1") == 1
    assert "digest" in capsys.readouterr().out


def test_a_broken_plan_is_named_and_hides_no_other(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(load_settings(settings_file).lake.path) / "plans" / "orphans-0" / "plan.json"
    broken.parent.mkdir()
    broken.write_text("[]")
    assert run("plans", "--json") == 0
    captured = capsys.readouterr()
    assert [p["plan_id"] for p in json.loads(captured.out)] == ["orphans-1"]
    assert captured.err.count("\n") == 1
    assert str(broken) in captured.err
    assert run("plan", "orphans-0") == 1
    assert str(broken) in capsys.readouterr().err
