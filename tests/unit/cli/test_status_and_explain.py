"""What `status` and `explain` say, and `accept-restore`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import PROBE, FileJournal
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.known_words import KnownWord
from pulsar_lifecycle.values.outcomes import Action
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import REFERENCES
from pulsar_lifecycle.words import WordKind
from tests.kit.command import command_over, run
from tests.kit.scenes.stored_plan import store_scan
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

# ------------------------------------------------------------------------------------------------- plans and journal


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


def test_status_finds_a_lake_that_cannot_be_written(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    probe = Path(load_settings(settings_file).lake.path) / "journal" / PROBE
    run = command_over(stores=lambda *_, **__: cluster.open_store(), admin=lambda: cluster.admin)
    probe.parent.parent.mkdir(parents=True, exist_ok=True)
    assert run("status", "--json") == 0
    assert "error" not in json.loads(capsys.readouterr().out)["lake"]
    probe.unlink()
    probe.mkdir()  # whoever runs tests may be root, who may write everything
    assert run("status", "--json") == 1
    assert str(probe) in json.loads(capsys.readouterr().out)["lake"]["error"]
    assert run("status") == 1
    assert "UNWRITABLE" in capsys.readouterr().out


def test_status_makes_no_lake_where_the_path_is_mistyped(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, lake = SimulatedCluster(), Path(load_settings(settings_file).lake.path)
    settings_file.write_text(settings_file.read_text().replace(f'"{lake}"', f'"{lake}e"'))
    run = command_over(stores=lambda *_, **__: cluster.open_store(), admin=lambda: cluster.admin)
    assert run("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["lake"] == {"location": f"{lake}e", "exists": False}
    assert run("status") == 0
    assert "NOTHING IS THERE YET" in capsys.readouterr().out
    assert not Path(f"{lake}e").exists()


def test_status_says_why_every_run_would_refuse(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    store = cluster.open_store()
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    run("status", "--json")
    assert json.loads(capsys.readouterr().out)["refused"] == []
    run("status")
    out = capsys.readouterr().out
    assert "not paused" in out
    assert "none of leaked ledgers" in out
    at, fingerprint = cluster.clock.now_ms(), cluster_fingerprint(store, "/ledgers")
    epoch = Epoch("e1", "test", fingerprint, at, at, (), 1, 1, (), zxid=2**60)
    FileLake(load_settings(settings_file).lake.path).store_epoch(epoch, Referenced(), Context(at, 1, frozenset()))
    settings_file.write_text(settings_file.read_text() + "deletion = { topicTwoPhaseDeletionEnabled = false }\n")
    run("status", "--json")
    off, restored = json.loads(capsys.readouterr().out)["refused"]
    assert (off["code"], restored["code"]) == ("switched_off", "store_went_back")
    assert "e1" in restored["text"]
    run("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "REFUSED: two-phase deletion is switched off" in out
    assert "not paused" not in out


def test_status_shows_pending_unloads_that_can_be_read_or_not(
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


def store_two_scans(lake: FileLake, fingerprint: str, at: int) -> None:
    """Two covered scans that found nothing in use, at ``at`` (ms) and 30 hours later."""
    for name, began in (("e0", at), ("e1", at + 30 * 3_600_000)):
        context = Context(began, 1, frozenset({"shop/orders"}))
        lake.store_epoch(Epoch(name, "test", fingerprint, began, began, (), 10**9, 10**9, ()), Referenced(), context)
        lake.publish(name, "references", [lake.write_part(name, "references", REFERENCES, [])])


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
    lake = FileLake(load_settings(settings_file).lake.path)
    store_two_scans(lake, cluster_fingerprint(store, "/ledgers"), at)
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
    nothing = set[str]()
    for hours, sources in ((20, nothing), (30, {str(topic)} if shadowed else nothing), (48, nothing)):
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
    store_two_scans(lake, cluster_fingerprint(store, "/ledgers"), at)
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


# ------------------------------------------------------------------------------------------------------ accept-restore


def test_scans_are_set_aside_only_for_a_reason(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    monkeypatch.setattr("pulsar_lifecycle.scan.history_check.broken_since", lambda *_: None)
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    lake = FileLake(load_settings(settings_file).lake.path)
    store_scan(lake, 1_000)
    assert run("accept-restore", " ") == 2
    assert run("accept-restore", "a feeling") == 1
    assert "nothing says that the metadata store of test was restored" in capsys.readouterr().err
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


def test_scans_are_set_aside_after_a_restore_that_no_scan_has_seen_yet(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` says so at once, and names this command."""
    cluster = SimulatedCluster()
    lake = FileLake(load_settings(settings_file).lake.path)
    store_scan(lake, 1_000)
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    assert run("accept-restore", "backup of 02:00") == 0
    assert "this is another metadata store than at scan" in capsys.readouterr().out
    assert not lake.epochs()


def test_scans_are_set_aside_after_a_restore_that_one_of_them_found(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = FileLake(load_settings(settings_file).lake.path)
    context = Context(now=1_000, grace=1, namespaces=frozenset())
    found = Epoch(
        "e1",
        "test",
        "f",
        1_000,
        1_000,
        (),
        1,
        1,
        (),
        broken=Gap(GapCode.HISTORY_BROKEN, "", "the metadata store went back in time"),
    )
    lake.store_epoch(found, Referenced(), context)
    assert run("accept-restore", "backup of 02:00") == 0
    assert "went back in time" in capsys.readouterr().out
    assert not lake.epochs()


def test_status_names_no_plan_that_a_clock_dated_ahead_once_its_scan_is_set_aside(
    plan: PlanSummary, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, lake = SimulatedCluster(), FileLake(load_settings(settings_file).lake.path)
    run = command_over(stores=lambda *_, **__: cluster.open_store())
    fingerprint, rows = cluster_fingerprint(cluster.open_store(), "/ledgers"), lake.plan(plan.plan_id)[1]
    year = 366 * 86_400_000
    mine = replace(plan, fingerprint=fingerprint)
    lake.store_plan(replace(mine, plan_id="orphans-now"), rows)
    lake.store_plan(replace(mine, plan_id="orphans-ahead", epoch_id="gone", created_at=plan.created_at + year), rows)
    run("status", "--json")
    assert json.loads(capsys.readouterr().out)["plan"]["plan_id"] == "orphans-now"
