"""``queue status`` without a cluster: what it finds and shows, its exit codes, and that it touches nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.deletion_queue import queue_state
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.retry_letter import DELAY_TIME, WAITING_FOR, WAITING_SINCE
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Page, Received
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.builders import DELETED_ROW as ROW
from tests.kit.command import command_over
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.settings import write_settings

NOW = 1_700_000_000_000


class Reader:
    """What waits in front of each partition, as delays in ms since ``NOW``, and dead letters; it fails when told so."""

    def __init__(self, admin: FakeBrokerAdmin) -> None:
        self.admin = admin
        self.delays: dict[str, list[int]] = {}
        self.waits: dict[str, list[tuple[str, int]]] = {}
        self.dead: list[Received] = []
        self.mute = False
        self.end, self.published = True, NOW

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        if self.mute:
            raise Unavailable("the binary port does not answer")
        if part == DLQ_TOPIC:
            return Page(tuple(self.dead[:limit]), Position(1, 1), self.end)
        messages = [
            Received(b"", str(part), b"", {DELAY_TIME: str(d)} if d else {}, self.published, None, "")
            for d in self.delays.get(str(part), [])
        ]
        messages += [
            Received(b"", str(part), b"", {WAITING_FOR: waiting, WAITING_SINCE: str(since)}, NOW, None, "")
            for waiting, since in self.waits.get(str(part), [])
        ]
        return Page(tuple(messages), Position(1, 1), self.end)

    def partitions(self, topic: Topic) -> list[Topic]:
        return topics_of(self.admin, topic)

    def backlog(self, part: Topic) -> int:
        return self.admin.backlog(part, SUBSCRIPTION)

    def bury(self, ledger_id: int | None) -> None:
        """One more dead letter; without a ledger one that cannot be parsed."""
        info = None
        if ledger_id is not None:
            info = PendingDeleteLedgerInfo(
                topic_name="persistent://acme/orders/placed",
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_id=ledger_id,
            )
        self.dead.append(Received(b"", str(DLQ_TOPIC), b"", {}, ROW.at, info, "" if info else "no JSON"))
        fill(self.admin, DLQ_TOPIC, len(self.dead))

    def close(self) -> None:
        pass


@pytest.fixture
def admin() -> FakeBrokerAdmin:
    fake = FakeBrokerAdmin()
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        fake.create_partitioned_topic(topic, 2)
    fake.create_topic(DLQ_TOPIC)
    for topic in list(fake.topics):
        fake.create_subscription(topic, SUBSCRIPTION)
    fake.touched.clear()
    return fake


@pytest.fixture
def reader(admin: FakeBrokerAdmin) -> Reader:
    return Reader(admin)


@pytest.fixture
def zookeeper() -> FakeZooKeeper:
    return FakeZooKeeper(FakeClock())


Run = Callable[..., int]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admin: FakeBrokerAdmin, reader: Reader, zookeeper: FakeZooKeeper
) -> Run:
    """The command over a settings file and a cluster that answers for it, a second later."""
    write_settings(tmp_path, monkeypatch, cluster=ROW.cluster)
    clock = FakeClock()
    clock.advance((NOW + 1_000 - clock.now_ms()) / 1000)
    return command_over(
        stores=lambda *_, **__: zookeeper.session(read_only=True),
        admin=lambda: admin,
        queue_reader=lambda: reader,
        clock=lambda: clock,
    )


def part(topic: Topic, number: int) -> Topic:
    return Topic(topic.namespace, f"{topic.local}-partition-{number}")


def fill(admin: FakeBrokerAdmin, topic: Topic, count: int) -> None:
    admin.topics[topic][SUBSCRIPTION].backlog = count


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_an_empty_queue_is_fine_and_only_its_topics_are_touched(
    run: Run, admin: FakeBrokerAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queue", "status") == 0
    out = capsys.readouterr().out
    assert "nothing needs you" in out
    assert "__ledger_deletion-RETRY-partition-1" in out
    assert {str(topic.namespace) for topic in admin.touched} == {"pulsar/system"}


def test_a_cluster_without_the_topics_is_fine(
    run: Run, admin: FakeBrokerAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.topics.clear()
    admin.partition_counts.clear()
    assert run("queue", "status") == 0
    assert "none yet" in capsys.readouterr().out


def test_what_waits_and_what_is_due(
    run: Run, admin: FakeBrokerAdmin, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    first, retry = part(DELETION_TOPIC, 0), part(RETRY_TOPIC, 1)
    fill(admin, first, 3)
    fill(admin, retry, 1)
    reader.delays = {str(first): [0, 1_000, 600_000], str(retry): [600_000]}
    assert run("queue", "status", "--json") == 0
    queue = document(capsys)["queue"]
    assert queue["in_flight"] == 4
    found = {p["topic"]: (p["backlog"], p["due"], p["later"]) for p in [*queue["main"], *queue["retry"]]}
    assert found[str(first)] == (3, 2, 1)
    assert found[str(retry)] == (1, 0, 1)
    assert found[str(part(DELETION_TOPIC, 1))] == (0, 0, 0)
    assert run("queue", "status") == 0
    assert "4 intents, 2 due, 2 not yet" in capsys.readouterr().out


def test_where_what_is_due_cannot_be_seen_the_rest_is_told_and_it_needs_an_operator(
    run: Run, admin: FakeBrokerAdmin, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(admin, part(DELETION_TOPIC, 0), 3)
    reader.mute = True
    assert run("queue", "status") == 1
    out = capsys.readouterr().out
    assert "! which intents are due could not be seen: the binary port does not answer" in out
    assert "3 intents, due: not known" in out


@pytest.mark.parametrize("finding", ["dead letters", "subscription", "paused", "retries", "off", "restored"])
def test_what_needs_an_operator_ends_with_1_and_says_what_to_do(
    finding: str,
    run: Run,
    admin: FakeBrokerAdmin,
    zookeeper: FakeZooKeeper,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if finding == "dead letters":
        fill(admin, DLQ_TOPIC, 2)
    elif finding == "subscription":
        del admin.topics[part(RETRY_TOPIC, 1)][SUBSCRIPTION]
    elif finding == "paused":
        control.pause(zookeeper.session(), "bookie-3 is being replaced")
    elif finding == "retries":
        FileJournal(str(tmp_path / "lake")).record(
            [replace(ROW, outcome="retrying", code=Code.UNREAD, reason="its bookie is away")]
        )
    elif finding == "restored":
        store = zookeeper.session()
        for root in ("/ledgers", "/managed-ledgers"):
            store.create(root, b"", parents=True)
        epoch = Epoch("e1", ROW.cluster, cluster_fingerprint(store, "/ledgers"), NOW, NOW, (), 1, 1, (), zxid=2**60)
        FileLake(str(tmp_path / "lake")).store_epoch(epoch, Referenced(), Context(NOW, 1, frozenset()))
    else:
        settings = tmp_path / "lifecycle.toml"
        settings.write_text(settings.read_text() + "\n[deletion]\ntopicTwoPhaseDeletionEnabled = false\n")
        fill(admin, part(DELETION_TOPIC, 0), 1)
    assert run("queue", "status") == 1
    said = {
        "dead letters": "2 dead letters, which cannot be looked at now: the broker shows none of them",
        "subscription": "no subscription on persistent://pulsar/system/__ledger_deletion-RETRY-partition-1",
        "paused": "bookie-3 is being replaced",
        "retries": "1 of them with unread, the first: its bookie is away; mend that",
        "off": "topicTwoPhaseDeletionEnabled is false while intents are in flight",
        "restored": "every run is refused: ",
    }
    out = capsys.readouterr().out
    assert said[finding] in out
    assert "nothing needs you" not in out


def test_dead_letters_are_named_by_code_with_a_command_that_works(
    run: Run, reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    denied, changed = Code.OBJECTS_UNREAD, Code.CHANGED_MEANWHILE
    codes = dict(enumerate([changed, denied, denied, denied, changed, Code.UNREAD, Code.STILL_THERE], 1))
    FileJournal(str(tmp_path / "lake")).record(
        [replace(ROW, ledger_id=i, outcome=Outcome.DEAD_LETTERED, code=c, reason=f"text {i}") for i, c in codes.items()]
    )
    for ledger_id in codes:
        reader.bury(ledger_id)
    reader.bury(None)
    assert run("queue", "status", "--json") == 1
    finding = document(capsys)["findings"][0]
    assert finding == (
        "8 dead letters: 3 with objects_unread: text 2 (`pulsar-lifecycle journal --ledger 2`); "
        "2 with changed_meanwhile: text 1 (`pulsar-lifecycle journal --ledger 1`); "
        "1 with unread: text 6 (`pulsar-lifecycle journal --ledger 6`); 2 with 2 other codes; "
        "mend that, then run the job redrive_dead_letters; "
        "1 cannot be parsed and stay: look at who produces into pulsar/system"
    )
    assert run("journal", "--ledger", "2") == 0
    assert "text 2" in capsys.readouterr().out


def test_letters_that_cannot_be_parsed_are_not_to_be_sent_again(
    run: Run, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.bury(None)
    assert run("queue", "status", "--json") == 1
    (finding,) = document(capsys)["findings"]
    assert finding.endswith("; 1 cannot be parsed and stay: look at who produces into pulsar/system")
    assert "redrive_dead_letters" not in finding


def test_dead_letters_that_cannot_be_looked_at_say_so(
    run: Run, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.bury(None)
    reader.mute = True
    assert run("queue", "status", "--json") == 1
    (finding,) = document(capsys)["findings"]
    assert finding == "1 dead letter, which cannot be looked at now: the binary port does not answer"


@pytest.mark.parametrize("code", [Code.STILL_IN_USE, Code.NOT_KNOWN_YET])
def test_retries_grow_by_what_failed_and_not_by_what_is_held_or_not_known_yet(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: Code
) -> None:
    journal = FileJournal(str(tmp_path / "lake"))
    held = replace(ROW, outcome="retrying", code=code)
    failed = replace(held, code=Code.UNREAD, reason="its owner could not be asked: timeout")
    journal.record([held, replace(held, ledger_id=ROW.ledger_id + 1)])
    assert run("queue", "status") == 0
    capsys.readouterr()
    journal.record([replace(failed, run_id="later", at=ROW.at + 1)])  # fewer are retried, and more have failed
    assert run("queue", "status", "--json") == 1
    (finding,) = document(capsys)["findings"]
    assert "failed 1 times, more often than the one before it, 1 of them with unread, the first: its owner" in finding
    assert "`pulsar-lifecycle journal --run later`" in finding
    journal.record([replace(failed, run_id="last", at=ROW.at + 2)])
    assert run("queue", "status") == 0


def test_what_waits_is_shown_by_what_it_waits_for_and_is_a_finding(
    run: Run, admin: FakeBrokerAdmin, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    first = part(RETRY_TOPIC, 0)
    fill(admin, first, 3)
    reader.waits = {str(first): [("no-scan", NOW), ("no-object-store", NOW - 7_200_000), ("forged", NOW)]}
    assert run("queue", "status", "--json") == 1
    found = document(capsys)
    assert found["queue"]["waits"] == [
        {"waiting": "no-object-store", "messages": 1, "since": NOW - 7_200_000},
        {"waiting": "no-scan", "messages": 1, "since": NOW},
        {"waiting": "other", "messages": 1, "since": NOW},
    ]
    assert found["findings"][0] == "1 intent, the oldest for 2 h 0 min, waiting for object_store: it is not set"
    assert "what its journal row says" in found["findings"][1]
    run("queue", "status")
    assert "no-object-store" in capsys.readouterr().out


def test_what_waits_for_a_scan_or_a_run_is_a_finding_after_a_day(
    run: Run, tmp_path: Path, admin: FakeBrokerAdmin, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    first = part(RETRY_TOPIC, 0)
    fill(admin, first, 1)
    reader.waits = {str(first): [("no-scan", NOW - 3_600_000)]}
    assert run("queue", "status") == 0
    capsys.readouterr()
    reader.waits = {str(first): [("no-scan", NOW - 2 * 86_400_000)]}
    assert run("queue", "status", "--json") == 1
    assert "run job scan" in document(capsys)["findings"][0]
    reader.waits, reader.delays, reader.published = {}, {str(first): [600_000]}, NOW - 86_400_000
    assert run("queue", "status", "--json") == 0
    capsys.readouterr()
    reader.published -= 600_001
    assert run("queue", "status", "--json") == 1
    assert "run job delete_pending" in document(capsys)["findings"][0]
    with (tmp_path / "lifecycle.toml").open("a") as file:
        file.write('automation.delete_pending.window = { cron = "0 0 30 2 *", duration = "1h" }\n')
    assert run("queue", "status") == 0
    assert "what is due waits for the window of automation.delete_pending" in capsys.readouterr().out


def test_metrics_last_run_and_textfile(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FileJournal(str(tmp_path / "lake")).record([ROW, replace(ROW, run_id="other", cluster="another")])
    textfile = tmp_path / "x.prom"
    assert run("queue", "status", "--json", "--textfile", str(textfile)) == 0
    shown = document(capsys)
    assert shown["metrics"]["ledgers_deleted"] == 1
    assert shown["last_run"]["outcomes"] == {"deleted": 1}
    assert shown["run_before"] is None
    assert f'pulsar_lifecycle_ledgers_deleted_total{{cluster="{ROW.cluster}"}} 1.0' in textfile.read_text()


def test_a_long_partition_is_seen_in_part(admin: FakeBrokerAdmin, reader: Reader) -> None:
    first = part(DELETION_TOPIC, 0)
    fill(admin, first, 5_000)
    reader.delays = {str(first): [0] * queue_state.LOOKED_AT}
    reader.end = False
    state = queue_state.look(admin, reader, NOW)  # type: ignore[arg-type]
    (seen, _) = state.main
    assert (seen.backlog, seen.due, seen.later, seen.all_seen) == (5_000, queue_state.LOOKED_AT, 0, False)


def test_wrong_usage_ends_with_2(run: Run) -> None:
    assert run("queue", "status", "--no-such-option") == 2


@pytest.mark.parametrize("held", [None, control.LEASE, control.OFFLOAD_LEASE])
@pytest.mark.parametrize("lease", [control.LEASE, control.OFFLOAD_LEASE])
def test_a_pending_unload_is_shown_and_a_finding_unless_its_own_run_is_at_work(
    run: Run, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str], lease: str, held: str | None
) -> None:
    store = zookeeper.session()
    topic = Topic.parse("persistent://acme/orders/placed")
    control.note_unload(store, control.PendingUnload(topic, True, NOW, lease))
    if held:
        control.take_lease(store, "run", FakeClock(), 0, held)
    at_work = held == lease
    assert run("queue", "status", "--json") == (0 if at_work else 1)
    found = document(capsys)
    (left_pending,) = found["pending_unloads"]
    assert (left_pending["topic"], left_pending["loaded"], left_pending["since"], left_pending["lease"]) == (
        str(topic),
        True,
        NOW,
        lease,
    )
    said = "its run is at work" if at_work else "the next run that trims, loads, offloads or deletes"
    assert [said in finding for finding in found["findings"]] == ([] if at_work else [True])
    run("queue", "status")
    assert f"must be unloaded: {said}" in capsys.readouterr().out


def test_a_holder_that_is_no_sessions_is_no_run_at_work(
    run: Run, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.session()
    topic = Topic.parse("persistent://acme/orders/placed")
    control.note_unload(store, control.PendingUnload(topic, True, NOW, control.OFFLOAD_LEASE))
    store.create(control.holder_of(control.OFFLOAD_LEASE), b"restored", parents=True)
    assert run("queue", "status", "--json") == 1
    assert not document(capsys)["pending_unloads"][0]["at_work"]


def test_a_pause_and_a_holder_that_cannot_be_read_have_no_age(
    run: Run, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.session()
    control.pause(store, "why")
    control.take_lease(store, "run", FakeClock(), 0)
    zookeeper.unreadable |= {control.PAUSE, control.holder_of(control.LEASE)}
    assert run("queue", "status", "--json") == 1
    found = document(capsys)
    assert (found["paused"]["since"], found["lease"]["since"]) == (None, None)
    assert run("queue", "status") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"PAUSED (unreadable: {control.PAUSE}: no permission" in out
    assert f"acting (unreadable: {control.holder_of(control.LEASE)}: no permission" in out
    assert "ago" not in out


@pytest.mark.parametrize("name", ["/garbage", ""])
def test_a_pending_unload_that_cannot_be_read_needs_an_operator(
    run: Run, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    store = zookeeper.session()
    store.create(f"{control.PENDING_UNLOADS[control.LEASE]}/garbage", b"{}", parents=True)
    control.take_lease(store, "run", FakeClock(), 0)
    zookeeper.unreadable.add(f"{control.PENDING_UNLOADS[control.LEASE]}{name}")
    assert run("queue", "status", "--json") == 1
    assert f"{control.PENDING_UNLOADS[control.LEASE]}{name}" in document(capsys)["findings"][0]


def test_a_location_that_is_held_is_shown_and_a_finding(
    run: Run, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store, where = zookeeper.session(), ("aws-s3", "tiered", "", "http://s3")
    unread_locations.hold(store, where, "run-1", "500: no such bucket")
    assert run("queue", "status", "--json") == 1
    found = document(capsys)
    named = {"driver": "aws-s3", "bucket": "tiered", "region": "", "endpoint": "http://s3"}
    since = zookeeper.session().read([unread_locations.path_of(where)])[0].stat.mtime  # type: ignore[union-attr]
    path = unread_locations.path_of(where)
    assert found["unread_locations"] == [
        {**named, "path": path, "run_id": "run-1", "said": "500: no such bucket", "since": since}
    ]
    (finding,) = found["findings"]
    assert "aws-s3 bucket tiered, endpoint http://s3: a broker could not read there since" in finding
    assert all(said in finding for said in ("500: no such bucket", "revert_offloads")), finding
    zookeeper.unreadable.add(path)
    assert run("queue", "status") == 1
    assert f"UNREADABLE: {path} cannot be read" in " ".join(capsys.readouterr().out.split())
    zookeeper.unreadable.clear()
    unread_locations.let_go(store, where, unread_locations.look(store, where))
    assert run("queue", "status", "--json") == 0
    assert document(capsys)["unread_locations"] == []
