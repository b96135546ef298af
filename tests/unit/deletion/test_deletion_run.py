"""What a run refuses before it looks at anything but its evidence, and how a topic's namespace is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.metastore import reading
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs import plan_checks
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import BookKeeperSettings, ObjectStoreSettings, Settings
from pulsar_lifecycle.tiered import offload_run
from pulsar_lifecycle.tiered.buckets import bucket_runs
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.epoch import Census, Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.words import WordKind
from tests.kit.builders import A_GAP
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.refused import refused_by
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.offloaded import BUCKET
from tests.kit.simulated.pipeline import Policy, lake_of, settings_of, two_scans

HOUR = 3_600_000
EPOCH = Epoch("e1", "c", "fp", 100 * HOUR, 100 * HOUR + 1, (), 1, 1, ())


@pytest.mark.parametrize("now", [99 * HOUR, 124 * HOUR + 1])
def test_a_scan_from_the_future_or_of_long_ago_is_no_evidence(now: int) -> None:
    with refused_by(RefusalCode.SCAN_EXPIRED):
        evidence.refuse_old_evidence(EPOCH, now, 24 * HOUR)


def test_a_scan_dated_after_the_stores_own_time_is_no_evidence() -> None:
    evidence.refuse_scans_from_the_future(EPOCH, EPOCH.started_at)
    with refused_by(RefusalCode.CLOCKS_DIFFER):
        evidence.refuse_scans_from_the_future(EPOCH, EPOCH.started_at - 1000)


def test_a_scan_of_today_is_evidence() -> None:
    evidence.refuse_old_evidence(EPOCH, 124 * HOUR, 24 * HOUR)


@pytest.mark.parametrize(
    ("topic", "namespace"),
    [
        ("persistent://acme/orders/placed", "acme/orders"),
        ("persistent://acme/dc1/orders/placed", "acme/dc1/orders"),
        ("persistent://acme/dc1/orders/placed/by/phone", "acme/dc1/orders"),
    ],
)
def test_a_loaded_topic_is_sought_in_its_own_namespace(topic: str, namespace: str) -> None:
    assert reading._namespace_of("topic", topic) == namespace


def scanned(*hours: int) -> list[Epoch]:
    return [replace(EPOCH, epoch_id=f"e{hour}", started_at=hour * HOUR) for hour in hours]


def cluster_with(epochs: list[Epoch], shadowed: dict[str, str]) -> Any:
    """Scans that confirm after a day; ``shadowed``: the one source of a shadow topic that an epoch saw, by its id."""

    def context(epoch_id: str) -> Context:
        sources = frozenset({shadowed[epoch_id]} if epoch_id in shadowed else ())
        return Context(now=0, grace=0, namespaces=frozenset(), shadow_sources=sources)

    lake = SimpleNamespace(epochs=lambda fingerprint="": epochs, context=context)
    settings = SimpleNamespace(
        orphans=SimpleNamespace(confirm_after=86_400), bookkeeper=SimpleNamespace(shared_with=[])
    )
    return SimpleNamespace(lake=lake, settings=settings, clock=SystemClock())


def test_every_scan_between_two_is_asked_covered_or_not() -> None:
    epochs = scanned(60, 70, 80, 90, 100)
    epochs[2] = replace(epochs[2], gaps=(A_GAP,))
    assert [e.epoch_id for e in evidence.since(cluster_with(epochs, {}), epochs[1], epochs[4])] == ["e70", "e80", "e90"]


def test_a_shadow_topic_that_is_away_counts_for_as_long_as_a_confirmation_takes() -> None:
    epochs = scanned(60, 70, 80, 90, 100)
    seen = {"e60": "long ago", "e70": "a day ago", "e80": "since then", "e100": "now"}
    sources = evidence.context_of(cluster_with(epochs, seen), epochs[4]).shadow_sources
    assert sources == {"a day ago", "since then", "now"}
    assert evidence.context_of(cluster_with(scanned(100), seen), epochs[4]).shadow_sources == {"now"}


def test_a_mark_stands_until_a_scan_refutes_it_however_long_ago_or_a_restore_is_accepted() -> None:
    epochs = scanned(10, 60, 100)
    in_use = {"e10": BitMap64([1, 2, 3, 4]), "e60": BitMap64([2]), "e100": BitMap64([3])}
    cluster = cluster_with(epochs, {})
    cluster.settings.cluster = "c"
    cluster.lake.referenced = lambda epoch_id: Referenced(in_use[epoch_id])
    cluster.lake.set_aside_until = lambda name: {"c": 5 * HOUR}[name]
    marks = {(1, "x"): 20 * HOUR, (2, "y"): 20 * HOUR, (3, "z"): 61 * HOUR, (4, "w"): 5 * HOUR}
    assert deletion_run.valid_marks(cluster, epochs[-1], marks) == {(1, "x"): 20 * HOUR, (3, "z"): 61 * HOUR}
    assert deletion_run.valid_marks(cluster, epochs[-1], {}) == {}


MINIMAL = {
    "cluster": "c",
    "zookeeper": {"hosts": "zk:2181"},
    "pulsar": {"admin_url": "http://b:8080", "service_url": "pulsar://b:6650"},
}
ACKNOWLEDGED = {"acknowledged_znodes": [{"path": "/schemas/a", "by": "mary", "why": "truncated"}]}


def cluster_at(lake: Path, **orphans: Any) -> Any:
    settings = Settings.model_validate({**MINIMAL, "lake": {"path": str(lake)}, "orphans": orphans})
    return SimpleNamespace(
        settings=settings,
        lake=FileLake(str(lake)),
        clock=SystemClock(),
        journal=FileJournal(str(lake)),
    )


def test_a_run_journals_the_words_it_acts_under_and_those_that_were_withdrawn(tmp_path: Path) -> None:
    def journalled(run_id: str, **orphans: Any) -> list[tuple[str, str, str]]:
        operator_words.note_words(cluster_at(tmp_path, **orphans), run_id)
        rows = journal_rows(FileJournal(str(tmp_path)), run_id=run_id).to_pylist()
        return [(row["component"], row["outcome"], json.loads(row["detail"])["subject"]) for row in rows]

    words = {"legal_holds": ["acme"], **ACKNOWLEDGED}
    hold, znode = ("legal-hold", "in-force", "acme"), ("acknowledged-znode", "in-force", "/schemas/a")
    assert journalled("r1", **words) == [hold, znode]
    assert journalled("r2", **words) == []
    assert journalled("r3", **ACKNOWLEDGED) == [("legal-hold", "withdrawn", "acme")]
    assert journalled("r4", **words) == [hold]


def test_a_scan_that_an_acknowledgement_covered_proves_nothing_once_that_is_withdrawn(tmp_path: Path) -> None:
    census = Census("schemas", "", 1, 0, 0, 0, corrupt=("/schemas/a",))
    epoch = replace(EPOCH, shared_with=(), census=(census,), acknowledged=("/schemas/a", "/schemas/gone since"))
    lake = FileLake(str(tmp_path))
    lake.store_epoch(epoch, Referenced(), Context(now=0, grace=0, namespaces=frozenset()))

    def newest(**orphans: Any) -> Epoch:
        cluster = cluster_at(tmp_path, **orphans)
        cluster.settings = cluster.settings.model_copy(update={"bookkeeper": BookKeeperSettings(shared_with=())})
        return evidence.newest_epoch(cluster, "fp")

    assert newest(**ACKNOWLEDGED).epoch_id == "e1"
    with refused_by(RefusalCode.WORD_WITHDRAWN, "/schemas/a"):
        newest()
    expired = {"acknowledged_znodes": [{**ACKNOWLEDGED["acknowledged_znodes"][0], "until": date(2020, 1, 1)}]}
    with refused_by(RefusalCode.WORD_WITHDRAWN):
        newest(**expired)


def test_a_plan_of_such_a_scan_is_refused() -> None:
    epoch = replace(EPOCH, relied_on=((WordKind.NOT_SHARING, "/west"),))
    summary = SimpleNamespace(plan_id="orphans-e1", epoch_id="e1")

    def check(*in_force: tuple[WordKind, str]) -> None:
        plan_checks.check_scan(cast("PlanSummary", summary), lambda _: epoch, epoch.started_at, 1, in_force)

    check((WordKind.NOT_SHARING, "/west"))
    with refused_by(RefusalCode.WORD_WITHDRAWN, "/west"):
        check((WordKind.GONE_NAMESPACE, "/west"))


def test_so_does_one_that_an_acknowledged_entry_or_a_root_that_does_not_share_covered(tmp_path: Path) -> None:
    entry, root = (WordKind.ACKNOWLEDGED_ENTRY, "/x 19 -1"), (WordKind.NOT_SHARING, "/west")
    lake = FileLake(str(tmp_path))
    relying = replace(EPOCH, shared_with=(), relied_on=(entry, root))
    lake.store_epoch(relying, Referenced(), Context(now=0, grace=0, namespaces=frozenset()))
    assert lake.epoch("e1") == relying

    def newest(not_sharing: Sequence[Any], **orphans: Any) -> Epoch:
        cluster = cluster_at(tmp_path, **orphans)
        sharing = BookKeeperSettings(shared_with=(), not_sharing=tuple(not_sharing))
        cluster.settings = cluster.settings.model_copy(update={"bookkeeper": sharing})
        return evidence.newest_epoch(cluster, "fp")

    said = [{"path": "/west", "by": "mary", "why": "own bookies"}]
    lost = [{"entry": "/x 19 -1", "by": "mary", "why": "lost disk"}]
    assert newest(said, acknowledged_entries=lost).epoch_id == "e1"
    with refused_by(RefusalCode.WORD_WITHDRAWN, "/west"):
        newest([], acknowledged_entries=lost)
    with refused_by(RefusalCode.WORD_WITHDRAWN, "/x 19 -1"):
        newest(said)


class Noted(Exception):
    """The first row of a run's journal, by its component."""


