"""The report of a scan of fakes: one ledger of each reason, and sums that are the scan's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.storage_run import (
    REASONS_TABLE,
    build_storage_report,
    by_reason,
    reported,
    scanned,
    stored_report,
    totals,
)
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.builders import ROW
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import bucket_tags, compacted_tags, data_tags, deleted_copy, schema_tags

OWN = f"persistent://{NAMESPACE}/"
TOPIC = Topic.parse(f"{OWN}a")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def report(scene: RetentionScene) -> dict[tuple[str, str], int]:
    """How many ledgers by the last part of the topic's name and reason; the sums are those of the scan."""
    epoch = judged_scan.scan(scene.cluster, "run")
    rows, problems = build_storage_report(scene.cluster, epoch)
    assert not problems
    assert stored_report(scene.lake, epoch.epoch_id).equals(rows)
    assert reported(scene.lake, "test")[-1] == epoch
    assert totals(rows) == scanned(scene.cluster, epoch.epoch_id)
    assert totals(rows).ledgers == len(scene.servers.ledger_ids())
    return {((row["topic"] or "").rpartition("/")[2], row["reason"]): row["ledgers"] for row in rows.to_pylist()}


def reasons(scene: RetentionScene, ids: list[int]) -> list[str]:
    """What is said of some ledgers by a report of a new scan."""
    scene.servers.wait(0.01)
    report(scene)
    epoch = scene.lake.epochs()[-1].epoch_id
    said = {row["ledger_id"]: row["reason"] for row in scene.lake.read_epoch_table(epoch, REASONS_TABLE).to_pylist()}
    return [said[ledger] for ledger in ids]


def test_each_ledger_has_its_reason(scene: RetentionScene) -> None:
    servers = scene.servers
    scene.topic("old", 100)
    servers.wait(2)
    scene.topic("read", 100, 90, 0, 0)
    scene.topic("behind", 100, 90, 80, cursor=0)
    schema = servers.ledger(schema_tags(TOPIC.schema_id), entries=[servers.schema_entry()])
    servers.schema(TOPIC.schema_id, [schema])
    compacted = servers.ledger(compacted_tags(TOPIC))
    bucket = servers.ledger(bucket_tags(TOPIC, "s", 1, 2))
    copy, last = servers.ledger(data_tags(TOPIC)), servers.ledger(data_tags(TOPIC))
    servers.topic(TOPIC, [copy, last], offloaded={copy: deleted_copy()})
    servers.cursor(TOPIC, "s", buckets={(1, 2): bucket}, at=last)
    servers.cursor(TOPIC, "__compaction", compacted=compacted, at=last)
    servers.ledger(data_tags(TOPIC))
    servers.ledger(data_tags(TOPIC), state=LedgerState.OPEN)
    servers.ledger(None)
    servers.put(ledger_path.ledger_path(999), b"")
    servers.reader.payloads[999] = []
    servers.wait(0.5)
    assert report(scene) == {
        ("read", Reason.EXPIRED): 2,
        ("read", Reason.RETAINED): 2,
        ("behind", Reason.EXPIRED): 1,
        ("behind", Reason.BACKLOG): 2,
        ("behind", Reason.CURSOR): 1,
        ("old", Reason.LAST_LEDGER): 1,
        ("a", Reason.SCHEMA): 1,
        ("a", Reason.COMPACTED): 1,
        ("a", Reason.DELAYED_INDEX): 1,
        ("a", Reason.OFFLOAD_LEFTOVER): 1,
        ("a", Reason.BACKLOG): 1,
        ("a", Reason.ORPHAN): 1,
        ("a", Reason.UNREFERENCED): 1,
        ("", Reason.FOREIGN): 1,
        ("", Reason.UNJUDGED): 1,
    }


@pytest.mark.parametrize(
    ("minutes", "listed", "hours", "expected"),
    [
        (60, False, 2, Reason.EXPIRED_OPEN),
        (60, True, 2, Reason.LAST_LEDGER),
        (60, False, 0.5, Reason.LAST_LEDGER),
        (-1, False, 2, Reason.LAST_LEDGER),
        (0, False, 0.5, Reason.EXPIRED_OPEN),
    ],
)
def test_an_open_last_ledger_that_no_broker_has_is_expired_by_the_time_it_was_made(
    scene: RetentionScene, minutes: int, listed: bool, hours: float, expected: Reason
) -> None:
    scene.retention(minutes, -1)
    open_ = never_closed(scene)
    if listed:
        scene.servers.load(TOPIC)
    scene.servers.wait(hours)
    assert reasons(scene, [open_]) == [expected]
    rows = stored_report(scene.lake, scene.lake.epochs()[-1].epoch_id)
    assert by_reason(rows)[expected] == {"ledgers": 1, "ledgers_unsized": 1, "bytes": 0, "physical_bytes": 0}


def never_closed(scene: RetentionScene, *minutes_ago: int, cursor: int | None = None) -> int:
    """The last ledger of topic ``a``, open, after ledgers of these ages."""
    before = scene.topic("a", *minutes_ago, cursor=cursor)
    open_ = scene.servers.ledger(data_tags(TOPIC), state=LedgerState.OPEN)
    path = scene.servers.topic_path(TOPIC)
    known = (
        managed_ledger.decode(scene.servers.zookeeper.data(path)) if before else managed_ledger.ManagedLedgerInfo(())
    )
    last = managed_ledger.LedgerInfo(open_, 0, 0, 0, None)
    scene.servers.put(path, managed_ledger.encode(replace(known, ledgers=(*known.ledgers, last))))
    return open_


