"""The command line without a cluster: dumped files, plans and journal of a lake, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.cli import journal_words, main, show
from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.deletion.planning import deletion_planning
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.describe import describe
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.known_words import KnownWord
from pulsar_lifecycle.records.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.records.plans import deletion_plan, load_plan, retention_plan
from pulsar_lifecycle.records.plans.deletion_plan import PlanSummary
from pulsar_lifecycle.records.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.records.plans.retention_plan import EXPIRED_LEDGERS
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.records.tables import FINDINGS, REFERENCES
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import CONFIG_VARIABLE, load_settings
from pulsar_lifecycle.words import WordKind
from tests.golden.files import GOLDEN, entries
from tests.kit.command import command_over, run
from tests.kit.settings import write_settings
from tests.simulation.cluster import SimulatedCluster, data_tags

TOPIC = "persistent://shop/orders/placed"


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that nothing answers for, with a lake."""
    return write_settings(tmp_path, monkeypatch, more='zookeeper.session_timeout = "1s"\napply.max_share = 0.5\n')


# ------------------------------------------------------------------------------------------------------ inspect file

DUMPS = {
    "managed-ledger": "znodes/zstd/cursor/zk_ml_closed.bin",
    "cursor": "delayed/unmerged/zk_cursor_open.bin",
    "cursor-entry": "znodes/plain/cursor/cursor_ledger_last_entry.bin",
    "ledger-metadata": "znodes/plain/schema/zk_bkledger_schemaL52.bin",
    "schema-locator": "znodes/plain/schema/zk_schema.bin",
    "schema-entry": "znodes/plain/schema/schema_L53_E0.bin",
    "bucket-metadata": "delayed/unmerged/L237.entries.bin",
    "bucket-segment": "delayed/unmerged/L237.entries.bin",
    "message": "offload/g-batch-zstd/L30.first_entry.bin",
    "offload-data": "offload/g-large/object_data.bin",
    "offload-index": "offload/g-large/object_index.bin",
}


def dumped(format_name: str, folder: Path) -> Path:
    source = GOLDEN / DUMPS[format_name]
    if not source.name.endswith(".entries.bin"):
        return source
    number = 1 if format_name == "bucket-segment" else 0
    target = folder / "entry.bin"
    target.write_bytes(entries(source)[number])
    return target


@pytest.mark.parametrize("format_name", DUMPS)
def test_a_dump_is_one_json_document_under_upstream_names(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(format_name, tmp_path)
    assert run("inspect", "file", str(path), "--as", format_name, "--json") == 0
    assert json.loads(capsys.readouterr().out) == describe(format_name, path.read_bytes())


@pytest.mark.parametrize("format_name", DUMPS)
def test_a_dump_as_a_table_shows_every_field(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(format_name, tmp_path)
    assert run("inspect", "file", str(path), "--as", format_name) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in describe(format_name, path.read_bytes()))
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_a_dump_that_does_not_decode_is_one_line_with_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"BookieMetadataFormatVersion\t3\n\x7f")
    assert run("inspect", "file", str(broken), "--as", "ledger-metadata") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pulsar-lifecycle: ledger metadata: at byte 30: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("format_name", DUMPS)
def test_an_empty_dump_is_refused(format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert run("inspect", "file", str(tmp_path / "empty"), "--as", format_name) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pulsar-lifecycle: ")


def test_an_offload_object_that_was_cut_off_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    for name in ("data", "index"):
        broken.write_bytes((GOLDEN / f"offload/g-tiny/object_{name}.bin").read_bytes()[:-1])
        assert run("inspect", "file", str(broken), "--as", f"offload-{name}") == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"pulsar-lifecycle: offload {name}")


def test_verbose_raises_for_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff")
    with pytest.raises(CorruptFormat):
        main(["-v", "inspect", "file", str(tmp_path / "broken"), "--as", "cursor"])


# ------------------------------------------------------------------------------------------------- usage and settings


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "file", __file__, "--as", "parquet"),
        ("inspect", "file", "/no/such/file", "--as", "cursor"),
        ("inspect", "znode", "ledgers"),
        ("inspect", "topic", "nonsense"),
        ("inspect", "ledger", "-1"),
        ("explain", "4711x"),
        ("journal",),
        ("journal", "--ledger", "99999999999999999999"),
        ("journal", "--code", "nonsense"),
        ("journal", "--outcome", "DELETED"),
        ("journal", "--outcome", ""),
        ("no-such-command",),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_missing_and_wrong_settings_end_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert run("status") == 2
    assert CONFIG_VARIABLE in capsys.readouterr().err
    (tmp_path / "wrong.toml").write_text('cluster = "x"\nshoes = 3\n')
    assert run("--config", str(tmp_path / "wrong.toml"), "status") == 2
    assert "shoes" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "pause", "resume"])
