"""What closing an epoch makes of references that could not be read, and judging a stored file as a task does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion.planning.orphan_findings import Judging, damaged_row, dangling_row
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.run_settings import OrphanSettings
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import epochs as scan_epochs
from pulsar_lifecycle.scan import read as scan_read
from pulsar_lifecycle.scan.coverage import ROOTS
from pulsar_lifecycle.scan.epochs import outside, unread_references, weighed_against
from pulsar_lifecycle.scan.shrinkage import Limits
from pulsar_lifecycle.settings import BookKeeperSettings, Settings
from pulsar_lifecycle.values.epoch import Census, Epoch
from pulsar_lifecycle.values.findings import Context, Finding
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.store_history import StoreCounters
from pulsar_lifecycle.values.tables import (
    BOOKKEEPER_LEDGERS,
    MANAGED_CURSORS,
    MANAGED_LEDGERS,
    REFERENCES,
    SCHEMAS,
    TOPICS,
    Problem,
)
from tests.kit.builders import A_GAP
from tests.kit.fakes.connections import connecting
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

DAY = 86_400_000


def test_what_got_lost_is_weighed_against_a_scan_that_a_restore_set_aside(tmp_path: Path) -> None:
    """A restore that lacks topics is accepted as any other: nobody but this comparison notices."""
    lake = FileLake(str(tmp_path / "lake"))
    epochs = [
        Epoch(name, "c", store, at, at + 1, (), 9, 9, (), gaps=gaps)
        for name, store, at, gaps in (
            ("e1", "fp", 50 * DAY, ()),
            ("e2", "fp", 50 * DAY + 1, (A_GAP,)),
            ("e3", "another", 50 * DAY + 2, ()),
            ("e4", "fp", 90 * DAY, ()),  # our clock was ahead
        )
    ]
    for one in epochs:
        lake.begin_epoch(one.epoch_id, one.started_at, "run")
        lake.store_epoch(one, Referenced(), Context(now=one.started_at, grace=1, namespaces=frozenset()))
    now = 53 * DAY
    lake.set_scans_aside("c", now, "restored")
    lake.prune(now)
    found = weighed_against(lake, Epoch("e5", "c", "fp", now + 1, now + 2, (), 9, 9, ()))
    assert found is not None
    assert found.epoch_id == "e1"


def unreadable(
    kind: str, owner: str, problem: Problem, error: str, held_in: int | None = None, entry_id: int = 0
) -> dict[str, Any]:
    at = {"held_in": held_in, "entry_id": entry_id} if held_in else {}
    return {"kind": kind, "owner": owner, "referrer": f"/{owner}", "problem": problem, "error": error} | at


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), REFERENCES)


def test_one_unread_reference_shows_among_thousands_that_are_gone() -> None:
    """Only so many gaps are kept; what is gone is no gap and must not crowd out what is."""
    gone = [unreadable("R3", f"t/n/persistent/{n}", Problem.GONE, f"/topic-{n}: no z-node") for n in range(3000)]
    unread = [unreadable("R5", "t/n/x", Problem.UNREAD, "/one: no answer")] * 2
    gaps, owners, _ = unread_references([batch(*gone, *unread)])
    assert gaps == [Gap(GapCode.REFERENCE_UNREAD, "/t/n/x", "reference not read: /one: no answer")]
    assert owners == {(row["kind"], row["owner"]) for row in gone}


def test_a_damaged_entry_keeps_an_owner_that_has_a_name_and_blocks_for_any_other() -> None:
    named = unreadable("R5", "t/n/x", Problem.DAMAGED, "no entry", 17)
    strange = unreadable("R5", "t/n/a b", Problem.DAMAGED, "no entry", 18)
    nameless = unreadable("R3", "x", Problem.DAMAGED, "no entry", 19, -1)
    gaps, owners, _ = unread_references([batch(named, strange, nameless)])
    (gap,) = gaps
    assert (gap.code, gap.where) == (GapCode.REFERENCE_UNREAD, "/x")
    assert 'no entry; if it is lost for good, put entry = "/x 19 -1" into orphans.ackn' in gap.text
    assert owners == {("R5", "t/n/x"), ("R5", "t/n/a b")}
    gaps, owners, _ = unread_references([batch(nameless)], ["/x 19 -1"])
    assert (gaps, owners) == ([], {("R3", "x")})


def test_what_no_bookie_answers_blocks_until_an_operator_says_that_it_is_lost() -> None:
    row = unreadable("R5", "t/n/x", Problem.UNREAD, "no bookie answers", 17)
    gaps, owners, _ = unread_references([batch(row)], ["/t/n/x 17 1"])
    assert (len(gaps), owners) == (1, set())
    assert unread_references([batch(row)], ["/t/n/x 17 0"]) == ([], {("R5", "t/n/x")}, ["/t/n/x 17 0"])


def test_a_damaged_entry_is_a_finding_that_names_its_z_node() -> None:
    row = damaged_row(unreadable("R5", "t/n/x", Problem.DAMAGED, "no entry", 17))
    assert (row["ledger_id"], row["finding"], row["path"]) == (17, Finding.DAMAGED, "/t/n/x")
    assert (row["topic"], row["namespace"]) == ("persistent://t/n/x", "t/n")


UNTOLD = (Problem.UNANSWERED, "GET internalStats: 500")


def test_a_topic_whose_broker_does_not_say_what_it_holds_is_kept_and_a_finding(tmp_path: Path) -> None:
    rows = [unreadable("R3", "t/n/persistent/x", *UNTOLD), unreadable("R5", "t/n/x", *UNTOLD)]
    gaps, owners, relied_on = unread_references([batch(*rows)])
    assert (gaps, owners, relied_on) == ([], {("R3", "t/n/persistent/x"), ("R5", "t/n/x")}, [])
    lake = FileLake(str(tmp_path / "lake"))
    (part,) = stored(lake, "references", REFERENCES, *rows, unreadable("R5", "t/n/x", Problem.DAMAGED, "no entry", 17))
    context = Context(now=9 * DAY, grace=7 * DAY, namespaces=frozenset())
    settings = Settings.model_construct(orphans=OrphanSettings())
    judging = Judging(settings, lake, Referenced(), context, BitMap64(), [], [], (part,), connecting())
    found = [row for some in judging.rows(part) for row in some.to_pylist()]
    assert [(row["ledger_id"], row["finding"]) for row in found] == [(17, Finding.DAMAGED), (None, Finding.UNANSWERED)]
    assert all(row["code"] == row["finding"] for row in found)
    assert (found[1]["topic"], found[1]["path"]) == ("persistent://t/n/x", "/t/n/persistent/x")
    assert "500" in found[1]["reason"]


def test_loaded_topics_with_a_compaction_are_asked_and_others_are_sampled(tmp_path: Path) -> None:
    lake = FileLake(str(tmp_path / "lake"))
    cursors = [{"managed_ledger": f"t/n/persistent/{n}", "cursor": "__compaction"} for n in ("a", "b", "rests")]
    stored(lake, "managed_cursors", MANAGED_CURSORS, *cursors, {"managed_ledger": "t/n/persistent/c", "cursor": "s"})
    topics = [("a", "one", "OPEN"), ("b", "two", "CLOSED"), ("c", "one", "OPEN"), ("d", None, "OPEN")]
    rows = [
        {"topic": f"persistent://t/n/{n}", "managed_ledger": f"t/n/persistent/{n}", "broker": b, "last_ledger_state": s}
        for n, b, s in topics
    ]
    stored(lake, "topics", TOPICS, *rows)
    cluster: Any = SimpleNamespace(lake=lake, parts=lake.parts)
    asked, others = scan_read._compacted_and_loaded(cluster, "e")
    assert asked == [("persistent://t/n/a", "one")]
    assert others == {"one": ["persistent://t/n/a", "persistent://t/n/c"]}


def ledger(number: int, component: str, **tags: Any) -> dict[str, Any]:
    """Old, closed, of Pulsar."""
    owned = {"ledger_id": number, "state": "CLOSED", "application": "pulsar", "component": component, "ctime": DAY}
    return owned | {"path": f"/ledgers/00/0000/L{number:04d}"} | tags


def compacted(number: int, topic: str) -> dict[str, Any]:
    return ledger(number, "compacted-ledger", compacted_topic=f"persistent://t/n/{topic}")


def snapshot(number: int, topic: str, cursor: str) -> dict[str, Any]:
    tags = {"bucket_topic": f"persistent://t/n/{topic}", "bucket_cursor": cursor}
    return ledger(number, "delayed-index-bucket", bucket_key="#pulsar.internal.delayed.bucket_3_5", **tags)


def stored(lake: FileLake, table: str, schema: pa.Schema, *rows: dict[str, Any]) -> list[str]:
    batches = pa.Table.from_pylist(list(rows), schema).to_batches()
    lake.publish("e", table, [lake.write_part("e", table, schema, batches)])
    return lake.parts("e", table)


def test_a_file_of_ledgers_is_judged_with_what_is_known_of_their_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    calm = Topic.parse("persistent://t/n/calm")
    cluster.topic(calm, [cluster.ledger(data_tags(calm), state=LedgerState.OPEN)])
    cluster.load(calm)
    cluster.admin.internals[calm] = TopicInternals("LedgerOpened", (), {}, {"s": {}, "x+y": {}}, None, ())
    connect = connecting(stores=lambda *_, **__: cluster.open_store(read_only=True), admin=lambda: cluster.admin)
    lake = FileLake(str(tmp_path / "lake"))
    loaded = {"load_state": "loaded", "broker": "b", "last_ledger_state": "OPEN", "broker_started": 10 * DAY}
    topics = stored(
        lake,
        "topics",
        TOPICS,
        {"topic": "persistent://t/n/busy", "compaction": "RUNNING", **loaded, "broker_started": DAY},
        {"topic": "persistent://t/n/calm", "compaction": "SUCCESS", **loaded},
        {
            "topic": "persistent://t/n/unread",
            "compaction": "SUCCESS",
            **loaded,
            "problem": Problem.UNREAD,
            "error": "no answer",
        },
    )
    two_of_one_name = [{"topic": "persistent://t/n/calm", "cursor": "s"}] * 2
    cursors = stored(lake, "managed_cursors", MANAGED_CURSORS, *two_of_one_name)
    (ledgers,) = stored(
        lake,
        "bookkeeper_ledgers",
        BOOKKEEPER_LEDGERS,
        ledger(1, "managed-ledger", managed_ledger="t/n/persistent/calm"),
        ledger(2, "managed-ledger", managed_ledger="t/n/persistent/calm"),
        compacted(3, "busy"),
        compacted(4, "calm"),
        compacted(5, "deleted"),
        snapshot(6, "calm", "s"),
        snapshot(7, "calm", "gone"),
        snapshot(9, "calm", "x y"),
        snapshot(10, "busy", "gone"),
        snapshot(11, "deleted", "s"),
        {"ledger_id": 8, "path": "/ledgers/00/0000/L0008", "problem": Problem.GONE, "error": "x"},
        {"path": "/ledgers/00/0001", "problem": Problem.UNREAD, "error": "no answer"},
    )
    roots = BookKeeperSettings.model_construct(ledgers_root="/ledgers")
    judging = Judging(
        Settings.model_construct(zookeeper=None, pulsar=None, bookkeeper=roots),
        lake,
        Referenced(needed=BitMap64([2])),
        Context(now=9 * DAY, grace=7 * DAY, namespaces=frozenset({"t/n"})),
        BitMap64(),
        topics,
        cursors,
        references=(),
        connect=connect,
    )
    rows = [row for batch in judging.rows(ledgers) for row in batch.to_pylist()]
    found = {row["ledger_id"]: row["finding"] for row in rows}
    assert len(rows) == len(found)
    orphan, kept = Finding.ORPHAN, Finding.KEPT
    judged = {1: orphan, 3: kept, 4: orphan, 5: orphan, 6: kept, 7: orphan, 9: kept, 10: kept, 11: orphan}
    assert found == judged
    assert cluster.admin.touched == [calm]


@pytest.mark.parametrize(
    ("kind", "owner", "topic", "namespace"),
    [
        ("R1", "t/n/persistent/a%2Bb", "persistent://t/n/a+b", "t/n"),
        ("R5", "t/n/a%2Bb", "persistent://t/n/a+b", "t/n"),
        ("R5", "t/c/n/x", "persistent://t/c/n/x", "t/c/n"),
        ("R5", "t/n/a b", "", ""),
    ],
)
def test_a_dangling_reference_names_its_z_node_and_its_topic_if_there_is_one(
    kind: str, owner: str, topic: str, namespace: str
) -> None:
    row = dangling_row({"ledger_id": 7, "kind": kind, "owner": owner, "referrer": "/z/node"})
    assert (row["topic"], row["namespace"], row["code"]) == (topic, namespace, Finding.DANGLING)
    assert "/z/node" in str(row["reason"])


def test_offloaded_topics_that_vanish_after_brokers_loaded_them_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that they listed is in BookKeeper: loading them exchanged their last ledgers, which were empty."""
    lake = FileLake(str(tmp_path / "lake"))

    def store(epoch_id: str, table: str, schema: pa.Schema, *rows: dict[str, Any]) -> None:
        part = lake.write_part(epoch_id, table, schema, [pa.RecordBatch.from_pylist(list(rows), schema)])
        lake.publish(epoch_id, table, [part])

    last = Epoch("e1", "c", "fp", DAY, DAY + 1, (), 9, 9, ())
    lake.store_epoch(last, Referenced(BitMap64([2]), BitMap64([1])), Context(now=DAY, grace=1, namespaces=frozenset()))
    topic = {"path": "/managed-ledgers/t/n/persistent/x", "ledgers": [{"ledger_id": 1}, {"ledger_id": 2}]}
    store("e1", "managed_ledgers", MANAGED_LEDGERS, topic)
    for table, schema in (("managed_cursors", MANAGED_CURSORS), ("schemas", SCHEMAS), ("references", REFERENCES)):
        store("e1", table, schema)
    ledger = {"ledger_id": 10, "component": "managed-ledger", "managed_ledger": "t/n/persistent/x", "czxid": 10}
    store("e2", "bookkeeper_ledgers", BOOKKEEPER_LEDGERS, ledger)

    class Store:
        def sync(self, path: str) -> None: ...
        def read(self, paths: list[str]) -> list[str]:
            return paths

    settings = SimpleNamespace(cluster="c", zookeeper=None, bookkeeper=BookKeeperSettings())
    journal = FileJournal(lake.location)
    connect = connecting(store=Store, lake=lambda: lake, journal_reader=lambda: journal)
    cluster = Cluster(cast("Any", settings), connect=connect)
    limits = Limits(0.2, 1_000, 1 << 40)
    (gap,) = scan_epochs._lost(cluster, "e2", last, Referenced(), limits)
    assert (gap.code, gap.where) == (GapCode.LOST_REFERENCES, "managed_ledgers")
    assert scan_epochs._lost(cluster, "e2", last, Referenced(BitMap64([10])), limits) == []