class EndingJournal(FakeJournal):
    """Ends a run when it journals its first row."""

    def record(self, rows: Sequence[JournalRow]) -> str:
        raise Noted(rows[0].component)


class Effects:
    """A cluster with an orphan that is planned, and a journal that ends a run at its first row."""

    def __init__(self) -> None:
        servers = SimulatedCluster()
        servers.topic(TOPIC, [servers.ledger(data_tags(TOPIC)) for _ in range(2)])
        servers.ledger(data_tags(TOPIC))
        buckets = FakeBuckets(servers.clock)
        buckets.create(BUCKET)
        servers.objects = FakeObjectStore(buckets)  # type: ignore[attr-defined]
        policy = Policy(holds=frozenset({"acme/other"}))
        now, before = two_scans(servers, policy)
        stored = ObjectStoreSettings(endpoint="http://simulated", buckets=(BUCKET,), exclusive=True)
        settings = settings_of(policy).model_copy(update={"object_store": stored})
        cluster = where_of(servers, settings, lake_of(before, now))
        self.plan, _ = deletion_run.make_plan(cluster, now.epoch)
        self.objects, _ = bucket_runs.take_inventory(cluster, now.epoch)
        self.servers = servers
        self.cluster = where_of(servers, settings, cast("Any", cluster.lake), journal=EndingJournal())

    def order(self, plan: PlanSummary) -> Order:
        return Order(plan.plan_id, plan.digest)


@pytest.mark.parametrize(
    "begin",
    [
        lambda s: deletion_run.apply_plan(s.cluster, "r", s.order(s.plan), print),
        lambda s: deletion_run.delete_pending(s.cluster, "r"),
        lambda s: bucket_runs.sweep(s.cluster, "r", s.order(s.objects), print),
        lambda s: offload_run.revert_offloads(s.cluster, "r", TOPIC, [1], dry_run=False),
        lambda s: trim_run.trim(s.cluster, "r", [TrimOrder(TOPIC, up_to=1)], dry_run=False),
    ],
    ids=["apply", "delete", "sweep", "offload", "first phase"],
)
def test_every_effect_notes_the_operators_words_before_it_acts(begin: Callable[[Effects], object]) -> None:
    scene = Effects()
    topic, ledgers = scene.servers.topic_path(TOPIC), scene.servers.ledger_ids()
    before = scene.servers.zookeeper.stat(topic)
    with pytest.raises(Noted, match="legal-hold"):
        begin(scene)
    assert (scene.servers.zookeeper.stat(topic), scene.servers.ledger_ids()) == (before, ledgers)
    assert not scene.servers.deletion_topics.waiting