def test_a_cluster_that_does_not_answer_is_one_line(
    command: str, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("pulsar-lifecycle: zookeeper.hosts: ")
    assert captured.err.count("\n") == 1


def test_help_loads_neither_spark_nor_dagster() -> None:
    code = (
        "import sys, pulsar_lifecycle.cli\n"
        "print([m for m in ('pyspark', 'dagster', 'pyarrow', 'pandas', 'pydantic') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------------------- inspect topic


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        (Brokers({}, 60_000, "timed out"), "unknown, counts as loaded: the brokers did not answer: timed out"),
        (Brokers({}, 10**9), "unknown, counts as loaded: its z-node was written too recently to know"),
        (Brokers({TOPIC: "broker-1"}, 60_000), "loaded: listed by broker-1"),
        (Brokers({}, -1), "unloaded: on no broker's list"),
    ],
)
def test_a_topic_of_which_no_broker_says_so_is_not_shown_as_loaded(
    settings_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    brokers: Brokers,
    said: str,
) -> None:
    cluster = SimulatedCluster()
    topic = cluster.topic(Topic.parse(TOPIC), [cluster.ledger(data_tags(Topic.parse(TOPIC)))])
    run = looked_at(cluster, monkeypatch, brokers)
    assert run("inspect", "topic", str(topic)) == 0
    assert f" {said}" in " ".join(capsys.readouterr().out.split())