def test_closing_an_epoch_weighs_losses_looks_for_neighbours_keeps_owners_and_notes_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each of them does is tested elsewhere: here, that a scan does it."""
    cluster = SimulatedCluster()
    old, new = (Topic.parse(f"persistent://t/n/{name}") for name in ("old", "new"))
    data = cluster.ledger(data_tags(old))
    cluster.topic(new, [data])  # its z-node was moved here
    cluster.put("/two/managed-ledgers", b"")
    lake = FileLake(str(tmp_path / "lake"))
    settings = Settings.model_validate(
        {
            "cluster": "c",
            "zookeeper": {"hosts": "z:1"},
            "pulsar": {"admin_url": "http://b:1", "service_url": "pulsar://b:1"},
            "lake": {"path": str(tmp_path / "lake")},
            "bookkeeper": {"shared_with": []},
            "orphans": {"legal_holds": ["acme"]},
        }
    )
    where = Cluster(settings, connect=connecting(stores=lambda *_, **__: cluster.open_store(read_only=True)))

    def close(
        epoch_id: str, at: int, *lost: dict[str, Any], listed: bool, counters: StoreCounters | None = None
    ) -> Epoch:
        lake.begin_epoch(epoch_id, at, epoch_id, counters)

        def keep(table: str, schema: pa.Schema, *rows: dict[str, Any]) -> None:
            batches = pa.Table.from_pylist(list(rows), schema).to_batches()
            lake.publish(epoch_id, table, [lake.write_part(epoch_id, table, schema, batches)])

        there = ledger(data, "managed-ledger", managed_ledger=old.managed_ledger, length=9)
        refers = {"ledger_id": data, "kind": "R1", "owner": new.managed_ledger, "keeps_bookkeeper_copy": True}
        lists = {"ledger_id": data, "size": 9}
        keep("bookkeeper_ledgers", BOOKKEEPER_LEDGERS, there)
        keep("managed_ledgers", MANAGED_LEDGERS, *([{"path": "/new", "ledgers": [lists]}] if listed else []))
        keep("references", REFERENCES, *([refers] if listed else []), *lost)
        for table, schema in (("managed_cursors", MANAGED_CURSORS), ("schemas", SCHEMAS), ("topics", TOPICS)):
            keep(table, schema)
        census = [Census(table, "", 0, 0, 0, 0) for table in ("bookkeeper_ledgers", *ROOTS)]
        return scan_epochs.close_epoch(where, epoch_id, at, census, at + 1)

    first = close("e1", DAY, unreadable("R3", new.managed_ledger, Problem.DAMAGED, "no entry", 17), listed=True)
    assert [(gap.code, gap.where) for gap in first.gaps] == [(GapCode.OTHER_ROOT, "/two")]
    assert lake.context("e1").kept_topics == {str(old), str(new)}
    assert [word.subject for word in lake.words("c")] == ["acme"]
    cluster.remove("/two")
    second = close("e2", 2 * DAY, listed=True)
    assert second.gaps == ()
    third = close("e3", 3 * DAY, listed=False)
    assert [(gap.code, gap.where) for gap in third.gaps] == [(GapCode.LOST_REFERENCES, "managed_ledgers")]
    restored_amid = close("e4", 4 * DAY, listed=True, counters=StoreCounters(first.fingerprint, 1 << 60))
    assert ([gap.code for gap in restored_amid.gaps], restored_amid.broken) == ([GapCode.HISTORY_BROKEN], None)
    assert close("e5", 5 * DAY, listed=True, counters=StoreCounters(first.fingerprint, 0)).gaps == ()


@pytest.mark.parametrize(("ids", "left"), [([], [1, 2, 3]), ([2, 9], [1, 3]), ([1, 2, 3], [])])
def test_rows_of_other_ledgers_are_left(ids: list[int], left: list[int]) -> None:
    batch = pa.RecordBatch.from_pydict({"ledger_id": [1, 2, 3], "length": [10, 20, 30]})
    found = outside(batch, BitMap64(ids))
    assert found.to_pydict() == {"ledger_id": left, "length": [10 * i for i in left]}