def test_an_open_last_ledger_behind_one_that_stays_is_only_the_last(scene: RetentionScene) -> None:
    open_ = never_closed(scene, 100, 90, cursor=0)
    scene.servers.wait(2)
    assert reasons(scene, [open_]) == [Reason.LAST_LEDGER]


def test_an_open_last_ledger_after_expired_ones_is_expired(scene: RetentionScene) -> None:
    open_ = never_closed(scene, 100, 90)
    scene.servers.wait(2)
    assert reasons(scene, [open_]) == [Reason.EXPIRED_OPEN]


def test_cursors_of_loaded_topics_are_asked_for_too(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80, cursor=1)
    scene.servers.load(TOPIC)
    scene.servers.wait(1)
    assert reasons(scene, ids) == [Reason.EXPIRED, Reason.EXPIRED, Reason.BACKLOG]


def test_what_the_deletion_queue_has_is_no_orphan_until_it_is_decided(scene: RetentionScene) -> None:
    servers = scene.servers
    sent, kept, dead, copy_alone, nothing = (servers.ledger(data_tags(TOPIC)) for _ in range(5))
    servers.wait(0.5)
    row = replace(ROW, cluster="test", action=Action.DELETE_LEDGER, phase=Phase.SEND, outcome=Outcome.SENT, at=1)
    servers.journal.record([replace(row, ledger_id=one) for one in (sent, kept, dead)])
    servers.journal.record([replace(row, ledger_id=copy_alone, action=Action.DELETE_OFFLOADED)])
    servers.journal.record([replace(row, ledger_id=nothing, cluster="another")])
    decided = replace(row, phase=Phase.DELETE, at=2)
    ends = {kept: Outcome.KEPT, dead: Outcome.DEAD_LETTERED}
    servers.journal.record([replace(decided, ledger_id=one, outcome=end) for one, end in ends.items()])
    orphan, pending = Reason.ORPHAN, Reason.PENDING_DELETION
    assert reasons(scene, [sent, kept, dead, copy_alone, nothing]) == [pending, orphan, orphan, orphan, orphan]
    retried = replace(decided, ledger_id=sent, outcome=Outcome.RETRYING, at=3)
    servers.journal.record([retried])
    assert reasons(scene, [sent]) == [pending]
    servers.journal.record([replace(retried, outcome=Outcome.KEPT, at=4)])
    assert reasons(scene, [sent]) == [orphan]


def test_a_shadow_topics_list_gives_way_to_its_sources(scene: RetentionScene) -> None:
    ids = scene.topic("source", 0, 0)
    scene.servers.topic(TOPIC, ids, shadow_of=f"{OWN}source")
    scene.servers.wait(0.5)
    assert report(scene) == {("source", Reason.RETAINED): 2}


def test_without_coverage_nothing_is_an_orphan(scene: RetentionScene) -> None:
    scene.servers.ledger(data_tags(TOPIC))
    scene.servers.topic(Topic.parse(f"{OWN}b"), [scene.servers.ledger(data_tags(Topic.parse(f"{OWN}b")))])
    scene.servers.put(f"/managed-ledgers/{NAMESPACE}/persistent/broken", b"\xff\xff")
    scene.servers.wait(0.5)
    found = report(scene)
    assert not scene.lake.epochs()[-1].covered
    assert found == {("a", Reason.UNJUDGED): 1, ("b", Reason.RETAINED): 1}


def test_policies_that_nobody_tells_leave_what_hangs_on_them_unjudged(scene: RetentionScene) -> None:
    ids = scene.topic("a", 100, 90, 80, cursor=1)
    scene.servers.wait(1)
    epoch = judged_scan.scan(scene.cluster, "run")

    def unanswered(operation: Operation) -> None:
        if any(path.startswith("/admin/policies") for path in operation.paths):
            raise Unavailable("the configuration store does not answer")

    scene.before = unanswered
    rows, problems = build_storage_report(scene.cluster, epoch)
    assert problems == ("the configuration store does not answer",)
    found = by_reason(rows)
    assert (found[Reason.UNJUDGED]["ledgers"], found[Reason.BACKLOG]["ledgers"]) == (2, len(ids) - 2)
    assert totals(rows) == scanned(scene.cluster, epoch.epoch_id)


def test_policies_that_cannot_be_decoded_leave_other_namespaces_judged(scene: RetentionScene) -> None:
    """Nor do they make any topic count as loaded."""
    ids = scene.topic("a", 100, 90, 80, cursor=1)
    scene.servers.put("/admin/policies/acme/strange", b"[]")
    strange = scene.topic("a", 100, 90, namespace="acme/strange")
    scene.servers.wait(1)
    epoch = judged_scan.scan(scene.cluster, "run")
    assert epoch.gaps == ()
    states = scene.lake.read_epoch_table(epoch.epoch_id, "topics").column("load_state").to_pylist()
    assert "loaded" not in states
    rows, problems = build_storage_report(scene.cluster, epoch)
    assert ["/admin/policies/acme/strange" in one for one in problems] == [True]
    own = by_reason(rows.filter(pc.equal(rows.column("namespace"), NAMESPACE)))
    assert Reason.UNJUDGED not in own
    assert sum(one["ledgers"] for one in own.values()) == len(ids) + 1  # that of its cursor
    other = by_reason(rows.filter(pc.equal(rows.column("namespace"), "acme/strange")))
    assert sum(one["ledgers"] for one in other.values()) == len(strange)
    assert not set(other) & {Reason.EXPIRED, Reason.RETAINED}