def test_a_topic_that_cannot_be_read_whole_ends_with_1(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    topic = cluster.topic(Topic.parse(TOPIC), [cluster.ledger(data_tags(Topic.parse(TOPIC)))])
    held = cluster.ledger(data_tags(topic), entries=[b"\xff"])
    cluster.cursor(topic, "billing", ledger=held)
    run = looked_at(cluster, monkeypatch, Brokers({}, 60_000))
    for options in ((), ("--json",)):
        assert run("inspect", "topic", TOPIC, *options) == 1
        assert f"cursor ledger {held}: " in capsys.readouterr().out


def test_a_ledger_may_be_absent_only_where_its_copy_was_given_up(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = looked_at(cluster, monkeypatch, Brokers({}, 60_000))
    for released_copies, code in ((True, 0), (False, 1)):
        offload = OffloadContext(UUID(int=1), True, released_copies, 1, "aws-s3", {"bucket": "b"})
        cluster.topic(Topic.parse(TOPIC), [900], offloaded={900: offload})
        assert run("inspect", "topic", TOPIC) == code


def looked_at(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Callable[..., int]:
    """The command line over this cluster."""
    monkeypatch.setattr("pulsar_lifecycle.cli.inspect.brokers_of", lambda where: brokers)
    return command_over(
        stores=lambda *_, **__: cluster.open_store(read_only=True),
        reader=lambda: cluster.reader,
        clock=lambda: cluster.clock,
    )


# ------------------------------------------------------------------------------------------------- plans and journal


@pytest.fixture
def plan(settings_file: Path) -> PlanSummary:
    """A stored plan of one ledger out of ten, just made."""
    row = {
        "ledger_id": 7,
        "finding": "orphan",
        "reason": "nothing refers to it",
        "component": "managed-ledger",
        "cursor": None,
        "topic": TOPIC,
        "namespace": "shop/orders",
        "logical_bytes": 1000,
        "physical_bytes": 2000,
        "entries": 3,
        "ctime": 1_700_000_000_000,
    }
    rows = FINDINGS.empty_table().from_pylist([row], FINDINGS)
    now = time.time_ns() // 1_000_000
    summary = PlanSummary("orphans-1", "test", "f", "e1", "e0", now, True, (), 1, 1000, 2000, 10, "")
    summary = replace(summary, digest=deletion_plan.digest(rows, summary.to_json()))
    lake = FileLake(load_settings(settings_file).lake.path)
    lake.store_plan(summary, rows)
    store_scan(lake, now)
    return summary


def store_scan(lake: FileLake, started_at: int) -> None:
    """The scan of the stored plan, begun at ``started_at`` (ms)."""
    context = Context(now=started_at, grace=1, namespaces=frozenset())
    lake.store_epoch(Epoch("e1", "test", "f", started_at, started_at, (), 1, 1, ()), Referenced(), context)


def test_plans_lists_what_can_be_applied(plan: PlanSummary, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plans") == 0
    out = capsys.readouterr().out
    assert "orphans-1" in out
    assert "actionable for 23 h" in out
    assert run("plans", "--json") == 0
    assert [p["plan_id"] for p in json.loads(capsys.readouterr().out)] == ["orphans-1"]


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
    assert "actionable for 23 h" in capsys.readouterr().out
    journal.record([replace(sent, phase=Phase.DELETE, outcome=outcome)])
    assert run("plans") == 0
    shown = capsys.readouterr().out
    assert ("actionable for 23 h" in shown, "nothing is left to apply" in shown) == (left, not left)


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


def test_the_run_config_is_the_one_of_the_plans_page(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "orphans-1", "--run-config") == 0
    assert json.loads(capsys.readouterr().out) == deletion_planning.run_config(plan)


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
        "second_visit_at": 1_700_000_000_000,
    }
    rows = pa.Table.from_pylist([row], schema=TOPICS_TO_LOAD)
    made = replace(plan, plan_id="load-1", logical_bytes=1000, physical_bytes=1000)
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
    assert "1 of its ledgers: nothing is left to apply" in capsys.readouterr().out


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


def test_status_shows_a_broken_plan_and_goes_on(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    broken = Path(load_settings(settings_file).lake.path) / "plans" / "orphans-0" / "plan.json"
    broken.parent.mkdir()
    broken.write_text("{}")
    run("status", "--json")
    (error,) = json.loads(capsys.readouterr().out)["broken_plans"]
    assert str(broken) in error
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "broken: " in out
    assert "answers in" in out


def test_status_says_why_every_run_would_refuse(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    store = cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    run("status", "--json")
    assert json.loads(capsys.readouterr().out)["refused"] == []
    run("status")
    assert "not paused" in capsys.readouterr().out
    at, fingerprint = cluster.clock.now_ms(), cluster_fingerprint(store, "/ledgers")
    epoch = Epoch("e1", "test", fingerprint, at, at, (), 1, 1, (), zxid=2**60)
    FileLake(load_settings(settings_file).lake.path).store_epoch(epoch, Referenced(), Context(at, 1, frozenset()))
    settings_file.write_text(settings_file.read_text() + "deletion = { topicTwoPhaseDeletionEnabled = false }\n")
    run("status", "--json")
    off, restored = json.loads(capsys.readouterr().out)["refused"]
    assert "switched off" in off
    assert "e1" in restored
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "REFUSED: two-phase deletion is switched off" in out
    assert "not paused" not in out


def test_status_shows_owed_unloads_that_can_be_read_or_not(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    topic = Topic.parse("persistent://acme/orders/placed")
    control.note_unload(cluster.open_store(), control.PendingUnload(topic, False, 1, control.LEASE))
    garbage = f"{control.PENDING_UNLOADS[control.LEASE]}/garbage"
    cluster.put(garbage, b"{}")
    run("status", "--json")
    found = {one["path"]: one for one in json.loads(capsys.readouterr().out)["pending_unloads"]}
    assert garbage in found.pop(garbage)["error"]
    assert [(one["topic"], one["loaded"]) for one in found.values()] == [(str(topic), False)]
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert f"{topic} must be unloaded if" in out
    assert "UNREADABLE: " in out


def test_status_shows_locations_that_brokers_cannot_read(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    unread_locations.hold(cluster.open_store(), ("aws-s3", "tiered", "eu", ""), "run-1", "500: no such bucket")
    garbage = f"{unread_locations.UNREAD_LOCATIONS}/garbage"
    cluster.put(garbage, b"[]")
    run("status", "--json")
    first, other = sorted(json.loads(capsys.readouterr().out)["unread_locations"], key=lambda one: "error" in one)
    assert (first["bucket"], first["region"], first["run_id"], first["said"]) == (
        "tiered",
        "eu",
        "run-1",
        "500: no such bucket",
    )
    assert other == {"path": garbage, "error": f"{garbage} is not as we write it"}
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "aws-s3 bucket tiered, region eu: a broker could not read there since" in out
    assert f"UNREADABLE: {garbage}" in out


def test_status_gives_no_age_to_what_cannot_be_read(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    holders = [control.holder_of(lease) for lease in (control.LEASE, control.OFFLOAD_LEASE)]
    for path in (control.PAUSE, *holders):
        cluster.open_store().create(path, b"x", parents=True)
        cluster.zookeeper.unreadable.add(path)
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert f"PAUSED (unreadable: {control.PAUSE}: " in out
    assert f"somebody holds the lease (unreadable: {holders[0]}: " in out
    assert f"somebody holds the offload lease (unreadable: {holders[1]}: " in out
    assert "since" not in out


@pytest.mark.parametrize(
    ("topic", "setting"),
    [
        (
            "persistent://shop/gone/x",
            'bookkeeper.gone_namespaces = [{ name = "shop/gone", by = "mary", why = "removed" }]',
        ),
        ("persistent://shop/orders/__change_events", "orphans = { system_topics = true }"),
    ],
)
def test_explain_judges_by_the_settings_of_today(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, topic: str, setting: str
) -> None:
    cluster = SimulatedCluster()
    ledger, store = cluster.ledger(data_tags(Topic.parse(topic))), cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store(), reader=lambda: cluster.reader)
    at = cluster.clock.now_ms() + 1000
    epoch = Epoch("e1", "test", cluster_fingerprint(store, "/ledgers"), at, at, (), 1, 1, ())
    context = Context(now=at, grace=1, namespaces=frozenset({"shop/orders"}))
    lake = FileLake(load_settings(settings_file).lake.path)
    lake.store_epoch(epoch, Referenced(), context)
    lake.publish("e1", "references", [lake.write_part("e1", "references", REFERENCES, [])])
    verdicts: list[str] = []
    declared = settings_file.read_text() + "bookkeeper.shared_with = []\n"
    for text in (declared, declared + setting + "\n"):
        settings_file.write_text(text)
        assert run("explain", str(ledger), "--json") == 0
        verdicts.append(json.loads(capsys.readouterr().out)["verdict"])
    assert verdicts == ["kept", "may_go"]
    journal, sent = FileJournal(load_settings(settings_file).lake.path), "its intent was sent"
    row = JournalRow(
        "r", "test", "p", ledger, "ML", topic, Action.DELETE_LEDGER, "send", "sent", "planned", 5, "", "{}", 1
    )
    for one, waits in ((row, True), (replace(row, phase="delete", outcome="kept", at=2), False)):
        journal.record([one])
        run("explain", str(ledger))
        assert (sent in " ".join(capsys.readouterr().out.split())) == waits


@pytest.mark.parametrize(("shadowed", "verdict"), [(False, "may_go"), (True, "kept")])
def test_explain_knows_the_shadow_topics_of_earlier_scans_as_a_deletion_run_does(
    settings_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shadowed: bool,
    verdict: str,
) -> None:
    cluster, topic = SimulatedCluster(), Topic.parse("persistent://shop/orders/x")
    ledger, store = cluster.ledger(data_tags(topic)), cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store(), reader=lambda: cluster.reader)
    at, fingerprint = cluster.clock.now_ms() + 1000, cluster_fingerprint(store, "/ledgers")
    lake = FileLake(load_settings(settings_file).lake.path)
    settings_file.write_text(settings_file.read_text() + "bookkeeper.shared_with = []\n")
    for hours, sources in ((30, {str(topic)} if shadowed else set[str]()), (48, set[str]())):
        began, name = at + hours * 3_600_000, f"e{hours}"
        context = Context(began, 1, frozenset({"shop/orders"}), shadow_sources=frozenset(sources))
        lake.store_epoch(Epoch(name, "test", fingerprint, began, began, (), 10**9, 10**9, ()), Referenced(), context)
        lake.publish(name, "references", [lake.write_part(name, "references", REFERENCES, [])])
    assert run("explain", str(ledger), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_explain_says_why_a_covered_scan_counts_no_more(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    ledger, store = cluster.ledger(data_tags(Topic.parse("persistent://shop/orders/x"))), cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store(), reader=lambda: cluster.reader)
    at = cluster.clock.now_ms() + 1000
    lake = FileLake(load_settings(settings_file).lake.path)
    epoch = Epoch("e1", "test", cluster_fingerprint(store, "/ledgers"), at, at, (), 1, 1, ())
    lake.store_epoch(epoch, Referenced(), Context(at, 1, frozenset({"shop/orders"})))
    lake.publish("e1", "references", [lake.write_part("e1", "references", REFERENCES, [])])
    text = settings_file.read_text()
    west = '[{ name = "west", hosts = "127.0.0.1:2" }]'
    for setting, why in (("", "is not set now"), (f"bookkeeper.shared_with = {west}", "names a root now"), ("", "")):
        declared = setting if why else "bookkeeper.shared_with = []"
        settings_file.write_text(f"{text}{declared}\n")
        run("explain", str(ledger), "--json")
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"], why in found["answer"]) == ("kept" if why else "may_go", True)


@pytest.mark.parametrize("restored", [False, True])
def test_explain_knows_a_mark_until_a_scan_refutes_it_or_a_restore_is_accepted(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    cluster, topic = SimulatedCluster(), Topic.parse("persistent://shop/orders/x")
    ledger, store = cluster.ledger(data_tags(topic)), cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store(), reader=lambda: cluster.reader)
    at, fingerprint = cluster.clock.now_ms(), cluster_fingerprint(store, "/ledgers")
    lake = FileLake(load_settings(settings_file).lake.path)
    stat = cluster.zookeeper.stat(cluster.path(ledger))
    assert stat
    detail = json.dumps({"czxid": stat.czxid})
    row = JournalRow(
        "trim", "test", "", ledger, "", str(topic), Action.DELETE_LEDGER, "mark", "marked", "", 0, "", detail, at
    )
    FileJournal(load_settings(settings_file).lake.path).record([row])

    def scanned(hours: int, found: Referenced) -> None:
        began, name = at + hours * 3_600_000, f"e{hours}"
        context = Context(began, 1, frozenset({"shop/orders"}))
        lake.store_epoch(Epoch(name, "test", fingerprint, began, began, (), 10**9, 10**9, ()), found, context)
        lake.publish(name, "references", [lake.write_part(name, "references", REFERENCES, [])])

    def taken_off() -> bool:
        run("explain", str(ledger), "--json")
        return "took it off" in json.loads(capsys.readouterr().out)["answer"]

    assert taken_off()
    scanned(3, Referenced())
    assert taken_off()
    if restored:
        lake.set_scans_aside("test", at + 2, "restored")
    else:
        scanned(1, Referenced(BitMap64([ledger])))
    assert not taken_off()


@pytest.mark.parametrize("path", ["foo://x", "s3://"])
def test_a_lake_that_cannot_be_opened_is_a_wrong_setting(
    settings_file: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    lake = load_settings(settings_file).lake.path
    settings_file.write_text(settings_file.read_text().replace(lake, path))
    assert run("plans") == 2
    captured = capsys.readouterr()
    assert "lake.path" in captured.err
    assert captured.err.count("\n") == 1


def test_an_unknown_plan_ends_with_1(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "orphans-2") == 1
    assert "orphans-2" in capsys.readouterr().err


def test_the_journal_is_asked_by_ledger_run_or_plan(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        JournalRow("run-1", "test", "p1", 7, "ML", TOPIC, "delete-ledger", "send", "sent", "planned", 5, "", "{}", 1),
        JournalRow("run-2", "test", "p1", 7, "ML", TOPIC, "delete-ledger", "delete", "deleted", "", 5, "", "{}", 2),
        JournalRow("run-2", "test", "p2", 8, "ML", TOPIC, "delete-ledger", "delete", "kept", "in use", 5, "", "{}", 3),
    ]
    rows[2] = replace(rows[2], code="twin")
    FileJournal(load_settings(settings_file).lake.path).record(rows)

    def asked(*arguments: str) -> list[tuple[int, str]]:
        assert run("journal", *arguments, "--json") == 0
        return [(row["ledger_id"], row["outcome"]) for row in json.loads(capsys.readouterr().out)]

    assert asked("--ledger", "7") == [(7, "sent"), (7, "deleted")]
    assert asked("--run", "run-2") == [(7, "deleted"), (8, "kept")]
    assert asked("--plan", "p2") == [(8, "kept")]
    assert asked("--run", "run-2", "--ledger", "8") == [(8, "kept")]
    assert asked("--code", "twin") == asked("--outcome", "kept") == [(8, "kept")]
    assert asked("--run", "run-3") == asked("--code", "twin", "--outcome", "sent") == []
    assert run("journal", "--ledger", "7") == 0
    out = capsys.readouterr().out
    assert "deleted" in out
    assert "action" in out
    FileJournal(load_settings(settings_file).lake.path).record([replace(rows[1], cluster="other", run_id="run-9")])
    assert run("journal", "--ledger", "7", "--json") == 0
    captured = capsys.readouterr()
    assert [row["run_id"] for row in json.loads(captured.out)] == ["run-1", "run-2"]
    assert "1 row of other clusters" in captured.err


@pytest.mark.parametrize(
    ("option", "given", "near"),
    [("--code", "still_in_us", "still_in_use"), ("--outcome", "DELETED", "deleted"), ("--code", "zzz", "codes.md")],
)
def test_an_unknown_word_of_the_journal_is_told_those_near_it(
    settings_file: Path, capsys: pytest.CaptureFixture[str], option: str, given: str, near: str
) -> None:
    assert run("journal", "--run", "run-1", option, given) == 2
    assert near in capsys.readouterr().err


@pytest.mark.parametrize("code", [code for codes in journal_words.CODES for code in codes])
def test_every_code_that_a_row_may_have_can_be_asked_for(code: str) -> None:
    journal_words.check(code, None)


def test_what_a_cluster_holds_cannot_steer_the_terminal(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "persistent://shop/orders/\x1b[2J[red]x"
    row = JournalRow("r", "test", "", 7, "ML", bad, "delete-ledger", "delete", "refused", "\x07", 0, "", "{}", 1)
    FileJournal(load_settings(settings_file).lake.path).record([row])
    assert run("journal", "--ledger", "7") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b[2J[red]x" in out


# ------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h 0 min"), (180_000_000, "2 d 2 h")],
)
def test_spans(ms: int, expected: str) -> None:
    assert show.span(ms) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (1 << 50, "1.0 PB")])
def test_sizes(count: int, expected: str) -> None:
    assert show.size(count) == expected


# ------------------------------------------------------------------------------------------------------ accept-restore


def test_scans_are_set_aside_only_for_a_reason(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    store_scan(lake, 1_000)
    assert run("accept-restore", " ") == 2
    assert run("accept-restore", "a feeling") == 1
    assert "no scan of test found" in capsys.readouterr().err
    assert lake.epochs()
    assert run("accept-restore", "a feeling", "--anyway", "--by", "mary") == 0
    assert not lake.epochs()
    (row,) = journal_rows(FileJournal(lake.location), run_id="accept-restore").to_pylist()
    assert (row["component"], row["outcome"]) == ("accepted-restore", "in-force")
    assert (json.loads(row["detail"])["by"], json.loads(row["detail"])["why"]) == ("mary", "a feeling")


def test_status_shows_an_accepted_restore_until_two_scans_since_then_confirm_each_other(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    lake = FileLake(load_settings(settings_file).lake.path)
    lake.set_scans_aside("test", 1_000, "backup of 02:00", "mary")

    def shown() -> list[tuple[str, str, str]]:
        run("status", "--json")
        return [(w["kind"], w["by"], w["why"]) for w in json.loads(capsys.readouterr().out)["words"]]

    assert shown() == [("accepted-restore", "mary", "backup of 02:00")]
    for name, at in (("e1", 2_000), ("e2", 2_000 + 86_400_000)):
        assert shown()
        context = Context(at, 1, frozenset())
        lake.store_epoch(Epoch(name, "test", "f", at, at, (), 1, 1, ()), Referenced(), context)
    assert shown() == []


def test_status_lists_what_the_operator_said_and_what_is_withdrawn(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    before = [KnownWord(WordKind.LEGAL_HOLD, "acme", "mary", "case 12", "", 1_000)]
    FileLake(load_settings(settings_file).lake.path).store_words("test", before)
    gone = '{ name = "shop/gone", by = "mary", why = "removed", until = 2999-01-01 }'
    settings_file.write_text(f"{settings_file.read_text()}bookkeeper = {{ gone_namespaces = [{gone}] }}\n")
    run("status", "--json")
    words = json.loads(capsys.readouterr().out)["words"]
    assert [(w["subject"], w["how"], w["since"], w["until"]) for w in words] == [
        ("shop/gone", "in-force", None, "2999-01-01"),
        ("acme", "withdrawn", 1_000, ""),
    ]
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "gone-namespace shop/gone by mary, no run has met it yet, until 2999-01-01: removed" in out
    assert "WITHDRAWN" in out


def test_scans_are_set_aside_after_a_restore_that_one_of_them_found(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    context = Context(now=1_000, grace=1, namespaces=frozenset())
    found = Epoch("e1", "test", "f", 1_000, 1_000, (), 1, 1, (), broken="the metadata store went back in time")
    lake.store_epoch(found, Referenced(), context)
    assert run("accept-restore", "backup of 02:00") == 0
    assert "went back in time" in capsys.readouterr().out
    assert not lake.epochs()
